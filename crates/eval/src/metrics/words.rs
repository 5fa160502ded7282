//! The tokenizer of the rouge-score package: lower case, everything outside `[a-z0-9]` separates, words of more
//! than three characters optionally stemmed.

use super::porter;

/// The words that ROUGE compares.
///
/// Lower-casing is Unicode's, as Python's `str.lower`; what is not an ASCII letter or digit afterwards separates
/// words, so text in other scripts has no words at all and scores 0 (the package's own behaviour).
pub fn words(text: &str, stem: bool) -> Vec<String> {
    text.to_lowercase()
        .split(|character: char| !matches!(character, 'a'..='z' | '0'..='9'))
        .filter(|word| !word.is_empty())
        .map(|word| if stem && word.len() > 3 { porter::stem(word) } else { word.to_string() })
        .collect()
}

/// Harmonic mean of precision and recall, 0 where either is 0.
pub(super) fn f1(matched: usize, gold: usize, predicted: usize) -> f64 {
    if matched == 0 {
        return 0.0;
    }
    let precision = matched as f64 / predicted as f64;
    let recall = matched as f64 / gold as f64;
    2.0 * precision * recall / (precision + recall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_on_everything_that_is_no_ascii_letter_or_digit() {
        assert_eq!(words("Fix_the bug(s) in v2.0!", false), ["fix", "the", "bug", "s", "in", "v2", "0"]);
        assert_eq!(words("naïve café", false), ["na", "ve", "caf"]);
        assert!(words("  — 。 ", false).is_empty());
        assert!(words("", true).is_empty());
    }

    #[test]
    fn stems_only_words_of_more_than_three_characters() {
        assert_eq!(words("the cats was running dies", true), ["the", "cat", "was", "run", "die"]);
    }
}
