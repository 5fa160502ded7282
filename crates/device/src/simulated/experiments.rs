//! The study's experiments on sustained training, on a simulated device.

use super::{DeviceModel, PowerLoss, SimulatedDevice};

/// Tokens of a step in the study's probes and schedules.
const STEP_TOKENS: f64 = 500.0;
/// "A device heat-soaked by 45 minutes of continuous training", as the study starts its comparisons.
const SOAK_SECONDS: f64 = 45.0 * 60.0;

/// One minute of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SustainedPoint {
    pub minute: f64,
    pub tokens_per_second: f64,
    pub chip_c: f64,
    /// What the gauge shows.
    pub charge: f64,
}

/// A run from cold, in the form of the study's Figure 6 and Table 6.
#[derive(Clone, Debug)]
pub struct SustainedRun {
    pub points: Vec<SustainedPoint>,
    pub tokens: f64,
    pub seconds: f64,
    pub cold_tokens_per_second: f64,
    /// Mean of the last quarter.
    pub plateau_tokens_per_second: f64,
    /// When half of the difference between the two was lost, and when the speed came within 5 % of the plateau; over
    /// means of a minute.
    pub half_loss_minutes: Option<f64>,
    pub near_plateau_minutes: Option<f64>,
    /// Joules without what the device draws when idle, and the mean power of the work.
    pub net_energy_j: f64,
    pub net_power_w: f64,
    /// Whether the battery was empty before the work was done.
    pub went_off: bool,
}

/// Trains `tokens` tokens from cold, without a pause.
pub fn sustained(mut device: SimulatedDevice, tokens: f64) -> SustainedRun {
    let cold_tokens_per_second = device.tokens_per_second();
    let mut points = Vec::new();
    let (mut done, mut went_off) = (0.0, false);
    let (mut minute_started, mut minute_done) = (0.0, 0.0);
    while done < tokens {
        // Small pieces, so that a minute ends where it should.
        let piece = (device.tokens_per_second() * 1.0).min(tokens - done);
        if device.work(piece) == Err(PowerLoss) {
            went_off = true;
            break;
        }
        done += piece;
        if device.seconds() - minute_started >= 60.0 {
            points.push(SustainedPoint {
                minute: device.seconds() / 60.0,
                tokens_per_second: (done - minute_done) / (device.seconds() - minute_started),
                chip_c: device.chip_c,
                charge: device.shown_charge(),
            });
            (minute_started, minute_done) = (device.seconds(), done);
        }
    }
    let rate = |point: &SustainedPoint| point.tokens_per_second;
    let last = &points[points.len() * 3 / 4..];
    let plateau = last.iter().map(rate).sum::<f64>() / last.len().max(1) as f64;
    // A point is the mean of the minute before it.
    let first_below = |limit: f64| points.iter().find(|point| rate(point) <= limit).map(|point| point.minute - 0.5);
    SustainedRun {
        half_loss_minutes: first_below((cold_tokens_per_second + plateau) / 2.0),
        near_plateau_minutes: first_below(1.05 * plateau),
        plateau_tokens_per_second: plateau,
        cold_tokens_per_second,
        tokens: done,
        seconds: device.seconds(),
        net_energy_j: device.net_energy_j(),
        net_power_w: device.net_energy_j() / device.seconds().max(1e-9),
        went_off,
        points,
    }
}

/// One step on a device that rests, as in the study's Figure 7.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    pub minutes_idle: f64,
    /// Part of the speed lost that is back, 0 to 1.
    pub regained: f64,
    /// Whether the system still shows its thermal warning.
    pub warns: bool,
}

/// An hour of training, then single steps two minutes apart with rest between them. Also how much slower than cold a
/// step was at the end of the hour.
pub fn recovery(model: &'static DeviceModel) -> (f64, Vec<Probe>) {
    const PROBE_EVERY: f64 = 120.0;
    let mut device = SimulatedDevice::new(model).plugged_in();
    let cold = STEP_TOKENS / device.tokens_per_second();
    let mut hot = 0.0;
    while device.seconds() < 3600.0 {
        hot = device.work(STEP_TOKENS).expect("it is plugged in");
    }
    let ended = device.seconds();
    let mut probes = Vec::new();
    for number in 1..=15 {
        let due = ended + f64::from(number) * PROBE_EVERY;
        device.rest(due - device.seconds()).expect("it is plugged in");
        let warns = device.warns;
        let step = device.work(STEP_TOKENS).expect("it is plugged in");
        let regained = (1.0 / step - 1.0 / hot) / (1.0 / cold - 1.0 / hot);
        probes.push(Probe { minutes_idle: f64::from(number) * PROBE_EVERY / 60.0, regained, warns });
    }
    (hot / cold, probes)
}

