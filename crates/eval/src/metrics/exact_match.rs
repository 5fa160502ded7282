//! Exact match: 1 if the two texts are the same after [`normalized`].

use super::{Better, Measure, Metric, text_score};

pub static METRIC: Metric = Metric {
    name: "exact_match",
    label: "Exact match",
    meaning: "Share of answers equal to what the person wrote, up to case, spacing and a final full stop.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Query(|row| text_score(row, exact_match)),
};

/// 1 if equal after normalization, else 0. Two texts that are both empty afterwards do not match: nothing was said.
pub fn exact_match(gold: &str, prediction: &str) -> f64 {
    let gold = normalized(gold);
    f64::from(!gold.is_empty() && gold == normalized(prediction))
}

/// Lower case; runs of white space as one space, none at the ends; one pair of quotation marks around the whole
/// removed; one full stop at the end removed. Punctuation inside stays: it is part of how a person writes.
pub fn normalized(text: &str) -> String {
    let spaced = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let bare =
        QUOTES.iter().find_map(|(open, close)| spaced.strip_prefix(*open)?.strip_suffix(*close)).unwrap_or(&spaced);
    bare.strip_suffix('.').unwrap_or(bare).trim().to_string()
}

const QUOTES: [(char, char); 5] =
    [('"', '"'), ('\'', '\''), ('`', '`'), ('\u{201c}', '\u{201d}'), ('\u{2018}', '\u{2019}')];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalization_is_as_documented() {
        for (left, right, expected) in [
            ("Fix  typo", " fix typo\n", 1.0),
            ("Fix typo", "\"Fix typo.\"", 1.0),
            ("Fix typo", "Fix: typo", 0.0),
            ("Fix typo..", "Fix typo", 0.0),
            ("", "", 0.0),
            (".", "\"", 0.0),
            ("\"", "\"", 1.0),
        ] {
            assert_eq!(exact_match(left, right), expected, "{left:?} {right:?}");
        }
    }
}
