//! The text export of a WhatsApp chat. Its lines begin with date and time in the form of the telephone's language.

use super::conversation::{Conversation, Said};
use super::lines::read_limited_line;
use super::{ImportError, ImportOptions, Importer, Needs, Sink, is_me, nobody_is_me, open};
use jiff::civil::Date;
use regex::Regex;
use std::collections::HashSet;
use std::io::{BufReader, Seek};
use std::path::Path;
use std::sync::LazyLock;

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "whatsapp",
    about: "a chat: what others wrote, and how you answered",
    how_to: "In WhatsApp open the chat, then its menu: More, Export chat, Without media. Unpack the archive where there is\n\
             one; the file is _chat.txt or \"WhatsApp Chat with NAME.txt\". Say with --me how you are named in it.\n\
             Whether the day or the month comes first is what most dates of the file tell that are possible in one order\n\
             only; where none does, the month if most messages have slashes and a.m. or p.m., else the day. Messages whose\n\
             date does not exist in that order are left out and named.",
    needs: Needs { me: true, columns: false },
    read: Some(read),
};

const LINE_BYTES_MAX: usize = 1 << 20;

/// `[31.12.23, 14:05:33] Name: text` or `12/31/23, 2:05 PM - Name: text`.
static BEGIN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"^\[?(\d{1,4})[./-]\s?(\d{1,2})[./-]\s?(\d{1,4})\.?,?\s+(\d{1,2})[:.](\d{2})(?:[:.](\d{2}))?(?:\s?([AaPp])\.?\s?[Mm]\.?)?\s?(?:\]|-|–)\s(.*)$",
    )
    .expect("the pattern is valid")
});

/// The beginnings of what stands for a picture or another attachment, in lower case.
const ATTACHMENTS: [&str; 14] = [
    "<media omitted>",
    "<medien ausgeschlossen>",
    "<médias omis>",
    "<multimedia omitido>",
    "<media omessi>",
    "<mídia oculta>",
    "<attached:",
    "<angehängt:",
    "image omitted",
    "video omitted",
    "audio omitted",
    "sticker omitted",
    "gif omitted",
    "document omitted",
];

/// Which of the first three numbers is what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    DayMonthYear,
    MonthDayYear,
    YearMonthDay,
}

/// The first line of a message.
struct Begin {
    numbers: [i64; 3],
    hour: i64,
    minute: i64,
    second: i64,
    afternoon: Option<bool>,
    rest: String,
}

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for path in &options.sources {
        let mut file = open(path)?;
        let (order, names) = survey(path, &file)?;
        if !names.iter().any(|name| is_me(options, name)) {
            return Err(nobody_is_me(path, names.iter().map(String::as_str)));
        }
        file.rewind().map_err(ImportError::read(path))?;
        let mut chat = Chat {
            options,
            place: path.display().to_string(),
            conversation: Conversation::new(names.len() > 2),
            open: None,
        };
        each_line(path, &file, |line, number| chat.take_line(line, number, order, sink))?;
        chat.close(sink)?;
        chat.conversation.finish(sink)?;
    }
    Ok(())
}

/// Hands over every line with its number; characters that only direct the writing are taken out.
fn each_line(
    path: &Path,
    file: &std::fs::File,
    mut take: impl FnMut(Option<&str>, usize) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut input = BufReader::new(file);
    let mut bytes = Vec::new();
    let mut number = 0;
    while read_limited_line(&mut input, &mut bytes, LINE_BYTES_MAX).map_err(ImportError::read(path))? > 0 {
        number += 1;
        let line = std::str::from_utf8(&bytes).ok();
        let line = line.map(|line| {
            let kept = line.chars().filter(|c| !matches!(c, '\u{200e}' | '\u{200f}' | '\u{feff}' | '\r'));
            kept.map(|c| if matches!(c, '\u{202f}' | '\u{a0}') { ' ' } else { c }).collect::<String>()
        });
        take(line.as_deref(), number)?;
    }
    Ok(())
}

