//! Whose records a study uses, divided by time, with an account of everything that is left out.

use crate::failure::{Failure, InputError};
use data::{HeldOut, History, OnBadLine, ReadOptions, Record};
use eval::study::{HistoryAccount, Study, StudyHistory, StudyUser};
use sha2::{Digest, Sha256};

/// One person's records: those that may be trained on and shown, and those that are asked about.
pub struct Person {
    pub name: String,
    /// Both, oldest first.
    pub records: Vec<Record>,
    pub seen: Vec<Record>,
    pub queries: Vec<Record>,
    /// Of both, in their order: what numbers depend on.
    pub hash: String,
}

/// A history of the study with the people who are studied.
pub struct StudiedHistory {
    pub account: HistoryAccount,
    pub people: Vec<Person>,
    pub settings: StudyHistory,
}

pub fn read_all(study: &Study) -> Result<Vec<StudiedHistory>, Failure> {
    study.histories.iter().map(read).collect()
}

fn read(settings: &StudyHistory) -> Result<StudiedHistory, Failure> {
    let options = ReadOptions {
        // A study counts what it cannot read; it does not stop for one bad line among thousands of people's.
        on_bad_line: OnBadLine::Skip,
        task: settings.task.as_deref().and_then(data::task_by_name),
        ..ReadOptions::default()
    };
    let history = data::read_history(&settings.path, &options).bad_input(format!(
        "history {}: cannot use {}",
        settings.name,
        settings.path.display()
    ))?;
    let present = history.users();
    let mut names: Vec<String> = match settings.users.is_empty() {
        true => present.iter().map(|(name, _)| name.clone()).collect(),
        false => settings.users.clone(),
    };
    if let Some(longest) = settings.users_longest {
        let count = |name: &String| present.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        let mut ranked = names.clone();
        ranked.sort_by_key(|name| std::cmp::Reverse(count(name)));
        names.retain(|name| ranked.iter().take(longest).any(|kept| kept == name));
    }
    names.truncate(settings.users_max.unwrap_or(usize::MAX));
    let (mut users, mut people) = (Vec::new(), Vec::new());
    for name in names {
        let (user, person) = divide(&history, &name, settings);
        users.push(user);
        people.extend(person);
    }
    if people.is_empty() {
        let reason = users.first().and_then(|user| user.left_out.clone()).unwrap_or_default();
        return Err(Failure::input(format!("history {}: nobody can be studied; the first: {reason}", settings.name)));
    }
    let task = task_of(&people);
    let account = HistoryAccount {
        name: settings.name.clone(),
        metrics: metrics(settings, &people),
        task,
        users,
        skipped_lines: history.skipped.iter().map(ToString::to_string).collect(),
        source_hash: history.source_hash.clone(),
    };
    Ok(StudiedHistory { account, people, settings: settings.clone() })
}

/// The person's newest records, the very newest of them as queries; or why the person is left out.
fn divide(history: &History, name: &str, settings: &StudyHistory) -> (StudyUser, Option<Person>) {
    let mut records: Vec<Record> = history.records.iter().filter(|record| record.user == name).cloned().collect();
    let mut user = StudyUser { name: name.to_owned(), records: records.len(), ..StudyUser::default() };
    if records.len() < settings.records_min {
        user.left_out = Some(match records.len() {
            0 => "the history has no record of this person".into(),
            1 => format!("1 record, at least {} are needed", settings.records_min),
            count => format!("{count} records, at least {} are needed", settings.records_min),
        });
        return (user, None);
    }
    if let Some(newest) = settings.newest {
        records.drain(..records.len().saturating_sub(newest));
    }
    let (seen, queries) =
        History { records: records.clone(), ..History::default() }.split_newest(HeldOut::Count(settings.queries));
    let answers: Vec<String> = records.iter().map(Record::answer).collect();
    user.seen = seen.len();
    user.queries = queries.len();
    user.all_answers_equal = answers.windows(2).all(|pair| pair[0].trim() == pair[1].trim());
    user.answers_outside_labels = queries.iter().filter(|query| is_outside_labels(query, &records)).count();
    user.queries_without_answer = queries.iter().filter(|query| query.answer().trim().is_empty()).count();
    if user.queries_without_answer == queries.len() {
        user.left_out = Some("none of the newest records has an answer".into());
        return (user, None);
    }
    if seen.is_empty() || queries.is_empty() {
        user.left_out = Some("the records cannot be divided: all of them belong together".into());
        return (user, None);
    }
    let hash = hash(seen.iter().chain(&queries));
    (user, Some(Person { name: name.to_owned(), records, seen, queries, hash }))
}

/// Whether the task has labels and the answer is none of them: then no arm can be right.
fn is_outside_labels(query: &Record, records: &[Record]) -> bool {
    let task = query.task();
    let answer = query.answer();
    task.answer_kind() != data::AnswerKind::Text
        && !answer.trim().is_empty()
        && task.parse_answer(&answer, &task.choices(query, records)).is_none()
}

fn hash<'a>(records: impl Iterator<Item = &'a Record>) -> String {
    let mut hash = Sha256::new();
    for record in records {
        let task = record.task();
        for text in [task.name(), &record.id, &task.query_text(record), &task.input_text(record), &record.answer()] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The task of the queries; several are joined by a comma.
fn task_of(people: &[Person]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for query in people.iter().flat_map(|person| &person.queries) {
        let name = query.task().name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// What the file asks for, else what the task is measured by.
fn metrics(settings: &StudyHistory, people: &[Person]) -> Vec<String> {
    match settings.metrics.is_empty() {
        false => settings.metrics.clone(),
        true => {
            let queries: Vec<&Record> = people.iter().flat_map(|person| &person.queries).collect();
            eval::metrics_of(&queries).iter().map(|metric| metric.name.to_owned()).collect()
        }
    }
}
