//! Metrics: one file each, one line each in [`METRICS`].
//!
//! Two kinds. A *query metric* gives one value and one weight a query, and its summary is the weighted mean; it
//! can be compared query by query. A *set metric* is defined only over all pairs of gold answer and prediction.
//! Both can be resampled, so both get intervals.

mod accuracy;
mod exact_match;
mod loss_per_answer_token;
mod macro_f1;
mod mean_absolute_error;
mod number;
pub mod porter;
mod root_mean_square_error;
mod rouge_1;
mod rouge_l;
mod scored_choice;
pub mod words;

pub use accuracy::accuracy;
pub use exact_match::{exact_match, normalized};
pub use loss_per_answer_token::loss_per_answer_token;
pub use macro_f1::macro_f1;
pub use mean_absolute_error::mean_absolute_error;
pub use number::{NumberPair, number_pairs, parse_number};
pub use root_mean_square_error::root_mean_square_error;
pub use rouge_1::rouge_1;
pub use rouge_l::rouge_l;

use crate::evaluation::QueryRow;

/// Which direction is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

/// One query's part in a query metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    pub value: f64,
    /// 1 for means over queries; the answer's tokens for means over tokens.
    pub weight: f64,
}

/// A gold answer and what was predicted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    pub gold: &'a str,
    pub prediction: &'a str,
}

/// The value of a set metric, and how many predictions could not be read as what the metric compares. Those
/// count as wrong (for numbers: as the farthest), never as left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetScore {
    pub value: f64,
    pub unparsable: usize,
}

/// Which answer a set metric looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The written one; where the task has labels, the label that the benchmark's rule reads in it.
    Written,
    /// The label that the model gives the highest probability.
    Likeliest,
    /// The label with the lowest loss per token.
    LikeliestPerToken,
}

/// How a metric is computed.
#[derive(Clone, Copy)]
pub enum Measure {
    /// `None` if the row lacks what the metric reads (no prediction was generated, no loss was measured).
    Query(fn(&QueryRow) -> Option<Score>),
    /// `None` for an empty set, or where the gold answers are not of the metric's kind.
    Set(Answered, fn(&[Pair]) -> Option<SetScore>),
}

/// One metric of the list.
pub struct Metric {
    /// The key in JSON.
    pub name: &'static str,
    /// The heading for people.
    pub label: &'static str,
    /// What the number means, in a sentence for the report.
    pub meaning: &'static str,
    pub better: Better,
    /// Digits after the point in tables.
    pub digits: usize,
    pub measure: Measure,
}

/// Every metric. The first four are measured by default: they make sense for any written answer.
pub static METRICS: &[&Metric] = &[
    &loss_per_answer_token::METRIC,
    &rouge_1::METRIC,
    &rouge_l::METRIC,
    &exact_match::METRIC,
    &accuracy::METRIC,
    &macro_f1::METRIC,
    &mean_absolute_error::METRIC,
    &root_mean_square_error::METRIC,
    &scored_choice::ACCURACY,
    &scored_choice::MACRO_F1,
    &scored_choice::MEAN_ABSOLUTE_ERROR,
    &scored_choice::ACCURACY_PER_TOKEN,
];

/// The metric of that name.
pub fn metric_by_name(name: &str) -> Option<&'static Metric> {
    METRICS.iter().copied().find(|metric| metric.name == name)
}

/// The metrics of free text: loss per answer token, ROUGE-1, ROUGE-L, exact match.
pub fn text_metrics() -> &'static [&'static Metric] {
    &METRICS[..4]
}

impl std::fmt::Debug for Metric {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// The score of a metric that compares two texts and weighs each query alike.
fn text_score(row: &QueryRow, score: fn(&str, &str) -> f64) -> Option<Score> {
    let prediction = row.prediction.as_deref()?;
    Some(Score { value: score(&row.gold, prediction), weight: 1.0 })
}
