//! A model that answers, with or without an adapter and retrieval; used by `generate` and `chat`.

use crate::failure::{Failure, InputError};
use crate::terminal::Terminal;
use crate::training::RunInputs;
use crate::workbench::{self, ComputeArguments, ModelChoice, ReadingArguments, Workbench};
use data::{ExampleOptions, RETRIEVED_RECORDS_MAX, Retriever};
use kernels::{CacheFormat, Precision};
use model::{Generator, GeneratorOptions, SamplingOptions};
use std::path::{Path, PathBuf};
use train::RunFolder;

/// Which model, adapter and records answer.
#[derive(clap::Args, Debug)]
pub struct ServingArguments {
    /// A run folder: its model, its adapter, its date; its records if --retrieve is given
    #[arg(long, value_name = "RUN", conflicts_with_all = ["adapter", "quantize_bits", "quantize_group_size"])]
    run: Option<PathBuf>,
    /// GGUF file, Hugging Face or MLX folder, or the name of a pulled model; with --run: where its model lies now
    #[arg(long, required_unless_present = "run")]
    model: Option<String>,
    /// Adapter folder (PEFT or MLX layout) for --model; may be repeated, from the base model upwards
    #[arg(long, value_name = "FOLDER")]
    adapter: Vec<PathBuf>,
    /// With --run: answer without the adapter
    #[arg(long, requires = "run")]
    no_adapter: bool,
    /// Show the model up to N of the person's records that are most like the question
    #[arg(long, value_name = "N", default_value_t = 0, requires = "run")]
    retrieve: usize,
    /// Tokens of prompt and answer together [default: what the model was made for, at most 4096]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// The most tokens of an answer [default: 256, at most half of the context]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 takes the most likely token every time; larger is more varied
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Choose among the K most likely tokens only; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: usize,
    /// Choose among the most likely tokens that together have this probability
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// Seed of the choices; the same seed gives the same answer
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How keys and values of the text so far are kept: f32, f16 (half the memory, error 2^-11) or 8bit (a quarter, error 1/254 of a head's largest) [default: f16; f32 with --precision exact]
    #[arg(long, value_name = "FORMAT", value_parser = cache_format)]
    cache: Option<CacheFormat>,
    #[command(flatten)]
    compute: ComputeArguments,
    #[command(flatten)]
    reading: ReadingArguments,
}

impl ServingArguments {
    /// Whether the same prompt gives the same answer with every seed.
    pub fn always_takes_the_likeliest(&self) -> bool {
        self.temperature == 0.0
    }
}

/// A format of the cache by its name.
pub fn cache_format(text: &str) -> Result<CacheFormat, String> {
    let names = || CacheFormat::ALL.map(CacheFormat::name).join(", ");
    CacheFormat::by_name(text).ok_or_else(|| format!("expected one of {}", names()))
}

/// Half the memory and reading of float32 at an error far below that of the 4-bit weights; exact stays exact.
fn default_cache(precision: Precision) -> CacheFormat {
    match precision {
        Precision::Exact => CacheFormat::Float32,
        Precision::A16 | Precision::A8 => CacheFormat::Float16,
    }
}

/// Ready to answer.
pub struct Serving {
    pub bench: Workbench,
    pub retriever: Retriever,
    pub user: String,
    pub options: ExampleOptions,
    /// Folders of the adapters in use, from the base model upwards.
    pub adapters: Vec<PathBuf>,
    /// How keys and values are kept.
    pub cache: CacheFormat,
    generator: Generator,
    sampling: SamplingOptions,
}

/// Contexts longer than this are planned only when asked for.
const CONTEXT_TOKENS_DEFAULT: usize = 4096;

impl Serving {
    /// Ready for up to `candidates` answers to a prompt.
    pub fn open(arguments: &ServingArguments, candidates: usize, terminal: &Terminal) -> Result<Self, Failure> {
        if arguments.retrieve > RETRIEVED_RECORDS_MAX {
            return Err(Failure::usage(format!("--retrieve {}: at most {RETRIEVED_RECORDS_MAX}", arguments.retrieve)));
        }
        let (temperature, top_p) = (arguments.temperature, arguments.top_p);
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Failure::usage(format!("--temperature {temperature}: expected 0 or more")));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Failure::usage(format!("--top-p {top_p}: expected more than 0, at most 1")));
        }
        if arguments.retrieve > 0 && arguments.run.is_none() {
            return Err(Failure::usage("--retrieve needs --run: the records are the run's"));
        }
        let run = match &arguments.run {
            Some(path) => Some(RunFolder::open(path).bad_input("cannot use the run")?),
            None => None,
        };
        let inputs = run.as_ref().map(RunInputs::of).transpose()?;
        let choice = match (&inputs, &arguments.model) {
            (Some(inputs), model) => {
                let mut choice = inputs.model.clone();
                choice.relocate(model.as_deref())?;
                choice
            }
            (None, Some(model)) => ModelChoice::new(model, &arguments.reading)?,
            (None, None) => return Err(Failure::usage("--model or --run is needed")),
        };
        let bench = Workbench::open(&choice, arguments.reading.no_cache, terminal)?;
        let mut adapters = arguments.adapter.clone();
        if let (Some(run), Some(inputs), false) = (&run, &inputs, arguments.no_adapter) {
            bench.adapters_below(&inputs.on)?;
            adapters = inputs.on.iter().map(|below| below.path.clone()).collect();
            adapters.push(adapter_of(run)?);
        }
        let stack = bench.adapters(&adapters)?;
        workbench::show_stack(stack.entries(), terminal);
        let context = context_tokens(arguments, &bench)?;
        let answer_tokens_max = answer_tokens(arguments.max_tokens, context)?;
        let ops = arguments.compute.options()?;
        let cache = arguments.cache.unwrap_or(default_cache(ops.precision));
        let generator_options = GeneratorOptions {
            cache,
            candidates_max: candidates,
            candidate_tokens_max: answer_tokens_max,
            ..GeneratorOptions::new(ops, context)
        };
        let generator =
            Generator::stacked(bench.model.clone(), &stack.weights(), generator_options).bad_input("cannot answer")?;
        let sampling = SamplingOptions {
            tokens_max: answer_tokens_max,
            temperature: arguments.temperature,
            top_k: arguments.top_k,
            top_p: arguments.top_p,
            seed: arguments.seed,
            stop_tokens: bench.text.stop_tokens().to_vec(),
        };
        // Records are found and cut as in the run's training.
        let config = run.as_ref().map(RunFolder::config).transpose().bad_input("cannot use the run")?.flatten();
        let trained = config.as_ref().map(crate::preparation::example_options).unwrap_or_default();
        let options = ExampleOptions { tokens_max: context, retrieved_records: arguments.retrieve, ..trained };
        let (retriever, user) = match &inputs {
            Some(inputs) if arguments.retrieve > 0 => {
                let history = inputs.history.read()?;
                let user = history.records.last().map_or_else(String::new, |record| record.user.clone());
                (Retriever::for_options(&history.records, &options), user)
            }
            _ => (Retriever::none(), data::DEFAULT_USER.to_owned()),
        };
        Ok(Self { bench, retriever, user, options, adapters, cache, generator, sampling })
    }

    /// Room that a prompt leaves for its answer.
    pub fn answer_tokens_max(&self) -> usize {
        self.sampling.tokens_max
    }

    /// Answers `prompt`, handing over pieces of text as they come. Returns the whole answer and its number of tokens.
    pub fn answer(&mut self, prompt: &[u32], on_text: &mut dyn FnMut(&str)) -> Result<(String, usize), Failure> {
        let mut stream = self.bench.text.stream();
        let mut whole = String::new();
        let stop_tokens = &self.sampling.stop_tokens;
        let mut on_token = |token: u32| {
            if !stop_tokens.contains(&token) {
                let piece = stream.push(token);
                on_text(&piece);
                whole.push_str(&piece);
            }
            !crate::training::stop_asked()
        };
        let tokens = self.generator.generate(prompt, &self.sampling, &mut on_token).bad_input("cannot answer")?;
        let rest = stream.finish();
        on_text(&rest);
        whole.push_str(&rest);
        Ok((whole, tokens.len()))
    }

    /// `count` answers to `prompt`, with seeds from the first one on: whole texts and their numbers of tokens.
    pub fn candidates(&mut self, prompt: &[u32], count: usize) -> Result<Vec<(String, usize)>, Failure> {
        let seeded = |seed| SamplingOptions { seed, ..self.sampling.clone() };
        let sampling: Vec<_> = (0..count as u64).map(|index| seeded(self.sampling.seed.wrapping_add(index))).collect();
        let mut go_on = |_, _| !crate::training::stop_asked();
        let answers = self.generator.candidates(prompt, &sampling, &mut go_on).bad_input("cannot answer")?;
        let text_of = |tokens: Vec<u32>| {
            let mut stream = self.bench.text.stream();
            let mut text: String = tokens.iter().map(|token| stream.push(*token)).collect();
            text += &stream.finish();
            (text, tokens.len())
        };
        Ok(answers.into_iter().map(text_of).collect())
    }
}