/// A way to spread work over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    pub name: &'static str,
    /// Pause after every step.
    pub pause_seconds: f64,
    /// Work, then rest, over and over; none for no rest.
    pub burst_seconds: Option<(f64, f64)>,
    /// What the study measured: steps per hour as a part of those of continuous training, lowest and highest.
    pub paper: Option<(f64, f64)>,
}

/// Those that the study compares.
pub const SCHEDULES: [Schedule; 4] = [
    Schedule { name: "continuous", pause_seconds: 0.0, burst_seconds: None, paper: None },
    Schedule { name: "1 s pause a step", pause_seconds: 1.0, burst_seconds: None, paper: Some((0.91, 0.92)) },
    Schedule { name: "3 s pause a step", pause_seconds: 3.0, burst_seconds: None, paper: Some((0.78, 0.79)) },
    Schedule {
        name: "10 min on, 2 min off",
        pause_seconds: 0.0,
        burst_seconds: Some((600.0, 120.0)),
        paper: Some((0.88, 0.89)),
    },
];

/// One block of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockRate {
    pub schedule: Schedule,
    pub steps_per_hour: f64,
    /// Mean time of a step without its pause, over the second half of the block.
    pub step_seconds: f64,
    /// Steps per hour over the mean of the continuous blocks before and after; 1 for these themselves.
    pub relative: f64,
}

/// Thirteen blocks on a heat-soaked device, continuous ones between all others, each schedule twice. Blocks are twenty
/// minutes, those in bursts twenty-four: two whole cycles. A step takes 5.2 s when soaked, as the study's did.
pub fn schedule_blocks(model: &'static DeviceModel) -> Vec<BlockRate> {
    const ORDER: [usize; 13] = [0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0];
    const SOAKED_STEP_SECONDS: f64 = 5.2;
    let mut device = SimulatedDevice::new(model).plugged_in();
    while device.seconds() < SOAK_SECONDS {
        device.work(STEP_TOKENS).expect("it is plugged in");
    }
    let tokens = SOAKED_STEP_SECONDS * device.tokens_per_second();
    let mut blocks: Vec<BlockRate> = ORDER.iter().map(|&index| block(&mut device, SCHEDULES[index], tokens)).collect();
    for index in (1..blocks.len()).step_by(2) {
        let continuous = (blocks[index - 1].steps_per_hour + blocks[index + 1].steps_per_hour) / 2.0;
        blocks[index].relative = blocks[index].steps_per_hour / continuous;
    }
    blocks
}

fn block(device: &mut SimulatedDevice, schedule: Schedule, tokens: f64) -> BlockRate {
    let seconds = if schedule.burst_seconds.is_some() { 1440.0 } else { 1200.0 };
    let started = device.seconds();
    let (mut steps, mut late) = (0.0, (0.0, 0.0));
    loop {
        let elapsed = device.seconds() - started;
        if elapsed >= seconds {
            break;
        }
        if let Some((on, off)) = schedule.burst_seconds
            && elapsed % (on + off) >= on
        {
            device.rest(on + off - elapsed % (on + off)).expect("it is plugged in");
            continue;
        }
        let took = device.work(tokens).expect("it is plugged in");
        // A step that is cut by the end of the block counts in part.
        steps += ((seconds - elapsed) / took).min(1.0);
        if elapsed > seconds / 2.0 {
            late = (late.0 + took, late.1 + 1.0);
        }
        device.rest(schedule.pause_seconds).expect("it is plugged in");
    }
    let steps_per_hour = steps * 3600.0 / seconds;
    BlockRate { schedule, steps_per_hour, step_seconds: late.0 / late.1, relative: 1.0 }
}
