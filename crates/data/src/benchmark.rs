//! Reads the personalization benchmark's own files: LaMP's question and output files (Salemi et al. 2024), and the
//! long-history form of Tan et al. (2024), a list of users with profile and queries.
//!
//! A question is asked after everything in its profile, so profiles become the part to train on, in the order of the
//! file where they have no dates, and questions with an answer the part held out. LaMP names no users: questions that
//! share a profile are one person's. The file is read element by element: memory holds the records, not the file.

use crate::error::DataError;
use crate::read::{Format, Reader, name_text, shown};
use crate::record::{SkippedLine, Split};
use crate::tasks::{TASKS, Task, kind_of};
use crate::time::record_time;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// This format in the list.
pub(crate) const FORMAT: Format = Format { begins, read };

/// A list whose first object has a profile.
fn begins(start: &[u8]) -> bool {
    let mut has_profile = false;
    let mut deserializer = serde_json::Deserializer::from_slice(start);
    // What was seen until the end of the piece decides; that it ends in the middle is no fault.
    let _ = deserializer.deserialize_seq(FirstObject { has_profile: &mut has_profile });
    has_profile
}

fn read(reader: &mut Reader, path: &Path, _split: Option<Split>) -> Result<(), DataError> {
    let golds = Golds::beside(path)?;
    let file = std::fs::File::open(path).map_err(|source| reader.read_error(path, source))?;
    reader.history.files.push(path.to_path_buf());
    let mut hashed = Hashed { file, hash: reader.hash.clone() };
    let mut benchmark = Benchmark {
        reader: &mut *reader,
        file: Arc::from(path),
        golds,
        people: HashMap::new(),
        element: 0,
        questions_without_answer: 0,
        people_without_record: 0,
        answers_not_listed: 0,
    };
    let mut deserializer = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, &mut hashed));
    let outcome = deserializer.deserialize_seq(Elements(&mut benchmark)).and_then(|()| deserializer.end());
    benchmark.finish();
    reader.hash = hashed.hash;
    outcome.map_err(|error| {
        let reason = format!("not valid JSON: {}", crate::read::explained(&error));
        DataError::BadLine(SkippedLine { file: path.to_path_buf(), line: error.line(), column: error.column(), reason })
    })
}

/// The answers, which LaMP keeps in a file of their own.
#[derive(Default)]
struct Golds {
    file: Option<PathBuf>,
    answers: HashMap<String, String>,
}

impl Golds {
    /// `LaMP_3_dev_outputs.json` beside `LaMP_3_dev_questions.json`, `NAME_label.json` beside `NAME.json`; none where
    /// there is no such file.
    fn beside(path: &Path) -> Result<Golds, DataError> {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let stem = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
        let candidates = [name.replace("questions", "outputs"), format!("{stem}_label.json")];
        let beside = candidates.iter().filter(|candidate| **candidate != name).map(|name| path.with_file_name(name));
        match beside.into_iter().find(|candidate| candidate.is_file()) {
            Some(file) => Golds::read(&file),
            None => Ok(Golds::default()),
        }
    }

    fn read(path: &Path) -> Result<Golds, DataError> {
        let fault = |line, column, reason: String| {
            DataError::BadLine(SkippedLine { file: path.to_path_buf(), line, column, reason })
        };
        let file =
            std::fs::File::open(path).map_err(|source| DataError::ReadPart { path: path.to_path_buf(), source })?;
        let outputs: Value = serde_json::from_reader(BufReader::new(file))
            .map_err(|error| fault(error.line(), error.column(), crate::read::explained(&error)))?;
        let golds = outputs.get("golds").and_then(Value::as_array);
        let golds = golds.ok_or_else(|| fault(1, 0, "expected an object with \"golds\", a list".to_string()))?;
        let mut answers = HashMap::new();
        for (place, gold) in golds.iter().enumerate() {
            let read = || -> Result<(String, String), String> {
                let id = name_text("id", gold.get("id").unwrap_or(&Value::Null))?;
                let output = name_text("output", gold.get("output").unwrap_or(&Value::Null))?;
                Ok((id, output))
            };
            let (id, output) =
                read().map_err(|reason| fault(1, 0, format!("entry {} of \"golds\": {reason}", place + 1)))?;
            if let Some(other) = answers.insert(id.clone(), output.clone())
                && other != output
            {
                return Err(fault(1, 0, format!("\"golds\" has two answers for id \"{}\"", shown(&id))));
            }
        }
        Ok(Golds { file: Some(path.to_path_buf()), answers })
    }
}

