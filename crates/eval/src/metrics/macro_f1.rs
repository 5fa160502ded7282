//! Macro-F1: the F1 of each label, every label weighing the same.

use super::accuracy::labelled;
use super::{Answered, Better, Measure, Metric, Pair, SetScore};

pub static METRIC: Metric = Metric {
    name: "macro_f1",
    label: "Macro-F1",
    meaning: "F1 of each label, averaged so that rare labels weigh as much as common ones.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Set(Answered::Written, macro_f1),
};

/// Mean over the gold answers' labels of `2 tp / (2 tp + fp + fn)`. A prediction that is no label is a miss of its
/// gold label and a false positive of none (scikit-learn's `f1_score(average="macro", labels=gold labels)`).
pub fn macro_f1(pairs: &[Pair]) -> Option<SetScore> {
    let labelled = labelled(pairs)?;
    let f1_of = |label: &String| {
        let count = |wanted: fn(bool, bool) -> bool| {
            labelled.pairs.iter().filter(|(gold, prediction)| wanted(gold == label, prediction == label)).count() as f64
        };
        let true_positive = count(|gold, prediction| gold && prediction);
        let wrong = count(|gold, prediction| gold != prediction);
        // Every label occurs among the gold answers, so the denominator is never zero.
        2.0 * true_positive / (2.0 * true_positive + wrong)
    };
    let sum: f64 = labelled.labels.iter().map(f1_of).sum();
    Some(SetScore { value: sum / labelled.labels.len() as f64, unparsable: labelled.unparsable() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_value_worked_out_by_hand() {
        let pairs: Vec<Pair> = [("a", "a"), ("a", "b"), ("b", "b"), ("b", "b"), ("c", "other")]
            .map(|(gold, prediction)| Pair { gold, prediction })
            .to_vec();
        // a: tp 1, fn 1 -> 2/3; b: tp 2, fp 1 -> 4/5; c: 0.
        let score = macro_f1(&pairs).unwrap();
        assert!((score.value - (2.0 / 3.0 + 0.8) / 3.0).abs() < 1e-15, "{score:?}");
        assert_eq!(score.unparsable, 1);
        assert_eq!(macro_f1(&[]), None);
    }
}
