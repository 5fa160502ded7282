//! ROUGE-1: the F1 of words in common, repeated words counted (Lin, 2004), as the rouge-score package computes it.

use std::collections::HashMap;

use super::words::{f1, words};
use super::{Better, Measure, Metric, text_score};

/// In the list without stemming: `-ed` and `-s` are part of how a person writes.
pub static METRIC: Metric = Metric {
    name: "rouge_1",
    label: "ROUGE-1",
    meaning: "Share of words in common with what the person wrote (F1, no stemming).",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Query(|row| text_score(row, |gold, prediction| rouge_1(gold, prediction, false))),
};

/// F1 of the two multisets of words, from 0 to 1; 0 if either text has no words.
pub fn rouge_1(gold: &str, prediction: &str, stem: bool) -> f64 {
    let (gold, prediction) = (words(gold, stem), words(prediction, stem));
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in &gold {
        *left.entry(word).or_default() += 1;
    }
    let mut matched = 0;
    for word in &prediction {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            matched += 1;
        }
    }
    f1(matched, gold.len(), prediction.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_repeated_words_once_each() {
        // 2 of 3 gold words, 2 of 4 predicted: P 1/2, R 2/3, F 4/7.
        assert!((rouge_1("the cat sat", "the the the cat", false) - 4.0 / 7.0).abs() < 1e-15);
        assert_eq!(rouge_1("Fix: typo", "fix typo.", false), 1.0);
        assert_eq!(rouge_1("a", "b", false), 0.0);
    }

    #[test]
    fn empty_texts_score_zero() {
        for (gold, prediction) in [("", ""), ("word", ""), ("", "word"), ("...", "...")] {
            assert_eq!(rouge_1(gold, prediction, false), 0.0, "{gold:?} {prediction:?}");
        }
    }
}