/// A person of the file.
#[derive(Clone)]
struct Person {
    name: String,
    /// The newest time in the profile: questions without a date are asked then.
    newest: Option<i64>,
}

struct Benchmark<'r, 'o> {
    reader: &'r mut Reader<'o>,
    file: Arc<Path>,
    golds: Golds,
    /// By the hash of name and profile.
    people: HashMap<[u8; 32], Person>,
    /// Counted from 1.
    element: usize,
    questions_without_answer: usize,
    people_without_record: usize,
    answers_not_listed: usize,
}

/// A question as its task reads it, with the answer that stands beside it.
struct Question {
    id: String,
    task: &'static dyn Task,
    fields: Map<String, Value>,
    time: Option<i64>,
    answer: Option<String>,
}

impl Benchmark<'_, '_> {
    fn take_element(&mut self, element: Value) {
        self.element += 1;
        let Value::Object(mut element) = element else {
            return self.skip(format!("it is {}; expected an object with \"profile\"", kind_of(&element)));
        };
        let profile = match element.remove("profile") {
            Some(Value::Array(profile)) => profile,
            _ => return self.skip("it has no \"profile\", a list of records".to_string()),
        };
        let name = ["user", "user_id"].iter().find_map(|field| name_text(field, element.get(*field)?).ok());
        let asked = match element.remove("query") {
            Some(Value::Array(queries)) => queries,
            Some(query) => vec![query],
            None => vec![Value::Object(element)],
        };
        let mut questions = Vec::new();
        for asked in asked {
            match self.read_question(asked) {
                Ok(question) => questions.push(question),
                Err(reason) => self.skip(reason),
            }
        }
        let person = self.take_profile(name, profile, questions.first());
        for question in questions {
            self.take_question(&person, question);
        }
    }

    /// The records of a profile that was not seen before, and whose they are.
    fn take_profile(&mut self, name: Option<String>, profile: Vec<Value>, question: Option<&Question>) -> Person {
        let bytes = serde_json::to_vec(&(&name, &profile)).unwrap_or_default();
        let key: [u8; 32] = Sha256::digest(&bytes).into();
        if !profile.is_empty()
            && let Some(known) = self.people.get(&key)
        {
            return known.clone();
        }
        let name = name.unwrap_or_else(|| {
            format!("user-{}", question.map_or_else(|| self.element.to_string(), |question| question.id.clone()))
        });
        let mut person = Person { name, newest: None };
        self.people_without_record += usize::from(profile.is_empty());
        for (place, entry) in profile.into_iter().enumerate() {
            match self.take_entry(&person.name, entry, place, question) {
                Ok(time) => person.newest = person.newest.max(time),
                Err(reason) => self.skip(format!("entry {} of the profile: {reason}", place + 1)),
            }
        }
        self.people.insert(key, person.clone());
        person
    }

    /// One record of a profile; its time.
    fn take_entry(
        &mut self,
        user: &str,
        entry: Value,
        place: usize,
        question: Option<&Question>,
    ) -> Result<Option<i64>, String> {
        let Value::Object(mut fields) = entry else {
            return Err(format!("it is {}, expected an object", kind_of(&entry)));
        };
        let id = match fields.get("id") {
            None | Some(Value::Null) => (place + 1).to_string(),
            Some(id) => name_text("id", id)?,
        };
        let time = record_time(&fields)?.seconds();
        let task = match question {
            Some(question) => {
                // What may be answered is said in the question only.
                if let Some(name) = question.task.choices_field()
                    && let Some(choices) = question.fields.get(name)
                {
                    fields.insert(name.to_string(), choices.clone());
                }
                question.task
            }
            None => crate::read::choose_task(&fields, self.reader.options)?,
        };
        self.take(user, format!("{user}/{id}"), time, task, fields, Split::Train)?;
        Ok(time)
    }

