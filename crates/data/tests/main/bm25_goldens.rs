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
