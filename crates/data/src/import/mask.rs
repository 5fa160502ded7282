//! Replaces personal details in text by placeholders. The same detail always gets the same one, so that a model still
//! sees that two messages name the same address, and not which.

use super::sink::Masked;
use regex::{Captures, Regex};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

/// A kind of detail: its name, how it looks, and what else must hold. Earlier kinds win, for an address of the web holds
/// what looks like one of e-mail.
struct Kind {
    name: &'static str,
    pattern: LazyLock<Regex>,
    holds: fn(&str) -> bool,
}

macro_rules! kind {
    ($name:literal, $pattern:literal, $holds:expr) => {
        Kind {
            name: $name,
            pattern: LazyLock::new(|| Regex::new($pattern).expect("the pattern is valid")),
            holds: $holds,
        }
    };
}

static KINDS: [Kind; 7] = [
    kind!("url", r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/@]+:[^\s/@]*@\S+", |_| true),
    kind!("email", r"[\p{L}\p{N}._%+-]+@[\p{L}\p{N}-]+(?:\.[\p{L}\p{N}-]+)+", |_| true),
    kind!("iban", r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", is_iban),
    kind!("ip", r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b", is_ip),
    kind!("ip", r"(?i)\b[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}\b", is_ip),
    kind!("phone", r"(?:\+|\(|\b)[0-9](?:[ ()/.-]{0,2}[0-9]){6,18}\b", is_phone),
    kind!("number", r"\b[0-9](?:[ -]?[0-9]){8,}\b", |text| !is_date(text)),
];

fn is_iban(text: &str) -> bool {
    // ISO 13616: letters count 10 to 35, the first four characters stand last, and the number is 1 modulo 97.
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    let digits = text[4..].iter().chain(&text[..4]).map(|byte| match byte {
        b'0'..=b'9' => u64::from(byte - b'0'),
        _ => u64::from(byte - b'A') + 10,
    });
    digits.fold(0, |rest, digit| (if digit < 10 { rest * 10 } else { rest * 100 } + digit) % 97) == 1
}

fn is_ip(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

/// Written in parts, or with the sign of a country, or as a number that begins with 0; and no date or time.
fn is_phone(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let has_parts = text.contains([' ', '-', '/', '(']);
    (7..=15).contains(&digits) && (has_parts || text.starts_with(['+', '0'])) && !is_date(text)
}

/// `2024-05-31`, `31.05.2024`, `5/31/24`, perhaps with an hour behind.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
    let [a, b, c, ..] = parts[..] else { return false };
    let short = |part: &str| part.len() <= 2;
    let year = |part: &str| part.len() == 4 && (part.starts_with("19") || part.starts_with("20"));
    !text.starts_with('+')
        && short(b)
        && ((year(a) && short(c)) || (short(a) && (year(c) || (c.len() == 2 && parts.len() == 3))))
}

/// Replaces details and remembers their placeholders.
#[derive(Default)]
pub(super) struct Masker {
    /// By kind, then by the detail without spaces and case.
    places: HashMap<&'static str, HashMap<String, usize>>,
    counts: HashMap<&'static str, usize>,
}

impl Masker {
    /// All texts of a value.
    pub fn mask_value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.mask(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_value(item)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.mask_value(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn mask(&mut self, text: &str) -> String {
        let mut masked = text.to_string();
        for kind in &KINDS {
            if kind.pattern.is_match(&masked) {
                let replaced = kind.pattern.replace_all(&masked, |found: &Captures| self.placeholder(kind, &found[0]));
                masked = replaced.into_owned();
            }
        }
        masked
    }

    fn placeholder(&mut self, kind: &Kind, detail: &str) -> String {
        if !(kind.holds)(detail) {
            return detail.to_string();
        }
        *self.counts.entry(kind.name).or_default() += 1;
        let known = self.places.entry(kind.name).or_default();
        let next = known.len() + 1;
        let bare: String = detail.chars().filter(|c| !" ()/-".contains(*c)).flat_map(char::to_lowercase).collect();
        format!("<{}_{}>", kind.name, known.entry(bare).or_insert(next))
    }

    pub fn masked(&self) -> Vec<Masked> {
        let mut names: Vec<&'static str> = KINDS.iter().map(|kind| kind.name).collect();
        names.dedup();
        let masked = names.into_iter().filter_map(|kind| {
            let count = *self.counts.get(kind)?;
            Some(Masked { kind, count, different: self.places.get(kind).map_or(0, HashMap::len) })
        });
        masked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_replaced_and_the_same_one_alike() {
        let mut masker = Masker::default();
        for (text, expected) in [
            ("write to Ada.L+x@example.co.uk, or ada.l+X@Example.co.uk", "write to <email_1>, or <email_1>"),
            ("not bob@example.org!", "not <email_2>!"),
            ("call +49 (30) 123-45 67 or 030/1234567", "call <phone_1> or <phone_2>"),
            ("call +49301234567", "call <phone_1>"),
            ("DE89 3704 0044 0532 0130 00 is mine", "<iban_1> is mine"),
            ("card 4111 1111 1111 1111", "card <number_1>"),
            ("at 192.168.0.17 and fe80::1:2", "at <ip_1> and <ip_2>"),
            ("git clone https://me:secret@example.org/x.git now", "git clone <url_1> now"),
        ] {
            assert_eq!(masker.mask(text), expected);
        }
        let counts: Vec<_> =
            masker.masked().into_iter().map(|masked| (masked.kind, masked.count, masked.different)).collect();
        assert_eq!(
            counts,
            [("url", 1, 1), ("email", 3, 2), ("iban", 1, 1), ("ip", 2, 2), ("phone", 3, 2), ("number", 1, 1)]
        );
    }

    #[test]
    fn what_is_no_detail_stays() {
        let mut masker = Masker::default();
        for text in [
            "on 2024-05-31 at 12:30:45, on 31.05.2024 and 5/31/24",
            "version 1.2.3.4567, 300.1.1.1, room 12345, year 2024",
            "https://example.org/a@b is no secret",
            "std::io::Error at 2024-05-31 12:30",
            "1234567 records",
        ] {
            assert_eq!(masker.mask(text), text);
        }
        assert_eq!(masker.masked(), []);
    }
}