    fn read_question(&mut self, asked: Value) -> Result<Question, String> {
        let Value::Object(asked) = asked else {
            return Err(format!("the question is {}, expected an object", kind_of(&asked)));
        };
        let id = name_text("id", asked.get("id").unwrap_or(&Value::Null))?;
        let input = match asked.get("input") {
            Some(Value::String(input)) => input,
            _ => return Err(format!("question \"{}\" has no \"input\", a text", shown(&id))),
        };
        let read = TASKS.iter().find_map(|task| Some((*task, task.read_benchmark_question(input)?)));
        let (task, fields) = read.ok_or_else(|| {
            format!("question \"{}\" is in the words of no task of the benchmark: \"{}\"", shown(&id), shown(input))
        })?;
        let beside = ["output", "gold"].iter().find_map(|name| name_text(name, asked.get(*name)?).ok());
        Ok(Question { id, task, fields, time: record_time(&asked)?.seconds(), answer: beside })
    }

    fn take_question(&mut self, person: &Person, question: Question) {
        let Question { id, task, mut fields, time, answer } = question;
        let Some(answer) = answer.or_else(|| self.golds.answers.get(&id).cloned()) else {
            self.questions_without_answer += usize::from(self.reader.wants(&person.name));
            return;
        };
        if let Some(field) = task.answer_field(&self.reader.options.columns) {
            fields.insert(field.to_string(), answer.into());
        }
        let time = time.max(person.newest);
        if let Err(reason) = self.take(&person.name, id.clone(), time, task, fields, Split::Test) {
            self.skip(format!("question \"{}\": {reason}", shown(&id)));
        }
    }

    fn take(
        &mut self,
        user: &str,
        id: String,
        time: Option<i64>,
        task: &'static dyn Task,
        fields: Map<String, Value>,
        split: Split,
    ) -> Result<(), String> {
        if !self.reader.wants(user) {
            return Ok(());
        }
        let body = task.read(fields, &self.reader.options.columns)?;
        let record = self.reader.push(id, user.to_string(), time, body, &self.file, self.element, Some(split))?;
        let is_listed = |choices: &[Value]| choices.iter().any(|choice| choice.as_str() == Some(&record.answer()));
        let choices = task.choices_field().and_then(|name| record.field(name)).and_then(Value::as_array);
        self.answers_not_listed +=
            usize::from(choices.is_some_and(|choices| !choices.is_empty() && !is_listed(choices)));
        Ok(())
    }

    fn skip(&mut self, reason: String) {
        let file = self.file.to_path_buf();
        self.reader.history.skipped.push(SkippedLine { file, line: self.element, column: 0, reason });
    }

    fn finish(self) {
        let where_answers_are = match &self.golds.file {
            Some(file) => format!("questions without an answer in {}", file.display()),
            None => "questions without an answer, and no file of answers beside".to_string(),
        };
        for (reason, count) in [
            (where_answers_are.as_str(), self.questions_without_answer),
            ("people without a record in their profile", self.people_without_record),
            ("answers that are none of the choices of their question", self.answers_not_listed),
        ] {
            self.reader.history.notice(reason, count);
        }
    }
}

/// Hands the elements of the list over one by one.
struct Elements<'a, 'r, 'o>(&'a mut Benchmark<'r, 'o>);

impl<'de> Visitor<'de> for Elements<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a list of questions, or of users with profile and query")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element::<Value>()? {
            self.0.take_element(element);
        }
        Ok(())
    }
}

/// Looks whether the first object of a list has a profile.
struct FirstObject<'a> {
    has_profile: &'a mut bool,
}

impl<'de> Visitor<'de> for FirstObject<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        elements.next_element_seed(ObjectKeys { has_profile: self.has_profile }).map(|_| ())
    }
}

struct ObjectKeys<'a> {
    has_profile: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for ObjectKeys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectKeys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<String>()? {
            if key == "profile" {
                *self.has_profile = true;
            }
            entries.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Hashes a file as it is read.
struct Hashed {
    file: std::fs::File,
    hash: Sha256,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}
