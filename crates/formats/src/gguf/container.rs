//! The GGUF container: a header, key-value metadata, a tensor table, then aligned tensor data. Versions 2 and 3,
//! little-endian. Layout from the format's specification in the ggml repository (docs/gguf.md).

use super::cursor::Cursor;
use crate::FormatError;
use crate::mapped::OpenFile;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_DEFAULT: u64 = 32;
/// The format knows at most four dimensions.
const DIMENSIONS_MAX: u32 = 4;
/// Lists of lists are allowed by the format and used by nobody; deeper ones are refused before the stack is at risk.
const LIST_DEPTH_MAX: usize = 4;

/// A parsed file. Lists of the metadata are read when asked for.
pub(crate) struct Container {
    pub(crate) file: OpenFile,
    metadata: BTreeMap<String, Entry>,
    pub(crate) tensors: Vec<TensorEntry>,
    /// Where tensor data begins.
    pub(crate) data_start: usize,
    pub(crate) alignment: usize,
}

/// One line of the tensor table.
#[derive(Debug)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    /// Outermost dimension first (the file has them the other way round).
    pub(crate) shape: Vec<usize>,
    pub(crate) type_id: u32,
    /// Relative to the start of the data.
    pub(crate) offset: usize,
}

struct Entry {
    value: Value,
    /// The value's bytes in the file.
    range: Range<usize>,
}

enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(List),
}

struct List {
    element_type: u32,
    count: usize,
    start: usize,
}

/// The format's numbers for metadata types.
pub(crate) mod value_type {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const TEXT: u32 = 8;
    pub const LIST: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// Whether the file begins as a GGUF file does.
pub(crate) fn has_magic(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    path.is_file()
        && std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && start == *MAGIC
}

impl Container {
    pub(crate) fn open(path: &Path) -> Result<Container, FormatError> {
        let file = OpenFile::open(path)?;
        let mut cursor = Cursor::new(path, file.bytes(), 0);
        if cursor.take(4)? != MAGIC {
            return Err(cursor.error(0, "not a GGUF file: it does not begin with `GGUF`"));
        }
        let version = cursor.u32()?;
        if version.swap_bytes() <= 3 && version > 3 {
            return Err(cursor.error(4, "a big-endian GGUF file; only little-endian ones are supported"));
        }
        if version != 2 && version != 3 {
            return Err(cursor.error(4, format!("GGUF version {version}; versions 2 and 3 are supported")));
        }
        let tensor_count = cursor.count("tensors", 8 + 4 + 4 + 8)?;
        let key_count = cursor.count("metadata keys", 8 + 4 + 1)?;
        let metadata = read_metadata(&mut cursor, key_count)?;
        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(read_tensor_entry(&mut cursor)?);
        }
        let table_end = cursor.at;
        let mut container = Container { file: file.clone(), metadata, tensors, data_start: 0, alignment: 0 };
        let alignment = container.unsigned("general.alignment")?.unwrap_or(ALIGNMENT_DEFAULT);
        let alignment = usize::try_from(alignment).ok().filter(|alignment| alignment.is_power_of_two());
        let Some(alignment) = alignment else {
            return Err(container.key_error("general.alignment", "expected a power of two"));
        };
        container.alignment = alignment;
        container.data_start = table_end.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        Ok(container)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    pub(crate) fn key_error(&self, key: &str, problem: impl Into<String>) -> FormatError {
        FormatError::key(self.path(), key, problem)
    }

    /// The keys that begin with `prefix`, and their values' bytes, in the order of the keys.
    pub(crate) fn raw_entries(&self, prefix: &str) -> impl Iterator<Item = (&str, &[u8])> {
        let entries = self.metadata.iter().filter(move |(key, _)| key.starts_with(prefix));
        entries.map(|(key, entry)| (key.as_str(), &self.file.bytes()[entry.range.clone()]))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key).map(|entry| &entry.value)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, FormatError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.key_error(key, "expected a text")),
        }
    }

    pub(crate) fn unsigned(&self, key: &str) -> Result<Option<u64>, FormatError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) => Ok(Some(*number)),
            Some(Value::Signed(number)) if *number >= 0 => Ok(Some(*number as u64)),
            // Some keys are lists with one number a layer; equal ones say the same as a single number.
            Some(Value::List(_)) => match self.integers(key)?.unwrap_or_default().as_slice() {
                [first, rest @ ..] if *first >= 0 && rest.iter().all(|number| number == first) => {
                    Ok(Some(*first as u64))
                }
                _ => Err(self.key_error(key, "expected one number; layers that differ are not supported")),
            },
            Some(_) => Err(self.key_error(key, "expected a number that is not negative")),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, FormatError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Unsigned(number)) => Ok(Some(*number as f64)),
            Some(Value::Signed(number)) => Ok(Some(*number as f64)),
            Some(_) => Err(self.key_error(key, "expected a finite number")),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.key_error(key, "expected true or false")),
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>, FormatError> {
        self.list(key, &[value_type::TEXT], "texts", |cursor, _| cursor.text())
    }

    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, FormatError> {
        self.list(key, &[value_type::F32], "float32 numbers", |cursor, _| cursor.take_array().map(f32::from_le_bytes))
    }

    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, FormatError> {
        use value_type::*;
        self.list(key, &[U8, I8, U16, I16, U32, I32, U64, I64], "whole numbers", |cursor, element_type| {
            match read_value(cursor, element_type, 0)? {
                Value::Signed(number) => Ok(number),
                Value::Unsigned(number) if i64::try_from(number).is_ok() => Ok(number as i64),
                _ => Err(cursor.error(cursor.at, format!("key `{key}`: a number out of range"))),
            }
        })
    }

    fn list<T>(
        &self,
        key: &str,
        element_types: &[u32],
        expected: &str,
        mut read: impl FnMut(&mut Cursor, u32) -> Result<T, FormatError>,
    ) -> Result<Option<Vec<T>>, FormatError> {
        let list = match self.value(key) {
            None => return Ok(None),
            Some(Value::List(list)) if element_types.contains(&list.element_type) => list,
            Some(_) => return Err(self.key_error(key, format!("expected a list of {expected}"))),
        };
        let mut cursor = Cursor::new(self.path(), self.file.bytes(), list.start);
        // Every element was passed once when the file was opened, so the count is no larger than the file.
        (0..list.count).map(|_| read(&mut cursor, list.element_type)).collect::<Result<Vec<T>, _>>().map(Some)
    }
}

