//! `selftune bench generate`: prompts and answers of a model of a known shape against the ceilings of this machine.

use super::step::watch_memory;
use super::{check_memory, instruction_set, model_shape};
use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::terminal::{Terminal, human_bytes};
use crate::workbench::THREADS_MAX;
use kernels::ceiling::Ceilings;
use kernels::{CacheFormat, Isa, OpsOptions, Precision};
use model::{
    Generator, GeneratorOptions, KnownShape, Model, Random, SamplingOptions, SyntheticPlace, SyntheticWeights,
    synthetic_model,
};
use std::sync::Arc;
use std::time::Instant;

/// Prompts and answers of a model with random weights, against the ceilings of this machine.
///
/// Each round reads a prompt that it has not seen, makes the same products alone, writes an answer, and only reads the
/// weights, for each format of the cache in turn. A prompt is bounded by its products (1.00: nothing else costs
/// anything), a step of an answer by reading the weights and the keys and values seen (1.00: as fast as reading).
/// In the table, `products` and `ceiling` are the prompt's: its products alone over it, and its rate over the
/// instruction's; `reading` is the answer's: the bytes a step reads over the rate of only reading the weights.
/// Figures are medians over rounds and steps. At last the logits behind the answer are computed anew, without its
/// cache and in float32: `error` is the difference over their size, and fails the command beyond its bound.
///
///   selftune bench generate --shape smollm2-135m
///   selftune bench generate --shape smollm3-3b --threads 2 --cache f32,f16,8bit --prompt-tokens 1024
///   selftune bench generate --shape smollm2-360m --candidates 8
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Arguments {
    /// Model shape: smollm2-135m, gemma3-270m, smollm2-360m, smollm3-3b, qwen3-8b
    #[arg(long, value_parser = model_shape)]
    shape: KnownShape,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens of an answer
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Answers that are written together behind one prompt
    #[arg(long, default_value_t = 1)]
    candidates: usize,
    /// How keys and values are kept, comma-separated: f32, f16, 8bit; several are measured in turns
    #[arg(long, value_delimiter = ',', default_value = "f16", value_parser = crate::serving::cache_format)]
    cache: Vec<CacheFormat>,
    /// Worker threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Instruction set instead of the best one
    #[arg(long)]
    isa: Option<String>,
}

/// What a cache's rounding may change in the logits of a model with random weights, relative to their size.
fn error_bound(format: CacheFormat) -> f64 {
    match format {
        CacheFormat::Float32 => 1e-5,
        CacheFormat::Float16 => 1e-2,
        CacheFormat::Bits8 => 1e-1,
    }
}

fn check(arguments: &Arguments) -> Result<Isa, Failure> {
    let expect = |option: &str, value: usize, range: std::ops::RangeInclusive<usize>| match range.contains(&value) {
        true => Ok(()),
        false => Err(Failure::usage(format!("--{option} {value}: expected {} to {}", range.start(), range.end()))),
    };
    expect("threads", arguments.threads, 1..=THREADS_MAX)?;
    expect("rounds", arguments.rounds, 1..=1000)?;
    expect("candidates", arguments.candidates, 1..=256)?;
    expect("tokens", arguments.tokens, 2..=1 << 20)?;
    expect("prompt-tokens", arguments.prompt_tokens, 1..=1 << 20)?;
    let limit = arguments.shape.config().context_tokens_max;
    let tokens = arguments.prompt_tokens + arguments.tokens;
    if tokens > limit {
        let (prompt, answer, name) = (arguments.prompt_tokens, arguments.tokens, arguments.shape.name);
        let message =
            format!("--prompt-tokens {prompt} and --tokens {answer}: {name} takes {limit} tokens together at most");
        return Err(Failure::usage(message));
    }
    instruction_set(arguments.isa.as_deref())
}

/// A generator's options with a cache of that format.
fn options(arguments: &Arguments, ops: OpsOptions, cache: CacheFormat) -> GeneratorOptions {
    GeneratorOptions {
        cache,
        candidates_max: arguments.candidates,
        candidate_tokens_max: arguments.tokens,
        ..GeneratorOptions::new(ops, arguments.prompt_tokens + arguments.tokens)
    }
}

