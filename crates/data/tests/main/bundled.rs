//! The histories that come with the project.

use data::{ExampleOptions, HeldOut, ReadOptions, Retriever, build_example, read_history};
use std::path::{Path, PathBuf};

fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(name)
}

#[test]
fn bundled_histories_are_whole_and_in_order() {
    for (name, task, records, users) in [
        ("git-commits", "commit_subject", 7340, 20),
        ("digitalgov-news", "headline", 719, 20),
        ("acl-titles", "scholarly_title", 1957, 69),
    ] {
        let history = read_history(&bundled(name), &ReadOptions::default()).unwrap();
        assert_eq!(history.records.len(), records, "{name}");
        assert_eq!(history.users().len(), users, "{name}");
        assert_eq!(history.tasks(), [(task, records)], "{name}");
        assert!(history.records.windows(2).all(|pair| pair[0].time <= pair[1].time), "{name}");
        assert!(bundled(name).join("README.md").is_file(), "{name} says where it comes from");
    }
}

#[test]
fn every_bundled_author_gives_examples_with_retrieval() {
    let pipeline = crate::support::pipeline(
        &crate::support::hugging_face("smollm"),
        "smollm",
        Some(&crate::support::template("smollm2")),
    );
    let history = read_history(&bundled("git-commits/author-08.jsonl"), &ReadOptions::default()).unwrap();
    let (older, newest) = history.split_newest(HeldOut::Count(20));
    let retriever = Retriever::new(&older);
    let options = ExampleOptions { retrieved_records: 4, tokens_max: 4096, ..ExampleOptions::default() };
    for record in &newest {
        let example = build_example(&pipeline, record, &retriever, &options).unwrap();
        assert_eq!(example.retrieved_ids.len(), 4, "{}", record.id);
        let answer = crate::support::learned(&pipeline, &example);
        assert_eq!(answer, [format!("{}<|im_end|>", record.answer())], "{}", record.id);
    }
}
