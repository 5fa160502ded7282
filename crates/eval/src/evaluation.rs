//! What an evaluation found: rows per query, a summary per arm, differences between arms, and the JSON form.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::arms::{Arm, COMPARISONS, Comparison};
use crate::bootstrap::{Bootstrap, Interval, weighted_mean};
use crate::error::EvalError;
use crate::metrics::{Answered, Better, Measure, Metric, Pair, Score, SetScore, parse_number};

/// One held-out record under one arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueryRow {
    /// The record's id.
    pub id: String,
    /// What the person wrote.
    pub gold: String,
    /// What the model wrote, greedily; `None` if nothing was to be generated.
    pub prediction: Option<String>,
    /// Sum over the answer's tokens of the cross-entropy in nats.
    pub loss_sum: Option<f64>,
    /// Supervised tokens of the answer, its end token included.
    pub answer_tokens: usize,
    /// Tokens of the prompt, retrieved records included.
    pub prompt_tokens: usize,
    /// Tokens generated, the end token not included.
    pub generated_tokens: usize,
    /// Earlier records of the person that stand in the prompt.
    pub retrieved_records: usize,
    /// Tokens of the record's own context that did not fit.
    pub context_tokens_cut: usize,
    /// How the answer stands to the task's labels; `None` where the task has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

/// An answer to a question that has a list of labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The label that the benchmark's parsing rule finds in the written answer; `None`: unparsable, which is wrong.
    pub parsed: Option<String>,
    /// The label that the model gives the highest probability, its end token included.
    pub likeliest: Option<String>,
    /// The label with the lowest loss per token.
    pub likeliest_per_token: Option<String>,
    /// The ends of a rating's scale: an unparsable rating counts as the end that is farther from the truth.
    pub scale: Option<[f64; 2]>,
    /// Whether what the person wrote is one of the labels; if not, no arm can be right.
    pub gold_is_listed: bool,
}

impl Choice {
    /// What an unparsable answer counts as: the farther end of a scale, else nothing, which equals no label.
    fn unparsable(&self, gold: &str) -> String {
        match (self.scale, parse_number(gold)) {
            (Some([lowest, highest]), Some(gold)) if gold - lowest > highest - gold => lowest.to_string(),
            (Some([_, highest]), Some(_)) => highest.to_string(),
            _ => String::new(),
        }
    }
}

/// A value and, where two or more queries allow one, its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub interval: Option<Interval>,
}

/// One metric of one arm. `estimate` is `None` where nothing could be measured.
#[derive(Clone, Debug)]
pub struct MetricResult {
    pub metric: &'static Metric,
    pub estimate: Option<Estimate>,
    /// Predictions that could not be read as what the metric compares (they count as wrong).
    pub unparsable: usize,
}

/// All of one arm.
#[derive(Clone, Debug)]
pub struct ArmResult {
    pub arm: &'static Arm,
    pub metrics: Vec<MetricResult>,
    pub rows: Vec<QueryRow>,
}

/// Whether a difference is an improvement, as far as the held-out queries tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Better,
    Worse,
    /// The interval includes zero, or there are too few queries for one.
    NotSeparable,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Better => "better",
            Outcome::Worse => "worse",
            Outcome::NotSeparable => "not_separable",
        }
    }

    /// The answer to the comparison's question, for people.
    pub fn answer(self) -> &'static str {
        match self {
            Outcome::Better => "yes",
            Outcome::Worse => "no",
            Outcome::NotSeparable => "cannot tell",
        }
    }
}

/// `of - minus` in one metric, over the same queries.
#[derive(Clone, Debug)]
pub struct Difference {
    pub comparison: &'static Comparison,
    pub metric: &'static Metric,
    pub estimate: Estimate,
    /// The two arms' own values, over the queries that were compared.
    pub of_value: f64,
    pub minus_value: f64,
    pub outcome: Outcome,
    pub queries: usize,
}

/// A held-out record that no arm was asked about, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkippedQuery {
    pub id: String,
    pub reason: String,
}

/// The outcome of [`crate::evaluate`].
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// In the order of [`crate::ARMS`].
    pub arms: Vec<ArmResult>,
    pub differences: Vec<Difference>,
    pub skipped: Vec<SkippedQuery>,
    pub bootstrap: Bootstrap,
    pub wall_s: f64,
}

