//! What a task's answers can be: free text, one of several choices, or a number on a scale; and what follows from that
//! for reading a generated answer and for the numbers it is judged by.

use crate::record::Record;

/// The kind of a task's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// Anything that can be written.
    Text,
    /// One of [`crate::Task::choices`].
    Choice,
    /// A whole number from `lowest` to `highest`.
    Rating {
        /// The lowest number of the scale.
        lowest: i32,
        /// The highest number of the scale.
        highest: i32,
    },
}

impl AnswerKind {
    /// The answers that a generated text is read as: of a scale its numbers, else those the same person gave before.
    pub(super) fn choices(self, record: &Record, history: &[Record]) -> Vec<String> {
        match self {
            AnswerKind::Text => Vec::new(),
            AnswerKind::Choice => answers_before(record, history),
            AnswerKind::Rating { lowest, highest } => (lowest..=highest).map(|number| number.to_string()).collect(),
        }
    }

    /// The benchmark's reading of a generated answer: a choice must be written exactly, white space around it aside; a
    /// rating must be a number and nothing else. `None` is an answer that cannot be read, which counts as wrong, and of
    /// ratings as the farthest. The benchmark takes any number for a rating; one outside of the scale is none here, so
    /// that a single 1e300 cannot spoil a mean.
    pub(super) fn parse(self, generated: &str, choices: &[String]) -> Option<String> {
        let written = generated.trim();
        match self {
            AnswerKind::Text => Some(written.to_string()),
            AnswerKind::Choice => choices.iter().find(|choice| choice.trim() == written).cloned(),
            AnswerKind::Rating { lowest, highest } => {
                let is_plain = written.bytes().all(|byte| byte.is_ascii_digit() || b".+-".contains(&byte));
                let number: f64 = written.parse().ok().filter(|_| is_plain)?;
                (f64::from(lowest)..=f64::from(highest)).contains(&number).then(|| number.to_string())
            }
        }
    }

    /// Names in the list of metrics, the telling ones first.
    pub(super) fn metrics(self) -> &'static [&'static str] {
        match self {
            AnswerKind::Text => &["loss_per_answer_token", "rouge_1", "rouge_l", "exact_match"],
            AnswerKind::Choice => &["accuracy", "macro_f1", "loss_per_answer_token"],
            AnswerKind::Rating { .. } => {
                &["accuracy", "mean_absolute_error", "root_mean_square_error", "loss_per_answer_token"]
            }
        }
    }
}

/// The different answers of the same person's earlier records of the same task, in order of first appearance.
pub(super) fn answers_before(record: &Record, history: &[Record]) -> Vec<String> {
    let mut answers: Vec<String> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for other in history {
        let is_earlier = other.user == record.user && other.sequence < record.sequence;
        if is_earlier && other.task().name() == record.task().name() {
            let answer = other.answer();
            if !answer.is_empty() && known.insert(answer.clone()) {
                answers.push(answer);
            }
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_must_be_written_exactly() {
        let choices = ["[1]".to_string(), "dark comedy".to_string()];
        let parse = |text: &str| AnswerKind::Choice.parse(text, &choices);
        assert_eq!(parse(" dark comedy\n").as_deref(), Some("dark comedy"));
        assert_eq!(parse("[1]").as_deref(), Some("[1]"));
        for text in ["Dark comedy", "1", "dark comedy.", "", "the tag is dark comedy"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn ratings_are_numbers_of_the_scale() {
        let parse = |text: &str| AnswerKind::Rating { lowest: 1, highest: 5 }.parse(text, &[]);
        for (text, expected) in [("4", Some("4")), (" 4.0\n", Some("4")), ("3.5", Some("3.5")), ("+2", Some("2"))] {
            assert_eq!(parse(text).as_deref(), expected, "{text}");
        }
        for text in ["", "four", "4 stars", "4/5", "0", "6", "1e300", "nan", "inf", "-3", "--"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
