//! Runs the arms over a person's held-out records.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use data::{
    AnswerKind, Example, ExampleOptions, Prompt, Record, RecordBody, Retriever, TextPipeline, build_choice,
    build_example, build_prompt,
};
use kernels::OpsOptions;
use model::{AdapterWeights, Generator, GeneratorOptions, Model, ModelError, SamplingOptions};

use crate::arms::{ARMS, Arm, WhichAdapter};
use crate::bootstrap::Bootstrap;
use crate::error::EvalError;
use crate::evaluation::{Choice, Evaluation, QueryRow, SkippedQuery};
use crate::metrics::{Metric, metric_by_name, text_metrics};

/// What is evaluated, and how.
pub struct EvalInputs<'a> {
    pub model: Arc<Model>,
    pub text: &'a TextPipeline,
    /// The records before the held-out ones (those that were trained on), for retrieval.
    pub earlier: &'a [Record],
    /// The held-out records, oldest first.
    pub queries: &'a [Record],
    /// Frozen adapters under every arm, bottom first: with a task adapter here, `base` is the model that knows the task.
    pub on: &'a [&'a AdapterWeights],
    /// Trained on the person's history.
    pub adapter: Option<&'a AdapterWeights>,
    /// Trained the same way on another person's history.
    pub other_adapter: Option<&'a AdapterWeights>,
    pub arms: &'a [&'static Arm],
    /// As in training. `retrieved_records` counts for the arms with retrieval (the paper has 4), the others have none.
    pub options: ExampleOptions,
    /// The most tokens of a generated answer. `None` measures losses only, in a small part of the time.
    pub answer_tokens_max: Option<usize>,
    /// Whether the labels of tasks that have them are scored too: [`Choice::likeliest`].
    pub score_choices: bool,
    pub ops: OpsOptions,
}

/// More labels than this are not scored: each takes a pass over its tokens, and a person's free tags can be hundreds.
pub const SCORED_LABELS_MAX: usize = 32;

/// Told after every query of every arm.
#[derive(Clone, Copy, Debug)]
pub struct EvalProgress {
    pub arm: &'static Arm,
    /// Queries done, over all arms, of how many.
    pub done: usize,
    pub total: usize,
}

/// Measures every arm on the same queries. `watch` may end it, which is [`EvalError::Stopped`].
///
/// - **Loss** of a query: the forward of training over the record's example, the same tokens supervised.
/// - **Generation**: greedy, from the same prompt, until a stop token or `answer_tokens_max`. The prompt's keys and
///   values are those that the loss left behind, so that a prompt is computed once per arm. Plain text records have
///   no question to answer and are not generated.
/// - **Retrieval** sees what the person had written before the query: the history, and held-out records that are
///   earlier than it. Never later records, never another person's.
///
/// - **Labels**, where the task has them: the written answer is read by the benchmark's rule, and each label is scored as
///   the whole answer, end token included, behind the prompt that is computed once.
/// - **Texts** have no question that retrieval could be for: histories of texts only are asked without those arms, and
///   among other records texts are left out of them all.
///
/// A record that cannot be made into an example under one of the arms is left out of all of them, with the reason in
/// [`Evaluation::skipped`]: arms are only comparable over the same queries.
pub fn evaluate(
    inputs: &EvalInputs,
    watch: &mut dyn FnMut(&EvalProgress) -> ControlFlow<()>,
) -> Result<Evaluation, EvalError> {
    let start = Instant::now();
    check(inputs)?;
    let arms = ordered(inputs);
    let (queries, skipped) = prepare(inputs, &arms)?;
    let total = queries.len() * arms.len();
    let mut runs = Vec::with_capacity(arms.len());
    let mut generator = None;
    for arm in arms {
        let generator = with_adapter(&mut generator, arm, inputs)?;
        let mut rows = Vec::with_capacity(queries.len());
        for query in &queries {
            rows.push(run_query(generator, arm, query, inputs)?);
            let done = runs.len() * queries.len() + rows.len();
            if watch(&EvalProgress { arm, done, total }).is_break() {
                return Err(EvalError::Stopped);
            }
        }
        runs.push((arm, rows));
    }
    let asked: Vec<&Record> = queries.iter().map(|query| query.record).collect();
    let evaluation = Evaluation::from_rows(runs, &metrics_of(&asked), Bootstrap::default())?;
    Ok(Evaluation { skipped, wall_s: start.elapsed().as_secs_f64(), ..evaluation })
}

