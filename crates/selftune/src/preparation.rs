//! From a history to the examples of a run, with an account of every record.

use crate::failure::Failure;
use crate::terminal::{MARK, QUIET, Terminal, human_count};
use crate::workbench::{HistoryChoice, Workbench};
use data::{Example, ExampleOptions, HeldOut, History, Record, Retriever, Split};
use serde::{Deserialize, Serialize};
use train::TrainConfig;

/// How many of the newest records a run never sees, so that they can judge its adapter: a share below 1, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HoldOut(pub f64);

impl HoldOut {
    pub fn parse(text: &str) -> Result<HoldOut, String> {
        let value: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
        let valid = (0.0..=0.9).contains(&value) || (value >= 1.0 && value.fract() == 0.0 && value <= 1e9);
        if valid {
            Ok(HoldOut(value))
        } else {
            Err("expected a share from 0 to 0.9, or a whole number of records".into())
        }
    }

    /// A share of a short history is raised to what a verdict needs, as far as a quarter of the records goes.
    fn rule(self, records: usize) -> HeldOut {
        if self.0 >= 1.0 {
            return HeldOut::Count(self.0 as usize);
        }
        let share = (records as f64 * self.0).round() as usize;
        let least = if self.0 > 0.0 { eval::verdict::QUERIES_MIN.min(records / 4) } else { 0 };
        HeldOut::Count(share.max(least))
    }
}

/// A history divided by time.
pub struct Division {
    /// Training sees these, oldest first.
    pub seen: Vec<Record>,
    /// The part given for validation, where the history came divided.
    pub validation: Option<Vec<Record>>,
    /// Never trained on.
    pub held_out: Vec<Record>,
}

/// Holds out the newest records, or follows the parts of a history that came as train, valid and test files.
pub fn divide(history: &History, hold_out: HoldOut) -> Result<Division, Failure> {
    let given = |split| history.given_split(split);
    let (test, train) = (given(Split::Test), given(Split::Train));
    if !test.is_empty() && !train.is_empty() {
        let validation = given(Split::Valid);
        return Ok(Division {
            seen: train,
            validation: Some(validation).filter(|part| !part.is_empty()),
            held_out: test,
        });
    }
    let (seen, held_out) = history.split_newest(hold_out.rule(history.records.len()));
    if hold_out.0 >= 1.0 && held_out.len() < hold_out.0 as usize {
        return Err(Failure::input(format!(
            "--hold-out {} of {} records leaves none to train on",
            hold_out.0,
            history.records.len()
        )));
    }
    Ok(Division { seen, validation: None, held_out })
}

/// A record that gave no example.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub place: String,
    pub reason: String,
}

/// The examples of a run and where every record went.
pub struct Preparation {
    pub training: Vec<Example>,
    pub validation: Vec<Example>,
    /// Never trained on: the queries of an evaluation.
    pub held_out: Vec<Record>,
    pub records: usize,
    pub left_out: Vec<LeftOut>,
}

/// Divides a history by time (training, then validation, then held out) and turns it into examples.
pub fn prepare(
    bench: &Workbench,
    history: &History,
    config: &TrainConfig,
    hold_out: HoldOut,
) -> Result<Preparation, Failure> {
    let Division { seen, validation: given_validation, held_out } = divide(history, hold_out)?;
    let retriever = Retriever::new(&seen);
    let options = example_options(config);
    let mut left_out: Vec<LeftOut> = (history.skipped.iter())
        .map(|skipped| LeftOut {
            place: format!("{}:{}", skipped.file.display(), skipped.line),
            reason: skipped.reason.clone(),
        })
        .collect();
    let mut build = |records: &[Record]| {
        let mut examples = Vec::new();
        for record in records {
            match data::build_example(&bench.text, record, &retriever, &options) {
                Ok(example) => examples.push(example),
                Err(error) => {
                    let place = format!("{}:{}", record.file.display(), record.line);
                    left_out.push(LeftOut { place, reason: error.to_string() });
                }
            }
        }
        examples
    };
    let mut examples = build(&seen);
    let given_validation = given_validation.map(|records| build(&records));
    if examples.is_empty() {
        let reasons =
            left_out.first().map_or_else(String::new, |first| format!(" ({}: {})", first.place, first.reason));
        return Err(Failure::input(format!("no record of {} gives an example to train on{reasons}", seen.len())));
    }
    let validation = match given_validation {
        Some(validation) => validation,
        None => examples.split_off(examples.len() - config.validation_records(examples.len())),
    };
    Ok(Preparation { training: examples, validation, held_out, records: history.records.len(), left_out })
}

/// What a run's configuration says about prompts.
pub fn example_options(config: &TrainConfig) -> ExampleOptions {
    ExampleOptions {
        tokens_max: config.tokens_max,
        retrieved_records: config.retrieved_records,
        retrieved_tokens_max: config.retrieved_tokens_max,
        supervise: config.supervise,
    }
}

impl Preparation {
    fn truncated(&self) -> usize {
        self.training.iter().chain(&self.validation).filter(|example| example.truncation.is_some()).count()
    }

    /// The account of the data, as it stands in the run folder and in `--json`.
    pub fn account(&self) -> serde_json::Value {
        serde_json::json!({
            "records": self.records,
            "training_examples": self.training.len(),
            "validation_examples": self.validation.len(),
            "held_out_records": self.held_out.len(),
            "truncated_examples": self.truncated(),
            "left_out": self.left_out,
        })
    }

    /// Tells where the records went, and shows what is learned of one of them.
    pub fn show(&self, bench: &Workbench, choice: &HistoryChoice, terminal: &Terminal) {
        if terminal.is_quiet() {
            return;
        }
        terminal.heading(format!("History {}", choice.path.display()));
        let count = |number: usize| human_count(number as u64);
        terminal.line(format!(
            "  {} records: {} to train on, {} to choose the best adapter, {} held out to judge it",
            count(self.records),
            count(self.training.len()),
            count(self.validation.len()),
            count(self.held_out.len())
        ));
        if self.truncated() > 0 {
            terminal.line(format!(
                "  {} were cut to fit (retrieved text first, then context, never the answer)",
                count(self.truncated())
            ));
        }
        if !self.left_out.is_empty() {
            terminal.line(format!("  {} left out:", count(self.left_out.len())));
            for left in self.left_out.iter().take(5) {
                terminal.line(format!("    {}: {}", left.place, left.reason));
            }
            if self.left_out.len() > 5 {
                terminal.line(format!("    ... and {} more", self.left_out.len() - 5));
            }
        }
        if let Some(example) = self.training.last() {
            terminal.heading(format!("One example ({} tokens, {MARK}learned{MARK:#})", example.tokens.len()));
            terminal.line(colored_sample(bench, example));
        }
    }
}

/// The decoded example; learned tokens stand out.
fn colored_sample(bench: &Workbench, example: &Example) -> String {
    let mut text = String::new();
    for piece in data::example_preview(&bench.text, example) {
        let style = if piece.supervised { MARK } else { QUIET };
        for (index, line) in piece.text.split('\n').enumerate() {
            if index > 0 {
                text.push('\n');
            }
            text.push_str(&format!("{style}{line}{style:#}"));
        }
    }
    text.trim_end().lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_out_is_a_share_or_a_count() {
        assert_eq!(HoldOut::parse("0.2"), Ok(HoldOut(0.2)));
        assert_eq!(HoldOut::parse("24"), Ok(HoldOut(24.0)));
        for text in ["-1", "1.5", "nan", "inf", "x"] {
            assert!(HoldOut::parse(text).is_err(), "{text}");
        }
    }
}
