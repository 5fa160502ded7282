//! Finds a person's earlier records. Records of other people, and later ones, can never be found.

use crate::bm25::{Bm25, words};
use crate::record::Record;
use std::collections::HashMap;

/// Earlier records of each user.
#[derive(Debug, Clone, Default)]
pub struct Retriever {
    users: HashMap<String, UserIndex>,
}

#[derive(Debug, Clone)]
struct UserIndex {
    /// Sequence ascending.
    records: Vec<Record>,
    index: Bm25,
}

/// A record found, with its BM25 score.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The record.
    pub record: &'a Record,
    /// Its score; larger is nearer.
    pub score: f64,
}

impl Retriever {
    /// Indexes records of any number of users.
    pub fn new(records: &[Record]) -> Retriever {
        let mut by_user: HashMap<String, Vec<Record>> = HashMap::new();
        for record in records {
            by_user.entry(record.user.clone()).or_default().push(record.clone());
        }
        let users = by_user.into_iter().map(|(user, mut records)| {
            records.sort_by_key(|record| record.sequence);
            let documents: Vec<Vec<String>> = records.iter().map(searched_words).collect();
            (user, UserIndex { index: Bm25::new(&documents), records })
        });
        Retriever { users: users.collect() }
    }

    /// Finds nothing, ever: prompts without retrieval.
    pub fn none() -> Retriever {
        Retriever::default()
    }

    /// The `count` nearest of the same user's records that are earlier than `record`, nearest first.
    pub fn earlier(&self, record: &Record, count: usize) -> Vec<Found<'_>> {
        let Some(user) = self.users.get(&record.user) else { return Vec::new() };
        let earlier_count = user.records.partition_point(|other| other.sequence < record.sequence);
        let query = words(&record.task().query_text(record));
        user.index
            .best(&query, earlier_count, count)
            .into_iter()
            .map(|(place, score)| Found { record: &user.records[place], score })
            .collect()
    }
}

/// A record is found by its question, not by its answer: a new record has no answer yet.
fn searched_words(record: &Record) -> Vec<String> {
    words(&record.task().query_text(record))
}
