//! What one person wrote never stands in another person's example, however many people's records are trained together.

use crate::support::*;
use data::{ExampleOptions, Record, Retriever, build_example, build_prompt};

/// Names record `sequence` of `user` inside a text.
fn marker(user: usize, sequence: usize) -> String {
    format!("zq{user}q{sequence}z")
}

#[test]
fn examples_of_many_people_show_only_the_own_earlier_records() {
    let pipeline = pipeline(&hugging_face("smollm"), "smollm", Some(&template("smollm2")));
    let mut random = Random(17);
    let mut shown = 0;
    for round in 0..12 {
        // People write alike, so that the nearest records are often other people's; ids repeat among them.
        let users = 2 + random.below(4);
        let mut records: Vec<Record> = Vec::new();
        for sequence in 0..6 + random.below(18) {
            let user = random.below(users);
            let words: Vec<&str> = (0..3).map(|_| ["tea", "rain", "code", "moon"][random.below(4)]).collect();
            let mark = marker(user, sequence);
            let body = completion(&format!("{} {mark}", words.join(" ")), &format!("{} {mark}", words[0]));
            let mut record = record(&format!("user {user}"), sequence, body);
            record.id = format!("same-{}", sequence % 3);
            records.push(record);
        }
        let retriever = Retriever::new(&records);
        let options = ExampleOptions { retrieved_records: 1 + round % 4, ..ExampleOptions::default() };
        for record in &records {
            let user: usize = record.user["user ".len()..].parse().unwrap();
            let example = build_example(&pipeline, record, &retriever, &options).unwrap();
            let prompt = build_prompt(&pipeline, record, &retriever, &options, 8).unwrap();
            for text in [pipeline.decode_with_special(&example.tokens), pipeline.decode_with_special(&prompt.tokens)] {
                for other in records.iter() {
                    let other_user: usize = other.user["user ".len()..].parse().unwrap();
                    let is_allowed = other_user == user && other.sequence <= record.sequence;
                    let stands = text.contains(&marker(other_user, other.sequence));
                    assert!(is_allowed || !stands, "record {} of user {other_user} in {text:?}", other.sequence);
                    shown += usize::from(stands && other.sequence != record.sequence);
                }
            }
        }
    }
    assert!(shown > 100, "only {shown} earlier records were shown at all");
}
