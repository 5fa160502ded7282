//! Little-endian values one after the other, never past the end.

use crate::FormatError;
use std::path::Path;

pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    /// `at` is inside `bytes` or their end.
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8], at: usize) -> Self {
        assert!(at <= bytes.len());
        Cursor { path, bytes, at }
    }

    pub(crate) fn error(&self, at: usize, problem: impl Into<String>) -> FormatError {
        FormatError::malformed(self.path, at, problem)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        match self.bytes[self.at..].get(..len) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => {
                let left = self.bytes.len() - self.at;
                Err(self.error(self.at, format!("cut short: {len} bytes expected, {left} left")))
            }
        }
    }

    pub(crate) fn take_array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many as were asked for"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.take_array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.take_array().map(u64::from_le_bytes)
    }

    pub(crate) fn size(&mut self) -> Result<usize, FormatError> {
        let at = self.at;
        let size = self.u64()?;
        usize::try_from(size).map_err(|_| self.error(at, format!("a size of {size}")))
    }

    /// A number of things of at least `bytes_min` each, which the rest of the file must have room for.
    pub(crate) fn count(&mut self, what: &str, bytes_min: usize) -> Result<usize, FormatError> {
        let at = self.at;
        let count = self.u64()?;
        let left = (self.bytes.len() - self.at) as u64;
        match count.checked_mul(bytes_min as u64) {
            Some(bytes) if bytes <= left => Ok(count as usize),
            _ => Err(self.error(at, format!("{count} {what} do not fit into the {left} bytes left (cut short?)"))),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, FormatError> {
        let at = self.at;
        let bytes = self.skip_text()?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| self.error(at, "a text that is not UTF-8"))
    }

    pub(crate) fn skip_text(&mut self) -> Result<&'a [u8], FormatError> {
        let len = self.size()?;
        self.take(len)
    }
}