/// The best adapter of a run, else its last one.
pub fn adapter_of(run: &RunFolder) -> Result<PathBuf, Failure> {
    [run.best_adapter(), run.last_adapter()].into_iter().find(|folder| folder.is_dir()).ok_or_else(|| {
        Failure::input(format!("{} has no adapter yet: train it with selftune train --resume", run.path().display()))
    })
}

/// The longest answer; what is asked for must leave room for a prompt.
fn answer_tokens(asked: Option<usize>, context: usize) -> Result<usize, Failure> {
    match asked {
        None => Ok(256.min(context / 2)),
        Some(tokens) if (1..context).contains(&tokens) => Ok(tokens),
        Some(tokens) => Err(Failure::usage(format!(
            "--max-tokens {tokens}: expected 1 to {}, so that a context of {context} tokens has room for the prompt",
            context - 1
        ))),
    }
}

fn context_tokens(arguments: &ServingArguments, bench: &Workbench) -> Result<usize, Failure> {
    let limit = bench.model.config().context_tokens_max;
    match arguments.context {
        None => Ok(limit.min(CONTEXT_TOKENS_DEFAULT)),
        Some(tokens) if (2..=limit).contains(&tokens) => Ok(tokens),
        Some(tokens) => Err(Failure::usage(format!("--context {tokens}: this model takes 2 to {limit} tokens"))),
    }
}

/// Reads `path`, or standard input for `-`.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let text = match path.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()),
        _ => std::fs::read_to_string(path),
    };
    let text = text.bad_input(format!("cannot read {} as UTF-8 text", path.display()))?;
    // The line end of `echo` and of editors is not part of what was asked.
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}