/// Plans everything on a model without weights, which take long to make: the weights, all generators, and the one of the
/// check beside them.
fn check_fits(arguments: &Arguments, ops: OpsOptions) -> Result<(), Failure> {
    let config = arguments.shape.config();
    let model = Arc::new(synthetic_model(&config, &SyntheticWeights::default(), SyntheticPlace::Planned)?);
    let weights = model.weights_bytes();
    let checking = GeneratorOptions::new(ops, arguments.prompt_tokens + arguments.tokens);
    let generators = arguments.cache.iter().map(|&cache| options(arguments, ops, cache)).chain([checking]);
    let mut needed = weights as u64;
    for options in generators {
        let plan = Generator::planned(&model, &[], options).bad_input("cannot measure")?;
        needed = needed.saturating_add((plan.total_bytes() - weights) as u64);
    }
    let Arguments { prompt_tokens, tokens, candidates, .. } = arguments;
    let shape = arguments.shape.name;
    let what = format!("--shape {shape} with --prompt-tokens {prompt_tokens}, --tokens {tokens} and --candidates {candidates}");
    check_memory(&what, "a smaller shape or less of these", Some(needed))
}

/// Seconds of each part, round by round; of decoding, step by step.
#[derive(Default)]
struct Times {
    prompt: Vec<f64>,
    products: Vec<f64>,
    step: Vec<f64>,
    read: Vec<f64>,
}

struct Row {
    format: CacheFormat,
    prompt_s: f64,
    products_s: f64,
    prompt_gmac_per_s: f64,
    step_s: f64,
    weights_bytes: usize,
    read_gbyte_per_s: f64,
    cache_bytes_read: usize,
    cache_bytes: usize,
    planned_bytes: usize,
    error: f64,
}

impl Row {
    fn step_gbyte_per_s(&self) -> f64 {
        (self.weights_bytes + self.cache_bytes_read) as f64 / self.step_s / 1e9
    }
}

pub(super) fn run(arguments: &Arguments, terminal: &Terminal) -> Outcome {
    let isa = check(arguments)?;
    let ops = OpsOptions { threads: arguments.threads, isa, precision: Precision::A16 };
    check_fits(arguments, ops)?;
    let ceilings = kernels::ceiling::measure(isa);
    terminal.line(format!(
        "{} with random 4-bit weights on {}, {}, {} thread(s); medians, ceilings measured between the rounds",
        arguments.shape.name,
        isa.name(),
        device::Machine::describe(),
        arguments.threads
    ));
    let spinner = terminal.spinner("random weights");
    let config = arguments.shape.config();
    let model = synthetic_model(&config, &SyntheticWeights::default(), SyntheticPlace::Memory)?;
    spinner.finish_and_clear();
    let model = Arc::new(model);
    let mut generators = Vec::new();
    for &cache in &arguments.cache {
        let generator =
            Generator::new(Arc::clone(&model), None, options(arguments, ops, cache)).bad_input("cannot measure")?;
        generators.push((cache, generator, Times::default()));
    }
    let bar = terminal.bar((arguments.rounds * generators.len()) as u64, "bench", "rounds");
    let mut prompt = Vec::new();
    let mut answers = vec![Vec::new(); generators.len()];
    let mut prompt_macs = 0;
    let (outcome, peak) = watch_memory(|| -> Result<(), Failure> {
        for round in 0..arguments.rounds {
            prompt = random_tokens(arguments.prompt_tokens, config.vocabulary, round as u64);
            for ((_, generator, times), answer) in generators.iter_mut().zip(&mut answers) {
                (prompt_macs, *answer) = one_round(generator, &prompt, arguments, times)?;
                bar.inc(1);
            }
        }
        Ok(())
    });
    outcome?;
    bar.finish_and_clear();
    let peak_bytes = peak.map(|peak| peak.total_bytes);

    let mut rows = Vec::new();
    for ((format, mut generator, mut times), answer) in generators.into_iter().zip(answers) {
        let text: Vec<u32> = prompt.iter().chain(&answer).copied().collect();
        let found = generator.logits(&text).bad_input("cannot measure")?;
        let weights_bytes = generator.read_weights();
        let (prompt_s, read_s) = (median(&mut times.prompt), median(&mut times.read));
        rows.push(Row {
            format,
            prompt_s,
            products_s: median(&mut times.products),
            prompt_gmac_per_s: prompt_macs as f64 / prompt_s / 1e9,
            step_s: median(&mut times.step),
            weights_bytes,
            read_gbyte_per_s: weights_bytes as f64 / read_s / 1e9,
            cache_bytes_read: cache_bytes_read(&generator, arguments),
            cache_bytes: generator.cache_bytes(),
            planned_bytes: generator.plan().total_bytes(),
            error: error_of(&model, ops, &text, &found)?,
        });
    }
    show(&rows, arguments, &ceilings, terminal);
    let peak = peak_bytes.map_or("unknown".into(), human_bytes);
    let (weights, planned) = (model.weights_bytes() as u64, rows.iter().map(|row| row.planned_bytes as u64).sum::<u64>());
    let together = planned - (rows.len() as u64 - 1) * weights;
    terminal.line(format!(
        "peak memory while answering {peak}: planned {} ({} weights), the rest is the program",
        human_bytes(together),
        human_bytes(weights)
    ));
    terminal.json(&serde_json::json!({
        "shape": arguments.shape.name,
        "prompt_tokens": arguments.prompt_tokens,
        "tokens": arguments.tokens,
        "candidates": arguments.candidates,
        "threads": arguments.threads,
        "rows": rows.iter().map(|row| json_row(row, arguments, &ceilings)).collect::<Vec<_>>(),
        "weights_bytes": model.weights_bytes(),
        "peak_bytes": peak_bytes,
        "ceilings": super::json_ceilings(&ceilings),
        "isa": isa.name(),
        "machine": device::Machine::describe(),
    }));
    match rows.iter().find(|row| row.error.is_nan() || row.error > error_bound(row.format)) {
        None => Ok(ExitStatus::Done),
        Some(row) => {
            let (format, error, bound) = (row.format.name(), row.error, error_bound(row.format));
            Err(anyhow::anyhow!("logits behind the answer are off by {error:.1e} with {format}, bound {bound:.0e}").into())
        }
    }
}