/// The order of the numbers of dates, from the whole file, and everybody's names.
fn survey(path: &Path, file: &std::fs::File) -> Result<(Order, HashSet<String>), ImportError> {
    let (mut begins, mut american) = (0, 0);
    let mut told = [Order::DayMonthYear, Order::MonthDayYear, Order::YearMonthDay].map(|order| (order, 0));
    let mut names = HashSet::new();
    each_line(path, file, |line, _| {
        if let Some(begin) = line.and_then(Begin::read) {
            begins += 1;
            let only = begin.only_order();
            told.iter_mut().filter(|(order, _)| Some(*order) == only).for_each(|(_, count)| *count += 1);
            let has_slash = line.is_some_and(|line| line.chars().take(8).any(|c| c == '/'));
            american += usize::from(has_slash && begin.afternoon.is_some());
            if let Some((name, _)) = begin.rest.split_once(": ") {
                names.insert(name.to_string());
            }
        }
        Ok(())
    })?;
    if begins == 0 {
        return Err(ImportError::source(
            path,
            "no line begins with a date and a time, as in a chat that WhatsApp exports",
        ));
    }
    // Half days and slashes together are American.
    let habit = if 2 * american > begins { Order::MonthDayYear } else { Order::DayMonthYear };
    let most = told.into_iter().max_by_key(|(order, count)| (*count, *order == habit));
    let order = most.map_or(habit, |(order, _)| order);
    Ok((order, names))
}

impl Begin {
    fn read(line: &str) -> Option<Begin> {
        let found = BEGIN.captures(line)?;
        let number = |group: usize| found.get(group).and_then(|group| group.as_str().parse::<i64>().ok());
        Some(Begin {
            numbers: [number(1)?, number(2)?, number(3)?],
            hour: number(4)?,
            minute: number(5)?,
            second: number(6).unwrap_or(0),
            afternoon: found.get(7).map(|half| half.as_str().eq_ignore_ascii_case("p")),
            rest: found[8].to_string(),
        })
    }

