//! Time stamps of records, and the date that is pinned for chat templates.

use crate::error::TextError;
use serde_json::{Map, Value};

/// The fields in which a record's time is looked for, first found wins.
const TIME_FIELDS: [&str; 4] = ["time", "timestamp", "date", "year"];

/// Years that a bare number can mean; anything larger is seconds.
const YEARS: std::ops::RangeInclusive<i64> = 1000..=9999;

/// A record's time as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTime {
    /// No field tells it.
    Missing,
    /// Seconds since 1970.
    At(i64),
    /// `5-1-2016`: whether the day or the month comes first is the writer's habit, see [`settle_short_dates`].
    Short(ShortDate),
}

impl RecordTime {
    /// Seconds since 1970 where they are known from the record alone.
    pub fn seconds(self) -> Option<i64> {
        match self {
            RecordTime::Missing => None,
            RecordTime::At(seconds) => Some(seconds),
            RecordTime::Short(date) => match (date.at(DateOrder::DayFirst), date.at(DateOrder::MonthFirst)) {
                (Some(time), None) | (None, Some(time)) => Some(time),
                (day_first, month_first) => day_first.filter(|_| day_first == month_first),
            },
        }
    }
}

/// A date of two short numbers and a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortDate {
    first: i8,
    second: i8,
    year: i16,
}

/// Which of the two short numbers is the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DateOrder {
    DayFirst,
    MonthFirst,
}

impl ShortDate {
    fn parse(text: &str) -> Option<ShortDate> {
        let mut parts = text.trim().split(['-', '/', '.']);
        let mut number = |digits: std::ops::RangeInclusive<usize>| {
            let part = parts.next()?;
            let is_number = digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| part.parse::<i16>().ok()).flatten()
        };
        let (first, second, year) = (number(1..=2)?, number(1..=2)?, number(4..=4)?);
        let date = ShortDate { first: first as i8, second: second as i8, year };
        let is_date = date.at(DateOrder::DayFirst).or(date.at(DateOrder::MonthFirst)).is_some();
        (parts.next().is_none() && is_date).then_some(date)
    }

    fn at(self, order: DateOrder) -> Option<i64> {
        let (day, month) = match order {
            DateOrder::DayFirst => (self.first, self.second),
            DateOrder::MonthFirst => (self.second, self.first),
        };
        date_time(jiff::civil::Date::new(self.year, month, day).ok()?)
    }
}

/// The times of one person's short dates, in their order. Dates that are possible in one order only tell the order of
/// the others; where they tell nothing or disagree, the time of the others stays unknown.
pub fn settle_short_dates(dates: &[ShortDate]) -> Vec<Option<i64>> {
    let is_told = |order, other| dates.iter().any(|date| date.at(order).is_some() && date.at(other).is_none());
    let (day_first, month_first) =
        (is_told(DateOrder::DayFirst, DateOrder::MonthFirst), is_told(DateOrder::MonthFirst, DateOrder::DayFirst));
    let order = match (day_first, month_first) {
        (true, false) => Some(DateOrder::DayFirst),
        (false, true) => Some(DateOrder::MonthFirst),
        _ => None,
    };
    let alone = |date: &ShortDate| RecordTime::Short(*date).seconds();
    dates.iter().map(|date| alone(date).or_else(|| date.at(order?))).collect()
}

/// The time of a record, or why it cannot be read.
pub fn record_time(fields: &Map<String, Value>) -> Result<RecordTime, String> {
    for name in TIME_FIELDS {
        if let Some(date) = fields.get(name).and_then(Value::as_str).and_then(ShortDate::parse) {
            return Ok(RecordTime::Short(date));
        }
        let time = match fields.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::Number(number)) => number_time(number.as_f64().unwrap_or(f64::NAN), name == "year"),
            Some(Value::String(text)) => text_time(text),
            Some(_) => None,
        };
        return match time {
            Some(time) => Ok(RecordTime::At(time)),
            None => Err(format!(
                "field \"{name}\" is no time; expected seconds since 1970, a year, or a date such as 2024-05-31 or \
                 2024-05-31T08:30:00Z"
            )),
        };
    }
    Ok(RecordTime::Missing)
}

fn number_time(number: f64, is_year_field: bool) -> Option<i64> {
    if !number.is_finite() || number.abs() > 1e15 {
        return None;
    }
    if is_year_field {
        return (number.fract() == 0.0 && YEARS.contains(&(number as i64))).then(|| year_time(number as i16)).flatten();
    }
    // Milliseconds are common in exports; 1e11 seconds is the year 5138, 1e11 milliseconds is 1973.
    Some(if number.abs() >= 1e11 { (number / 1000.0).floor() as i64 } else { number.floor() as i64 })
}

fn year_time(year: i16) -> Option<i64> {
    date_time(jiff::civil::Date::new(year, 1, 1).ok()?)
}

