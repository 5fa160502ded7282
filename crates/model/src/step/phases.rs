//! Time and work of the phases of a step.

use std::time::Instant;

use kernels::Ops;
use kernels::ops::Counters;

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From tokens to the last block's output.
    Forward,
    /// Final norm, logits, losses, and back.
    Head,
    /// Forwards of blocks that run again.
    Recompute,
    Backward,
}

impl Phase {
    pub const ALL: [Phase; 4] = [Phase::Forward, Phase::Head, Phase::Recompute, Phase::Backward];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Head => "head",
            Phase::Recompute => "recompute",
            Phase::Backward => "backward",
        }
    }
}

/// What one phase took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseCost {
    pub seconds: f64,
    /// Multiply-adds; the scratch is that of the whole step so far.
    pub work: Counters,
}

/// What each phase of a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepPhases([PhaseCost; 4]);

impl StepPhases {
    pub fn of(&self, phase: Phase) -> PhaseCost {
        self.0[phase as usize]
    }
    /// Seconds of all phases together.
    pub fn seconds(&self) -> f64 {
        self.0.iter().map(|cost| cost.seconds).sum()
    }
    /// Adds the time and the work of another step.
    pub fn add(&mut self, other: &StepPhases) {
        for (cost, other) in self.0.iter_mut().zip(&other.0) {
            cost.seconds += other.seconds;
            cost.work.frozen_macs += other.work.frozen_macs;
            cost.work.adapter_macs += other.work.adapter_macs;
            cost.work.attention_macs += other.work.attention_macs;
            cost.work.scratch_bytes = cost.work.scratch_bytes.max(other.work.scratch_bytes);
        }
    }
    /// Multiply-adds of all phases together.
    pub fn macs(&self) -> Counters {
        let sum = |of: fn(&Counters) -> u64| self.0.iter().map(|cost| of(&cost.work)).sum();
        Counters {
            frozen_macs: sum(|work| work.frozen_macs),
            adapter_macs: sum(|work| work.adapter_macs),
            attention_macs: sum(|work| work.attention_macs),
            scratch_bytes: self.0.iter().map(|cost| cost.work.scratch_bytes).max().unwrap_or(0),
        }
    }
}

/// Books what happens between two calls of [`Meter::lap`].
pub(crate) struct Meter {
    pub(crate) phases: StepPhases,
    since: Instant,
    before: Counters,
}

impl Meter {
    pub(crate) fn start(ops: &Ops) -> Self {
        Self { phases: StepPhases::default(), since: Instant::now(), before: ops.counters() }
    }
    pub(crate) fn lap(&mut self, phase: Phase, ops: &Ops) {
        let (now, counters) = (Instant::now(), ops.counters());
        let cost = &mut self.phases.0[phase as usize];
        cost.seconds += (now - self.since).as_secs_f64();
        cost.work.frozen_macs += counters.frozen_macs - self.before.frozen_macs;
        cost.work.adapter_macs += counters.adapter_macs - self.before.adapter_macs;
        cost.work.attention_macs += counters.attention_macs - self.before.attention_macs;
        cost.work.scratch_bytes = counters.scratch_bytes;
        (self.since, self.before) = (now, counters);
    }
}
