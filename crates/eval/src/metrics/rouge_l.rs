//! ROUGE-L: the F1 of the longest common subsequence of words (Lin, 2004), as the rouge-score package computes it.

use super::words::{f1, words};
use super::{Better, Measure, Metric, text_score};

pub static METRIC: Metric = Metric {
    name: "rouge_l",
    label: "ROUGE-L",
    meaning: "As ROUGE-1, but the words in common must stand in the same order.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Query(|row| text_score(row, |gold, prediction| rouge_l(gold, prediction, false))),
};

/// F1 of the longest common subsequence, from 0 to 1; 0 if either text has no words.
pub fn rouge_l(gold: &str, prediction: &str, stem: bool) -> f64 {
    let (gold, prediction) = (words(gold, stem), words(prediction, stem));
    f1(common_subsequence_len(&gold, &prediction), gold.len(), prediction.len())
}

/// Length of the longest common subsequence, one row of the table at a time.
fn common_subsequence_len(left: &[String], right: &[String]) -> usize {
    let mut row = vec![0; right.len() + 1];
    for left_word in left {
        let mut diagonal = 0;
        for (column, right_word) in right.iter().enumerate() {
            let above = row[column + 1];
            row[column + 1] = if left_word == right_word { diagonal + 1 } else { above.max(row[column]) };
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_matters() {
        // Common subsequence "police the gunman" has no counterpart in "the gunman kill police": 2 of 4.
        assert_eq!(rouge_l("police killed the gunman", "police kill the gunman", false), 0.75);
        assert_eq!(rouge_l("police killed the gunman", "the gunman kill police", false), 0.5);
        assert_eq!(rouge_l("", "", false), 0.0);
    }
}
