//! The report as Markdown: the page without its plots.

use std::fmt::Write;

use super::escape::{markdown as escaped, shortened};
use super::{Fact, ReportInputs, samples};
use crate::evaluation::{Difference, Evaluation};
use crate::table::estimate_text;
use crate::verdict::Verdict;

/// Longer answers are cut in the table; the JSON form has them whole.
const ANSWER_CHARACTERS_MAX: usize = 300;

pub fn render_markdown(inputs: &ReportInputs) -> String {
    let mut text = format!("# {}\n", escaped(&inputs.title));
    if !inputs.facts.is_empty() {
        text.push('\n');
        inputs.facts.iter().for_each(|fact| push_line(&mut text, &format!("- {}", fact_line(fact))));
    }
    if let Some(verdict) = inputs.verdict {
        push_verdict(&mut text, verdict);
    }
    if let Some(evaluation) = inputs.evaluation {
        push_arms(&mut text, evaluation);
        push_differences(&mut text, &evaluation.differences);
        push_samples(&mut text, evaluation, inputs.samples_max);
    }
    if let Some(curves) = &inputs.training {
        text.push_str("\n## Training\n\n");
        for (name, points) in [("Training loss", &curves.loss), ("Validation loss", &curves.validation_loss)] {
            if let (Some(first), Some(last)) = (points.first(), points.last()) {
                push_line(
                    &mut text,
                    &format!("- {name}: {:.3} at step {} to {:.3} at step {}", first.1, first.0, last.1, last.0),
                );
            }
        }
        if let Some(step) = curves.best_step {
            push_line(&mut text, &format!("- Best adapter: step {step}"));
        }
    }
    if !inputs.costs.is_empty() {
        text.push_str("\n## Cost\n\n");
        let cell = |value: &Option<String>| value.as_deref().map_or("-".to_string(), escaped);
        let rows = inputs.costs.iter().map(|cost| vec![escaped(&cost.name), cell(&cost.planned), cell(&cost.measured)]);
        push_table(&mut text, &["", "Planned", "Measured"].map(String::from), rows);
    }
    for (heading, facts) in [("Data", &inputs.data), ("Configuration", &inputs.configuration)] {
        if !facts.is_empty() {
            let _ = write!(text, "\n## {heading}\n\n");
            facts.iter().for_each(|fact| push_line(&mut text, &format!("- {}", fact_line(fact))));
        }
    }
    text
}

fn push_verdict(text: &mut String, verdict: &Verdict) {
    let _ = write!(text, "\n**{}.** {}\n", escaped(&verdict.headline), escaped(&verdict.reason));
    if !verdict.cautions.is_empty() {
        text.push('\n');
    }
    verdict.cautions.iter().for_each(|caution| push_line(text, &format!("- Caution: {}", escaped(caution))));
}

fn push_arms(text: &mut String, evaluation: &Evaluation) {
    let Some(first) = evaluation.arms.first() else { return };
    text.push_str("\n## Arms\n\nMeans over held-out queries with 95 % intervals.\n\n");
    let mut heading = vec!["Arm".to_string()];
    heading.extend(first.metrics.iter().map(|result| result.metric.label.to_string()));
    heading.push("Queries".into());
    let rows = evaluation.arms.iter().map(|result| {
        let mut row = vec![result.arm.label.to_string()];
        row.extend(result.metrics.iter().map(|result| {
            result.estimate.map_or("-".into(), |estimate| escaped(&estimate_text(result.metric, estimate)))
        }));
        row.push(result.rows.len().to_string());
        row
    });
    push_table(text, &heading, rows);
}

fn push_differences(text: &mut String, differences: &[Difference]) {
    if differences.is_empty() {
        return;
    }
    text.push_str("\n## Differences over the same queries\n\n");
    let rows = differences.iter().map(|difference| {
        let digits = difference.metric.digits;
        let interval = difference
            .estimate
            .interval
            .map_or("-".into(), |interval| format!("{:+.digits$} to {:+.digits$}", interval.low, interval.high));
        vec![
            difference.comparison.question.to_string(),
            difference.metric.label.to_string(),
            format!("{:+.digits$}", difference.estimate.value),
            interval,
            difference.outcome.answer().to_string(),
        ]
    });
    push_table(text, &["Question", "Metric", "Difference", "95 % interval", "Answer"].map(String::from), rows);
}

fn push_samples(text: &mut String, evaluation: &Evaluation, count: usize) {
    let samples = samples(evaluation, count);
    if samples.is_empty() {
        return;
    }
    text.push_str("\n## Samples\n");
    for sample in &samples {
        let _ = write!(text, "\n{}\n\n", escaped(sample.id));
        let row = |who: &str, answer: &str| vec![who.into(), escaped(&shortened(answer, ANSWER_CHARACTERS_MAX))];
        let answers = sample.predictions.iter().map(|(arm, prediction)| row(arm.label, prediction));
        let rows = std::iter::once(row("**The person**", sample.gold)).chain(answers);
        push_table(text, &["".into(), "Text".into()], rows);
    }
}

fn fact_line(fact: &Fact) -> String {
    format!("{}: {}", escaped(&fact.name), escaped(&fact.value))
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// A table of cells that are safe already.
pub(crate) fn push_table(text: &mut String, headings: &[String], rows: impl IntoIterator<Item = Vec<String>>) {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    push_line(text, &line(headings));
    push_line(text, &format!("|{}", " --- |".repeat(headings.len())));
    rows.into_iter().for_each(|row| push_line(text, &line(&row)));
}
