//! From a history to the examples of a run, with an account of every record.

use crate::failure::Failure;
use crate::terminal::{MARK, QUIET, Terminal, human_count};
use crate::workbench::{HistoryChoice, Workbench};
use data::{Example, ExampleOptions, HeldOut, History, Record, Retriever, Split};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
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

    /// A share of a person's short history is raised to what a verdict needs, as far as a quarter of the records goes.
    /// Of many people it is a share of each one's records.
    fn rule(self, history: &History) -> HeldOut {
        let records = history.records.len();
        if self.0 < 1.0 && history.users().len() > 1 {
            return HeldOut::Fraction(self.0);
        }
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
    let (seen, held_out) = history.split_newest(hold_out.rule(history));
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
    /// What the examples are made of, oldest first: what retrieval may show.
    pub seen: Vec<Record>,
    pub records: usize,
    pub left_out: Vec<LeftOut>,
    /// What bears on what can be learned, though no record is at fault.
    pub noticed: Vec<data::Noticed>,
}

/// Divides a history by time (training, then validation, then held out) and turns it into examples.
pub fn prepare(
    bench: &Workbench,
    history: &History,
    config: &TrainConfig,
    hold_out: HoldOut,
) -> Result<Preparation, Failure> {
    let Division { seen, validation: given_validation, held_out } = divide(history, hold_out)?;
    let options = example_options(config);
    let retriever = Retriever::for_options(&seen, &options);
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
                Ok(example) => {
                    let (user, group) = (record.user.clone(), record.task().group(record));
                    examples.push(Owned { user, group, item: example });
                }
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
    let count = config.validation_records(examples.len());
    let validation = match given_validation {
        Some(validation) => validation,
        None => take_newest(&mut examples, count),
    };
    let examples_only = |examples: Vec<Owned<Example>>| examples.into_iter().map(|owned| owned.item).collect();
    let (training, validation) = (examples_only(examples), examples_only(validation));
    let noticed = history.noticed.clone();
    Ok(Preparation { training, validation, held_out, seen, records: history.records.len(), left_out, noticed })
}

/// Something of a person, and the question that it answers where several records of the person ask the same
/// ([`data::Task::group`]).
struct Owned<T> {
    user: String,
    group: Option<String>,
    item: T,
}

/// Takes about `count` of the newest examples out, spread over the people: everybody's newest, then everybody's second
/// newest, and so on, and of the last round those of people at even distances. `examples` come oldest first. Those of
/// one group stay together, where the first of them lies: a group that is larger than what is still wanted is passed
/// over, unless nothing else was taken. Nobody's only example or group is taken.
fn take_newest<T>(examples: &mut Vec<Owned<T>>, count: usize) -> Vec<Owned<T>> {
    let mut units = units_of_people(examples);
    let mut taken: HashSet<usize> = HashSet::new();
    let fits = |unit: &[usize], taken: usize| taken == 0 || taken + unit.len() <= count;
    while taken.len() < count {
        let left = count - taken.len();
        let is_able = |units: &[Vec<usize>]| units.len() > 1 && fits(&units[units.len() - 1], taken.len());
        let able: Vec<usize> = (0..units.len()).filter(|person| is_able(&units[*person])).collect();
        let turn: Vec<usize> = match able.len() {
            0 => break,
            people if people <= left => able,
            people => (0..left).map(|index| able[index * people / left]).collect(),
        };
        for person in turn {
            taken.extend(units[person].pop_if(|unit| fits(unit, taken.len())).into_iter().flatten());
        }
    }
    let mut place = 0;
    let is_taken = |_: &mut Owned<T>| {
        place += 1;
        taken.contains(&(place - 1))
    };
    examples.extract_if(.., is_taken).collect()
}

/// For each person, in order of appearance, the places of what must stay together, oldest first.
fn units_of_people<T>(examples: &[Owned<T>]) -> Vec<Vec<Vec<usize>>> {
    let mut units: Vec<Vec<Vec<usize>>> = Vec::new();
    let mut person_of: HashMap<&str, usize> = HashMap::new();
    let mut unit_of: HashMap<(&str, &str), usize> = HashMap::new();
    for (place, Owned { user, group, .. }) in examples.iter().enumerate() {
        let person = *person_of.entry(user).or_insert(units.len());
        if person == units.len() {
            units.push(Vec::new());
        }
        let next = units[person].len();
        let unit = group.as_ref().map_or(next, |group| *unit_of.entry((user, group)).or_insert(next));
        if unit == next {
            units[person].push(Vec::new());
        }
        units[person][unit].push(place);
    }
    units
}

