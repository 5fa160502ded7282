//! BM25: finds the earlier records that share a record's words.
//!
//! Scores are those of Okapi BM25 with a floor for negative weights, as in the Python package rank-bm25
//! (`BM25Okapi`, k1 1.5, b 0.75, epsilon 0.25), over exactly the records that were there before the query's:
//!
//! ```text
//! idf(t)   = ln(N - n_t + 0.5) - ln(n_t + 0.5);  where negative: epsilon * mean idf over the vocabulary
//! score(d) = sum over query tokens t (with repeats) of idf(t) * f_td * (k1 + 1) / (f_td + k1 * (1 - b + b * |d| / mean |d|))
//! ```

use std::collections::HashMap;

/// Saturation of repeated words.
pub const K1: f64 = 1.5;
/// How much long documents are held back.
pub const B: f64 = 0.75;
/// Share of the mean weight that a word in more than half of the documents gets.
pub const EPSILON: f64 = 0.25;

/// Documents in the order in which they came; any query may be limited to the first so many.
#[derive(Debug, Clone, Default)]
pub struct Bm25 {
    terms: HashMap<String, usize>,
    /// For each term, (document, count in it), documents ascending.
    postings: Vec<Vec<(u32, u32)>>,
    /// Tokens of each document.
    lengths: Vec<u32>,
    /// Tokens of the documents before each one; one entry more than documents.
    lengths_before: Vec<u64>,
    /// Mean idf over the vocabulary of the first N documents, at N.
    mean_idf: Vec<f64>,
}

/// Terms in at most so many documents are counted together; the few others are listed.
const RARE_DOCUMENTS_MAX: usize = 512;

/// In how many documents the terms stand: what the mean weight needs. It is summed once for every document, so it is kept
/// short: of M postings at most M / 512 terms are listed.
#[derive(Default)]
struct Frequencies {
    /// `rare[n]` terms stand in n documents.
    rare: Vec<u32>,
    /// Documents of each other term.
    common: Vec<usize>,
    /// Place in `common` of a term.
    common_places: HashMap<usize, usize>,
}

impl Frequencies {
    /// A term stands in one document more, now in `documents`.
    fn raise(&mut self, term: usize, documents: usize) {
        if documents <= RARE_DOCUMENTS_MAX {
            self.rare[documents] += 1;
        } else if let Some(place) = self.common_places.get(&term) {
            self.common[*place] = documents;
        } else {
            self.common_places.insert(term, self.common.len());
            self.common.push(documents);
        }
        if (2..=RARE_DOCUMENTS_MAX + 1).contains(&documents) {
            self.rare[documents - 1] -= 1;
        }
    }

    fn sum_of_idf(&self, documents: usize, logs: &[f64]) -> f64 {
        let idf = |with: usize| logs[documents - with] - logs[with];
        let rare = self.rare.iter().enumerate().filter(|(_, terms)| **terms > 0);
        let rare: f64 = rare.map(|(with, terms)| f64::from(*terms) * idf(with)).sum();
        rare + self.common.iter().map(|with| idf(*with)).sum::<f64>()
    }
}

impl Bm25 {
    /// An index over tokenized documents.
    pub fn new<D: AsRef<[T]>, T: AsRef<str>>(documents: &[D]) -> Bm25 {
        let mut index = Bm25 { lengths_before: vec![0], mean_idf: vec![0.0], ..Bm25::default() };
        let mut frequencies = Frequencies { rare: vec![0; RARE_DOCUMENTS_MAX + 1], ..Frequencies::default() };
        // ln(i + 0.5), shared by every prefix.
        let logs: Vec<f64> = (0..=documents.len()).map(|count| (count as f64 + 0.5).ln()).collect();
        for (number, document) in documents.iter().enumerate() {
            index.add(number as u32, document.as_ref(), &mut frequencies);
            let sum = frequencies.sum_of_idf(number + 1, &logs);
            index.mean_idf.push(sum / index.postings.len().max(1) as f64);
        }
        index
    }

    fn add<T: AsRef<str>>(&mut self, number: u32, tokens: &[T], frequencies: &mut Frequencies) {
        let mut counts: HashMap<usize, u32> = HashMap::new();
        for token in tokens {
            let next = self.postings.len();
            let term = *self.terms.entry(token.as_ref().to_string()).or_insert(next);
            if term == next {
                self.postings.push(Vec::new());
            }
            *counts.entry(term).or_insert(0) += 1;
        }
        for (term, count) in counts {
            self.postings[term].push((number, count));
            frequencies.raise(term, self.postings[term].len());
        }
        self.lengths.push(tokens.len() as u32);
        self.lengths_before.push(self.lengths_before[self.lengths_before.len() - 1] + tokens.len() as u64);
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there is no document.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Score of each of the first `documents` documents, as if there were no others.
    pub fn scores<T: AsRef<str>>(&self, query: &[T], documents: usize) -> Vec<f64> {
        let documents = documents.min(self.len());
        let mut scores = vec![0.0; documents];
        if documents == 0 {
            return scores;
        }
        let mean_length = self.lengths_before[documents] as f64 / documents as f64;
        let floor = EPSILON * self.mean_idf[documents];
        // k1 * (1 - b + b * |d| / mean |d|) is base + slope * |d|; records without a word have no mean, and no postings.
        let (base, slope) = (K1 * (1.0 - B), K1 * B / mean_length);
        for (term, repeats) in self.query_terms(query) {
            let postings = &self.postings[term];
            let with = postings.partition_point(|(document, _)| (*document as usize) < documents);
            if with == 0 {
                continue;
            }
            let idf = ((documents - with) as f64 + 0.5).ln() - (with as f64 + 0.5).ln();
            // What does not depend on the record is taken out of the loop: it runs once for every record with the word.
            let weight = if idf < 0.0 { floor } else { idf } * f64::from(repeats) * (K1 + 1.0);
            for (document, count) in &postings[..with] {
                let (document, count) = (*document as usize, f64::from(*count));
                scores[document] += weight * count / (count + base + slope * f64::from(self.lengths[document]));
            }
        }
        scores
    }

    /// The `count` best of the first `documents` documents that share a word with the query, best first. Of equal
    /// scores the newer document comes first.
    pub fn best<T: AsRef<str>>(&self, query: &[T], documents: usize, count: usize) -> Vec<(usize, f64)> {
        let scores = self.scores(query, documents);
        let mut best: Vec<(usize, f64)> = Vec::with_capacity(count + 1);
        // A handful of places: insertion into a short sorted list beats sorting all scores.
        for (document, score) in scores.into_iter().enumerate().rev() {
            if score == 0.0 || count == 0 {
                continue;
            }
            let place = best.partition_point(|(_, better)| *better >= score);
            if place < count {
                best.insert(place, (document, score));
                best.truncate(count);
            }
        }
        best
    }

    /// Known terms of the query with how often each stands in it, in order of first appearance.
    fn query_terms<T: AsRef<str>>(&self, query: &[T]) -> Vec<(usize, u32)> {
        let mut place: HashMap<usize, usize> = HashMap::new();
        let mut terms: Vec<(usize, u32)> = Vec::new();
        for token in query {
            if let Some(term) = self.terms.get(token.as_ref()) {
                let index = *place.entry(*term).or_insert_with(|| {
                    terms.push((*term, 0));
                    terms.len() - 1
                });
                terms[index].1 += 1;
            }
        }
        terms
    }
}

/// Words of a text for BM25: runs of letters and digits in lower case, so that the parts of file names and of
/// identifiers with underscores count as words of their own.
pub fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}
