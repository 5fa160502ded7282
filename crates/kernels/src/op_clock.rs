//! Where the time of a sequence of ops goes, by kind of op.

use std::time::Instant;

use crate::ops::Work;

/// Seconds by the wall's clock that ops of each kind took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpSeconds {
    /// Products with frozen weights, the quantization of their activations included.
    pub frozen: f64,
    /// Output head with cross-entropy: its products and its softmax.
    pub head: f64,
    pub adapter: f64,
    pub attention: f64,
    /// Norms, rotations, gates, sums, copies, the optimizer, and what the host does between ops.
    pub others: f64,
}

impl OpSeconds {
    pub fn sum(&self) -> f64 {
        self.frozen + self.head + self.adapter + self.attention + self.others
    }
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            frozen: self.frozen * factor,
            head: self.head * factor,
            adapter: self.adapter * factor,
            attention: self.attention * factor,
            others: self.others * factor,
        }
    }
}

/// Books the time from the beginning of an op to that of the next under the kind of the first.
#[derive(Default)]
pub(crate) struct OpClock {
    seconds: OpSeconds,
    running: Option<(Work, Instant)>,
}

impl OpClock {
    pub(crate) fn start(&mut self, work: Work) {
        let now = Instant::now();
        self.book(now);
        self.running = Some((work, now));
    }
    /// What was booked since the last call; the last op ends here.
    pub(crate) fn take(&mut self) -> OpSeconds {
        self.book(Instant::now());
        std::mem::take(&mut self.seconds)
    }
    fn book(&mut self, now: Instant) {
        if let Some((work, since)) = self.running.take() {
            let kind = match work {
                Work::Frozen => &mut self.seconds.frozen,
                Work::Head => &mut self.seconds.head,
                Work::Adapter => &mut self.seconds.adapter,
                Work::Attention => &mut self.seconds.attention,
                Work::Elementwise => &mut self.seconds.others,
            };
            *kind += (now - since).as_secs_f64();
        }
    }
}
