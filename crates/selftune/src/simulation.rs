//! `bench sustained` and `bench schedules`: hours on a simulated device, in a second.

use crate::failure::{ExitStatus, Failure, Outcome};
use crate::terminal::{Terminal, human_joules, human_seconds};
use device::simulated::{self, DEVICES, DeviceModel, SimulatedDevice};
use eval::report::{Curve, curves_svg};
use std::path::{Path, PathBuf};

/// A whole training on a simulated device: speed, heat, battery, and how it recovers.
///
/// Nothing is measured here: the numbers come from a model of heat, clock and battery that was fitted to the paper's
/// figures 6 and 7 and its table 6. It shows what sustained training does to a phone:
///   selftune bench sustained
///   selftune bench sustained --tokens 1110000 --from-charge 85% --svg run.svg
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct SustainedArguments {
    /// The simulated device
    #[arg(long, default_value = DEVICES[0].name, value_parser = DEVICES.map(|device| device.name))]
    device: String,
    /// Tokens to train: all passes over the history
    #[arg(long, default_value_t = 640_000)]
    tokens: u64,
    /// Train on battery from this charge instead of plugged in
    #[arg(long, value_name = "85%", value_parser = charge)]
    from_charge: Option<f64>,
    /// Draw the speed over time into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Continuous training against pauses and bursts on a heat-soaked simulated device.
///
/// Nothing is measured here, see `bench sustained`. Thirteen blocks of twenty minutes, as in the paper: pausing cools the
/// device, and recovers nothing.
#[derive(clap::Args)]
pub struct ScheduleArguments {
    /// The simulated device
    #[arg(long, default_value = DEVICES[0].name, value_parser = DEVICES.map(|device| device.name))]
    device: String,
    /// Draw the steps per hour of every block into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn charge(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').map_or_else(|| text.parse(), |percent| percent.parse().map(|p: f64| p / 100.0));
    share.ok().filter(|share| (0.02..=1.0).contains(share)).ok_or_else(|| "expected 2% to 100%".to_owned())
}

fn model(name: &str) -> Result<&'static DeviceModel, Failure> {
    DEVICES
        .iter()
        .find(|device| device.name == name)
        .ok_or_else(|| Failure::usage(format!("no device is called {name}")))
}

fn show_origin(model: &DeviceModel, terminal: &Terminal) {
    terminal.heading(format!("SIMULATED, not measured: {}", model.name));
    terminal.line(format!("  {}", model.about));
}

