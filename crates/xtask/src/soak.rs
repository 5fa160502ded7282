//! A long run: memory and open files must stay what they are.

use anyhow::{Context, Result, ensure};
use train::{Control, RunFolder, TrainConfig, TrainEvent, TrainInputs};

use crate::tiny;

/// Train a tiny model for many updates, saving after each, and check that neither memory nor open files grow.
#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long, default_value_t = 10_000)]
    steps: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What grows with a run on purpose: the losses of its passes and validations, some hundred kilobytes here, and what
/// the allocator holds back.
const GROWTH_MAX_BYTES: u64 = 2 << 20;

struct Reading {
    resident_bytes: u64,
    open_files: usize,
}

fn read() -> Result<Reading> {
    let resident_bytes =
        device::ProcessMemory::read().resident_bytes.context("this system does not tell the memory of a process")?;
    let open_files = std::fs::read_dir("/proc/self/fd").context("this system does not list open files")?.count();
    Ok(Reading { resident_bytes, open_files })
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    ensure!(arguments.steps >= 100, "--steps {}: at least 100", arguments.steps);
    let folder = tempfile::tempdir()?;
    let run = RunFolder::create(&folder.path().join("run"), serde_json::Value::Null)?;
    let (model, examples, validation) = (tiny::model(1), tiny::examples(0..10), tiny::examples(10..14));
    let config = TrainConfig {
        steps: arguments.steps,
        accumulation: 1,
        evaluate_every: 100,
        save_every_steps: 1,
        save_bytes_per_hour: 0,
        save_sync: false,
        ..tiny::config()
    };
    let inputs = TrainInputs {
        model,
        base_name: "tiny",
        on: &model::AdapterStack::default(),
        examples: &examples,
        validation: &validation,
        config: &config,
        start: None,
        cost_file: None,
        run: &run,
        resume: false,
    };
    let warm = arguments.steps / 10;
    let (mut early, mut late) = (None, None);
    let mut observer = |event: &TrainEvent| {
        if let TrainEvent::Step(step) = event {
            if step.step == warm {
                early = Some(read());
            } else if step.step == step.steps {
                late = Some(read());
            }
        }
        Control::Continue
    };
    let outcome = train::train(&inputs, &mut device::NoSensors::default(), &mut observer)?;
    let early = early.context("the run was too short")??;
    let late = late.context("the run was too short")??;
    let growth_bytes = late.resident_bytes.saturating_sub(early.resident_bytes);
    let is_constant = growth_bytes <= GROWTH_MAX_BYTES && late.open_files == early.open_files;
    let report = serde_json::json!({
        "steps": outcome.step,
        "saves": outcome.saving.saves,
        "wall_s": outcome.seconds,
        "resident_bytes_early": early.resident_bytes,
        "resident_bytes_late": late.resident_bytes,
        "open_files_early": early.open_files,
        "open_files_late": late.open_files,
        "constant": is_constant,
    });
    if arguments.json {
        println!("{report}");
    } else {
        println!("{} updates, {} saves in {:.1} s", outcome.step, outcome.saving.saves, outcome.seconds);
        println!("resident: {} bytes after {warm} updates, {} at the end", early.resident_bytes, late.resident_bytes);
        println!("open files: {} and {}", early.open_files, late.open_files);
    }
    Ok(is_constant)
}
