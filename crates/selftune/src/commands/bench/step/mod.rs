//! `selftune bench step`: one training step on random weights, against its own products and against another setting.

mod check;
mod child;
mod report;
mod setting;
mod subject;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::kernels::ceiling::{Ceilings, Instruction, measure, probe};
use ::kernels::{Isa, Precision};
use model::{KnownShape, Model, ModelConfig, SyntheticPlace, SyntheticWeights, synthetic_model};

use super::{check_memory, instruction_set, model_shape};
use crate::failure::{ExitStatus, Failure, Outcome};
use crate::terminal::Terminal;
use check::Check;
use child::{OtherBuild, ServedStep};
use setting::{KEYS, Setting};
use subject::{Answer, ProductsMeasurement, StepMeasurement, Subject};
pub use subject::{MemoryPeak, watch_memory};

/// How long another build may take for its weights and a step: the first at least, and many times what this one took.
const PATIENCE_MIN: Duration = Duration::from_secs(600);
const PATIENCE_FACTOR: u32 = 20;

/// One training step on random 4-bit weights of a known shape; nothing is downloaded.
///
/// Times whole steps (example, forward, head, recompute, backward, optimizer) in turns with only their products with
/// frozen weights, so that both see the same machine: `fraction` is what the products alone take of a step. Says what
/// adapters, attention and the rest take, the ceilings of the processor, and planned and measured memory, and checks the
/// timed loss and gradient against losses in float32.
///
/// Times are medians of each column; the whole's fraction is the median of rounds, so it need not be their quotient.
/// Short steps on a busy machine say nothing: a note is printed where products cannot be faster than they are, or rounds
/// scatter.
///
/// --against KEY=VALUE (tokens, supervised, blocks, rank, targets, memory, recompute, weights, boundaries, kept-values,
/// passes, skip, threads, precision) runs a second setting in turns and prints its time over the first's;
/// --against-binary does so with another build. Weights lie in a file in the temporary folder, as those of a real
/// model, and are gone at the end: 1.8 GB for smollm3-3b, 4.4 GB for qwen3-8b.
///
///   selftune bench step --shape smollm2-135m --tokens 512
///   selftune bench step --shape smollm3-3b --tokens 1024 --threads 2 --memory 1GB
///   selftune bench step --shape smollm3-3b --tokens 1024 --against blocks=18 --against passes=3
///   selftune bench step --shape smollm2-135m --recompute per-block --against recompute=never
///   selftune bench step --shape smollm2-135m --blocks 6 --supervised 100 --against skip=off
///   selftune bench step --shape smollm3-3b --model-blocks 4 --against-binary ./selftune-before
#[derive(clap::Args)]
#[command(verbatim_doc_comment, allow_negative_numbers = true)]
pub struct Arguments {
    /// Model shape: smollm2-135m, gemma3-270m, smollm2-360m, smollm3-3b, qwen3-8b
    #[arg(long, value_parser = model_shape)]
    shape: KnownShape,
    /// Only the first N blocks of the model, for a quick look
    #[arg(long, value_name = "N")]
    model_blocks: Option<usize>,
    /// Tokens of the example [default: 512]
    #[arg(long, value_name = "N")]
    tokens: Option<String>,
    /// Only the last N tokens are targets [default: all]
    #[arg(long, value_name = "N")]
    supervised: Option<String>,
    /// Adapt the last N blocks [default: all]
    #[arg(long, value_name = "N")]
    blocks: Option<String>,
    /// Rank of the adapters [default: 8]
    #[arg(long, value_name = "R")]
    rank: Option<String>,
    /// Adapted projections, or all [default: q,v]
    #[arg(long, value_name = "LIST")]
    targets: Option<String>,
    /// The most that the process may take, such as 1GB [default: what the fastest plan takes]
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// Which blocks run again before their backward: auto (as memory allows), per-block, never
    #[arg(long, value_name = "WHEN")]
    recompute: Option<String>,
    /// Where weights are: auto, resident, streamed
    #[arg(long, value_name = "WHERE")]
    weights: Option<String>,
    /// How inputs of blocks are kept: auto, float32, bfloat16
    #[arg(long, value_name = "TYPE")]
    boundaries: Option<String>,
    /// How gate and up of kept blocks are kept: auto, float32, int16
    #[arg(long, value_name = "TYPE")]
    kept_values: Option<String>,
    /// Visits of the example, from the second on without the blocks below the adapted ones, whose output was kept
    #[arg(long, value_name = "N")]
    passes: Option<String>,
    /// Savings: on, off, or all but some: no-logits, no-last-block, no-stop, no-gradients, no-recompute, no-tiles,
    /// no-adapters-only
    #[arg(long, value_name = "WHICH")]
    skip: Option<String>,
    /// Worker threads [default: the physical cores]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Precision of activations inside the products: a16, exact, a8 [default: a16]
    #[arg(long, value_name = "NAME")]
    precision: Option<String>,
    /// Instruction set instead of the best one
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
    /// Timed steps, after one that is not counted
    #[arg(long, default_value_t = 3, value_name = "N")]
    steps: usize,
    /// A setting of a second step to run in turns, repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    against: Vec<String>,
    /// Another build of selftune whose steps run in turns with this one's
    #[arg(long, value_name = "PROGRAM")]
    against_binary: Option<PathBuf>,
    /// Leave out the check of the answer, which takes about two forwards in float32
    #[arg(long)]
    no_check: bool,
    /// Run a step for each line of standard input: the other side of --against-binary
    #[arg(long, hide = true)]
    serve: bool,
}

