//! `selftune status`: how a run stands.

use crate::acceptance;
use crate::failure::{ExitStatus, InputError, Outcome};
use crate::terminal::{STRONG, Terminal, human_bytes, human_count, human_seconds};
use crate::training::{self, program};
use std::path::PathBuf;
use std::time::Duration;
use train::{Hold, RunFolder, RunStatus, RunWatch};

/// Say how a run stands, also while it trains.
///
/// Examples:
///   selftune status runs/me             once
///   selftune status runs/me --follow    until it ends or stops
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// The run folder
    run: PathBuf,
    /// Look again every second until the run no longer trains (with --json: one object a line)
    #[arg(long, short)]
    follow: bool,
}

const LOOK_EVERY: Duration = Duration::from_secs(1);

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let run = RunFolder::open(&arguments.run).bad_input("no status")?;
    let mut shown = None;
    loop {
        let watch = run.watch().bad_input("no status")?;
        // Only what is news.
        let waits = watch.hold.as_ref().map(conditions);
        let news = Some((watch.step, watch.status, waits));
        if shown != news {
            if arguments.follow && shown.is_some() {
                terminal.line(line(&watch));
            } else {
                show(&run, &watch, terminal);
            }
            terminal.json(&serde_json::json!({"run": watch}));
            shown = news;
        }
        if !arguments.follow || watch.status != RunStatus::Running || training::stop_asked() {
            return Ok(ExitStatus::Done);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What a status is called.
pub fn status_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::NotStarted => "not started",
        RunStatus::Running => "running",
        RunStatus::Stopped => "stopped",
        RunStatus::Finished => "finished",
    }
}

/// What a run stands at, a hold included.
pub fn standing(watch: &RunWatch) -> String {
    match (&watch.hold, watch.status) {
        (None, status) => status_name(status).to_owned(),
        (Some(_), RunStatus::Running) => "on hold".to_owned(),
        (Some(_), status) => format!("{}, on hold", status_name(status)),
    }
}

/// The configuration keys that a run on hold waits for.
fn conditions(hold: &Hold) -> String {
    hold.waits.iter().map(|wait| wait.condition.as_str()).collect::<Vec<_>>().join(", ")
}

/// What a run on hold waits for, in words.
fn waits_for(hold: &Hold) -> String {
    hold.waits.iter().map(|wait| wait.waits_for.as_str()).collect::<Vec<_>>().join("; and ")
}

/// One line about a run that trains.
fn line(watch: &RunWatch) -> String {
    let mut line = format!("{}  {}/{} updates", standing(watch), watch.step, watch.steps);
    if let Some(loss) = watch.loss_recent {
        line.push_str(&format!("  loss {loss:.3}"));
    }
    if let Some(hold) = &watch.hold {
        line.push_str(&format!("  waits for {}", waits_for(hold)));
    } else if let Some(last) = watch.last.as_ref().filter(|_| watch.status == RunStatus::Running) {
        line.push_str(&format!("  {:.0} tokens/s  {} left", last.tokens_per_second, human_seconds(last.eta_seconds)));
    }
    line
}

fn show(run: &RunFolder, watch: &RunWatch, terminal: &Terminal) {
    let field = |name: &str, value: String| terminal.line(format!("  {STRONG}{name:<12}{STRONG:#} {value}"));
    let path = watch.path.display();
    terminal.heading(format!("Run {path}"));
    let status = match watch.process {
        Some(process) => format!("{} in process {process}", standing(watch)),
        None => standing(watch),
    };
    field("status", status);
    if let Ok(inputs) = training::RunInputs::of(run) {
        field("model", inputs.model_name);
        field("history", inputs.history.path.display().to_string());
    }
    let share = 100.0 * watch.step as f64 / watch.steps.max(1) as f64;
    field("progress", format!("{} of {} updates ({share:.0} %)", human_count(watch.step), human_count(watch.steps)));
    if let (Some(first), Some(recent)) = (watch.loss_first, watch.loss_recent) {
        field("loss", format!("{first:.3} over the first ten updates, {recent:.3} over the last ten"));
    }
    if let (Some(before), Some(best)) = (watch.validation_before, &watch.validation_best) {
        field("held out", format!("{before:.3} before, {:.3} at best (update {})", best.loss, best.step));
    }
    if let Some(last) = watch.last.as_ref().filter(|_| watch.status == RunStatus::Running && watch.hold.is_none()) {
        field("left", format!("{} at {:.0} tokens/s", human_seconds(last.eta_seconds), last.tokens_per_second));
    }
    if let Some(saved) = &watch.saved {
        let cost = format!("{} in {:.0} ms, {:.1} ms of the training", human_bytes(saved.bytes), 1e3 * saved.seconds, 1e3 * saved.blocked_seconds);
        field("saved", format!("after update {} ({cost})", saved.step));
    }
    if let Some(hold) = &watch.hold {
        let since = device::local_time(hold.since_unix_seconds);
        let seconds = human_seconds(hold.seconds(device::unix_time_seconds()));
        field("on hold", format!("since {since} ({seconds}), after update {}, by {}", hold.step, conditions(hold)));
        field("waits for", waits_for(hold));
    }
    match watch.status {
        RunStatus::Running => {
            if let Some(seconds) = watch.seconds_since_report.filter(|seconds| *seconds > 60.0 && watch.hold.is_none()) {
                field("silent", format!("nothing was reported for {}", human_seconds(seconds)));
            }
        }
        RunStatus::Stopped => field("go on", format!("{} train --resume {path}", program())),
        RunStatus::Finished => field("use it", format!("{} chat --run {path}", program())),
        RunStatus::NotStarted => field("begin", format!("{} train --output {path} ...", program())),
    }
}

/// What the newest evaluation in the run's folder decided, or the judgement at the end of its training.
pub fn verdict(run: &RunFolder) -> Option<String> {
    let decision = |verdict: &serde_json::Value| Some(verdict.get("decision")?.as_str()?.replace('_', " "));
    let text = train::read_own_text(&run.path().join("report.json")).ok().flatten().unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let evaluated = report.get("verdict").and_then(decision);
    evaluated.or_else(|| acceptance::of_run(run).ok()?.map(|judged| if judged.accepted { "kept" } else { "not kept" }.to_owned()))
}
