//! Reading numbers from answers (ratings), shared by the two error metrics.

use super::Pair;

/// A gold number and the predicted one; `None` where the answer is no number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberPair {
    pub gold: f64,
    pub prediction: Option<f64>,
}

/// The answer as a finite number: the whole text up to white space, quotation marks and a final full stop.
/// `"4"`, `" 4.5."` and `"\"3\""` are numbers; `"4 stars"`, `"4/5"`, `"inf"` and `""` are not.
pub fn parse_number(text: &str) -> Option<f64> {
    let bare = super::normalized(text);
    let plain = bare.chars().all(|character| character.is_ascii_digit() || ".+-e".contains(character));
    bare.parse::<f64>().ok().filter(|number| plain && number.is_finite())
}

/// All pairs as numbers. `None` if there are none or a gold answer is no number.
pub fn number_pairs(pairs: &[Pair]) -> Option<Vec<NumberPair>> {
    let numbers: Option<Vec<NumberPair>> = pairs
        .iter()
        .map(|pair| Some(NumberPair { gold: parse_number(pair.gold)?, prediction: parse_number(pair.prediction) }))
        .collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

/// The size of each error. An answer that is no number is as wrong as it can be: as far off as the farther end of
/// the gold answers' range (the benchmark's rule, with its range 1 to 5 read from the answers).
pub(super) fn absolute_errors(numbers: &[NumberPair]) -> Vec<f64> {
    let lowest = numbers.iter().map(|pair| pair.gold).fold(f64::INFINITY, f64::min);
    let highest = numbers.iter().map(|pair| pair.gold).fold(f64::NEG_INFINITY, f64::max);
    numbers
        .iter()
        .map(|pair| match pair.prediction {
            Some(prediction) => (prediction - pair.gold).abs(),
            None => (pair.gold - lowest).max(highest - pair.gold),
        })
        .collect()
}

pub(super) fn unparsable(numbers: &[NumberPair]) -> usize {
    numbers.iter().filter(|pair| pair.prediction.is_none()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_finite_numbers_are_numbers() {
        for (text, expected) in [
            ("4", Some(4.0)),
            (" 4.5. ", Some(4.5)),
            ("\"3\"", Some(3.0)),
            ("-1", Some(-1.0)),
            ("4 stars", None),
            ("4/5", None),
            ("inf", None),
            ("nan", None),
            ("1e999", None),
            ("", None),
        ] {
            assert_eq!(parse_number(text), expected, "{text:?}");
        }
    }
}
