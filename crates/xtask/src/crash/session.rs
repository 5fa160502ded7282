//! The tiny run that is interrupted, and what must be equal at its end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use data::Example;
use model::Model;
use serde_json::Value;
use train::{Control, Files, RunFolder, TrainConfig, TrainInputs, TrainOutcome};

use crate::tiny;

/// What every session of every run is made from.
pub struct Setup {
    model: Arc<Model>,
    examples: Vec<Example>,
    validation: Vec<Example>,
    config: TrainConfig,
}

impl Setup {
    /// Seven examples in windows of three for four passes: twelve updates, five validations, a save after each update.
    pub fn new() -> Self {
        let config = TrainConfig {
            passes: 4,
            evaluate_every: 3,
            save_every_steps: 1,
            save_bytes_per_hour: 0,
            // Counts as an operation; only the saves of a real disk wait for it.
            save_sync: true,
            ..tiny::config()
        };
        Self { model: tiny::model(1), examples: tiny::examples(0..7), validation: tiny::examples(7..9), config }
    }

    /// Begins the run in `folder`, or goes on with it, as a user would do after an interruption.
    pub fn train(&self, folder: &Path, files: Files) -> Result<TrainOutcome> {
        let resume = folder.join("run.json").exists() && RunFolder::open(folder)?.config()?.is_some();
        let run = match resume {
            true => RunFolder::open_on(files, folder)?,
            false => RunFolder::create_on(files, folder, Value::Null)?,
        };
        let inputs = TrainInputs {
            model: Arc::clone(&self.model),
            base_name: "tiny",
            on: &model::AdapterStack::default(),
            examples: &self.examples,
            validation: &self.validation,
            config: &self.config,
            start: None,
            cost_file: None,
            run: &run,
            resume,
        };
        Ok(train::train(&inputs, &mut device::NoSensors::default(), &mut |_| Control::Continue)?)
    }
}

/// Everything in a finished run folder that must not depend on interruptions.
#[derive(PartialEq)]
pub struct Ending {
    /// Every file of both adapters.
    adapters: BTreeMap<String, Vec<u8>>,
    metrics: Vec<Value>,
    summary: Value,
    parameters: Vec<f32>,
    moments: [Vec<f32>; 2],
    progress: Value,
}

/// What tells of time, of memory, or of where the folder lies.
const PASSING: [&str; 11] = [
    "seconds",
    "tokens_per_second",
    "eta_seconds",
    "peak_resident_bytes",
    "saving",
    "adapter_best",
    "adapter_last",
    "device",
    "slowdown",
    "energy_j",
    "held_seconds",
];

fn lasting(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !PASSING.contains(&key.as_str()));
    }
    value
}

impl Ending {
    pub fn read(folder: &Path) -> Result<Ending> {
        let run = RunFolder::open(folder)?;
        let (state, notice) = run.state()?.context("the run has no state")?;
        ensure!(notice.is_none(), "{}", notice.unwrap_or_default());
        let mut adapters = BTreeMap::new();
        for kind in ["best", "last"] {
            let path = folder.join("adapter").join(kind);
            for entry in std::fs::read_dir(&path).with_context(|| path.display().to_string())? {
                let entry = entry?;
                // A file of a write that was interrupted before its name; later writes replace it.
                if entry.path().extension().is_some_and(|extension| extension == "new") {
                    continue;
                }
                let name = format!("{kind}/{}", entry.file_name().to_string_lossy());
                adapters.insert(name, std::fs::read(entry.path())?);
            }
        }
        let metrics = std::fs::read_to_string(run.metrics_path())?;
        let lines: Result<Vec<Value>, _> = metrics.lines().map(serde_json::from_str).collect();
        let lines = lines.with_context(|| format!("metrics.jsonl: {metrics}"))?;
        Ok(Ending {
            adapters,
            // How a run was saved depends on when; what it did does not.
            metrics: lines.into_iter().filter(|line| line["event"] != "saved").map(lasting).collect(),
            summary: lasting(serde_json::from_slice(&std::fs::read(folder.join("summary.json"))?)?),
            parameters: state.parameters,
            moments: [state.first_moment, state.second_moment],
            progress: lasting(serde_json::to_value(&state.progress)?),
        })
    }

    /// What is not as in `expected`.
    pub fn difference(&self, expected: &Ending) -> Option<String> {
        let parts = [
            ("the adapter files", self.adapters == expected.adapters),
            ("the parameters", self.parameters == expected.parameters),
            ("the moments", self.moments == expected.moments),
            ("the progress", self.progress == expected.progress),
            ("the summary", self.summary == expected.summary),
            ("the metrics", self.metrics == expected.metrics),
        ];
        let different: Vec<_> = parts.iter().filter(|(_, equal)| !equal).map(|(name, _)| *name).collect();
        (!different.is_empty()).then(|| format!("{} differ", different.join(", ")))
    }
}