impl Arguments {
    /// The setting that the options of each key say.
    fn setting(&self, isa: Isa) -> Result<Setting, Failure> {
        let options = [
            &self.tokens,
            &self.supervised,
            &self.blocks,
            &self.rank,
            &self.targets,
            &self.memory,
            &self.recompute,
            &self.weights,
            &self.boundaries,
            &self.kept_values,
            &self.passes,
            &self.skip,
            &self.threads,
            &self.precision,
        ];
        let mut setting = Setting::new(isa);
        for ((key, ..), text) in KEYS.iter().zip(options) {
            if let Some(text) = text {
                setting.set(key, text).map_err(|message| Failure::usage(format!("--{message}")))?;
            }
        }
        Ok(setting)
    }

    /// The other side's, where one is asked for.
    fn setting_against(&self, setting: &Setting) -> Result<Option<Setting>, Failure> {
        if self.against.is_empty() {
            return Ok(None);
        }
        let mut other = setting.clone();
        for pair in &self.against {
            let Some((key, text)) = pair.split_once('=') else {
                return Err(Failure::usage(format!("--against {pair}: expected KEY=VALUE, such as blocks=18")));
            };
            other.set(key, text).map_err(|message| Failure::usage(format!("--against {message}")))?;
        }
        Ok(Some(other))
    }

    /// What another build needs besides its setting.
    fn arguments_of_other_build(&self, setting: &Setting) -> Vec<String> {
        let mut arguments = vec![format!("--shape={}", self.shape.name)];
        arguments.extend(self.model_blocks.map(|count| format!("--model-blocks={count}")));
        arguments.extend(self.isa.iter().map(|isa| format!("--isa={isa}")));
        arguments.extend(setting.arguments());
        arguments
    }
}

/// Steps of one side in turns with the other's.
pub struct Measured {
    pub steps: Vec<StepMeasurement>,
    pub products: Vec<ProductsMeasurement>,
    pub others: Vec<ServedStep>,
    pub peak: Option<MemoryPeak>,
    /// Of one thread.
    pub ceilings: Ceilings,
    pub check: Option<Check>,
}

/// What runs in turns with the steps of the first setting.
enum Other {
    Setting(Box<Subject>),
    Build(OtherBuild),
}

impl Other {
    fn step(&mut self) -> Result<ServedStep, Failure> {
        match self {
            Other::Setting(subject) => subject.step(None).map(|measured| served(&measured)),
            Other::Build(build) => build.step(),
        }
    }
}

fn served(measured: &StepMeasurement) -> ServedStep {
    ServedStep { step_s: measured.step_s, processor_s: measured.processor_s, loss: measured.loss }
}

pub fn run(arguments: &Arguments, terminal: &Terminal) -> Outcome {
    let start = Instant::now();
    let isa = instruction_set(arguments.isa.as_deref())?;
    let setting = arguments.setting(isa)?;
    let setting_against = arguments.setting_against(&setting)?;
    if !(1..=1000).contains(&arguments.steps) {
        return Err(Failure::usage(format!("--steps {}: expected 1 to 1000", arguments.steps)));
    }
    let config = model_config(arguments)?;
    arguments.against_binary.as_deref().map_or(Ok(()), OtherBuild::check)?;
    check_plans(arguments, &config, &setting, setting_against.as_ref())?;
    let model = synthetic(&config, terminal)?;
    if arguments.serve {
        let mut subject = Subject::new(&model, &setting)?;
        child::serve(|| subject.step(None).map(|measured| served(&measured)), |step| terminal.event(step))?;
        return Ok(ExitStatus::Done);
    }
    let in_this_build = setting_against.as_ref().filter(|_| arguments.against_binary.is_none());
    let plan_against = in_this_build.map(|against| subject::plan(&model, against)).transpose()?;
    let (subject, peak) = watch_memory(|| -> Result<Subject, Failure> {
        let mut subject = Subject::new(&model, &setting)?;
        subject.step(None)?;
        Ok(subject)
    });
    let subject = subject?;
    let patience = PATIENCE_MIN.max(start.elapsed() * PATIENCE_FACTOR);
    let mut other = match (&arguments.against_binary, &setting_against, plan_against) {
        (Some(program), setting_against, _) => {
            let setting = setting_against.as_ref().unwrap_or(&setting);
            Some(Other::Build(OtherBuild::start(program, &arguments.arguments_of_other_build(setting), patience)?))
        }
        (None, Some(setting), Some(planned)) => {
            Some(Other::Setting(Box::new(Subject::with_plan(&model, setting, planned)?)))
        }
        _ => None,
    };
    if let Some(other) = &mut other {
        other.step()?;
    }
    let (subject, mut measured, answer) = in_turns(arguments, subject, other, terminal)?;
    measured.peak = peak;
    let (options, about) = (subject.planned.options, report::About::new(arguments, &setting, setting_against, subject));
    if let (false, Some(answer)) = (arguments.no_check, answer) {
        measured.check = Some(check::check(&model, &setting, options, &answer)?);
    }
    about.print(&measured, terminal);
    match measured.check {
        Some(check) if !check.is_right() => Err(Failure::from(anyhow::anyhow!(
            "the timed step is wrong: loss off by {:.1e} (at most {:.0e}), gradient by {:.1e} (at most {:.0e})",
            check.loss_error,
            check.loss_error_max,
            check.gradient_error,
            check.gradient_error_max
        ))),
        _ => Ok(ExitStatus::Done),
    }
}

