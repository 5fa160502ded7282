//! The safetensors container: eight bytes of header length, a JSON header, then the tensors' bytes.
//!
//! Read strictly: duplicate names, overlapping or out-of-range offsets and sizes that disagree with the shape are
//! errors. Written with sorted names and 64-byte aligned data, so that equal content gives equal bytes.

use crate::FormatError;
use crate::float_type::FloatType;
use crate::mapped::{FilePart, OpenFile};
use serde::Deserialize;
use serde::de::{self, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The format's own limit on its header.
const HEADER_BYTES_MAX: usize = 100_000_000;

/// One tensor of a safetensors file.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    /// The type as the file names it: `F32`, `BF16`, `U32`, ...
    pub(crate) type_name: String,
    /// Outermost dimension first.
    pub(crate) shape: Vec<usize>,
    pub(crate) data: FilePart,
}

impl StoredTensor {
    /// The float type, or `None` for integers and types that this program does not read.
    pub(crate) fn float_type(&self) -> Option<FloatType> {
        match self.type_name.as_str() {
            "F32" => Some(FloatType::Float32),
            "F16" => Some(FloatType::Float16),
            "BF16" => Some(FloatType::BFloat16),
            _ => None,
        }
    }
}

/// A file's tensors by name, and its `__metadata__`.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    pub(crate) tensors: BTreeMap<String, StoredTensor>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Bits of one element, or `None` for a type unknown to this program (whose sizes it then cannot check).
fn type_bits(name: &str) -> Option<usize> {
    Some(match name {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "BOOL" | "I8" | "U8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 8,
        _ => return None,
    })
}

/// Opens and checks `path`; tensors' bytes stay in the mapped file.
pub(crate) fn read(path: &Path) -> Result<SafetensorsFile, FormatError> {
    let file = OpenFile::open(path)?;
    let bytes = file.bytes();
    let Some((len_bytes, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(FormatError::malformed(path, 0, format!("{} bytes are too few for safetensors", bytes.len())));
    };
    let header_len = usize::try_from(u64::from_le_bytes(*len_bytes)).unwrap_or(usize::MAX);
    if header_len > HEADER_BYTES_MAX || header_len > rest.len() {
        return Err(FormatError::malformed(
            path,
            0,
            format!("not a safetensors file or cut short: header of {header_len} bytes in a file of {}", bytes.len()),
        ));
    }
    let (header, data) = rest.split_at(header_len);
    let header: Header = crate::json::parse(path, header)?;
    let data_start = 8 + header_len;
    let mut tensors = BTreeMap::new();
    let mut spans = Vec::with_capacity(header.tensors.len());
    for (name, entry) in header.tensors {
        let [start, end] = entry.data_offsets;
        if start > end || end > data.len() {
            return Err(FormatError::tensor(
                path,
                name,
                format!("bytes {start}..{end} are outside the file's {} bytes of data (cut short?)", data.len()),
            ));
        }
        check_size(&entry).map_err(|problem| FormatError::tensor(path, &name, problem))?;
        spans.push((start, end, name.clone()));
        let part = file.part(data_start + start..data_start + end);
        let stored = StoredTensor { type_name: entry.dtype, shape: entry.shape, data: part };
        if tensors.insert(name.clone(), stored).is_some() {
            return Err(FormatError::tensor(path, name, "appears twice in the header"));
        }
    }
    spans.sort();
    if let Some(pair) = spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        return Err(FormatError::tensor(path, &pair[1].2, format!("its bytes overlap those of `{}`", pair[0].2)));
    }
    Ok(SafetensorsFile { tensors, metadata: header.metadata })
}

fn check_size(entry: &Entry) -> Result<(), String> {
    let [start, end] = entry.data_offsets;
    let Some(bits) = type_bits(&entry.dtype) else { return Ok(()) };
    let elements = entry.shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side));
    let expected = elements.and_then(|elements| elements.checked_mul(bits)).map(|bits| bits / 8);
    if expected == Some(end - start) {
        return Ok(());
    }
    let expected = expected.map_or("more bytes than there can be".into(), |expected| format!("{expected} bytes"));
    Err(format!("{} of shape {:?} takes {expected}, the file has {}", entry.dtype, entry.shape, end - start))
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// The JSON header. A list and not a map, so that a name used twice is seen.
struct Header {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, Entry)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { metadata: BTreeMap::new(), tensors: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value::<Option<BTreeMap<String, String>>>()?.unwrap_or_default();
                    } else {
                        header.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// One float32 tensor to be written.
pub(crate) struct TensorToWrite<'a> {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: std::borrow::Cow<'a, [f32]>,
}

/// The bytes of a safetensors file with float32 tensors in the order of their names.
pub(crate) fn to_bytes(mut tensors: Vec<TensorToWrite>, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    tensors.sort_by(|one, two| one.name.cmp(&two.name));
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), serde_json::json!(metadata));
    }
    let mut offset = 0;
    for tensor in &tensors {
        assert_eq!(tensor.shape.iter().product::<usize>(), tensor.values.len(), "shape of `{}`", tensor.name);
        let end = offset + tensor.values.len() * 4;
        let entry = serde_json::json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end]});
        header.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    // Spaces after the header are allowed by the format; they align the data.
    text.resize((8 + text.len()).next_multiple_of(64) - 8, b' ');
    let mut bytes = Vec::with_capacity(8 + text.len() + offset);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    for tensor in &tensors {
        for value in tensor.values.iter() {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}