    fn date(&self, order: Order) -> Option<Date> {
        let [a, b, c] = self.numbers;
        let (year, month, day) = match order {
            Order::DayMonthYear => (c, b, a),
            Order::MonthDayYear => (c, a, b),
            Order::YearMonthDay => (a, b, c),
        };
        let year = if year < 100 { year + 2000 } else { year };
        Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?).ok()
    }

    /// The order that this date alone tells, for there is no such day in another. A first number above 31 is a year; one
    /// below is none, or every date up to 2031 could begin with one.
    fn only_order(&self) -> Option<Order> {
        if self.numbers[0] > 31 {
            return self.date(Order::YearMonthDay).map(|_| Order::YearMonthDay);
        }
        match (self.date(Order::DayMonthYear), self.date(Order::MonthDayYear)) {
            (Some(_), None) => Some(Order::DayMonthYear),
            (None, Some(_)) => Some(Order::MonthDayYear),
            _ => None,
        }
    }

    /// Seconds since 1970, the telephone's clock taken as UTC: only the order and the pauses matter.
    fn time(&self, order: Order) -> Option<i64> {
        let hour = match self.afternoon {
            Some(true) if self.hour < 12 => self.hour + 12,
            Some(false) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let date = self.date(order)?;
        let (hour, minute, second) =
            (hour.try_into().ok()?, self.minute.try_into().ok()?, self.second.try_into().ok()?);
        let time = jiff::civil::Time::new(hour, minute, second, 0).ok()?;
        Some(date.to_datetime(time).to_zoned_datetime(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
    }
}

struct Chat<'a> {
    options: &'a ImportOptions,
    place: String,
    conversation: Conversation,
    /// The message whose lines are being read.
    open: Option<Said>,
}

impl Chat<'_> {
    fn take_line(
        &mut self,
        line: Option<&str>,
        number: usize,
        order: Order,
        sink: &mut Sink,
    ) -> Result<(), ImportError> {
        let place = || format!("{}:{number}", self.place);
        let Some(line) = line else {
            sink.leave(place(), "lines that are not UTF-8");
            return Ok(());
        };
        let Some(begin) = Begin::read(line) else {
            match &mut self.open {
                Some(said) if said.text.len() < LINE_BYTES_MAX => {
                    said.text.push('\n');
                    said.text.push_str(line);
                }
                Some(_) => sink.leave(place(), "lines of messages longer than 1 MiB"),
                None if line.trim().is_empty() => {}
                None => sink.leave(place(), "lines of no message"),
            }
            return Ok(());
        };
        let place = place();
        self.close(sink)?;
        let Some(time) = begin.time(order) else {
            sink.leave(place, "messages whose day or hour does not exist");
            return Ok(());
        };
        match begin.rest.split_once(": ") {
            Some((name, text)) => {
                let (by, text) = (name.to_string(), text.to_string());
                self.open = Some(Said { time, is_me: is_me(self.options, name), by, text, place });
            }
            None => sink.leave(place, "notices of the program"),
        }
        Ok(())
    }

    /// Hands the open message over.
    fn close(&mut self, sink: &mut Sink) -> Result<(), ImportError> {
        let Some(mut said) = self.open.take() else { return Ok(()) };
        said.text.truncate(said.text.trim_end().len());
        let lower = said.text.trim_start().to_lowercase();
        if ATTACHMENTS.iter().any(|begin| lower.starts_with(begin)) || lower.ends_with("(file attached)") {
            sink.leave(said.place, "pictures and other attachments");
            return Ok(());
        }
        if lower.is_empty() {
            sink.leave(said.place, "empty messages");
            return Ok(());
        }
        self.conversation.add(said, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_forms_of_many_languages_are_read() {
        for (line, order, expected) in [
            ("[31.12.23, 14:05:33] Ada: hi", Order::DayMonthYear, 1_704_031_533),
            ("31.12.23, 14:05 - Ada: hi", Order::DayMonthYear, 1_704_031_500),
            ("12/31/23, 2:05 PM - Ada: hi", Order::MonthDayYear, 1_704_031_500),
            ("31/12/2023, 14:05 - Ada: hi", Order::DayMonthYear, 1_704_031_500),
            ("[31/12/23 2:05:33 p. m.] Ada: hi", Order::DayMonthYear, 1_704_031_533),
            ("2023-12-31, 14:05 - Ada: hi", Order::YearMonthDay, 1_704_031_500),
            ("[2023/12/31, 12:05:00 AM] Ada: hi", Order::YearMonthDay, 1_703_981_100),
            ("31. 12. 2023, 14.05 – Ada: hi", Order::DayMonthYear, 1_704_031_500),
        ] {
            let begin = Begin::read(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(begin.time(order), Some(expected), "{line}");
            assert_eq!(begin.rest, "Ada: hi");
        }
        for line in ["hello", "31.12. we meet", "", "[x] Ada: hi", "99.99.9999, 14:05"] {
            assert!(Begin::read(line).is_none(), "{line}");
        }
        assert_eq!(Begin::read("31.02.23, 14:05 - Ada: hi").unwrap().time(Order::DayMonthYear), None);
    }

    #[test]
    fn one_date_tells_the_order_only_if_there_is_no_such_day_in_another() {
        for (date, expected) in [
            ("31.12.23", Some(Order::DayMonthYear)),
            ("12/31/23", Some(Order::MonthDayYear)),
            ("2023-12-31", Some(Order::YearMonthDay)),
            ("11.12.23", None),
            ("23-12-31", Some(Order::DayMonthYear)),
            ("31.31.23", None),
            ("31.02.23", None),
            ("99.99.24", None),
            ("99.12.24", Some(Order::YearMonthDay)),
        ] {
            let begin = Begin::read(&format!("{date}, 14:05 - Ada: hi")).unwrap();
            assert_eq!(begin.only_order(), expected, "{date}");
        }
    }
}
