//! Tables with a line of names, as programs export them.

use super::{ImportError, Sink, open};
use std::cell::Cell;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

/// A row larger than this is none: a quotation mark is missing its end.
const ROW_BYTES_MAX: usize = 16 << 20;

/// Reads a table row by row.
pub(super) struct Table {
    reader: ::csv::Reader<Guarded>,
    since_row: Rc<Cell<usize>>,
    pub names: Vec<String>,
    place: String,
}

/// One row, with where it stands.
pub(super) struct Row<'a> {
    names: &'a [String],
    cells: Vec<String>,
    pub place: String,
}

impl Table {
    /// Opens a table; the first line decides whether commas, semicolons or tabs divide.
    pub fn open(path: &Path) -> Result<Table, ImportError> {
        let mut start = Vec::new();
        open(path)?.take(1 << 16).read_to_end(&mut start).map_err(ImportError::read(path))?;
        if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
            return Err(ImportError::source(path, "it is UTF-16; save it as UTF-8"));
        }
        let first = start.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
        let count = |divider: u8| first.iter().filter(|byte| **byte == divider).count();
        let delimiter = [b',', b'\t', b';'].into_iter().max_by_key(|divider| (count(*divider), *divider == b','));
        let since_row = Rc::new(Cell::new(0));
        let guarded = Guarded { file: open(path)?, since_row: since_row.clone() };
        let mut reader =
            ::csv::ReaderBuilder::new().delimiter(delimiter.unwrap_or(b',')).flexible(true).from_reader(guarded);
        let names = reader.byte_headers().map_err(|error| fault(path, error))?;
        let names =
            names.iter().map(|name| String::from_utf8_lossy(name).trim_start_matches('\u{feff}').trim().to_string());
        let names: Vec<String> = names.collect();
        Ok(Table { reader, since_row, names, place: path.display().to_string() })
    }

    /// The names that are missing, in words; `Ok` when none is.
    pub fn require(&self, path: &Path, wanted: &[&str]) -> Result<(), ImportError> {
        let missing: Vec<&str> =
            wanted.iter().filter(|name| !self.names.iter().any(|known| known == *name)).copied().collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(ImportError::source(
                path,
                format!("no column \"{}\"; the columns are: {}", missing.join("\", \""), self.names.join(", ")),
            )),
        }
    }

    /// Hands over every row; one of another width, or one that is not UTF-8, is left out.
    pub fn rows(
        mut self,
        path: &Path,
        sink: &mut Sink,
        mut take: impl FnMut(Row, &mut Sink) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let mut record = ::csv::ByteRecord::new();
        loop {
            self.since_row.set(0);
            if !self.reader.read_byte_record(&mut record).map_err(|error| fault(path, error))? {
                return Ok(());
            }
            let line = record.position().map_or(0, ::csv::Position::line);
            let place = format!("{}:{line}", self.place);
            if record.len() != self.names.len() {
                sink.leave(place, "rows with more or fewer cells than there are columns");
                continue;
            }
            let cells: Result<Vec<String>, _> = record.iter().map(|cell| String::from_utf8(cell.to_vec())).collect();
            match cells {
                Ok(cells) => take(Row { names: &self.names, cells, place }, sink)?,
                Err(_) => sink.leave(place, "rows that are not UTF-8"),
            }
        }
    }
}

impl Row<'_> {
    /// The cell of a column; empty where there is no such column.
    pub fn cell(&self, name: &str) -> &str {
        let place = self.names.iter().position(|known| known == name);
        place.map_or("", |place| self.cells[place].trim())
    }

    /// The cell, where it is not empty.
    pub fn filled(&self, name: &str) -> Option<&str> {
        Some(self.cell(name)).filter(|cell| !cell.is_empty())
    }
}

fn fault(path: &Path, error: ::csv::Error) -> ImportError {
    let reason = error.to_string();
    match error.into_kind() {
        ::csv::ErrorKind::Io(source) => ImportError::Read { path: path.to_path_buf(), source },
        _ => ImportError::source(path, reason),
    }
}

/// Stops a row that never ends before it fills the memory.
struct Guarded {
    file: std::fs::File,
    since_row: Rc<Cell<usize>>,
}

impl Read for Guarded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.since_row.set(self.since_row.get() + count);
        match self.since_row.get() > ROW_BYTES_MAX {
            true => Err(std::io::Error::other("a row is longer than 16 MiB; a quotation mark may be missing its end")),
            false => Ok(count),
        }
    }
}

/// Half stars of 0.5 to 5 as a whole number of 1 to 5: halves go up.
pub(super) fn whole_rating(stars: &str) -> Option<i64> {
    let stars: f64 = stars.trim().parse().ok()?;
    ((0.5..=5.0).contains(&stars)).then(|| (stars + 0.5).floor() as i64)
}

/// Text of an export whose lines end as in web pages.
pub(super) fn without_markup(text: &str) -> String {
    if !text.contains(['<', '&']) {
        return text.trim().to_string();
    }
    mail_parser::decoders::html::html_to_text(text).trim().to_string()
}
