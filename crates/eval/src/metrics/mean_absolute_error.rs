//! Mean absolute error of numbers (ratings).

use super::number::{absolute_errors, number_pairs, unparsable};
use super::{Answered, Better, Measure, Metric, Pair, SetScore};

pub static METRIC: Metric = Metric {
    name: "mean_absolute_error",
    label: "Mean absolute error",
    meaning: "How far the predicted number is off, on average; an answer that is no number counts as the farthest.",
    better: Better::Lower,
    digits: 3,
    measure: Measure::Set(Answered::Written, mean_absolute_error),
};

/// `None` for an empty set or a gold answer that is no number.
pub fn mean_absolute_error(pairs: &[Pair]) -> Option<SetScore> {
    let numbers = number_pairs(pairs)?;
    let value = absolute_errors(&numbers).iter().sum::<f64>() / numbers.len() as f64;
    Some(SetScore { value, unparsable: unparsable(&numbers) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unparsable_answer_is_as_far_off_as_the_scale_allows() {
        let pair = |gold, prediction| Pair { gold, prediction };
        // Gold answers run from 1 to 5: errors 0, 1, and 4 for "none" beside gold 1.
        let score = mean_absolute_error(&[pair("5", "5"), pair("3", "4"), pair("1", "none")]);
        assert_eq!(score, Some(SetScore { value: 5.0 / 3.0, unparsable: 1 }));
        assert_eq!(mean_absolute_error(&[]), None);
        assert_eq!(mean_absolute_error(&[pair("good", "1")]), None);
    }
}
