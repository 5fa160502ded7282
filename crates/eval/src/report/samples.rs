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
/// well they turned out. A text that the person wrote several times is shown once. Records for which nothing was
/// generated are not shown.
pub fn samples(evaluation: &Evaluation, count: usize) -> Vec<Sample<'_>> {
    let Some(first) = evaluation.arms.first() else { return Vec::new() };
    let mut seen = std::collections::HashSet::new();
    let rows: Vec<usize> = (0..first.rows.len()).filter(|row| seen.insert(first.rows[*row].gold.trim())).collect();
    let count = count.min(rows.len());
    let place = |index: usize| if count < 2 { rows.len() / 2 } else { index * (rows.len() - 1) / (count - 1) };
    (0..count)
        .map(|index| rows[place(index)])
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