pub fn sustained(arguments: &SustainedArguments, terminal: &Terminal) -> Outcome {
    let model = model(&arguments.device)?;
    if !(10_000..=100_000_000).contains(&arguments.tokens) {
        return Err(Failure::usage(format!("--tokens {}: expected 10000 to 100000000", arguments.tokens)));
    }
    let device = match arguments.from_charge {
        None => SimulatedDevice::new(model).plugged_in(),
        Some(charge) => SimulatedDevice::new(model).charged_to(charge),
    };
    let run = simulated::sustained(device, arguments.tokens as f64);
    let (slowdown, probes) = simulated::recovery(model);
    show_origin(model, terminal);
    terminal.line(format!("  {:>7} {:>9} {:>8} {:>8}", "minute", "tokens/s", "chip °C", "battery"));
    let every = (run.points.len() / 16).max(1);
    for point in run.points.iter().enumerate().filter(|(index, _)| index % every == 0).map(|(_, point)| point) {
        let charge = 100.0 * point.charge;
        terminal.line(format!(
            "  {:>7.0} {:>9.0} {:>8.1} {charge:>7.0}%",
            point.minute, point.tokens_per_second, point.chip_c
        ));
    }
    let minutes = |minutes: Option<f64>| minutes.map_or("never".to_owned(), |minutes| format!("{minutes:.1} min"));
    terminal.line(format!(
        "  {} tokens in {}{}",
        run.tokens as u64,
        human_seconds(run.seconds),
        if run.went_off { ": THE BATTERY WENT EMPTY before the end" } else { "" }
    ));
    terminal.line(format!(
        "  {:.0} tokens/s cold, {:.0} at the plateau ({:.2} of it); half of the loss after {}, within 5 % of the plateau after {}",
        run.cold_tokens_per_second,
        run.plateau_tokens_per_second,
        run.plateau_tokens_per_second / run.cold_tokens_per_second,
        minutes(run.half_loss_minutes),
        minutes(run.near_plateau_minutes)
    ));
    terminal.line(format!(
        "  {} net of idle, {:.1} W, {:.3} J a token, {:.0} % of a charge",
        human_joules(run.net_energy_j),
        run.net_power_w,
        run.net_energy_j / run.tokens.max(1.0),
        100.0 * run.net_energy_j / model.battery_j
    ));
    terminal.heading("Rest after an hour of training, a step every two minutes");
    terminal.line(format!("  steps took {slowdown:.2} times the cold time at the end of the hour"));
    for probe in &probes {
        let warning = if probe.warns { "  the system still warns of heat" } else { "" };
        terminal.line(format!(
            "  {:>3.0} min: {:>3.0} % of the loss is back{warning}",
            probe.minutes_idle,
            100.0 * probe.regained
        ));
    }
    let speed = run.points.iter().map(|point| (point.minute, point.tokens_per_second)).collect();
    let curves = [Curve { label: format!("tokens per second, {} (simulated)", model.name), points: speed }];
    draw(arguments.svg.as_deref(), "Simulated training speed over time", "minutes", &curves, terminal)?;
    terminal.json(&serde_json::json!({
        "simulated": true,
        "device": model.name,
        "tokens": run.tokens,
        "wall_s": run.seconds,
        "went_off": run.went_off,
        "cold_tokens_per_second": run.cold_tokens_per_second,
        "plateau_tokens_per_second": run.plateau_tokens_per_second,
        "half_loss_minutes": run.half_loss_minutes,
        "near_plateau_minutes": run.near_plateau_minutes,
        "net_energy_j": run.net_energy_j,
        "net_power_w": run.net_power_w,
        "points": run.points.iter().map(|point| serde_json::json!({
            "minute": point.minute, "tokens_per_second": point.tokens_per_second, "chip_c": point.chip_c, "charge": point.charge,
        })).collect::<Vec<_>>(),
        "recovery": {
            "slowdown": slowdown,
            "probes": probes.iter().map(|probe| serde_json::json!({
                "minutes_idle": probe.minutes_idle, "regained": probe.regained, "warns": probe.warns,
            })).collect::<Vec<_>>(),
        },
    }));
    Ok(ExitStatus::Done)
}

pub fn schedules(arguments: &ScheduleArguments, terminal: &Terminal) -> Outcome {
    let model = model(&arguments.device)?;
    let blocks = simulated::schedule_blocks(model);
    show_origin(model, terminal);
    terminal.line(format!(
        "  {:>5}  {:<21} {:>10} {:>8} {:>10}  {}",
        "block", "schedule", "steps/hour", "step s", "relative", "study"
    ));
    for (number, block) in (1..).zip(&blocks) {
        let paper = block.schedule.paper.map_or(String::new(), |(low, high)| format!("{low:.2} to {high:.2}"));
        terminal.line(format!(
            "  {number:>5}  {:<21} {:>10.0} {:>8.2} {:>10.3}  {paper}",
            block.schedule.name, block.steps_per_hour, block.step_seconds, block.relative
        ));
    }
    terminal.line("  No schedule does as many steps as continuous training: pausing recovers nothing.");
    let curves = simulated::SCHEDULES.map(|schedule| Curve {
        label: schedule.name.to_owned(),
        points: (1..)
            .zip(&blocks)
            .filter(|(_, block)| block.schedule == schedule)
            .map(|(number, block)| (f64::from(number), block.steps_per_hour))
            .collect(),
    });
    draw(arguments.svg.as_deref(), "Simulated steps per hour of thirteen blocks", "block", &curves, terminal)?;
    terminal.json(&serde_json::json!({
        "simulated": true,
        "device": model.name,
        "blocks": blocks.iter().map(|block| serde_json::json!({
            "schedule": block.schedule.name,
            "steps_per_hour": block.steps_per_hour,
            "step_s": block.step_seconds,
            "relative": block.relative,
            "paper": block.schedule.paper,
        })).collect::<Vec<_>>(),
    }));
    Ok(ExitStatus::Done)
}

fn draw(
    path: Option<&Path>,
    description: &str,
    across: &'static str,
    curves: &[Curve],
    terminal: &Terminal,
) -> Result<(), Failure> {
    let (Some(path), Some(drawing)) = (path, curves_svg(description, across, curves)) else { return Ok(()) };
    std::fs::write(path, drawing).map_err(|error| {
        Failure::from(anyhow::Error::new(error).context(format!("cannot write {}", path.display())))
    })?;
    terminal.line(format!("  drawing: {}", path.display()));
    Ok(())
}
