//! What most commands need first: a model with its tokenizer, a history, an adapter.

use crate::accepted;
use crate::failure::{Failure, InputError};
use crate::model_store;
use crate::terminal::{Terminal, human_bytes};
use data::{History, PinnedDate, ReadOptions, TextOptions, TextPipeline};
use formats::adapter::{AdapterFile, StackEntry};
use formats::{CacheMode, LoadOptions, LoadProgress};
use kernels::{Isa, OpsOptions, Precision};
use model::{AdapterStack, AdapterWeights, Model};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More threads than this are a slip of the keyboard.
pub const THREADS_MAX: usize = 1024;

/// How a model is read.
#[derive(clap::Args, Clone, Debug)]
pub struct ReadingArguments {
    /// Bits per weight for models that come in float; what arrives quantized stays as it is
    #[arg(long, default_value_t = 4, value_parser = clap::builder::PossibleValuesParser::new(["4", "8"]).map(|bits| bits.parse::<u32>().expect("listed")))]
    pub quantize_bits: u32,
    /// Weights that share a scale, for models that come in float
    #[arg(long, default_value_t = 64, value_parser = clap::builder::PossibleValuesParser::new(["32", "64", "128"]).map(|size| size.parse::<usize>().expect("listed")))]
    pub quantize_group_size: usize,
    /// Keep no packed copy of the model on disk; every start then packs it anew
    #[arg(long)]
    pub no_cache: bool,
}

use clap::builder::TypedValueParser;

/// What the products run on.
#[derive(clap::Args, Clone, Debug)]
pub struct ComputeArguments {
    /// Worker threads, 1 to 1024 [default: the physical cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Precision of activations inside the products with frozen weights: a16 (error under 2e-4), exact, or a8 (fast, error about 1e-2)
    #[arg(long, default_value = "a16", value_parser = ["a16", "exact", "a8"])]
    pub precision: String,
    /// Instruction set to use instead of the best one (avx512vnni, avxvnni, avx2; on Arm neon-i8mm, neon-dotprod, neon; portable); results are the same
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
}

impl ComputeArguments {
    pub fn options(&self) -> Result<OpsOptions, Failure> {
        let defaults = OpsOptions::default();
        let threads = self.threads.unwrap_or(defaults.threads);
        if !(1..=THREADS_MAX).contains(&threads) {
            let cores = kernels::physical_cores();
            let message =
                format!("--threads {threads}: expected 1 to {THREADS_MAX}; this machine has {cores} physical cores");
            return Err(Failure::usage(message));
        }
        let isa = match &self.isa {
            None => defaults.isa,
            Some(name) => Isa::by_name(name).ok_or_else(|| {
                let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
                Failure::usage(format!("--isa {name}: this machine has {}", names.join(", ")))
            })?,
        };
        let precision = Precision::by_name(&self.precision).expect("clap checks the name");
        Ok(OpsOptions { threads, isa, precision })
    }
}

/// Everything about a model that a later command must use again to get the same numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelChoice {
    pub path: PathBuf,
    pub quantize_bits: u32,
    pub quantize_group_size: usize,
    /// The day that chat templates see, pinned so that a trained prompt and a served prompt agree.
    pub date: PinnedDate,
}

impl ModelChoice {
    pub fn new(model: &str, reading: &ReadingArguments) -> Result<Self, Failure> {
        let path = model_store::resolve(model)?;
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self {
            path,
            quantize_bits: reading.quantize_bits,
            quantize_group_size: reading.quantize_group_size,
            date: PinnedDate::today(),
        })
    }
}

impl ModelChoice {
    /// The same model at another place, where one is given. What it must be is checked by its hash later.
    pub fn relocate(&mut self, model: Option<&str>) -> Result<(), Failure> {
        if let Some(model) = model {
            let path = model_store::resolve(model)?;
            self.path = std::path::absolute(&path).unwrap_or(path);
        } else if !self.path.exists() {
            return Err(Failure::input(format!(
                "the model is no longer at {}; say where it is now with --model",
                self.path.display()
            )));
        }
        Ok(())
    }
}

/// A model that is ready to run, with its text side.
pub struct Workbench {
    pub model: Arc<Model>,
    pub text: TextPipeline,
    /// For people.
    pub model_name: String,
}