/// Returns the multiply-adds of the prompt with frozen weights and the first answer.
fn one_round(
    generator: &mut Generator,
    prompt: &[u32],
    arguments: &Arguments,
    times: &mut Times,
) -> Result<(u64, Vec<u32>), Failure> {
    let sampling = vec![SamplingOptions { tokens_max: arguments.tokens, ..SamplingOptions::default() }; arguments.candidates];
    let macs_before = generator.counters().frozen_macs;
    let start = Instant::now();
    generator.logits(prompt).bad_input("cannot measure")?;
    times.prompt.push(start.elapsed().as_secs_f64());
    let prompt_macs = generator.counters().frozen_macs - macs_before;

    let start = Instant::now();
    generator.prompt_products(prompt.len());
    times.products.push(start.elapsed().as_secs_f64());
    let product_macs = generator.counters().frozen_macs - macs_before - prompt_macs;
    if product_macs != prompt_macs {
        return Err(anyhow::anyhow!("the products alone are {product_macs} multiply-adds of {prompt_macs}").into());
    }

    // The end of each step: when the first answer gets its token.
    let mut ends = Vec::with_capacity(arguments.tokens);
    let answers = generator.candidates(prompt, &sampling, &mut |answer, _| {
        if answer == 0 {
            ends.push(Instant::now());
        }
        true
    });
    let mut answers = answers.bad_input("cannot measure")?;
    times.step.extend(ends.windows(2).map(|ends| (ends[1] - ends[0]).as_secs_f64()));
    if answers.iter().any(|answer| *answer != answers[0]) {
        return Err(anyhow::anyhow!("answers chosen in the same way differ").into());
    }

    let start = Instant::now();
    generator.read_weights();
    times.read.push(start.elapsed().as_secs_f64());
    Ok((prompt_macs, answers.swap_remove(0)))
}

fn random_tokens(count: usize, vocabulary: usize, round: u64) -> Vec<u32> {
    let mut random = Random::new(round + 1);
    let mut tokens: Vec<u32> = (0..count).map(|_| (random.next_u64() % vocabulary as u64) as u32).collect();
    // No two rounds begin alike: nothing of a prompt is known.
    tokens[0] = (round % vocabulary as u64) as u32;
    tokens
}