fn model_config(arguments: &Arguments) -> Result<ModelConfig, Failure> {
    let mut config = arguments.shape.config();
    if let Some(count) = arguments.model_blocks {
        if !(1..=config.blocks.len()).contains(&count) {
            let (name, all) = (arguments.shape.name, config.blocks.len());
            return Err(Failure::usage(format!("--model-blocks {count}: expected 1 to {all} for {name}")));
        }
        config.blocks.truncate(count);
    }
    Ok(config)
}

/// Plans the steps of this build on a model without weights: those of a large one take minutes to make, so what cannot
/// run is refused before. What fits another build is for that to say.
fn check_plans(
    arguments: &Arguments,
    config: &ModelConfig,
    setting: &Setting,
    against: Option<&Setting>,
) -> Result<(), Failure> {
    setting.spec(config).map_err(|message| Failure::usage(format!("--{message}")))?;
    if let Some(against) = against {
        against.spec(config).map_err(|message| Failure::usage(format!("--against {message}")))?;
    }
    let model = Arc::new(synthetic_model(config, &SyntheticWeights::default(), SyntheticPlace::Planned)?);
    let (_, first) = subject::plan(&model, setting)?;
    if let (Some(against), None) = (against, &arguments.against_binary) {
        let refused = |failure: Failure| Failure { error: failure.error.context("--against"), ..failure };
        let (_, second) = subject::plan(&model, against).map_err(refused)?;
        let together = first.peak.anonymous_bytes + second.peak.anonymous_bytes;
        check_memory("the step beside that of --against", "smaller settings, or a --memory for both", Some(together))?;
    }
    Ok(())
}

/// The model, in a file without a name: it is gone when the program ends, killed or not.
fn synthetic(config: &ModelConfig, terminal: &Terminal) -> Result<Arc<Model>, Failure> {
    let bar = terminal.bar(1, "make random weights", "models");
    let folder = std::env::temp_dir();
    let model = synthetic_model(config, &SyntheticWeights::default(), SyntheticPlace::File(&folder))?;
    bar.finish_and_clear();
    Ok(Arc::new(model))
}

/// The timed steps. The sides change their order from round to round.
fn in_turns(
    arguments: &Arguments,
    mut subject: Subject,
    mut other: Option<Other>,
    terminal: &Terminal,
) -> Result<(Subject, Measured, Option<Answer>), Failure> {
    let bar = terminal.bar(arguments.steps as u64, "bench", "steps");
    let options = subject.setting.ops;
    let instruction = match options.precision {
        Precision::A16 => Instruction::DotI16,
        Precision::A8 => Instruction::DotI8,
        Precision::Exact => Instruction::FmaF32,
    };
    let (mut steps, mut products, mut others, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut answer = None;
    for round in 0..arguments.steps {
        rates.push(probe(options.isa, instruction));
        let mut other_step = || other.as_mut().map(Other::step).transpose();
        if round % 2 == 1 {
            others.extend(other_step()?);
        }
        let is_last = round + 1 == arguments.steps;
        steps.push(subject.step(is_last.then_some(&mut answer))?);
        products.push(subject.products()?);
        if round % 2 == 0 {
            others.extend(other_step()?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(other);
    let mut ceilings = measure(options.isa);
    rates.sort_by(f64::total_cmp);
    let between = match instruction {
        Instruction::DotI16 => &mut ceilings.i16_dot_gmac_per_s,
        Instruction::DotI8 => &mut ceilings.i8_dot_gmac_per_s,
        Instruction::FmaF32 => &mut ceilings.f32_fma_gmac_per_s,
    };
    *between = rates[rates.len() / 2];
    Ok((subject, Measured { steps, products, others, peak: None, ceilings, check: None }, answer))
}
