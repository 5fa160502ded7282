//! The Porter stemmer (Porter, 1980, "An algorithm for suffix stripping") with the extensions of NLTK's default
//! mode, which is the one that the rouge-score package stems with.
//!
//! The extensions: a pool of irregular words, `-ies`/`-ied` of four-letter words keep their `e` ("dies" → "die"),
//! `y` becomes `i` only after a consonant that is not the first letter, a two-letter vowel-consonant stem counts
//! as short, `alli` is tried first, and the rules `bli`, `fulli` and `logi`.

/// Irregular words and their stems.
const POOL: [(&str, &str); 16] = [
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

/// When a rule whose suffix fits may replace it, asked of what is left of the word.
type Condition = fn(&str) -> bool;
/// Suffix, replacement, condition. The first rule whose suffix fits decides, whether or not its condition holds.
type Rule = (&'static str, &'static str, Condition);

const ALWAYS: Condition = |_| true;
const POSITIVE: Condition = |stem| measure(stem) > 0;
const ABOVE_ONE: Condition = |stem| measure(stem) > 1;

/// The stem of a word in lower-case ASCII letters and digits. Words of two letters or fewer stay as they are.
pub fn stem(word: &str) -> String {
    if let Some((_, stem)) = POOL.iter().find(|(irregular, _)| *irregular == word) {
        return stem.to_string();
    }
    if word.len() <= 2 || !word.is_ascii() {
        return word.to_string();
    }
    let steps = [step_1a, step_1b, step_1c, step_2, step_3, step_4, step_5a, step_5b];
    steps.iter().fold(word.to_string(), |word, step| step(&word))
}

/// Plurals.
fn step_1a(word: &str) -> String {
    if word.len() == 4 && word.ends_with("ies") {
        return word[..3].to_string();
    }
    apply(word, &[("sses", "ss", ALWAYS), ("ies", "i", ALWAYS), ("ss", "ss", ALWAYS), ("s", "", ALWAYS)])
}

/// Past and continuous forms.
fn step_1b(word: &str) -> String {
    if let Some(stem) = word.strip_suffix("ied") {
        return format!("{stem}{}", if word.len() == 4 { "ie" } else { "i" });
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 { format!("{stem}ee") } else { word.to_string() };
    }
    let shortened = ["ed", "ing"].iter().find_map(|suffix| word.strip_suffix(suffix).filter(|stem| has_vowel(stem)));
    let Some(stem) = shortened else { return word.to_string() };
    if ["at", "bl", "iz"].iter().any(|ending| stem.ends_with(ending)) {
        return format!("{stem}e");
    }
    if ends_with_double_consonant(stem) {
        let doubled = stem.ends_with(['l', 's', 'z']);
        return if doubled { stem.to_string() } else { stem[..stem.len() - 1].to_string() };
    }
    if measure(stem) == 1 && ends_short(stem) { format!("{stem}e") } else { stem.to_string() }
}

/// A final `y` after a consonant.
fn step_1c(word: &str) -> String {
    apply(word, &[("y", "i", |stem| stem.len() > 1 && is_consonant(stem.as_bytes(), stem.len() - 1))])
}

/// Double suffixes.
fn step_2(word: &str) -> String {
    if let Some(stem) = word.strip_suffix("alli").filter(|stem| measure(stem) > 0) {
        return step_2(&format!("{stem}al"));
    }
    apply(
        word,
        &[
            ("ational", "ate", POSITIVE),
            ("tional", "tion", POSITIVE),
            ("enci", "ence", POSITIVE),
            ("anci", "ance", POSITIVE),
            ("izer", "ize", POSITIVE),
            ("bli", "ble", POSITIVE),
            ("alli", "al", POSITIVE),
            ("entli", "ent", POSITIVE),
            ("eli", "e", POSITIVE),
            ("ousli", "ous", POSITIVE),
            ("ization", "ize", POSITIVE),
            ("ation", "ate", POSITIVE),
            ("ator", "ate", POSITIVE),
            ("alism", "al", POSITIVE),
            ("iveness", "ive", POSITIVE),
            ("fulness", "ful", POSITIVE),
            ("ousness", "ous", POSITIVE),
            ("aliti", "al", POSITIVE),
            ("iviti", "ive", POSITIVE),
            ("biliti", "ble", POSITIVE),
            ("fulli", "ful", POSITIVE),
            // The `l` belongs to what is measured, so that "geologi" shortens as "philologi" does.
            ("logi", "log", |stem| measure(&format!("{stem}l")) > 0),
        ],
    )
}

fn step_3(word: &str) -> String {
    apply(
        word,
        &[
            ("icate", "ic", POSITIVE),
            ("ative", "", POSITIVE),
            ("alize", "al", POSITIVE),
            ("iciti", "ic", POSITIVE),
            ("ical", "ic", POSITIVE),
            ("ful", "", POSITIVE),
            ("ness", "", POSITIVE),
        ],
    )
}

fn step_4(word: &str) -> String {
    apply(
        word,
        &[
            ("al", "", ABOVE_ONE),
            ("ance", "", ABOVE_ONE),
            ("ence", "", ABOVE_ONE),
            ("er", "", ABOVE_ONE),
            ("ic", "", ABOVE_ONE),
            ("able", "", ABOVE_ONE),
            ("ible", "", ABOVE_ONE),
            ("ant", "", ABOVE_ONE),
            ("ement", "", ABOVE_ONE),
            ("ment", "", ABOVE_ONE),
            ("ent", "", ABOVE_ONE),
            ("ion", "", |stem| measure(stem) > 1 && stem.ends_with(['s', 't'])),
            ("ou", "", ABOVE_ONE),
            ("ism", "", ABOVE_ONE),
            ("ate", "", ABOVE_ONE),
            ("iti", "", ABOVE_ONE),
            ("ous", "", ABOVE_ONE),
            ("ive", "", ABOVE_ONE),
            ("ize", "", ABOVE_ONE),
        ],
    )
}

/// A final `e`.
fn step_5a(word: &str) -> String {
    apply(word, &[("e", "", |stem| measure(stem) > 1 || (measure(stem) == 1 && !ends_short(stem)))])
}

/// A final double `l`, measured with one of the two.
fn step_5b(word: &str) -> String {
    apply(word, &[("ll", "l", |stem| measure(&format!("{stem}l")) > 1)])
}

fn apply(word: &str, rules: &[Rule]) -> String {
    let fitting = rules.iter().find_map(|(suffix, replacement, condition)| {
        word.strip_suffix(suffix).map(|stem| (stem, replacement, condition))
    });
    match fitting {
        Some((stem, replacement, condition)) if condition(stem) => format!("{stem}{replacement}"),
        _ => word.to_string(),
    }
}

/// `y` is a consonant at the start and after a vowel; everything else but a, e, i, o, u is one.
fn is_consonant(word: &[u8], index: usize) -> bool {
    match word[index] {
        b'a' | b'e' | b'i' | b'o' | b'u' => false,
        b'y' => index == 0 || !is_consonant(word, index - 1),
        _ => true,
    }
}

/// Porter's m: how often a consonant follows a vowel.
fn measure(stem: &str) -> usize {
    let bytes = stem.as_bytes();
    (1..bytes.len()).filter(|&index| is_consonant(bytes, index) && !is_consonant(bytes, index - 1)).count()
}

fn has_vowel(stem: &str) -> bool {
    (0..stem.len()).any(|index| !is_consonant(stem.as_bytes(), index))
}

fn ends_with_double_consonant(word: &str) -> bool {
    let bytes = word.as_bytes();
    matches!(bytes, [.., before, last] if before == last) && is_consonant(bytes, bytes.len() - 1)
}

/// Porter's *o (consonant, vowel, consonant other than w, x, y), or the two letters vowel and consonant.
fn ends_short(word: &str) -> bool {
    let bytes = word.as_bytes();
    let consonant = |index| is_consonant(bytes, index);
    match bytes.len() {
        0 | 1 => false,
        2 => !consonant(0) && consonant(1),
        len => consonant(len - 3) && !consonant(len - 2) && consonant(len - 1) && !word.ends_with(['w', 'x', 'y']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of the paper's own steps, and of each extension.
    #[test]
    fn stems_are_the_published_ones() {
        for (word, expected) in [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("cats", "cat"),
            ("agreed", "agre"),
            ("plastered", "plaster"),
            ("motoring", "motor"),
            ("sing", "sing"),
            ("conflated", "conflat"),
            ("hopping", "hop"),
            ("falling", "fall"),
            ("hissing", "hiss"),
            ("filing", "file"),
            ("happy", "happi"),
            ("relational", "relat"),
            ("conditional", "condit"),
            ("digitizer", "digit"),
            ("hopefulness", "hope"),
            ("electricity", "electr"),
            ("adoption", "adopt"),
            ("probate", "probat"),
            ("rate", "rate"),
            ("controll", "control"),
            ("roll", "roll"),
            ("dies", "die"),
            ("died", "die"),
            ("spied", "spi"),
            ("dying", "die"),
            ("news", "news"),
            ("enjoy", "enjoy"),
            ("by", "by"),
            ("say", "say"),
            ("geology", "geolog"),
            ("x86", "x86"),
            ("1234", "1234"),
            ("ing", "ing"),
            ("yyy", "yyy"),
        ] {
            assert_eq!(stem(word), expected, "{word}");
        }
    }
}
