//! Generated answers beside the real ones.

use serde_json::{Map, Value, json};

use crate::arms::Arm;
use crate::evaluation::Evaluation;

/// One held-out record: what the person wrote, and what each arm wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    pub id: &'a str,
    pub gold: &'a str,
    /// In the order of the arms.
    pub predictions: Vec<(&'static Arm, &'a str)>,
}

impl Sample<'_> {
    pub fn to_json(&self) -> Value {
        let predictions: Map<String, Value> =
            self.predictions.iter().map(|(arm, prediction)| (arm.name.to_string(), json!(prediction))).collect();
        json!({"id": self.id, "gold": self.gold, "predictions": predictions})
    }
}

/// Up to `count` records spread evenly from the oldest to the newest held-out one: chosen by place, never by how
/// well they turned out. Records for which nothing was generated are not shown.
pub fn samples(evaluation: &Evaluation, count: usize) -> Vec<Sample<'_>> {
    let Some(first) = evaluation.arms.first() else { return Vec::new() };
    let total = first.rows.len();
    let count = count.min(total);
    let place = |index: usize| if count < 2 { total / 2 } else { index * (total - 1) / (count - 1) };
    (0..count)
        .map(place)
        .map(|row| Sample {
            id: &first.rows[row].id,
            gold: &first.rows[row].gold,
            predictions: evaluation
                .arms
                .iter()
                .filter_map(|result| Some((result.arm, result.rows[row].prediction.as_deref()?)))
                .collect(),
        })
        .filter(|sample| !sample.predictions.is_empty())
        .collect()
}
