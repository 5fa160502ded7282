//! Loss per answer token: cross-entropy in nats, summed over all answer tokens and divided by their number.

use super::{Better, Measure, Metric, Score};
use crate::evaluation::QueryRow;

pub static METRIC: Metric = Metric {
    name: "loss_per_answer_token",
    label: "Loss per answer token",
    meaning: "How surprised the model is by what the person really wrote (nats a token, over all answer tokens).",
    better: Better::Lower,
    digits: 3,
    measure: Measure::Query(loss_per_answer_token),
};

/// The mean over the answer's tokens, weighted by their number, so that the mean over queries is the mean over
/// tokens: the definition that training and validation loss use too.
pub fn loss_per_answer_token(row: &QueryRow) -> Option<Score> {
    let loss_sum = row.loss_sum?;
    (row.answer_tokens > 0)
        .then(|| Score { value: loss_sum / row.answer_tokens as f64, weight: row.answer_tokens as f64 })
}