/// The metrics that the queries' tasks are measured by, the loss last where there are labels; those of free text where
/// the queries are of several kinds.
pub fn metrics_of(queries: &[&Record]) -> Vec<&'static Metric> {
    let mut names: Vec<&'static [&'static str]> = queries.iter().map(|query| query.task().metrics()).collect();
    names.sort_unstable();
    names.dedup();
    let [names] = names[..] else { return text_metrics().to_vec() };
    // Every metric of labels has a twin for the label that is likeliest, whatever was written.
    let scored = names.iter().map(|name| format!("scored_{name}"));
    let per_token = names.contains(&"accuracy").then(|| "scored_accuracy_per_token".to_owned());
    let all = names.iter().map(|name| (*name).to_owned()).chain(scored).chain(per_token);
    all.filter_map(|name| metric_by_name(&name)).collect()
}

/// A query as the model sees it without and with retrieval.
struct Query<'a> {
    record: &'a Record,
    /// What it may be answered with; empty for free text.
    choices: Vec<String>,
    plain: Option<Asked>,
    retrieved: Option<Asked>,
}

/// The example whose loss is measured, the prompt that is continued, and an example for each scored label.
struct Asked {
    example: Example,
    prompt: Option<Prompt>,
    labels: Vec<Example>,
}

fn check(inputs: &EvalInputs) -> Result<(), EvalError> {
    if inputs.queries.is_empty() {
        return Err(EvalError::NoQueries);
    }
    if inputs.arms.is_empty() {
        return Err(EvalError::NoArms);
    }
    for arm in inputs.arms {
        let missing = match arm.adapter {
            WhichAdapter::Own if inputs.adapter.is_none() => Some("an adapter"),
            WhichAdapter::Other if inputs.other_adapter.is_none() => Some("another person's adapter"),
            _ if arm.retrieval && inputs.options.retrieved_records == 0 => Some("at least one retrieved record"),
            _ => None,
        };
        if let Some(needs) = missing {
            return Err(EvalError::ArmNeeds { arm: arm.name, needs });
        }
    }
    Ok(())
}

/// The chosen arms in the order of [`ARMS`], each once: arms with the same adapter follow each other. Those with
/// retrieval only if some query can have it.
fn ordered(inputs: &EvalInputs) -> Vec<&'static Arm> {
    let only_texts = inputs.queries.iter().all(is_text);
    let all = || ARMS.iter().filter(|arm| inputs.arms.contains(arm));
    let arms: Vec<&'static Arm> = all().filter(|arm| !(arm.retrieval && only_texts)).collect();
    if arms.is_empty() { all().collect() } else { arms }
}

fn is_text(record: &Record) -> bool {
    matches!(record.body, RecordBody::Text(_))
}

/// All that can be asked, and what cannot be and why.
fn prepare<'a>(
    inputs: &EvalInputs<'a>,
    arms: &[&'static Arm],
) -> Result<(Vec<Query<'a>>, Vec<SkippedQuery>), EvalError> {
    let earlier: Vec<Record> = inputs.earlier.iter().chain(inputs.queries).cloned().collect();
    let retriever = Retriever::for_options(&earlier, &inputs.options);
    let mut queries = Vec::with_capacity(inputs.queries.len());
    let mut skipped = Vec::new();
    for record in inputs.queries {
        let choices = match record.task().answer_kind() {
            AnswerKind::Text => Vec::new(),
            _ => record.task().choices(record, &earlier),
        };
        let asked = |retrieval: bool| {
            let wanted = arms.iter().any(|arm| arm.retrieval == retrieval);
            wanted.then(|| ask(inputs, record, &choices, &retriever, retrieval)).transpose()
        };
        let both = asked(false).and_then(|plain| Ok((plain, asked(true)?)));
        match both.map(|(plain, retrieved)| Query { record, choices, plain, retrieved }) {
            Ok(query) => queries.push(query),
            Err(reason) => skipped.push(SkippedQuery { id: record.id.clone(), reason }),
        }
    }
    match skipped.first() {
        Some(first) if queries.is_empty() => {
            Err(EvalError::NoUsableQueries { skipped: skipped.len(), first_reason: first.reason.clone() })
        }
        _ => Ok((queries, skipped)),
    }
}

fn ask(
    inputs: &EvalInputs,
    record: &Record,
    choices: &[String],
    retriever: &Retriever,
    retrieval: bool,
) -> Result<Asked, String> {
    if record.answer().trim().is_empty() {
        return Err("it has no answer".into());
    }
    if retrieval && is_text(record) {
        return Err("it is a text, which has no question that earlier records could be shown with".into());
    }
    let retrieved_records = if retrieval { inputs.options.retrieved_records } else { 0 };
    let options = ExampleOptions { retrieved_records, ..inputs.options.clone() };
    let example = build_example(inputs.text, record, retriever, &options).map_err(|error| error.to_string())?;
    let prompt = match inputs.answer_tokens_max {
        Some(answer_tokens_max) if !is_text(record) => {
            let built = build_prompt(inputs.text, record, retriever, &options, answer_tokens_max);
            Some(built.map_err(|error| error.to_string())?)
        }
        _ => None,
    };
    let labels: Result<Vec<Example>, _> = match inputs.score_choices && choices.len() <= SCORED_LABELS_MAX {
        true => choices.iter().map(|label| build_choice(inputs.text, record, retriever, &options, label)).collect(),
        false => Ok(Vec::new()),
    };
    Ok(Asked { example, prompt, labels: labels.map_err(|error| error.to_string())? })
}