impl Evaluation {
    /// Summaries, intervals and differences of rows that were measured.
    ///
    /// All arms must hold the same queries in the same order, or differences would compare unlike things.
    pub fn from_rows(
        rows: Vec<(&'static Arm, Vec<QueryRow>)>,
        metrics: &[&'static Metric],
        bootstrap: Bootstrap,
    ) -> Result<Self, EvalError> {
        let ids = |rows: &[QueryRow]| rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
        let first = rows.first().map(|(_, rows)| ids(rows)).unwrap_or_default();
        if first.is_empty() {
            return Err(EvalError::NoQueries);
        }
        if let Some((arm, _)) = rows.iter().find(|(_, rows)| ids(rows) != first) {
            let reason = format!("arm {:?} holds other queries than {:?}", arm.name, rows[0].0.name);
            return Err(EvalError::Malformed { reason });
        }
        let arms: Vec<ArmResult> = rows
            .into_iter()
            .map(|(arm, rows)| ArmResult {
                arm,
                metrics: metrics.iter().map(|metric| summarize(metric, &rows, &bootstrap)).collect(),
                rows,
            })
            .collect();
        let differences = COMPARISONS
            .iter()
            .flat_map(|comparison| metrics.iter().map(move |metric| (comparison, *metric)))
            .filter_map(|(comparison, metric)| difference(comparison, metric, &arms, &bootstrap))
            .collect();
        Ok(Self { arms, differences, skipped: Vec::new(), bootstrap, wall_s: 0.0 })
    }

    pub fn arm(&self, name: &str) -> Option<&ArmResult> {
        self.arms.iter().find(|result| result.arm.name == name)
    }

    pub fn difference(&self, comparison: &str, metric: &str) -> Option<&Difference> {
        self.differences
            .iter()
            .find(|difference| difference.comparison.name == comparison && difference.metric.name == metric)
    }

    /// Held-out records that were asked about (the same in every arm).
    pub fn query_count(&self) -> usize {
        self.arms.first().map_or(0, |result| result.rows.len())
    }

    /// The stable form documented in `docs/json.md`; `rows` adds every query's row to its arm.
    pub fn to_json(&self, rows: bool) -> Value {
        json!({
            "arms": self.arms.iter().map(|result| result.to_json(rows)).collect::<Vec<_>>(),
            "differences": self.differences.iter().map(Difference::to_json).collect::<Vec<_>>(),
            "skipped": self.skipped,
            "bootstrap": {"level": 0.95, "resamples": self.bootstrap.resamples, "seed": self.bootstrap.seed},
        })
    }
}

impl ArmResult {
    pub fn metric(&self, name: &str) -> Option<&MetricResult> {
        self.metrics.iter().find(|result| result.metric.name == name)
    }

    /// The metric's estimate, `None` if it was not asked for or could not be measured.
    pub fn estimate(&self, name: &str) -> Option<Estimate> {
        self.metric(name)?.estimate
    }

    fn to_json(&self, rows: bool) -> Value {
        let mut object = Map::new();
        object.insert("name".into(), json!(self.arm.name));
        for result in &self.metrics {
            object.insert(result.metric.name.into(), json!(result.estimate.map(|estimate| estimate.value)));
        }
        object.insert("queries".into(), json!(self.rows.len()));
        let interval = |result: &MetricResult| interval_json(result.estimate.and_then(|estimate| estimate.interval));
        let intervals: Map<String, Value> =
            self.metrics.iter().map(|result| (result.metric.name.into(), interval(result))).collect();
        object.insert("intervals".into(), Value::Object(intervals));
        let unparsable: usize = self.metrics.iter().map(|result| result.unparsable).max().unwrap_or(0);
        object.insert("unparsable".into(), json!(unparsable));
        object.insert("retrieval".into(), json!(self.arm.retrieval));
        object.insert("adapter".into(), json!(self.arm.adapter.name()));
        if rows {
            object.insert("rows".into(), json!(self.rows));
        }
        Value::Object(object)
    }
}

impl Difference {
    fn to_json(&self) -> Value {
        json!({
            "name": self.comparison.name,
            "of": self.comparison.of,
            "minus": self.comparison.minus,
            "metric": self.metric.name,
            "value": self.estimate.value,
            "interval": interval_json(self.estimate.interval),
            "outcome": self.outcome.name(),
            "queries": self.queries,
        })
    }
}

fn interval_json(interval: Option<Interval>) -> Value {
    interval.map_or(Value::Null, |interval| json!([interval.low, interval.high]))
}

/// A metric over the rows of one arm.
pub(crate) fn summarize(metric: &'static Metric, rows: &[QueryRow], bootstrap: &Bootstrap) -> MetricResult {
    let measured = match metric.measure {
        Measure::Query(score) => {
            let scores: Vec<Score> = rows.iter().filter_map(score).collect();
            weighted_mean(&scores).map(|value| (value, bootstrap.mean_interval(&scores), 0))
        }
        Measure::Set(answered, score) => pairs(rows, answered).and_then(|answers| {
            let pairs = answers.pairs();
            let whole = score(&pairs)?;
            let interval = bootstrap.interval(pairs.len(), |drawn| Some(draw(&pairs, drawn, score)?.value));
            Some((whole.value, interval, answers.unparsable.unwrap_or(whole.unparsable)))
        }),
    };
    MetricResult {
        metric,
        estimate: measured.map(|(value, interval, _)| Estimate { value, interval }),
        unparsable: measured.map_or(0, |(_, _, unparsable)| unparsable),
    }
}

/// `of - minus` over the same queries, in the same order.
pub(crate) struct Paired {
    pub of_value: f64,
    pub minus_value: f64,
    pub interval: Option<Interval>,
    pub queries: usize,
}

/// Compares two arms' rows of the same queries. `None` where either has no value.
pub(crate) fn paired(
    metric: &'static Metric,
    of: &[QueryRow],
    minus: &[QueryRow],
    bootstrap: &Bootstrap,
) -> Option<Paired> {
    match metric.measure {
        Measure::Query(score) => {
            let (left, right): (Vec<Score>, Vec<Score>) =
                of.iter().zip(minus).filter_map(|(of, minus)| Some((score(of)?, score(minus)?))).unzip();
            let interval = bootstrap.difference_interval(&left, &right);
            let (of_value, minus_value) = (weighted_mean(&left)?, weighted_mean(&right)?);
            Some(Paired { of_value, minus_value, interval, queries: left.len() })
        }
        Measure::Set(answered, score) => {
            let (left, right) = (pairs(of, answered)?, pairs(minus, answered)?);
            let (left, right) = (left.pairs(), right.pairs());
            let interval = bootstrap.interval(left.len(), |drawn| {
                Some(draw(&left, drawn, score)?.value - draw(&right, drawn, score)?.value)
            });
            let (of_value, minus_value) = (score(&left)?.value, score(&right)?.value);
            Some(Paired { of_value, minus_value, interval, queries: left.len() })
        }
    }
}

fn difference(
    comparison: &'static Comparison,
    metric: &'static Metric,
    arms: &[ArmResult],
    bootstrap: &Bootstrap,
) -> Option<Difference> {
    let rows_of = |name| arms.iter().find(|result| result.arm.name == name).map(|result| &result.rows);
    let (of, minus) = (rows_of(comparison.of)?, rows_of(comparison.minus)?);
    let Paired { of_value, minus_value, interval, queries } = paired(metric, of, minus, bootstrap)?;
    let value = of_value - minus_value;
    let estimate = Estimate { value, interval };
    let outcome = outcome(metric, estimate);
    Some(Difference { comparison, metric, estimate, of_value, minus_value, outcome, queries })
}

/// Whether a difference in a metric is an improvement, as far as its interval tells.
pub(crate) fn outcome(metric: &Metric, difference: Estimate) -> Outcome {
    match difference.interval {
        Some(interval) if interval.excludes_zero() => {
            match (difference.value > 0.0) == (metric.better == Better::Higher) {
                true => Outcome::Better,
                false => Outcome::Worse,
            }
        }
        _ => Outcome::NotSeparable,
    }
}

/// Gold answers with what was answered, as a set metric compares them.
struct Answers<'a> {
    gold: Vec<&'a str>,
    answered: Vec<String>,
    /// Written answers without a label in them, where the task has labels.
    unparsable: Option<usize>,
}

impl Answers<'_> {
    fn pairs(&self) -> Vec<Pair<'_>> {
        self.gold.iter().zip(&self.answered).map(|(gold, prediction)| Pair { gold, prediction }).collect()
    }
}