impl Workbench {
    pub fn open(choice: &ModelChoice, no_cache: bool, terminal: &Terminal) -> Result<Self, Failure> {
        let cache = if no_cache { CacheMode::Off } else { CacheMode::BesideModel };
        let options =
            LoadOptions { quantize_bits: choice.quantize_bits, quantize_group_size: choice.quantize_group_size, cache };
        let bar = terminal.bytes_bar(0, "load model");
        let shown = |progress: &LoadProgress| {
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        };
        let loaded = formats::load_model(&choice.path, &options, &mut { shown })
            .bad_input(format!("cannot use the model {}", choice.path.display()))?;
        bar.finish_and_clear();
        let text_options = TextOptions::new(choice.date);
        let text = TextPipeline::new(&loaded.tokenizer, loaded.chat_template.as_deref(), &loaded.special, text_options)
            .bad_input(format!("cannot use the tokenizer of {}", choice.path.display()))?;
        let model_name = model_name(&choice.path, loaded.source.name.as_deref());
        let model = Model::from_loaded(loaded).bad_input(format!("cannot use the model {}", choice.path.display()))?;
        terminal.remark(format!(
            "{model_name}: {:.1} M parameters in {} of packed weights",
            model.parameter_count() as f64 / 1e6,
            human_bytes(model.weights_bytes() as u64)
        ));
        Ok(Self { model: Arc::new(model), text, model_name })
    }

    /// Reads adapter folders (PEFT or MLX layout) to use together on this model, bottom first.
    pub fn adapters<P: AsRef<Path>>(&self, folders: &[P]) -> Result<AdapterStack, Failure> {
        let files = folders.iter().map(|folder| read_named_adapter(folder.as_ref())).collect::<Result<Vec<_>, _>>()?;
        self.stack(&files, folders)
    }

    fn stack<P: AsRef<Path>>(&self, files: &[(String, AdapterFile)], folders: &[P]) -> Result<AdapterStack, Failure> {
        let list = folders.iter().map(|folder| folder.as_ref().display().to_string()).collect::<Vec<_>>().join(", ");
        AdapterStack::from_files(files, &self.model).bad_input(format!("cannot use the adapter {list}"))
    }

    /// The adapters that a run was trained on top of, which must still be the same.
    pub fn adapters_below(&self, below: &[AdapterBelow]) -> Result<AdapterStack, Failure> {
        // By the names that they had: an adapter on top of them remembers those, and goes on to the same bytes.
        let read = |adapter: &AdapterBelow| Ok((adapter.entry.name.clone(), read_named_adapter(&adapter.path)?.1));
        let files = below.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
        let folders: Vec<&PathBuf> = below.iter().map(|adapter| &adapter.path).collect();
        let stack = self.stack(&files, &folders)?;
        for (adapter, now) in below.iter().zip(stack.entries()) {
            if adapter.entry.content_hash != now.content_hash {
                return Err(Failure::input(format!(
                    "the adapter in {} is no longer the one that the run was trained on top of ({}, now {})",
                    adapter.path.display(),
                    adapter.entry.content_hash,
                    now.content_hash
                )));
            }
        }
        Ok(stack)
    }

    /// Reads an adapter folder (PEFT or MLX layout) for this model.
    pub fn adapter(&self, folder: &Path) -> Result<AdapterWeights, Failure> {
        let file =
            formats::adapter::read_adapter(folder).bad_input(format!("cannot use the adapter {}", folder.display()))?;
        AdapterWeights::from_file(&file, &self.model).bad_input(format!("cannot use the adapter {}", folder.display()))
    }
}

/// An adapter below a run's own, as the run folder remembers it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdapterBelow {
    pub path: PathBuf,
    #[serde(flatten)]
    pub entry: StackEntry,
}

impl AdapterBelow {
    /// The adapters of `stack`, which were read from `folders`.
    pub fn list(folders: &[PathBuf], stack: &AdapterStack) -> Result<Vec<Self>, Failure> {
        let below = |(folder, entry): (&PathBuf, &StackEntry)| {
            // A name stands for the version that is in use now, whichever it will be later.
            let folder = accepted::folder_of(folder)?.unwrap_or_else(|| folder.clone());
            let path = std::path::absolute(&folder).unwrap_or(folder);
            Ok(Self { path, entry: entry.clone() })
        };
        folders.iter().zip(stack.entries()).map(below).collect()
    }
}

/// Says which adapters are in use, from the base model upwards.
pub fn show_stack(entries: &[StackEntry], terminal: &Terminal) {
    if !entries.is_empty() {
        let list: Vec<String> = entries.iter().map(StackEntry::to_string).collect();
        terminal.remark(format!("adapters, from the base model upwards: {}", list.join(", then ")));
    }
}

/// The adapter in `folder` and what to call it: its run, if it lies in one.
pub fn read_named_adapter(folder: &Path) -> Result<(String, AdapterFile), Failure> {
    // The name of an accepted adapter stands for its version in use.
    if let Some(accepted) = accepted::folder_of(folder)? {
        let (_, file) = read_named_adapter(&accepted)?;
        return Ok((folder.to_string_lossy().into_owned(), file));
    }
    let file =
        formats::adapter::read_adapter(folder).bad_input(format!("cannot use the adapter {}", folder.display()))?;
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let run = match absolute.parent() {
        Some(parent) if parent.ends_with("adapter") => parent.parent(),
        _ => None,
    };
    let name = run.unwrap_or(&absolute).file_name().unwrap_or(absolute.as_os_str());
    Ok((name.to_string_lossy().into_owned(), file))
}