/// What a run's configuration says about prompts.
pub fn example_options(config: &TrainConfig) -> ExampleOptions {
    ExampleOptions {
        tokens_max: config.tokens_max,
        retrieved_records: config.retrieved_records,
        retrieved_tokens_max: config.retrieved_tokens_max,
        retriever: config.retriever,
        retriever_seed: config.seed,
        supervise: config.supervise,
    }
}

impl Preparation {
    /// Whether some held-out record has a question that earlier records can be shown with: a text has none.
    pub fn has_questions(&self) -> bool {
        self.held_out.iter().any(|record| !matches!(record.body, data::RecordBody::Text(_)))
    }

    pub fn truncated(&self) -> usize {
        self.training.iter().chain(&self.validation).filter(|example| example.truncation.is_some()).count()
    }

    /// What was cut to fit, one line a kind.
    fn truncations(&self) -> Vec<String> {
        if self.truncated() == 0 {
            return Vec::new();
        }
        let all = || self.training.iter().chain(&self.validation).map(|example| &example.truncation);
        let kind = |what: &str, of: fn(&data::Truncation) -> usize| {
            let (examples, amount) =
                all().map(of).filter(|amount| *amount > 0).fold((0, 0), |(n, sum), a| (n + 1, sum + a));
            (examples > 0).then(|| format!("  {}: {} {what}", human_count(examples), human_count(amount as u64)))
        };
        let kinds = [
            kind("earlier records left out", |cut| cut.retrieved_dropped),
            kind("earlier records shown cut", |cut| cut.retrieved_cut),
            kind("turns of conversations left out", |cut| cut.turns_dropped),
            kind("tokens of context cut", |cut| cut.context_tokens_cut),
        ];
        let head = format!("{} were cut to fit, never the answer:", human_count(self.truncated() as u64));
        std::iter::once(head).chain(kinds.into_iter().flatten()).collect()
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
            "noticed": self.noticed,
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
        for line in self.truncations() {
            terminal.line(format!("  {line}"));
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
        for noticed in &self.noticed {
            terminal.line(format!("  note: {} {}", count(noticed.count), noticed.what));
        }
        if let Some(example) = self.training.last() {
            let learned =
                if terminal.has_colours() { format!("{MARK}learned{MARK:#}") } else { format!("{OPEN}learned{CLOSE}") };
            let (tokens, supervised) = (example.tokens.len(), example.supervised_tokens());
            terminal.heading(format!("One example ({tokens} tokens, {supervised} {learned})"));
            terminal.line(sample(bench, example, terminal.has_colours()));
        }
    }
}

/// Stand round learned tokens where there are no colours.
const OPEN: &str = "⟦";
const CLOSE: &str = "⟧";

/// The decoded example; learned tokens stand out.
fn sample(bench: &Workbench, example: &Example, has_colours: bool) -> String {
    let mut text = String::new();
    for piece in data::example_preview(&bench.text, example) {
        if !has_colours {
            text.push_str(&if piece.supervised { format!("{OPEN}{}{CLOSE}", piece.text) } else { piece.text });
            continue;
        }
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

    /// The places taken of records of these people and groups; `.` is no group.
    fn taken(people: &str, groups: &str, count: usize) -> Vec<usize> {
        assert_eq!(people.len(), groups.len());
        let owned = |(item, (user, group)): (usize, (char, char))| Owned {
            user: user.to_string(),
            group: (group != '.').then(|| group.to_string()),
            item,
        };
        let mut examples: Vec<Owned<usize>> = people.chars().zip(groups.chars()).enumerate().map(owned).collect();
        let taken = take_newest(&mut examples, count);
        assert_eq!(examples.len() + taken.len(), people.len());
        assert!(examples.is_sorted_by_key(|owned| owned.item));
        let key = |owned: &Owned<usize>| owned.group.clone().map(|group| (owned.user.clone(), group));
        for kept in examples.iter().filter_map(key) {
            assert!(!taken.iter().filter_map(key).any(|other| other == kept), "{kept:?} lies on both sides");
        }
        taken.into_iter().map(|owned| owned.item).collect()
    }

    #[test]
    fn the_newest_are_taken_from_everybody_in_turn() {
        let take = |people: &str, count| taken(people, &".".repeat(people.len()), count);
        // One person: the newest.
        assert_eq!(take("aaaaaa", 2), [4, 5]);
        // Three people one after the other: the newest of each, not all of the last.
        assert_eq!(take("aaabbbccc", 3), [2, 5, 8]);
        assert_eq!(take("aaabbbccc", 5), [1, 2, 4, 5, 8]);
        // Fewer than people: at even distances.
        assert_eq!(take("aabbccdd", 2), [1, 5]);
        // Who has one record keeps it.
        assert_eq!(take("abccc", 4), [3, 4]);
        assert_eq!(take("abc", 3), [0usize; 0]);
        assert_eq!(take("", 3), [0usize; 0]);
    }

    #[test]
    fn records_that_ask_the_same_stay_on_one_side() {
        // The film y has two tags, whether one or two records are wanted; x and z would be divided otherwise.
        assert_eq!(taken("aaaaaa", "xxxzyy", 1), [4, 5]);
        assert_eq!(taken("aaaaaa", "xxxzyy", 2), [4, 5]);
        assert_eq!(taken("aaaaaa", "xxxzyy", 3), [3, 4, 5]);
        // A group lies where its first record lies.
        assert_eq!(taken("aaaaaa", "xyz.zy", 2), [3]);
        assert_eq!(taken("aaaaaa", "xyz.zy", 3), [2, 3, 4]);
        // The only film is not taken, and the same film of another person is another question.
        assert_eq!(taken("aaabbb", "xxxxyy", 2), [4, 5]);
        assert_eq!(taken("aaaa", "xxxx", 2), [0usize; 0]);
        assert_eq!(taken("aabbb", "xyxyx", 2), [1, 3]);
    }

    /// README and tour promise it, and so does `train --help`.
    #[test]
    fn what_acceptance_needs_is_what_the_pages_say() {
        let config = TrainConfig::default();
        let lines: Vec<String> = (0..60).map(|index| format!("{{\"text\": \"note {index}\"}}")).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let is_enough = |records: &usize| {
            let file = folder.path().join("notes.jsonl");
            std::fs::write(&file, lines[..*records].join("\n")).expect("written");
            let history = data::read_history(&file, &data::ReadOptions::default()).expect("notes");
            let Division { seen, held_out, .. } = divide(&history, HoldOut(0.1)).expect("enough");
            eval::shortfall(seen.len() - config.validation_records(seen.len()), held_out.len()).is_none()
        };
        let least = (1..60).find(is_enough).expect("sixty are enough");
        let (trained, held_out) = (eval::TRAINED_RECORDS_MIN, eval::verdict::QUERIES_MIN);
        let pages = [
            include_str!("../../../README.md"),
            include_str!("../../../docs/tour.md"),
            include_str!("commands/train.rs"),
        ];
        for page in pages {
            let words = page.replace("///", " ").split_whitespace().collect::<Vec<_>>().join(" ");
            for promised in [
                format!("{trained} records to learn from and {held_out} held out"),
                format!("{least} in all with the defaults"),
            ] {
                assert!(words.contains(&promised), "{promised}");
            }
        }
        let allowed = format!("at most {} nats a token of general ability", eval::general::LOSS_RISE_MAX);
        assert!(pages[1].replace('\n', " ").contains(&allowed), "{allowed}");
    }

    #[test]
    fn hold_out_is_a_share_or_a_count() {
        assert_eq!(HoldOut::parse("0.2"), Ok(HoldOut(0.2)));
        assert_eq!(HoldOut::parse("24"), Ok(HoldOut(24.0)));
        for text in ["-1", "1.5", "nan", "inf", "x"] {
            assert!(HoldOut::parse(text).is_err(), "{text}");
        }
    }
}