fn date_time(date: jiff::civil::Date) -> Option<i64> {
    Some(date.to_zoned_datetime(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

pub(crate) fn text_time(text: &str) -> Option<i64> {
    let text = text.trim();
    if text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return year_time(text.parse().ok()?);
    }
    if let Ok(number) = text.parse::<f64>() {
        return number_time(number, false);
    }
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Some(instant.as_second());
    }
    // "2024-05-31 08:30:00+02:00": a space is as common as the T.
    if let Ok(instant) = text.replacen(' ', "T", 1).parse::<jiff::Timestamp>() {
        return Some(instant.as_second());
    }
    // Without an offset the time is taken as UTC: only the order matters.
    if let Ok(moment) = text.parse::<jiff::civil::DateTime>() {
        return Some(moment.to_zoned_datetime(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second());
    }
    if text.len() == 7 {
        return date_time(format!("{text}-01").parse().ok()?);
    }
    date_time(text.replace('/', "-").parse().ok()?)
}

/// A date that chat templates see as today. It is kept with the adapter, so that the prompt of every later day is the
/// one the adapter was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedDate(jiff::civil::Date);

impl PinnedDate {
    /// Today by this machine's clock, in UTC.
    pub fn today() -> PinnedDate {
        PinnedDate(jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC).date())
    }

    /// The date written by [`strftime`](https://docs.python.org/3/library/datetime.html#format-codes) codes; the time of
    /// day is midnight.
    pub(crate) fn format(&self, format: &str) -> Result<String, String> {
        let moment =
            self.0.at(0, 0, 0, 0).to_zoned_datetime(jiff::tz::TimeZone::UTC).map_err(|error| error.to_string())?;
        jiff::fmt::strtime::format(format, &moment).map_err(|error| error.to_string())
    }
}

impl std::fmt::Display for PinnedDate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::str::FromStr for PinnedDate {
    type Err = TextError;
    fn from_str(text: &str) -> Result<PinnedDate, TextError> {
        let is_plain = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        match text.parse() {
            Ok(date) if is_plain => Ok(PinnedDate(date)),
            _ => Err(TextError::Date(text.chars().take(40).collect())),
        }
    }
}

impl serde::Serialize for PinnedDate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for PinnedDate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<PinnedDate, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_of(json: &str) -> Result<Option<i64>, String> {
        record_time(&serde_json::from_str(json).unwrap()).map(RecordTime::seconds)
    }

    #[test]
    fn short_dates_are_read_by_the_habit_of_the_person() {
        const DAY: i64 = 86400;
        let settled = |dates: &[&str]| {
            let dates: Vec<ShortDate> = dates.iter().map(|date| ShortDate::parse(date).unwrap()).collect();
            settle_short_dates(&dates).into_iter().map(|time| time.map(|time| time / DAY)).collect::<Vec<_>>()
        };
        // The 13th cannot be a month: it tells that the day comes second, or first.
        assert_eq!(settled(&["2-1-1970", "1-13-1970"]), [Some(31), Some(12)]);
        assert_eq!(settled(&["2/1/1970", "13/1/1970"]), [Some(1), Some(12)]);
        assert_eq!(settled(&["02.01.1970", "1.1.1970"]), [None, Some(0)], "nothing tells the order");
        assert_eq!(settled(&["2-1-1970", "1-13-1970", "14-1-1970"]), [None, Some(12), Some(13)], "they disagree");
        for bad in ["13-13-2015", "0-1-2015", "1-1-15", "1-1-2015-1", "2015-1-1", "31-2-2015", "+1-1-2015", "1--2015"] {
            assert_eq!(ShortDate::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_written_form_of_time_is_read() {
        for (json, expected) in [
            (r#"{"time": 1731785881}"#, 1731785881),
            (r#"{"time": 1731785881.7}"#, 1731785881),
            (r#"{"time": 1731785881123}"#, 1731785881),
            (r#"{"time": "1731785881"}"#, 1731785881),
            (r#"{"time": null, "date": "1970-01-02"}"#, 86400),
            (r#"{"date": "1970/01/02"}"#, 86400),
            (r#"{"date": "1970-02"}"#, 31 * 86400),
            (r#"{"timestamp": "1970-01-01T01:00:00Z"}"#, 3600),
            (r#"{"time": "1970-01-01 02:00:00+01:00"}"#, 3600),
            (r#"{"time": "1970-01-01T00:00:09"}"#, 9),
            (r#"{"year": 1971}"#, 365 * 86400),
            (r#"{"year": "1971"}"#, 365 * 86400),
        ] {
            assert_eq!(time_of(json), Ok(Some(expected)), "{json}");
        }
        assert_eq!(time_of(r#"{"text": "x"}"#), Ok(None));
    }

    #[test]
    fn what_is_no_time_is_said_with_the_field() {
        for json in [
            r#"{"time": "soon"}"#,
            r#"{"year": 99999}"#,
            r#"{"time": 1e300}"#,
            r#"{"date": [1]}"#,
            r#"{"year": 1.5}"#,
            r#"{"date": "32-1-2015"}"#,
        ] {
            let reason = time_of(json).unwrap_err();
            assert!(reason.contains("is no time") && reason.contains("expected"), "{json}: {reason}");
        }
    }

    #[test]
    fn a_pinned_date_is_strict_and_formats_as_python_does() {
        let date: PinnedDate = "2025-10-08".parse().unwrap();
        assert_eq!(date.format("%d %B %Y").unwrap(), "08 October 2025");
        assert_eq!(date.format("%d %b %Y").unwrap(), "08 Oct 2025");
        assert_eq!(date.format("%A, %Y-%m-%d %H:%M").unwrap(), "Wednesday, 2025-10-08 00:00");
        assert_eq!(date.to_string(), "2025-10-08");
        for bad in ["2025-13-01", "today", "20251008", "2025-10-08T00:00"] {
            assert!(bad.parse::<PinnedDate>().is_err(), "{bad}");
        }
    }
}
