//! Durations, sizes and shares as people write them.

/// Seconds of `90s`, `30min`, `2h`, `1h30min`, `1.5h`, `1d`. Units are never guessed: `30` alone is an error.
pub fn parse_duration(text: &str) -> Result<f64, String> {
    let expected =
        || format!("`{text}` is no duration: expected a number with its unit, such as 90s, 30min, 2h or 1h30min");
    let mut rest = text.trim();
    let mut seconds = 0.0;
    let mut last_unit = f64::INFINITY;
    if rest.is_empty() {
        return Err(expected());
    }
    while !rest.is_empty() {
        let (number, unit, after) = split_number(rest).ok_or_else(expected)?;
        let unit = match unit {
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(expected()),
        };
        if unit >= last_unit {
            return Err(expected());
        }
        (last_unit, seconds, rest) = (unit, seconds + number * unit, after);
    }
    if seconds <= 0.0 {
        return Err(format!("`{text}`: nothing can be done in no time"));
    }
    if seconds > 366.0 * 86_400.0 {
        return Err(format!("`{text}`: expected at most a year"));
    }
    Ok(seconds)
}

/// Bytes of an amount of memory, as `train --memory` reads it.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let limit = train::MemoryLimit::parse(text)?;
    limit.0.ok_or_else(|| format!("`{text}`: expected an amount of memory, such as 900MB, 1.5GB or 2GiB"))
}

/// The share of `20%`, above 0 and at most 1.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let expected = || format!("`{text}` is no share of a charge: expected a percentage such as 20%");
    let number = text.trim().strip_suffix('%').ok_or_else(expected)?.trim();
    let share = parse_number(number).ok_or_else(expected)? / 100.0;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(format!("`{text}`: expected more than 0% and at most 100% of a charge"))
    }
}

/// The number at the beginning, the letters behind it, and the rest.
fn split_number(text: &str) -> Option<(f64, &str, &str)> {
    let number_end = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))?;
    let (number, behind) = text.split_at(number_end);
    let behind = behind.trim_start();
    let unit_end = behind.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(behind.len());
    let (unit, rest) = behind.split_at(unit_end);
    Some((parse_number(number)?, unit, rest.trim_start()))
}

/// A plain decimal number: no sign, no exponent, no infinity.
fn parse_number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && text.len() <= 20;
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("30min", 1800.0),
            ("30 min", 1800.0),
            ("2h", 7200.0),
            ("1h30min", 5400.0),
            ("1.5h", 5400.0),
            ("1d", 86_400.0),
        ] {
            assert_eq!(parse_duration(text), Ok(seconds), "{text}");
        }
        for text in [
            "",
            "30",
            "0s",
            "0h0min",
            "-5min",
            "1e9h",
            "inf h",
            "30minutes",
            "min",
            "1min1h",
            "1h1h",
            "99999999h",
            "1.2.3s",
            "½h",
        ] {
            let message = parse_duration(text).unwrap_err();
            assert!(message.starts_with(&format!("`{text}`")), "{message}");
        }
    }

    #[test]
    fn amounts_of_memory() {
        for (text, bytes) in [("2GB", 2_000_000_000), ("1.5 GiB", 1_610_612_736), ("800mb", 800_000_000)] {
            assert_eq!(parse_memory(text), Ok(bytes), "{text}");
        }
        for text in ["", "0GB", "-2GB", "2GB!", "GB", "auto"] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_of_a_charge() {
        assert_eq!(parse_percent("20%"), Ok(0.2));
        assert_eq!(parse_percent("100 %"), Ok(1.0));
        for text in ["20", "200%", "0%", "-1%", "%", "NaN%", "1e1%", "20%%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}