fn read_metadata(cursor: &mut Cursor, count: usize) -> Result<BTreeMap<String, Entry>, FormatError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key_at = cursor.at;
        let key = cursor.text()?;
        let kind = cursor.u32()?;
        let start = cursor.at;
        let value = read_value(cursor, kind, 0)?;
        let entry = Entry { value, range: start..cursor.at };
        if metadata.insert(key.clone(), entry).is_some() {
            return Err(cursor.error(key_at, format!("key `{key}` appears twice")));
        }
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor, kind: u32, depth: usize) -> Result<Value, FormatError> {
    let start = cursor.at;
    Ok(match kind {
        value_type::U8 => Value::Unsigned(u8::from_le_bytes(cursor.take_array()?).into()),
        value_type::I8 => Value::Signed(i8::from_le_bytes(cursor.take_array()?).into()),
        value_type::U16 => Value::Unsigned(u16::from_le_bytes(cursor.take_array()?).into()),
        value_type::I16 => Value::Signed(i16::from_le_bytes(cursor.take_array()?).into()),
        value_type::U32 => Value::Unsigned(cursor.u32()?.into()),
        value_type::I32 => Value::Signed(i32::from_le_bytes(cursor.take_array()?).into()),
        value_type::F32 => Value::Float(shortest_decimal(f32::from_le_bytes(cursor.take_array()?))),
        value_type::BOOL => match cursor.take_array()? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => return Err(cursor.error(start, format!("a boolean of value {other}"))),
        },
        value_type::TEXT => Value::Text(cursor.text()?),
        value_type::LIST => Value::List(read_list(cursor, depth)?),
        value_type::U64 => Value::Unsigned(cursor.u64()?),
        value_type::I64 => Value::Signed(i64::from_le_bytes(cursor.take_array()?)),
        value_type::F64 => Value::Float(f64::from_le_bytes(cursor.take_array()?)),
        other => return Err(cursor.error(start, format!("metadata value of unknown type {other}"))),
    })
}

/// Passes over a list and checks it.
fn read_list(cursor: &mut Cursor, depth: usize) -> Result<List, FormatError> {
    if depth >= LIST_DEPTH_MAX {
        return Err(cursor.error(cursor.at, "lists nested too deeply"));
    }
    let element_type = cursor.u32()?;
    let count = cursor.count("list elements", 1)?;
    let list = List { element_type, count, start: cursor.at };
    if let Some(bytes) = fixed_bytes(element_type) {
        cursor.take(count.saturating_mul(bytes))?;
        return Ok(list);
    }
    for _ in 0..count {
        if element_type == value_type::TEXT {
            cursor.skip_text()?;
        } else {
            read_value(cursor, element_type, depth + 1)?;
        }
    }
    Ok(list)
}

/// The float64 that prints as the float32 does: 1e-5 stays 1e-5, as the configuration it came from had it.
fn shortest_decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// Bytes of a number, or `None` for what has no fixed size or must be looked at.
fn fixed_bytes(kind: u32) -> Option<usize> {
    use value_type::*;
    match kind {
        U8 | I8 => Some(1),
        U16 | I16 => Some(2),
        U32 | I32 | F32 => Some(4),
        U64 | I64 | F64 => Some(8),
        _ => None,
    }
}

fn read_tensor_entry(cursor: &mut Cursor) -> Result<TensorEntry, FormatError> {
    let start = cursor.at;
    let name = cursor.text()?;
    let dimensions = cursor.u32()?;
    if dimensions > DIMENSIONS_MAX {
        return Err(cursor.error(start, format!("tensor `{name}` has {dimensions} dimensions, at most 4 are possible")));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        shape.push(cursor.size()?);
    }
    shape.reverse();
    Ok(TensorEntry { name, shape, type_id: cursor.u32()?, offset: cursor.size()? })
}
