//! Accuracy of labels: the share of predictions that name the right label.

use std::collections::BTreeSet;

use super::exact_match::normalized;
use super::{Answered, Better, Measure, Metric, Pair, SetScore};

pub static METRIC: Metric = Metric {
    name: "accuracy",
    label: "Accuracy",
    meaning: "Share of labels that are right; an answer that is no label counts as wrong.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Set(Answered::Written, accuracy),
};

/// Share of equal labels (compared as exact match does). The labels are those that occur among the gold answers;
/// a prediction outside them is unparsable and wrong.
pub fn accuracy(pairs: &[Pair]) -> Option<SetScore> {
    let labelled = labelled(pairs)?;
    let right = labelled.pairs.iter().filter(|(gold, prediction)| gold == prediction).count();
    Some(SetScore { value: right as f64 / pairs.len() as f64, unparsable: labelled.unparsable() })
}

/// Normalized pairs and the labels of the gold answers. `None` if there is no pair or a gold answer is empty.
pub(super) struct Labelled {
    pub pairs: Vec<(String, String)>,
    pub labels: BTreeSet<String>,
}

pub(super) fn labelled(pairs: &[Pair]) -> Option<Labelled> {
    let pairs: Vec<(String, String)> =
        pairs.iter().map(|pair| (normalized(pair.gold), normalized(pair.prediction))).collect();
    let labels: BTreeSet<String> = pairs.iter().map(|(gold, _)| gold.clone()).collect();
    (!pairs.is_empty() && !labels.contains("")).then_some(Labelled { pairs, labels })
}

impl Labelled {
    pub(super) fn unparsable(&self) -> usize {
        self.pairs.iter().filter(|(_, prediction)| !self.labels.contains(prediction)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_and_unparsable_answers_count_as_wrong() {
        let pair = |gold, prediction| Pair { gold, prediction };
        let score = accuracy(&[
            pair("comedy", "Comedy."),
            pair("drama", "comedy"),
            pair("drama", "I think"),
            pair("war", "war"),
        ]);
        assert_eq!(score, Some(SetScore { value: 0.5, unparsable: 1 }));
        assert_eq!(accuracy(&[]), None);
        assert_eq!(accuracy(&[pair("", "x")]), None);
    }
}