/// Bytes that a step reads of keys and values, in the middle of the answer. Positions in the prompt are read once for
/// all candidates.
fn cache_bytes_read(generator: &Generator, arguments: &Arguments) -> usize {
    let prompt = generator.cache_bytes_read(arguments.prompt_tokens - 1);
    let middle = generator.cache_bytes_read(arguments.prompt_tokens + arguments.tokens / 2);
    prompt + arguments.candidates * (middle - prompt)
}

/// Difference of `found`, logits behind `text`, from those of a generator that has not seen it, in float32.
fn error_of(model: &Arc<Model>, ops: OpsOptions, text: &[u32], found: &[f32]) -> Result<f64, Failure> {
    let options = GeneratorOptions::new(ops, text.len());
    let mut generator = Generator::new(Arc::clone(model), None, options).bad_input("cannot check")?;
    let expected = generator.logits(text).bad_input("cannot check")?;
    let square = |sum: f64, value: f64| sum + value * value;
    let difference = found.iter().zip(&expected).map(|(found, expected)| f64::from(found - expected)).fold(0.0, square);
    let size = expected.iter().map(|logit| f64::from(*logit)).fold(0.0, square);
    Ok((difference / size).sqrt())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn show(rows: &[Row], arguments: &Arguments, ceilings: &Ceilings, terminal: &Terminal) {
    let ceiling = ceilings.i16_dot_gmac_per_s * arguments.threads as f64;
    terminal.line(format!(
        "{:<6} {:>10} {:>9} {:>9} {:>10} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "cache", "prompt", "products", "ceiling", "answer", "ms/step", "MB/step", "GB/s", "reading", "cache", "error"
    ));
    for row in rows {
        terminal.line(format!(
            "{:<6} {:>6.0} t/s {:>9.2} {:>9.2} {:>6.1} t/s {:>9.2} {:>10.1} {:>9.1} {:>9.2} {:>9} {:>9.1e}",
            row.format.name(),
            arguments.prompt_tokens as f64 / row.prompt_s,
            row.products_s / row.prompt_s,
            row.prompt_gmac_per_s / ceiling,
            arguments.candidates as f64 / row.step_s,
            row.step_s * 1e3,
            (row.weights_bytes + row.cache_bytes_read) as f64 / 1e6,
            row.step_gbyte_per_s(),
            row.step_gbyte_per_s() / row.read_gbyte_per_s,
            human_bytes(row.cache_bytes as u64),
            row.error,
        ));
    }
    terminal.line(format!(
        "ceilings: {ceiling:.0} GMAC/s of 16-bit integers; reading the weights {:.1} GB/s",
        rows[0].read_gbyte_per_s
    ));
}

fn json_row(row: &Row, arguments: &Arguments, ceilings: &Ceilings) -> serde_json::Value {
    let instruction_ceiling = ceilings.i16_dot_gmac_per_s * arguments.threads as f64;
    serde_json::json!({
        "cache": row.format.name(),
        "prefill_s": row.prompt_s,
        "prefill_tokens_per_s": arguments.prompt_tokens as f64 / row.prompt_s,
        "prefill_products_s": row.products_s,
        "prefill_fraction_of_products": row.products_s / row.prompt_s,
        "prefill_gmac_per_s": row.prompt_gmac_per_s,
        "prefill_fraction_of_instructions": row.prompt_gmac_per_s / instruction_ceiling,
        "decode_step_s": row.step_s,
        "decode_tokens_per_s": arguments.candidates as f64 / row.step_s,
        "weights_bytes_per_step": row.weights_bytes,
        "cache_bytes_per_step": row.cache_bytes_read,
        "bytes_per_token": (row.weights_bytes + row.cache_bytes_read) as f64 / arguments.candidates as f64,
        "decode_gbyte_per_s": row.step_gbyte_per_s(),
        "read_gbyte_per_s": row.read_gbyte_per_s,
        "decode_fraction_of_reading": row.step_gbyte_per_s() / row.read_gbyte_per_s,
        "cache_bytes": row.cache_bytes,
        "planned_bytes": row.planned_bytes,
        "relative_error": row.error,
        "relative_error_max": error_bound(row.format),
    })
}
