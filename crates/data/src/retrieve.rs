//! Finds a person's earlier records. Records of other people, and later ones, can never be found.

use crate::bm25::{Bm25, words};
use crate::record::Record;
use std::collections::HashMap;

/// A way to choose earlier records: what is searched for, and two controls that tell what the search itself is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetrievalMethod {
    /// The records that share most words with the question, by [`crate::bm25`].
    #[default]
    Bm25,
    /// The newest records before the question, whatever they are about.
    Recency,
    /// Records drawn by chance: always the same ones for the same question and seed.
    Random,
}

/// Every method, with its name in settings and options.
pub static RETRIEVAL_METHODS: [(RetrievalMethod, &str); 3] =
    [(RetrievalMethod::Bm25, "bm25"), (RetrievalMethod::Recency, "recency"), (RetrievalMethod::Random, "random")];

impl RetrievalMethod {
    /// The method of that name.
    pub fn by_name(name: &str) -> Option<RetrievalMethod> {
        RETRIEVAL_METHODS.iter().find(|(_, known)| *known == name).map(|(method, _)| *method)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        RETRIEVAL_METHODS.iter().find(|(method, _)| *method == self).map_or("", |(_, name)| name)
    }
}

/// Earlier records of each user.
#[derive(Debug, Clone, Default)]
pub struct Retriever {
    users: HashMap<String, UserIndex>,
    method: RetrievalMethod,
    seed: u64,
}

#[derive(Debug, Clone)]
struct UserIndex {
    /// Sequence ascending.
    records: Vec<Record>,
    /// Empty where nothing is searched for.
    index: Bm25,
}

/// A record found, with its BM25 score.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The record.
    pub record: &'a Record,
    /// Its score; larger is nearer. 0 where nothing was searched for.
    pub score: f64,
}

impl Retriever {
    /// Indexes records of any number of users for [`RetrievalMethod::Bm25`].
    pub fn new(records: &[Record]) -> Retriever {
        Retriever::with_method(records, RetrievalMethod::Bm25, 0)
    }

    /// Takes records of any number of users. `seed` is that of [`RetrievalMethod::Random`].
    pub fn with_method(records: &[Record], method: RetrievalMethod, seed: u64) -> Retriever {
        let mut by_user: HashMap<String, Vec<Record>> = HashMap::new();
        for record in records {
            by_user.entry(record.user.clone()).or_default().push(record.clone());
        }
        let users = by_user.into_iter().map(|(user, mut records)| {
            records.sort_by_key(|record| record.sequence);
            let searched: &[Record] = if method == RetrievalMethod::Bm25 { &records } else { &[] };
            let documents: Vec<Vec<String>> = searched.iter().map(searched_words).collect();
            (user, UserIndex { index: Bm25::new(&documents), records })
        });
        Retriever { users: users.collect(), method, seed }
    }

    /// Takes records of any number of users for prompts made with these options.
    pub fn for_options(records: &[Record], options: &crate::ExampleOptions) -> Retriever {
        Retriever::with_method(records, options.retriever, options.retriever_seed)
    }

    /// Finds nothing, ever: prompts without retrieval.
    pub fn none() -> Retriever {
        Retriever::default()
    }

    /// The `count` nearest of the same user's records that are earlier than `record`, nearest first. Records that ask the
    /// same as `record` ([`crate::Task::group`]) are passed over: they would give an answer away.
    pub fn earlier(&self, record: &Record, count: usize) -> Vec<Found<'_>> {
        let Some(user) = self.users.get(&record.user) else { return Vec::new() };
        let earlier_count = user.records.partition_point(|other| other.sequence < record.sequence);
        let group = record.task().group(record);
        let asks_the_same = |other: &Record| group.is_some() && other.task().group(other) == group;
        // What is passed over makes room for further ones.
        let alike = match group {
            Some(_) => user.records[..earlier_count].iter().filter(|other| asks_the_same(other)).count(),
            None => 0,
        };
        let places = match self.method {
            RetrievalMethod::Bm25 => {
                let query = words(&record.task().query_text(record));
                user.index.best(&query, earlier_count, count + alike)
            }
            RetrievalMethod::Recency => {
                (0..earlier_count).rev().take(count + alike).map(|place| (place, 0.0)).collect()
            }
            RetrievalMethod::Random => self.drawn(&record.id, earlier_count, count + alike),
        };
        let found = places.into_iter().map(|(place, score)| Found { record: &user.records[place], score });
        found.filter(|found| !asks_the_same(found.record)).take(count).collect()
    }

    /// Different places below `limit`, at most `count`, drawn from the seed and the id alone.
    fn drawn(&self, id: &str, limit: usize, count: usize) -> Vec<(usize, f64)> {
        // FNV-1a of the id begins a SplitMix64 sequence: no more is needed than that ids and seeds differ.
        let begin = id
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut state = begin ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut drawn: Vec<(usize, f64)> = Vec::with_capacity(count.min(limit));
        while drawn.len() < count.min(limit) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let place = ((mixed ^ (mixed >> 31)) % limit as u64) as usize;
            if drawn.iter().all(|(known, _)| *known != place) {
                drawn.push((place, 0.0));
            }
        }
        drawn
    }
}

fn searched_words(record: &Record) -> Vec<String> {
    words(&record.task().document_text(record))
}
