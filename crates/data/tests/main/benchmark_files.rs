//! The benchmark's own files: questions with profiles, answers beside them, and the long-history form; and that nothing of
//! one person reaches another.

use crate::support::Random;
use data::{
    AnswerKind, DataError, HeldOut, History, ReadOptions, Record, RetrievalMethod, Retriever, Split, TASKS,
    read_history, task_by_name,
};
use std::collections::HashSet;
use std::path::Path;

const TAGS: &str = "Which tag does this movie relate to among the following tags? Just answer with the tag name without \
                    further explanation. tags: [sci-fi, dark comedy] description: A robot dreams.";

/// A question in the benchmark's words, its profile and its answer, for every task: and what must come of them.
const QUESTIONS: [(&str, &str, &str, &str, &str); 7] = [
    (
        "citation",
        r#"For an author who has written the paper with the title \"P\", which reference is related? Just answer with [1] or [2] without explanation. [1]: \"First\" [2]: \"Second, of two\""#,
        r#"{"id":"1","title":"T","abstract":"A"}"#,
        "[2]",
        "First Second, of two",
    ),
    ("movie_tag", TAGS, r#"{"id":"1","tag":"sci-fi","description":"Stars"}"#, "dark comedy", "A robot dreams."),
    (
        "news_category",
        "Which category does this article relate to among the following categories? Just answer with the category name without further explanation. categories: [travel, food & drink] article: Soup: a guide",
        r#"{"id":"1","text":"Train","title":"On","category":"travel"}"#,
        "food & drink",
        "Soup: a guide",
    ),
    (
        "rating",
        "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 without further explanation. review: fine review: yes",
        r#"{"id":"1","text":"bad","score":"1"}"#,
        "4",
        "fine review: yes",
    ),
    (
        "headline",
        "Generate a headline for the following article: Rain: more of it",
        r#"{"id":"1","text":"Sun","title":"Hot"}"#,
        "Wet",
        "Rain: more of it",
    ),
    (
        "scholarly_title",
        "Generate a title for the following abstract of a paper: We ask: why?",
        r#"{"id":"1","title":"T","abstract":"A"}"#,
        "Why",
        "We ask: why?",
    ),
    (
        "tweet",
        "Paraphrase the following tweet without any explanation before or after it: so tired: very",
        r#"{"id":"1","text":"Hello World!"}"#,
        "SO tired",
        "so tired: very",
    ),
];

fn read(path: &Path) -> History {
    read_history(path, &ReadOptions::default()).unwrap()
}

#[test]
fn every_task_is_read_from_questions_and_answers() {
    for (task, input, profile, answer, query) in QUESTIONS {
        let folder = tempfile::tempdir().unwrap();
        let questions = folder.path().join("LaMP_x_dev_questions.json");
        std::fs::write(
            &questions,
            format!(
                r#"[{{"id":"30","input":"{input}","profile":[{profile}]}}, {{"id":"31","input":"{input}","profile":[{profile}]}},
                   {{"id":"32","input":"{input}","profile":[]}}]"#
            ),
        )
        .unwrap();
        let golds =
            format!(r#"{{"task":"x","golds":[{{"id":"30","output":"{answer}"}},{{"id":"32","output":"{answer}"}}]}}"#);
        std::fs::write(folder.path().join("LaMP_x_dev_outputs.json"), golds).unwrap();
        let history = read(&questions);
        // The profile is shared: one person. Of the questions one has no answer, one belongs to somebody without records.
        assert_eq!(history.users(), [("user-30".to_string(), 2), ("user-32".to_string(), 1)], "{task}");
        let noticed: Vec<(&str, usize)> =
            history.noticed.iter().map(|noticed| (noticed.what.as_str(), noticed.count)).collect();
        assert!(noticed[0].0.starts_with("questions without an answer in ") && noticed[0].1 == 1, "{noticed:?}");
        assert_eq!(
            noticed[1..],
            [("people without a record in their profile", 1), ("people with a single record to learn from", 1)]
        );
        let [learned, asked] = [Split::Train, Split::Test].map(|split| history.given_split(split));
        assert_eq!((learned.len(), asked.len()), (1, 2));
        assert_eq!((learned[0].id.as_str(), asked[0].id.as_str()), ("user-30/1", "30"));
        let asked = &asked[0];
        assert_eq!(asked.task().name(), task);
        assert_eq!(asked.task().query_text(asked), query);
        assert_eq!(asked.answer(), answer);
        let choices = asked.task().choices(asked, &history.records);
        assert_eq!(asked.task().parse_answer(&format!(" {answer}\n"), &choices).as_deref(), Some(answer), "{task}");
        match asked.task().answer_kind() {
            AnswerKind::Text => assert!(choices.is_empty()),
            _ => assert_eq!(asked.task().parse_answer("I do not know", &choices), None, "{task}"),
        }
        assert!(learned[0].sequence < asked.sequence);
        if asked.task().choices_field().is_some() {
            // The prompt of training is that of the question: the same choices in the same words.
            assert_eq!(learned[0].task().choices(&learned[0], &[]), choices);
            assert_eq!(learned[0].task().instruction(&learned[0]), asked.task().instruction(asked));
            let words = format!("{} {}", asked.task().instruction(asked), asked.task().input_text(asked));
            assert_eq!(words, input.replace("\\\"", "\""));
        }
    }
}

#[test]
fn the_long_history_form_is_read_with_what_is_wrong_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user_top_100_history.json");
    let review =
        |text: &str| format!("What is the score of the following review on a scale of 1 to 5? x review: {text}");
    std::fs::write(
        &path,
        format!(
            r#"[{{"user_id": 7, "profile": [
                  {{"id":"1","text":"late","score":"2","date":"2020-01-02"}}, {{"id":"2","text":"early","score":"2","date":"2019-01-01"}},
                  {{"id":"1","text":"again","score":"3"}}, {{"id":"4","text":"far","score":"9"}}, {{"id":"5","text":"","score":"3"}}, 5],
                "query": [{{"id":"a","input":"{}","gold":5}},{{"id":"b","input":"{}"}},{{"id":"c","input":"what?"}}]}},
               {{"profile": "x"}}, 3]"#,
            review("one"),
            review("two")
        ),
    )
    .unwrap();
    let history = read(&path);
    let ids: Vec<&str> = history.records.iter().map(|record| record.id.as_str()).collect();
    assert_eq!(ids, ["7/2", "7/1", "a"], "oldest first, and a question after all of them");
    let reasons: Vec<&str> = history.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    for (reason, expected) in reasons.iter().zip([
        "question \"c\" is in the words of no task of the benchmark",
        "entry 3 of the profile: id \"7/1\" was already used",
        "entry 4 of the profile: field \"score\" is 9, expected a whole number from 1 to 5",
        "entry 5 of the profile: field \"text\" is empty",
        "entry 6 of the profile: it is a number",
        "it has no \"profile\", a list of records",
        "it is a number; expected an object",
    ]) {
        assert!(reason.contains(expected), "{reason:?}, expected {expected:?}");
    }
    assert_eq!(reasons.len(), 7);
    let noticed: Vec<(&str, usize)> =
        history.noticed.iter().map(|noticed| (noticed.what.as_str(), noticed.count)).collect();
    assert_eq!(
        noticed,
        [
            ("questions without an answer, and no file of answers beside", 1),
            ("people whose answers are all the same", 1)
        ]
    );

    std::fs::write(&path, r#"[{"profile": [], "query": []}, {"prof"#).unwrap();
    match read_history(&path, &ReadOptions::default()) {
        Err(DataError::BadLine(line)) => assert!(line.line == 1 && line.reason.contains("not valid JSON"), "{line}"),
        other => panic!("{other:?}"),
    }
    let golds = folder.path().join("user_top_100_history_label.json");
    std::fs::write(&golds, r#"{"golds":[{"id":"b","output":"1"},{"id":"b","output":"2"}]}"#).unwrap();
    let failure = read_history(&path, &ReadOptions::default()).unwrap_err().to_string();
    assert!(failure.contains("two answers for id \"b\""), "{failure}");
}

/// Histories of several people whose words, films and answers are the same, so that only care keeps them apart.
fn people(random: &mut Random) -> History {
    let mut lines = String::new();
    for number in 0..120 {
        let user = random.below(4);
        let film = random.below(8);
        let tag = ["dark", "funny", "slow"][random.below(3)];
        lines += &format!(
            "{{\"user\": \"u{user}\", \"id\": \"r{number}\", \"movie_id\": {film}, \"title\": \"Film {film} common words\", \"tag\": \"{tag}-u{user}\", \"time\": {}}}\n",
            random.below(50)
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.jsonl");
    std::fs::write(&path, lines).unwrap();
    read(&path)
}

#[test]
fn nothing_of_one_person_reaches_another() {
    let mut random = Random(5);
    for round in 0..20 {
        let history = people(&mut random);
        let held_out = [HeldOut::Fraction(0.3), HeldOut::Count(5), HeldOut::Count(1)][round % 3];
        let (older, newest) = history.split_newest(held_out);
        assert_eq!(older.len() + newest.len(), history.records.len());
        let film = |record: &Record| (record.user.clone(), record.task().group(record));
        let learned: HashSet<_> = older.iter().map(film).collect();
        for record in &newest {
            assert!(!learned.contains(&film(record)), "{} asks what was learned", record.id);
        }
        for (user, count) in history.users() {
            let held = newest.iter().filter(|record| record.user == user).count();
            assert!(held < count, "{user} keeps a record to learn from");
        }
        for method in [RetrievalMethod::Bm25, RetrievalMethod::Recency, RetrievalMethod::Random] {
            let retriever = Retriever::with_method(&history.records, method, round as u64);
            for record in &history.records {
                let found = retriever.earlier(record, 4);
                let earlier = history.records.iter().filter(|other| {
                    other.user == record.user && other.sequence < record.sequence && film(other) != film(record)
                });
                let earlier: Vec<&Record> = earlier.collect();
                assert_eq!(found.len(), earlier.len().min(4), "{method:?}");
                let mut known = HashSet::new();
                for found in &found {
                    assert!(
                        earlier.iter().any(|other| other.id == found.record.id),
                        "{method:?} finds what it must not"
                    );
                    assert!(known.insert(&found.record.id), "{method:?} finds one twice");
                }
                if method == RetrievalMethod::Recency {
                    let newest: Vec<&str> = earlier.iter().rev().take(4).map(|record| record.id.as_str()).collect();
                    assert_eq!(found.iter().map(|found| found.record.id.as_str()).collect::<Vec<_>>(), newest);
                }
                let own = record.task().choices(record, &history.records);
                assert!(own.iter().all(|choice| choice.ends_with(&format!("-{}", record.user))), "{own:?}");
            }
        }
    }
    let history = people(&mut random);
    let ids = |seed| -> Vec<String> {
        let retriever = Retriever::with_method(&history.records, RetrievalMethod::Random, seed);
        let found = history.records.iter().flat_map(|record| retriever.earlier(record, 2));
        found.map(|found| found.record.id.clone()).collect()
    };
    assert_eq!(ids(1), ids(1), "the same seed draws the same");
    assert_ne!(ids(1), ids(2), "another seed draws others");
}

#[test]
fn the_lists_agree() {
    for task in TASKS {
        assert_eq!(task_by_name(task.name()).map(|found| found.name()), Some(task.name()));
        assert!(!task.metrics().is_empty() && task.metrics().contains(&"loss_per_answer_token"), "{}", task.name());
    }
    for (method, name) in data::RETRIEVAL_METHODS {
        assert_eq!((RetrievalMethod::by_name(name), method.name()), (Some(method), name));
        assert_eq!(serde_json::to_value(method).unwrap(), name);
    }
}
