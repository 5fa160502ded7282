//! An amount of memory as people write it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The most memory that a run may take; `None` leaves it to what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimit(pub Option<u64>);

/// Names of units and their bytes.
const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("b", 1),
];

impl MemoryLimit {
    /// Reads `auto`, a number of bytes, or a number with a unit: `900MB`, `1.5GB` (powers of 1000), `2GiB` (of 1024).
    pub fn parse(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        if lower == "auto" {
            return Ok(Self(None));
        }
        let unit = UNITS.iter().find(|(name, _)| lower.ends_with(name));
        let number = unit.map_or(lower.as_str(), |(name, _)| lower[..lower.len() - name.len()].trim_end());
        let bytes = number.parse::<f64>().ok().map(|number| number * unit.map_or(1, |(_, bytes)| *bytes) as f64);
        match bytes {
            Some(bytes) if (1.0..=1e18).contains(&bytes) => Ok(Self(Some(bytes as u64))),
            _ => Err(format!("`{text}` is no amount of memory; expected auto, or bytes such as 900MB, 1.5GB or 2GiB")),
        }
    }
}

impl Serialize for MemoryLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => serializer.serialize_str("auto"),
            Some(bytes) => serializer.serialize_u64(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected auto, or bytes such as 900MB, 1.5GB or 2GiB")]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Self::parse(&bytes.to_string()),
            Written::Text(text) => Self::parse(&text),
        }
        .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_in_all_spellings() {
        for (text, bytes) in [
            ("auto", None),
            ("1000000", Some(1_000_000)),
            ("1.5GB", Some(1_500_000_000)),
            ("1.5 gb", Some(1_500_000_000)),
            ("900MB", Some(900_000_000)),
            ("2GiB", Some(2 << 30)),
            ("512M", Some(512_000_000)),
            ("7b", Some(7)),
        ] {
            assert_eq!(MemoryLimit::parse(text), Ok(MemoryLimit(bytes)), "{text}");
        }
        for text in ["", "GB", "-1GB", "0", "nan", "1.5XB", "1e30", "much"] {
            assert!(MemoryLimit::parse(text).is_err(), "{text}");
        }
    }
}
