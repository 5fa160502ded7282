//! Root mean square error of numbers (ratings).

use super::number::{absolute_errors, number_pairs, unparsable};
use super::{Answered, Better, Measure, Metric, Pair, SetScore};

pub static METRIC: Metric = Metric {
    name: "root_mean_square_error",
    label: "Root mean square error",
    meaning: "As the mean absolute error, but large errors weigh more.",
    better: Better::Lower,
    digits: 3,
    measure: Measure::Set(Answered::Written, root_mean_square_error),
};

/// `None` for an empty set or a gold answer that is no number.
pub fn root_mean_square_error(pairs: &[Pair]) -> Option<SetScore> {
    let numbers = number_pairs(pairs)?;
    let mean_square = absolute_errors(&numbers).iter().map(|error| error * error).sum::<f64>() / numbers.len() as f64;
    Some(SetScore { value: mean_square.sqrt(), unparsable: unparsable(&numbers) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_errors_weigh_more() {
        let pair = |gold, prediction| Pair { gold, prediction };
        let score = root_mean_square_error(&[pair("1", "1"), pair("5", "3"), pair("2", "4"), pair("3", "3")]);
        assert_eq!(score, Some(SetScore { value: 2.0f64.sqrt(), unparsable: 0 }));
        assert_eq!(root_mean_square_error(&[]), None);
    }
}
