//! The arms as aligned lines for a terminal. Colours are the caller's business.

use crate::evaluation::{Difference, Estimate, Evaluation, MetricResult};
use crate::metrics::Metric;

/// A table as text: the heading, then one line a row, columns aligned, no line ends.
///
/// Intervals stand beside the values if the lines then fit into `columns_max` characters.
pub fn arms_table(evaluation: &Evaluation, columns_max: usize) -> Vec<String> {
    let with_intervals = align(&arm_cells(evaluation, true));
    if with_intervals.iter().all(|line| line.chars().count() <= columns_max) {
        return with_intervals;
    }
    align(&arm_cells(evaluation, false))
}

/// The paired differences in the metrics given by name, one a line.
pub fn differences_table(evaluation: &Evaluation, metrics: &[&str]) -> Vec<String> {
    let mut cells =
        vec![["Question", "Difference", "Metric", "Value", "95 % interval", "Answer"].map(String::from).to_vec()];
    let chosen = |difference: &&Difference| metrics.contains(&difference.metric.name);
    cells.extend(evaluation.differences.iter().filter(chosen).map(|difference| {
        let Estimate { value, interval } = difference.estimate;
        let digits = difference.metric.digits;
        vec![
            difference.comparison.question.to_string(),
            format!("{} - {}", difference.comparison.of, difference.comparison.minus),
            difference.metric.label.to_string(),
            format!("{value:+.digits$}"),
            interval
                .map_or("-".into(), |interval| format!("{:+.digits$} to {:+.digits$}", interval.low, interval.high)),
            difference.outcome.answer().to_string(),
        ]
    }));
    align(&cells)
}

fn arm_cells(evaluation: &Evaluation, intervals: bool) -> Vec<Vec<String>> {
    let Some(first) = evaluation.arms.first() else { return Vec::new() };
    let mut heading = vec!["Arm".to_string()];
    heading.extend(first.metrics.iter().map(|result| result.metric.label.to_string()));
    heading.push("Queries".into());
    let rows = evaluation.arms.iter().map(|result| {
        let mut row = vec![result.arm.label.to_string()];
        row.extend(result.metrics.iter().map(|result| metric_cell(result, intervals)));
        row.push(result.rows.len().to_string());
        row
    });
    std::iter::once(heading).chain(rows).collect()
}

fn metric_cell(result: &MetricResult, intervals: bool) -> String {
    match result.estimate {
        None => "-".into(),
        Some(estimate) if intervals => estimate_text(result.metric, estimate),
        Some(estimate) => format!("{:.*}", result.metric.digits, estimate.value),
    }
}

/// A value with its interval in brackets.
pub(crate) fn estimate_text(metric: &Metric, estimate: Estimate) -> String {
    let digits = metric.digits;
    match estimate.interval {
        Some(interval) => {
            format!("{:.digits$} [{:.digits$}, {:.digits$}]", estimate.value, interval.low, interval.high)
        }
        None => format!("{:.digits$}", estimate.value),
    }
}

/// Pads every column but the last to its widest cell; two spaces between columns.
fn align(cells: &[Vec<String>]) -> Vec<String> {
    let columns = cells.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    cells
        .iter()
        .map(|row| {
            let line: String = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}  ")).collect();
            line.trim_end().to_string()
        })
        .collect()
}
