//! What may honestly be said about an adapter, and whether to keep it.
//!
//! The rule: an adapter is kept if, on the person's newest held-out records, its loss per answer token lies below
//! the base model's with a 95 % interval that excludes zero, over at least [`QUERIES_MIN`] queries. An adapter that was
//! trained with earlier records in its prompts is judged with them, against the base model with the same ones.
//! Everything else (another person's adapter, retrieval, the words in common) is reported beside the decision and never
//! hidden.

use serde_json::{Value, json};

use crate::arms::Arm;
pub use crate::evaluation::Outcome;
use crate::evaluation::{Difference, Evaluation};

/// Below this number of queries an interval from resampling is too narrow to be believed.
pub const QUERIES_MIN: usize = 8;

/// The metric that decides: it uses every token of every answer, so it tells most from few records.
const DECIDING: &str = "loss_per_answer_token";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Kept,
    NotKept,
}

impl Decision {
    pub fn name(self) -> &'static str {
        match self {
            Decision::Kept => "kept",
            Decision::NotKept => "not_kept",
        }
    }
}

/// The answer to one question of [`crate::COMPARISONS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Name of the comparison, such as `adapter_minus_base`.
    pub comparison: &'static str,
    pub question: &'static str,
    pub outcome: Outcome,
    /// A whole sentence with numbers.
    pub sentence: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub decision: Decision,
    /// One short line.
    pub headline: String,
    /// Why, in a sentence.
    pub reason: String,
    /// In the order of [`crate::COMPARISONS`].
    pub findings: Vec<Finding>,
    /// What a reader must know before believing the headline.
    pub cautions: Vec<String>,
}

impl Verdict {
    pub fn to_json(&self) -> Value {
        let finding = |finding: &Finding| {
            json!({
                "comparison": finding.comparison,
                "question": finding.question,
                "outcome": finding.outcome.name(),
                "sentence": finding.sentence,
            })
        };
        json!({
            "decision": self.decision.name(),
            "headline": self.headline,
            "reason": self.reason,
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "cautions": self.cautions,
        })
    }
}

/// Judges an adapter that is served without retrieval. `None` if the adapter or the base was not among the arms: then
/// there is nothing to judge.
pub fn judge(evaluation: &Evaluation) -> Option<Verdict> {
    Some(judged(evaluation, evaluation.difference("adapter_minus_base", DECIDING)?))
}

/// Judges an adapter that was trained with earlier records in its prompts, as it is served: with them. Without, where
/// the arms with retrieval were not run, as for texts, which no records are shown with.
pub fn judge_with_retrieval(evaluation: &Evaluation) -> Option<Verdict> {
    match evaluation.difference("adapter_retrieval_minus_retrieval", DECIDING) {
        Some(against_base) => Some(judged(evaluation, against_base)),
        None => judge(evaluation),
    }
}

fn judged(evaluation: &Evaluation, against_base: &Difference) -> Verdict {
    let findings: Vec<Finding> =
        evaluation.differences.iter().filter(|difference| difference.metric.name == DECIDING).map(finding).collect();
    let (decision, headline, reason) = decide(against_base);
    Verdict { decision, headline, reason, findings, cautions: cautions(evaluation, against_base) }
}

fn decide(against_base: &Difference) -> (Decision, String, String) {
    let queries = count(against_base.queries, "held-out record", "held-out records");
    let numbers = format!("Over {queries}: {}", numbers(against_base));
    if against_base.queries < QUERIES_MIN {
        let reason = format!("At least {QUERIES_MIN} held-out records are needed to tell. {numbers}");
        return (Decision::NotKept, "Not kept: too few held-out records to tell".to_owned(), reason);
    }
    let base = match Arm::by_name(against_base.comparison.minus) {
        Ok(arm) if arm.retrieval => "the base model shown the same earlier records",
        _ => "the base model",
    };
    let (decision, headline) = match against_base.outcome {
        Outcome::Better => (Decision::Kept, format!("Kept: the adapter knows the person better than {base}")),
        Outcome::Worse => (Decision::NotKept, format!("Not kept: the adapter is worse than {base}")),
        Outcome::NotSeparable => (Decision::NotKept, format!("Not kept: no gain over {base} can be shown")),
    };
    (decision, headline, numbers)
}

fn finding(difference: &Difference) -> Finding {
    Finding {
        comparison: difference.comparison.name,
        question: difference.comparison.question,
        outcome: difference.outcome,
        sentence: numbers(difference),
    }
}

fn numbers(difference: &Difference) -> String {
    let label = |name| Arm::by_name(name).map_or(name, |arm| arm.label);
    let Difference { comparison, of_value, minus_value, estimate, .. } = difference;
    let interval = match estimate.interval {
        Some(interval) => format!("95 % interval {:+.3} to {:+.3}", interval.low, interval.high),
        None => "no interval".into(),
    };
    format!(
        "{} {of_value:.3} against {} {minus_value:.3} nats per answer token: {:+.3} ({interval}).",
        label(comparison.of),
        label(comparison.minus),
        estimate.value
    )
}

fn cautions(evaluation: &Evaluation, against_base: &Difference) -> Vec<String> {
    let outcome = |comparison, metric| evaluation.difference(comparison, metric).map(|found| found.outcome);
    let mut cautions = Vec::new();
    if against_base.outcome == Outcome::Better {
        match outcome("adapter_minus_other_adapter", DECIDING) {
            Some(Outcome::Better) => {}
            Some(Outcome::NotSeparable) => cautions
                .push("Another person's adapter does as well: the gain may be the task's and not the person's.".into()),
            Some(Outcome::Worse) => cautions.push(
                "Another person's adapter does better: this history taught the task less well than another.".into(),
            ),
            None => cautions.push(
                "No other person's adapter was compared: how much of the gain is the person's is not known.".into(),
            ),
        }
        if outcome("adapter_minus_base", "rouge_1") == Some(Outcome::Worse) {
            cautions
                .push("What it writes shares fewer words with the person's text than the base model's does.".into());
        }
    }
    if outcome("adapter_minus_retrieval", DECIDING) == Some(Outcome::Worse) {
        cautions.push("Retrieval alone does better, without any training.".into());
    }
    if !evaluation.skipped.is_empty() {
        let left_out = count(evaluation.skipped.len(), "held-out record was", "held-out records were");
        cautions.push(format!("{left_out} left out: {}.", evaluation.skipped[0].reason));
    }
    cautions
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
