//! `cargo xtask crash`: a run that is interrupted anywhere, in any of five ways, ends with the bytes of the run that was not.

pub mod child;
mod disk;
mod faults;
mod session;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use model::Random;
use serde_json::json;
use train::Files;

use disk::{Disk, below};
use faults::{Counter, Interruption, MODELS, Model, move_clock};
use session::{Ending, Setup};

/// Interrupt a tiny run at random instants, resume it, interrupt the resumed run too, and compare its end with that of
/// the run that was never interrupted.
#[derive(clap::Args)]
pub struct Arguments {
    /// Runs to interrupt, each once at its beginning or later and up to twice more while it is resumed
    #[arg(long, default_value_t = 60)]
    kills: u64,
    /// Only one of process_kill, power_cut, disk_full, read_only, clock_moved
    #[arg(long)]
    model: Option<String>,
    /// Seed of the instants
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Interruptions of one run, at most.
const INTERRUPTIONS_MAX: usize = 3;

#[derive(Default)]
struct Count {
    kills: u64,
    resumes_killed: u64,
    equal: u64,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let models: Vec<_> = match &arguments.model {
        None => MODELS.to_vec(),
        Some(name) => MODELS.into_iter().filter(|(known, _)| known == name).collect(),
    };
    ensure!(!models.is_empty(), "--model {}: one of {}", arguments.model.as_deref().unwrap_or_default(), names());
    let watch = device::Stopwatch::start();
    let setup = Setup::new();
    let whole = tempfile::tempdir()?;
    let counter = Arc::new(Counter::default());
    let session = device::Stopwatch::start();
    setup.train(&whole.path().join("run"), Files::with_faults(counter.clone())).context("the uninterrupted run")?;
    let scale = Scale { operations: counter.0.load(Ordering::SeqCst), seconds: session.seconds() };
    let expected = Ending::read(&whole.path().join("run"))?;

    let mut counts: Vec<Count> = models.iter().map(|_| Count::default()).collect();
    let mut failures = Vec::new();
    for number in 0..arguments.kills {
        let index = number as usize % models.len();
        let (name, model) = models[index];
        let mut random = Random::new(arguments.seed ^ (number << 20));
        match one(&setup, model, &scale, &expected, &mut random) {
            Ok(interruptions) => {
                counts[index].resumes_killed += interruptions - 1;
                counts[index].equal += 1;
            }
            Err(error) => failures.push(format!("run {number}, {name}: {error:#}")),
        }
        counts[index].kills += 1;
    }
    let sum = |part: fn(&Count) -> u64| counts.iter().map(part).sum::<u64>();
    let (equal, resumes_killed) = (sum(|count| count.equal), sum(|count| count.resumes_killed));
    let lost = arguments.kills - equal;
    if arguments.json {
        let by_model: serde_json::Map<_, _> = (models.iter().zip(&counts))
            .map(|((name, _), count)| {
                let Count { kills, resumes_killed, equal } = count;
                (
                    name.to_string(),
                    json!({"kills": kills, "resumes_killed": resumes_killed, "equal": equal, "lost": kills - equal}),
                )
            })
            .collect();
        let report = json!({
            "kills": arguments.kills, "equal": equal, "lost": lost, "resumes_killed": resumes_killed,
            "operations": scale.operations, "seed": arguments.seed, "wall_s": watch.seconds(),
            "models": by_model, "failures": failures,
        });
        println!("{report}");
    } else {
        for ((name, _), count) in models.iter().zip(&counts) {
            println!(
                "{name:<13} {:>4} kills, {:>4} of resumed runs, {:>4} equal finals",
                count.kills, count.resumes_killed, count.equal
            );
        }
        println!(
            "{} kills among {} file operations, {equal} equal finals, {lost} lost",
            arguments.kills, scale.operations
        );
        failures.iter().for_each(|failure| eprintln!("{failure}"));
    }
    Ok(lost == 0)
}

fn names() -> String {
    MODELS.map(|(name, _)| name).join(", ")
}

/// How long an uninterrupted run is.
struct Scale {
    operations: u64,
    seconds: f64,
}

/// Interrupts one run, goes on with it to its end and compares. Returns how often it was interrupted.
fn one(setup: &Setup, model: Model, scale: &Scale, expected: &Ending, random: &mut Random) -> Result<u64> {
    let parent = tempfile::tempdir()?;
    let folder = parent.path().join("run");
    let disk = (model == Model::PowerCut).then(|| Arc::new(Mutex::new(Disk::new(parent.path()))));
    let mut interruptions = 0;
    let wanted = 1 + below(random, INTERRUPTIONS_MAX);
    // A run that ends before its first interruption is begun anew: every one counted was really interrupted.
    for attempt in 0..100 {
        let after = below(random, scale.operations as usize) as u64;
        let happened = match model {
            Model::ProcessKill => kill(&folder, scale, after, random)?,
            _ => interrupt(setup, model, &folder, after, disk.as_ref(), random)?,
        };
        interruptions += u64::from(happened);
        if interruptions as usize == wanted || (!happened && interruptions > 0) {
            break;
        }
        if !happened {
            ensure!(attempt < 99, "the run ends before it can be interrupted");
            std::fs::remove_dir_all(&folder)?;
            if let Some(disk) = &disk {
                *disk.lock().unwrap_or_else(PoisonError::into_inner) = Disk::new(parent.path());
            }
        }
    }
    setup.train(&folder, Files::with_faults(Arc::new(Counter::default()))).context("the last resume")?;
    match Ending::read(&folder)?.difference(expected) {
        None => Ok(interruptions),
        Some(difference) => anyhow::bail!("{difference} after {interruptions} interruptions"),
    }
}

fn kill(folder: &Path, scale: &Scale, after: u64, random: &mut Random) -> Result<bool> {
    let when = match below(random, 2) {
        0 => child::When::Operation(after),
        // A process also needs time to start.
        _ => child::When::Time(below(random, (2e6 * scale.seconds) as usize + 20_000) as u64),
    };
    child::train_and_kill(folder, &when).context("a killed process")
}

/// Trains until the interruption. Returns whether it came before the end.
fn interrupt(
    setup: &Setup,
    model: Model,
    folder: &Path,
    after: u64,
    disk: Option<&Arc<Mutex<Disk>>>,
    random: &mut Random,
) -> Result<bool> {
    let fault = Interruption::new(model, after, random, disk.cloned());
    let result = setup.train(folder, Files::with_faults(fault.clone()));
    if let Err(error) = &result {
        let message = format!("{error:#}");
        ensure!(message.contains("on purpose"), "an error of its own: {message}");
        let advises =
            message.contains("intact") || message.contains("choose a folder") || message.contains("another disk");
        ensure!(advises || !matches!(model, Model::DiskFull | Model::ReadOnly), "no advice: {message}");
    }
    let happened = fault.has_happened() && result.is_err();
    if let Some(disk) = disk.filter(|_| happened) {
        disk.lock().unwrap_or_else(PoisonError::into_inner).lose_power(random)?;
    }
    if happened && model == Model::ClockMoved && folder.exists() {
        move_clock(folder, random)?;
    }
    Ok(happened)
}