/// What people call a model: its file, whose own name field is often a leftover of its making; for folders the name
/// inside, since a folder may be called anything, else the folder.
fn model_name(path: &Path, inside: Option<&str>) -> String {
    let inside = inside.filter(|name| path.is_dir() && !name.is_empty()).map(str::to_owned);
    let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
    inside
        .or_else(|| stem.map(|stem| stem.to_string_lossy().into_owned()))
        .unwrap_or_else(|| path.display().to_string())
}

/// Which records of which person.
#[derive(clap::Args, Clone, Debug)]
pub struct HistoryArguments {
    /// Whose records, when the file holds several people's
    #[arg(long)]
    pub user: Option<String>,
    /// Leave out lines that are no records, and say which, instead of stopping at the first
    #[arg(long)]
    pub skip_bad_lines: bool,
    /// Use only the newest N records
    #[arg(long, value_name = "N")]
    pub newest: Option<usize>,
    /// Read every record as this task, where the fields alone could mean another (tweet, rating, movie_tag ...)
    #[arg(long, value_name = "TASK", value_parser = clap::builder::PossibleValuesParser::new(data::TASKS.iter().map(|task| task.name())))]
    pub task: Option<String>,
    /// Name of the prompt field in prompt/completion records
    #[arg(long, default_value = "prompt", value_name = "FIELD")]
    pub prompt_field: String,
    /// Name of the completion field in prompt/completion records
    #[arg(long, default_value = "completion", value_name = "FIELD")]
    pub completion_field: String,
    /// Name of the text field in text records
    #[arg(long, default_value = "text", value_name = "FIELD")]
    pub text_field: String,
}

/// The same, remembered in a run folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryChoice {
    pub path: PathBuf,
    pub user: Option<String>,
    pub skip_bad_lines: bool,
    pub newest: Option<usize>,
    /// Everybody's records in the file: the task stage.
    #[serde(default)]
    pub everybody: bool,
    /// The task that every record is read as; recognised where none is named.
    #[serde(default)]
    pub task: Option<String>,
    pub prompt_field: String,
    pub completion_field: String,
    pub text_field: String,
}

impl HistoryChoice {
    pub fn new(path: &Path, arguments: &HistoryArguments) -> Self {
        Self {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            user: arguments.user.clone(),
            skip_bad_lines: arguments.skip_bad_lines,
            newest: arguments.newest,
            everybody: false,
            task: arguments.task.clone(),
            prompt_field: arguments.prompt_field.clone(),
            completion_field: arguments.completion_field.clone(),
            text_field: arguments.text_field.clone(),
        }
    }

    /// Reads one person's history, or everybody's if that was chosen. Otherwise several people in one file are an error
    /// that lists them.
    pub fn read(&self) -> Result<History, Failure> {
        let mut history = self.read_everybody()?;
        let users = history.users();
        if users.len() > 1 && !self.everybody {
            let list: Vec<_> = users.iter().take(20).map(|(user, count)| format!("{user} ({count})")).collect();
            return Err(Failure::input(format!(
                "{} holds the records of {} people; choose one with --user (or learn what all have in common with train --stage task): {}",
                self.path.display(),
                users.len(),
                list.join(", ")
            )));
        }
        if let Some(newest) = self.newest {
            if newest == 0 {
                return Err(Failure::usage("--newest 0 leaves no record"));
            }
            match self.everybody {
                false => history.keep_newest(newest),
                // Of each person: those who wrote last must not push the others out.
                true => history.keep_newest_of_each_user(newest),
            }
        }
        Ok(history)
    }

    fn read_everybody(&self) -> Result<History, Failure> {
        let options = ReadOptions {
            user: self.user.clone(),
            on_bad_line: if self.skip_bad_lines { data::OnBadLine::Skip } else { data::OnBadLine::Stop },
            task: self.task.as_deref().and_then(data::task_by_name),
            columns: data::ColumnNames {
                prompt: self.prompt_field.clone(),
                completion: self.completion_field.clone(),
                text: self.text_field.clone(),
                ..data::ColumnNames::default()
            },
        };
        data::read_history(&self.path, &options).bad_input(format!("cannot use the history {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    #[test]
    fn help_names_every_instruction_set_of_this_machine() {
        let command = ComputeArguments::augment_args(clap::Command::new("selftune"));
        let option = command.get_arguments().find(|option| option.get_id() == "isa").expect("--isa");
        let help = option.get_help().expect("help").to_string();
        for isa in Isa::available() {
            assert!(help.contains(isa.name()), "{}: {help}", isa.name());
        }
    }
}