/// The generator with the arm's adapter; made at the first call.
fn with_adapter<'g>(
    generator: &'g mut Option<Generator>,
    arm: &'static Arm,
    inputs: &EvalInputs,
) -> Result<&'g mut Generator, EvalError> {
    let adapter = match arm.adapter {
        WhichAdapter::None => None,
        WhichAdapter::Own => inputs.adapter,
        WhichAdapter::Other => inputs.other_adapter,
    };
    let adapters: Vec<&AdapterWeights> = inputs.on.iter().copied().chain(adapter).collect();
    let failed = |source| EvalError::Adapter { arm: arm.name, source };
    if let Some(present) = generator {
        present.set_adapters(&adapters).map_err(failed)?;
        return Ok(present);
    }
    let options = GeneratorOptions::new(inputs.ops, inputs.options.tokens_max);
    Ok(generator.insert(Generator::stacked(Arc::clone(&inputs.model), &adapters, options).map_err(failed)?))
}

fn run_query(
    generator: &mut Generator,
    arm: &'static Arm,
    query: &Query,
    inputs: &EvalInputs,
) -> Result<QueryRow, EvalError> {
    let asked = if arm.retrieval { &query.retrieved } else { &query.plain };
    let Asked { example, prompt, labels } = asked.as_ref().expect("prepared for every arm that runs");
    let id = &query.record.id;
    let failed = |source: ModelError| EvalError::Query { arm: arm.name, record: id.clone(), source };
    let losses = generator.losses(&example.tokens, &example.loss_mask).map_err(failed)?;
    if !losses.loss_sum.is_finite() {
        return Err(EvalError::LossNotFinite { arm: arm.name, record: id.clone(), value: losses.loss_sum });
    }
    let mut generated = None;
    if let (Some(prompt), Some(tokens_max)) = (prompt, inputs.answer_tokens_max) {
        let stop_tokens = inputs.text.stop_tokens().to_vec();
        let greedy = SamplingOptions { tokens_max, temperature: 0.0, stop_tokens, ..SamplingOptions::default() };
        generated = Some(generator.generate(&prompt.tokens, &greedy, &mut |_| true).map_err(failed)?);
    }
    let label_losses: Result<Vec<(f64, usize)>, ModelError> = labels
        .iter()
        .map(|label| {
            let losses = generator.losses_behind(&label.tokens, &label.loss_mask)?;
            Ok((losses.loss_sum, losses.losses.len()))
        })
        .collect();
    let label_losses = label_losses.map_err(failed)?;
    let prediction = generated.as_ref().map(|tokens| inputs.text.decode(tokens).trim().to_string());
    let first_answer_token = example.loss_mask.iter().position(|learned| *learned).unwrap_or(0);
    Ok(QueryRow {
        id: id.clone(),
        gold: query.record.answer(),
        choice: choice(query, prediction.as_deref(), &label_losses),
        prediction,
        loss_sum: Some(losses.loss_sum),
        answer_tokens: losses.losses.len(),
        prompt_tokens: prompt.as_ref().map_or(first_answer_token, |prompt| prompt.tokens.len()),
        generated_tokens: generated.map_or(0, |tokens| tokens.len()),
        retrieved_records: example.retrieved_ids.len(),
        context_tokens_cut: example.truncation.context_tokens_cut,
    })
}

/// How an answer stands to the labels; `None` for free text.
fn choice(query: &Query, written: Option<&str>, losses: &[(f64, usize)]) -> Option<Choice> {
    let task = query.record.task();
    let scale = match task.answer_kind() {
        AnswerKind::Text => return None,
        AnswerKind::Choice => None,
        AnswerKind::Rating { lowest, highest } => Some([f64::from(lowest), f64::from(highest)]),
    };
    // Of equal labels the first in the list is taken, whatever the machine.
    let likeliest = |loss_of: fn(&(f64, usize)) -> f64| {
        let best = losses.iter().enumerate().min_by(|left, right| loss_of(left.1).total_cmp(&loss_of(right.1)))?;
        Some(query.choices[best.0].clone())
    };
    let gold = query.record.answer();
    Some(Choice {
        parsed: written.and_then(|written| task.parse_answer(written, &query.choices)),
        likeliest: likeliest(|(loss_sum, _)| *loss_sum),
        likeliest_per_token: likeliest(|(loss_sum, tokens)| loss_sum / *tokens as f64),
        scale,
        gold_is_listed: task.parse_answer(&gold, &query.choices).is_some(),
    })
}
