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
    // A point is the mean of the minute before it; between two the speed falls in a straight line.
    let first_below = |limit: f64| {
        let (before, after) = points.windows(2).map(|two| (two[0], two[1])).find(|(_, after)| rate(after) <= limit)?;
        let part = (rate(&before) - limit) / (rate(&before) - rate(&after));
        Some(before.minute - 0.5 + part.clamp(0.0, 1.0) * (after.minute - before.minute))
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{DEVICES, Event, SimulatedDevice};

    const PHONE: &DeviceModel = &DEVICES[0];

    fn within(name: &str, value: f64, low: f64, high: f64) {
        assert!((low..=high).contains(&value), "{name} is {value}, expected {low} to {high}");
    }

    /// Figure 6 and section 6.3: half of the loss within about six minutes, within 5 % of the plateau after 32 to 38,
    /// 83 to 89 of 166 tokens a second there, and no recovery.
    #[test]
    fn speed_falls_to_half_and_stays_there() {
        let run = sustained(SimulatedDevice::new(PHONE).plugged_in(), 640_000.0);
        within("cold", run.cold_tokens_per_second, 166.0, 166.0);
        within("plateau", run.plateau_tokens_per_second, 83.0, 89.0);
        within("half of the loss after", run.half_loss_minutes.unwrap(), 5.0, 7.0);
        within("near the plateau after", run.near_plateau_minutes.unwrap(), 32.0, 38.0);
        let late = run.points.iter().filter(|point| point.minute > 45.0);
        assert!(late.clone().count() > 60);
        for point in late {
            within("late", point.tokens_per_second, 79.0, 93.0);
        }
        // Table 4: 0.0106 to 0.0118 s a token, measured over runs of 0.64 to 2.35 million tokens.
        within("seconds a token", run.seconds / run.tokens, 0.0102, 0.0118);
        let long = sustained(SimulatedDevice::new(PHONE).plugged_in(), 2_350_000.0);
        within("seconds a token", long.seconds / long.tokens, 0.0106, 0.0120);
        // Linear: what each token costs after the first half hour does not depend on how many there are.
        let slope = (long.seconds - run.seconds) / (long.tokens - run.tokens);
        within("slope", slope, 0.0110, 0.0120);
    }

    /// Figure 7: after an hour of training a resting device regains half of its loss within four minutes and 95 % within
    /// six, but not within two; its own thermal warning lasts 26 minutes.
    #[test]
    fn speed_returns_in_minutes_and_the_warning_lags() {
        let (slowdown, probes) = recovery(PHONE);
        within("slowdown", slowdown, 1.9, 2.2);
        let at = |minutes: f64| probes.iter().find(|probe| probe.minutes_idle == minutes).unwrap();
        within("after two minutes", at(2.0).regained, 0.1, 0.5);
        within("after four minutes", at(4.0).regained, 0.5, 0.95);
        within("after six minutes", at(6.0).regained, 0.95, 1.01);
        let quiet_after = probes.iter().find(|probe| !probe.warns).unwrap().minutes_idle;
        within("the warning ends after", quiet_after, 22.0, 30.0);
    }

    /// Section 6.3: 0.91 to 0.92, 0.78 to 0.79, 0.88 to 0.89 of continuous training, and a pause of three seconds shortens
    /// the active step from 5.2 to 3.6 s. The model takes more from bursts than the phone did.
    #[test]
    fn pausing_cools_and_recovers_nothing() {
        let blocks = schedule_blocks(PHONE);
        let mut compared = 0;
        for block in &blocks {
            let Some((low, high)) = block.schedule.paper else { continue };
            let tolerance = if block.schedule.burst_seconds.is_some() { 0.045 } else { 0.015 };
            within(block.schedule.name, block.relative, low - tolerance, high + tolerance);
            assert!(block.relative < 1.0);
            compared += 1;
        }
        assert_eq!(compared, 6);
        let step =
            |pause: f64| blocks.iter().rfind(|block| block.schedule.pause_seconds == pause).unwrap().step_seconds;
        let continuous = blocks[12].step_seconds;
        within("active step with pauses of 3 s", step(3.0) / continuous, 3.6 / 5.2 - 0.03, 3.6 / 5.2 + 0.03);
        // Each second of pause buys back about half a second of computing.
        within("bought back by a second", (continuous - step(3.0)) / 3.0, 0.4, 0.65);
    }

    /// Table 6: 405 records (0.64 million tokens) took 26.2 kJ net of idle and 1.74 h from 85 %; 550 records (1.11
    /// million) went off near the end from 85 % and completed from 100 %; 987 records went off from 100 %.
    #[test]
    fn a_charge_lasts_for_about_1_3_million_tokens() {
        let run = |charge: f64, tokens: f64| sustained(SimulatedDevice::new(PHONE).charged_to(charge), tokens);
        let short = run(0.85, 640_000.0);
        assert!(!short.went_off);
        within("net energy", short.net_energy_j, 24_900.0, 28_000.0);
        within("net power", short.net_power_w, 3.9, 4.3);
        within("hours", short.seconds / 3600.0, 1.65, 1.9);
        within("J a token", short.net_energy_j / short.tokens, 0.035, 0.045);
        assert!(run(0.85, 1_110_000.0).went_off);
        assert!(!run(1.0, 1_110_000.0).went_off);
        let long = run(1.0, 2_350_000.0);
        assert!(long.went_off);
        within("tokens of a charge", long.tokens, 1.15e6, 1.4e6);
        within("energy of a charge", long.net_energy_j, 49_000.0, 53_500.0);
        // Plugged in, the charger's heat slows it: the study's run on battery took 5 to 10 % less time.
        let plugged = sustained(SimulatedDevice::new(PHONE).plugged_in(), 640_000.0);
        within("battery against plugged", short.seconds / plugged.seconds, 0.90, 0.96);
        // The gauge moves in steps of a twentieth.
        for point in &short.points {
            let steps = point.charge / 0.05;
            assert!((steps - steps.round()).abs() < 1e-6, "{point:?}");
        }
    }

    #[test]
    fn a_power_cut_ends_work_and_an_empty_battery_too() {
        let mut device = SimulatedDevice::new(PHONE).plugged_in().with(100.0, Event::PowerCut);
        assert_eq!(device.work(1e6), Err(PowerLoss));
        within("it went off at", device.seconds(), 100.0, 101.0);
        let mut device = SimulatedDevice::new(PHONE).charged_to(0.011);
        assert_eq!(device.work(1e6), Err(PowerLoss));
    }
}
