//! What is trained on what and how: the arguments and first steps that `train` and `plan` share.

use crate::failure::{Failure, InputError};
use crate::preparation::{self, HoldOut, Preparation};
use crate::terminal::Terminal;
use crate::training::FromAdapter;
use crate::workbench::{self, HistoryArguments, HistoryChoice, ModelChoice, ReadingArguments, THREADS_MAX, Workbench};
use data::History;
use model::AdapterStack;
use std::path::{Path, PathBuf};
use train::{PRESETS, Stage, StartingAdapter, TrainConfig};

#[derive(clap::Args)]
pub struct Recipe {
    /// GGUF file, Hugging Face or MLX folder, or the name of a pulled model
    #[arg(long)]
    pub model: Option<String>,
    /// The history: a JSON Lines file, or a folder of them
    #[arg(long, visible_alias = "history", value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Train on top of this adapter, which stays as it is (PEFT or MLX folder); may be repeated, bottom first
    #[arg(long, value_name = "ADAPTER")]
    pub on: Vec<PathBuf>,
    /// user: one person's records; task: everybody's in the file, each with only the own earlier ones in the prompt
    #[arg(long, value_parser = ["user", "task"], value_name = "STAGE")]
    pub stage: Option<String>,
    /// default (small histories, minutes on a laptop) or paper (the recipe of the paper's Table 1)
    #[arg(long, value_parser = PRESETS.map(|preset| preset.name))]
    pub preset: Option<String>,
    /// Settings from a TOML file; unknown keys are errors
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, over preset and file; may be repeated (`selftune train --settings` lists them)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Newest records that training never sees: a share below 1 (of a short history at least 8 records, at most a quarter), or a number
    #[arg(long, default_value = "0.1", value_parser = HoldOut::parse, value_name = "SHARE")]
    pub hold_out: HoldOut,
    /// Worker threads, 1 to 1024 [default: the physical cores]; changes no result
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub history: HistoryArguments,
    #[command(flatten)]
    pub reading: ReadingArguments,
}

fn threads(text: &str) -> Result<usize, String> {
    let known = format!("expected 1 to {THREADS_MAX}; this machine has {} physical cores", kernels::physical_cores());
    text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads)).ok_or(known)
}

/// Everything that a run is made from.
pub struct Prepared {
    pub history_choice: HistoryChoice,
    pub history: History,
    pub model_choice: ModelChoice,
    pub bench: Workbench,
    /// Resolved for the model.
    pub config: TrainConfig,
    /// What the adapter begins from, where that is another adapter.
    pub from: Option<(FromAdapter, StartingAdapter)>,
    pub on: AdapterStack,
    pub hold_out: HoldOut,
    pub preparation: Preparation,
}

impl Prepared {
    /// Says beforehand that what will be learned cannot be accepted. Who holds nothing out knows it.
    pub fn warn_of_shortfall(&self, terminal: &Terminal) {
        let Preparation { training, held_out, .. } = &self.preparation;
        let shortfall = eval::shortfall(training.len(), held_out.len()).filter(|_| self.hold_out.0 > 0.0);
        if let Some(shortfall) = shortfall {
            terminal.warning(format!("an adapter of this run cannot be accepted: {shortfall}"));
        }
    }
}

impl Recipe {
    /// Preset, file, settings and flags, in this order.
    pub fn configuration(&self) -> Result<TrainConfig, Failure> {
        let file = match &self.config {
            None => None,
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).bad_input(format!("cannot read the settings {}", path.display()))?;
                Some((text, path.display().to_string()))
            }
        };
        let file = file.as_ref().map(|(text, name)| (text.as_str(), name.as_str()));
        let mut settings = self.settings.clone();
        settings.extend(self.stage.iter().map(|stage| format!("stage={stage}")));
        settings.extend(self.threads.map(|threads| format!("threads={threads}")));
        TrainConfig::load(self.preset.as_deref(), file, &settings).bad_input("settings")
    }

    /// Reads history and model, makes the examples, and shows where every record went. With `from` the shape of that
    /// adapter decides over the settings.
    pub fn prepare(&self, config: TrainConfig, from: Option<&Path>, terminal: &Terminal) -> Result<Prepared, Failure> {
        let (Some(model), Some(data)) = (&self.model, &self.data) else {
            return Err(Failure::usage("--model and --data are needed"));
        };
        let mut history_choice = HistoryChoice::new(data, &self.history);
        history_choice.everybody = config.stage == Stage::Task;
        if history_choice.everybody && history_choice.user.is_some() {
            return Err(Failure::usage("--stage task learns from everybody's records: leave --user out"));
        }
        let history = history_choice.read()?;
        if history_choice.everybody && history.users().len() < 2 {
            terminal.warning("all records are one person's: what the adapter learns is the person, not the task alone");
        }
        let model_choice = ModelChoice::new(model, &self.reading)?;
        let bench = Workbench::open(&model_choice, self.reading.no_cache, terminal)?;
        let mut config = config.resolved(bench.model.config()).bad_input("settings")?;
        let from = from.map(|path| FromAdapter::begin(path, &bench, &mut config)).transpose()?;
        let on = bench.adapters(&self.on)?;
        workbench::show_stack(on.entries(), terminal);
        let preparation = preparation::prepare(&bench, &history, &config, self.hold_out)?;
        preparation.show(&bench, &history_choice, terminal);
        Ok(Prepared {
            history_choice,
            history,
            model_choice,
            bench,
            config,
            from,
            on,
            hold_out: self.hold_out,
            preparation,
        })
    }
}
