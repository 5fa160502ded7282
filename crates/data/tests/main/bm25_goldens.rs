//! BM25 against rank-bm25.

use crate::support::*;
use data::bm25::Bm25;

#[test]
fn scores_are_those_of_rank_bm25() {
    for corpus in read_json(&fixture("bm25.json"))["corpora"].as_array().unwrap() {
        let split =
            |text: &serde_json::Value| -> Vec<String> { text.as_str().unwrap().split(' ').map(String::from).collect() };
        let documents: Vec<Vec<String>> = corpus["documents"].as_array().unwrap().iter().map(split).collect();
        // Documents that come later must not change the scores over those before.
        let mut more = documents.clone();
        more.extend(documents.iter().rev().cloned());
        for (documents_indexed, what) in [(&documents, "alone"), (&more, "as a prefix")] {
            let index = Bm25::new(documents_indexed);
            for query in corpus["queries"].as_array().unwrap() {
                let scores = index.scores(&split(&query["query"]), documents.len());
                let expected = query["scores"].as_array().unwrap();
                assert_eq!(scores.len(), expected.len());
                for (document, (score, expected)) in scores.iter().zip(expected).enumerate() {
                    let expected = expected.as_f64().unwrap();
                    assert!(
                        (score - expected).abs() <= 1e-9 * (1.0 + expected.abs()),
                        "{} {what}, query {}, document {document}: {score}, expected {expected}",
                        corpus["name"],
                        query["query"]
                    );
                }
            }
        }
    }
}

/// Many records are searched in milliseconds; the bound leaves room for a busy machine. Words in more than 512 records
/// are summed in their own way, so the floor of their weights is checked against the formula.
#[test]
fn many_records_are_searched_at_once() {
    let mut random = Random(3);
    // Word frequencies fall off as in text: small numbers are common.
    let mut word = || {
        let limit = 1 + random.below(4000);
        format!("w{}", random.below(limit))
    };
    let mut document = || -> Vec<String> { (0..30).map(|_| word()).collect() };
    let documents: Vec<Vec<String>> = (0..30_000).map(|_| document()).collect();
    let query = document();
    let start = std::time::Instant::now();
    let index = Bm25::new(&documents);
    println!("built in {:.2} s", start.elapsed().as_secs_f64());
    let start = std::time::Instant::now();
    let rounds = 20;
    let mut best = Vec::new();
    for _ in 0..rounds {
        best = index.best(&query, documents.len(), 4);
    }
    let each_ms = start.elapsed().as_secs_f64() * 1e3 / f64::from(rounds);
    println!("searched in {each_ms:.2} ms");
    assert!(each_ms < 100.0, "{each_ms} ms");
    let mut scores: Vec<(usize, f64)> = index.scores(&query, documents.len()).into_iter().enumerate().collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    assert_eq!(best, scores[..4]);

    // A word in most documents: its weight is the floor, which is the mean over all words.
    let mut with: std::collections::BTreeMap<&str, usize> = Default::default();
    for document in &documents {
        let words: std::collections::BTreeSet<&str> = document.iter().map(String::as_str).collect();
        words.into_iter().for_each(|word| *with.entry(word).or_default() += 1);
    }
    let count = documents.len() as f64;
    let mean_idf = with.values().map(|with| ((count - *with as f64 + 0.5) / (*with as f64 + 0.5)).ln()).sum::<f64>()
        / with.len() as f64;
    let mut common = documents.clone();
    common.iter_mut().for_each(|document| document.push("everywhere".to_string()));
    let index = Bm25::new(&common);
    let idf_everywhere = (0.5f64.ln() - (count + 0.5).ln()) / (with.len() + 1) as f64;
    let floor = 0.25 * (mean_idf * with.len() as f64 / (with.len() + 1) as f64 + idf_everywhere);
    // All documents have the mean length, so the word's share is its weight alone.
    let score = index.scores(&["everywhere"], common.len())[0];
    assert!((score - floor).abs() < 1e-9 * floor.abs(), "{score}, expected {floor}");
}
