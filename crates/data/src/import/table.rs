//! Tables with a line of names, as programs export them.

use super::{ImportError, Sink, open};
use std::cell::Cell;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

/// A row larger than this is none: a quotation mark is missing its end.
const ROW_BYTES_MAX: usize = 16 << 20;

/// Read after the end of a table, as a row of its own: it is one unless a quotation mark is still open.
const END: &[u8] = b"\n\x00end of the table\n";

/// Reads a table row by row.
pub(super) struct Table {
    reader: ::csv::Reader<Guarded>,
    progress: Rc<Progress>,
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
        let progress = Rc::new(Progress::default());
        let guarded = Guarded { file: open(path)?, end: END, progress: progress.clone() };
        let mut reader =
            ::csv::ReaderBuilder::new().delimiter(delimiter.unwrap_or(b',')).flexible(true).from_reader(guarded);
        let header = reader.byte_headers().map_err(|error| fault(path, error))?.clone();
        let name = |name| String::from_utf8_lossy(name).trim_start_matches('\u{feff}').trim().to_string();
        let names: Vec<String> = header.iter().map(name).collect();
        let table = Table { reader, progress, names, place: path.display().to_string() };
        match table.is_at_end() && table.is_whole(path, &header)? {
            true => Err(ImportError::source(path, "it is empty; expected a line with the names of the columns")),
            false => Ok(table),
        }
    }

    /// Whether [`END`] was read, as a row or in the last cell of one.
    fn is_at_end(&self) -> bool {
        self.reader.position().byte() == self.progress.file_bytes.get() + END.len() as u64
    }

    /// True for [`END`] as a row; an error where `last`, the last row, has it in a cell.
    fn is_whole(&self, path: &Path, last: &::csv::ByteRecord) -> Result<bool, ImportError> {
        if last.iter().eq([END.trim_ascii()]) {
            return Ok(true);
        }
        let below = last.iter().next_back().map_or(0, |cell| cell.iter().filter(|byte| **byte == b'\n').count());
        let line = self.reader.position().line() - below as u64;
        let reason = format!("line {line}: a quotation mark has no end; all rows below would be one cell");
        Err(ImportError::source(path, reason))
    }

    /// Refuses a table in which a wanted column is missing, or there twice.
    pub fn require(&self, path: &Path, wanted: &[&str]) -> Result<(), ImportError> {
        let times = |name: &str| self.names.iter().filter(|known| *known == name).count();
        let missing: Vec<&str> = wanted.iter().copied().filter(|name| times(name) == 0).collect();
        if !missing.is_empty() {
            let reason =
                format!("no column \"{}\"; the columns are: {}", missing.join("\", \""), self.names.join(", "));
            return Err(ImportError::source(path, reason));
        }
        match wanted.iter().find(|name| times(name) > 1) {
            Some(twice) => {
                Err(ImportError::source(path, format!("two columns are called \"{twice}\"; expected a name for each")))
            }
            None => Ok(()),
        }
    }

    /// Hands over every row; one of another width, or one that is not UTF-8, is left out.
    ///
    /// # Errors
    /// When a quotation mark has no end: all rows below it would be one cell.
    pub fn rows(
        mut self,
        path: &Path,
        sink: &mut Sink,
        mut take: impl FnMut(Row, &mut Sink) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let mut record = ::csv::ByteRecord::new();
        loop {
            self.progress.since_row.set(0);
            let is_row = self.reader.read_byte_record(&mut record).map_err(|error| fault(path, error))?;
            if !is_row || (self.is_at_end() && self.is_whole(path, &record)?) {
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

/// How far the file of a table was read.
#[derive(Default)]
struct Progress {
    file_bytes: Cell<u64>,
    since_row: Cell<usize>,
}

/// Stops a row that never ends before it fills the memory, and puts [`END`] after the file.
struct Guarded {
    file: std::fs::File,
    /// What is left of it.
    end: &'static [u8],
    progress: Rc<Progress>,
}

impl Read for Guarded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        if count == 0 {
            return self.end.read(buffer);
        }
        let Progress { file_bytes, since_row } = &*self.progress;
        file_bytes.set(file_bytes.get() + count as u64);
        since_row.set(since_row.get() + count);
        match since_row.get() > ROW_BYTES_MAX {
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