/// `None` unless every row has such an answer.
fn pairs(rows: &[QueryRow], answered: Answered) -> Option<Answers<'_>> {
    // A chosen label is a label, whatever the model would have written.
    let mut unparsable = (answered != Answered::Written).then_some(0);
    let answers: Option<Vec<String>> = rows
        .iter()
        .map(|row| match (answered, &row.choice) {
            (Answered::Written, None) => row.prediction.clone(),
            (Answered::Written, Some(choice)) => {
                row.prediction.as_ref()?;
                *unparsable.get_or_insert(0) += usize::from(choice.parsed.is_none());
                Some(choice.parsed.clone().unwrap_or_else(|| choice.unparsable(&row.gold)))
            }
            (Answered::Likeliest, choice) => choice.as_ref()?.likeliest.clone(),
            (Answered::LikeliestPerToken, choice) => choice.as_ref()?.likeliest_per_token.clone(),
        })
        .collect();
    Some(Answers { gold: rows.iter().map(|row| row.gold.as_str()).collect(), answered: answers?, unparsable })
}

fn draw(pairs: &[Pair], drawn: &[usize], score: fn(&[Pair]) -> Option<SetScore>) -> Option<SetScore> {
    let sample: Vec<Pair> = drawn.iter().map(|&index| pairs[index]).collect();
    score(&sample)
}
