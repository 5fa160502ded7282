//! The cache file: a preamble of 128 bytes, tensors at multiples of 64 bytes, and a table in JSON at the end.
//!
//! Preamble: magic, version of this file format, layout version of the packed matrices, a byte-order mark, offset and
//! length of the table, and a SHA-256 over all of these and the table. The table has a SHA-256 for every tensor.

use super::{hexadecimal, report, workers};
use crate::load::{LoadProgress, LoadStage, LoadedTensor};
use crate::mapped::OpenFile;
use crate::tensor_encoding::SourceTensor;
use crate::{FormatError, atomic_write};
use kernels::{FloatVector, PackedHeader, PackedMatrix, ScaleType, SharedBytes};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"selftune";
const FILE_VERSION: u32 = 1;
/// Written in the machine's own order: a cache from a machine of the other order reads as another number.
const BYTE_ORDER_MARK: u32 = 0x0102_0304;
const PREAMBLE_BYTES: usize = 128;
/// Preamble bytes before the checksum.
const CHECKED_BYTES: usize = 40;
const ALIGNMENT_BYTES: u64 = 64;

#[derive(Serialize, Deserialize)]
struct Table {
    content_hash: String,
    recipe: String,
    tensors: Vec<TableEntry>,
}

#[derive(Serialize, Deserialize)]
struct TableEntry {
    name: String,
    offset: u64,
    bytes: u64,
    sha256: String,
    kind: EntryKind,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EntryKind {
    Packed { n_out: usize, k_in: usize, bits: u32, group_size: usize, scale_type: String },
    Float { len: usize },
}

/// Why no cache file was written.
pub(super) enum WriteFailure {
    /// The model itself is bad: nothing to fall back to.
    Model(FormatError),
    /// Only the cache cannot be written.
    Cache(io::Error),
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        WriteFailure::Cache(error)
    }
}

/// Packs every tensor straight into a temporary file, which becomes `path` once it is complete and on the disk.
pub(super) fn write(
    path: &Path,
    content_hash: &str,
    recipe: &str,
    sources: &[SourceTensor],
    pack: &(dyn Fn(&SourceTensor) -> Result<LoadedTensor, FormatError> + Sync),
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<(), WriteFailure> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if !folder.exists() {
        std::fs::create_dir_all(folder)?;
    }
    let file = tempfile::Builder::new().prefix(".selftune-").suffix(".partial").tempfile_in(folder)?;
    let mut writer = Writer::new(file, content_hash, recipe)?;
    let mut report = report(LoadStage::Packing, sources.iter().map(SourceTensor::stored_len).sum(), progress);
    let pack_and_hash = |source: &SourceTensor| {
        let tensor = pack(source)?;
        let hash = hexadecimal(&Sha256::digest(&*tensor_bytes(&tensor)));
        Ok((tensor, hash))
    };
    workers::in_order(sources, &pack_and_hash, |source, packed| {
        let (tensor, sha256) = packed.map_err(WriteFailure::Model)?;
        writer.add(source.name.clone(), &tensor, sha256)?;
        report(source.stored_len());
        Ok::<(), WriteFailure>(())
    })?;
    atomic_write::persist(writer.finish()?, path, atomic_write::Readers::Everyone).map_err(|error| match error {
        FormatError::Write { source, .. } => WriteFailure::Cache(source),
        other => WriteFailure::Model(other),
    })
}

/// Writes tensors one by one into a file without a name in `folder` and gives them back mapped from it, so that no more
/// than one is in memory at a time. For models that no file describes.
pub(crate) fn map_through_file(
    folder: &Path,
    tensors: impl Iterator<Item = (String, LoadedTensor)>,
) -> Result<BTreeMap<String, LoadedTensor>, FormatError> {
    let write = || {
        let mut writer = Writer::new(tempfile::tempfile_in(folder)?, "", "made")?;
        for (name, tensor) in tensors {
            let sha256 = hexadecimal(&Sha256::digest(&*tensor_bytes(&tensor)));
            writer.add(name, &tensor, sha256)?;
        }
        let file = writer.finish()?;
        // Who times what follows should not time the disk.
        file.sync_data()?;
        OpenFile::map(&file, folder)
    };
    let file = write().map_err(|error| FormatError::write(folder, error))?;
    let malformed = |problem: String| FormatError::malformed(folder, 0, problem);
    let table = read_table(file.bytes()).map_err(malformed)?;
    let entries = table.tensors.iter().map(|entry| {
        let tensor = tensor(&file, entry).ok_or_else(|| malformed(format!("tensor `{}` is damaged", entry.name)))?;
        Ok((entry.name.clone(), tensor))
    });
    entries.collect()
}

/// A cache file on its way.
struct Writer<F: Write + Seek> {
    out: BufWriter<F>,
    table: Table,
    offset: u64,
}

impl<F: Write + Seek> Writer<F> {
    fn new(file: F, content_hash: &str, recipe: &str) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&[0; PREAMBLE_BYTES])?;
        let table = Table { content_hash: content_hash.into(), recipe: recipe.into(), tensors: Vec::new() };
        Ok(Self { out, table, offset: PREAMBLE_BYTES as u64 })
    }

    fn add(&mut self, name: String, tensor: &LoadedTensor, sha256: String) -> io::Result<()> {
        let (bytes, offset) = (tensor_bytes(tensor), self.offset);
        self.out.write_all(&bytes)?;
        let kind = entry_kind(tensor);
        self.table.tensors.push(TableEntry { name, offset, bytes: bytes.len() as u64, sha256, kind });
        let end = offset + bytes.len() as u64;
        self.offset = end.next_multiple_of(ALIGNMENT_BYTES);
        self.out.write_all(&[0; ALIGNMENT_BYTES as usize][..(self.offset - end) as usize])?;
        Ok(())
    }

    /// The complete file.
    fn finish(mut self) -> io::Result<F> {
        let table = serde_json::to_vec(&self.table).map_err(io::Error::from)?;
        self.out.write_all(&table)?;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&preamble(self.offset, &table))?;
        self.out.into_inner().map_err(|error| error.into_error())
    }
}

fn preamble(table_offset: u64, table: &[u8]) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&FILE_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&PackedHeader::LAYOUT_VERSION.to_le_bytes());
    bytes[16..20].copy_from_slice(&BYTE_ORDER_MARK.to_ne_bytes());
    bytes[24..32].copy_from_slice(&table_offset.to_le_bytes());
    bytes[32..40].copy_from_slice(&(table.len() as u64).to_le_bytes());
    let checksum = checksum(&bytes, table);
    bytes[CHECKED_BYTES..][..32].copy_from_slice(&checksum);
    bytes
}

fn checksum(preamble: &[u8], table: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(&preamble[..CHECKED_BYTES]).chain_update(table).finalize().into()
}

fn tensor_bytes(tensor: &LoadedTensor) -> std::borrow::Cow<'_, [u8]> {
    match tensor {
        LoadedTensor::Packed(matrix) => matrix.bytes().into(),
        LoadedTensor::Float(values) => {
            values.as_slice().iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>().into()
        }
    }
}

fn entry_kind(tensor: &LoadedTensor) -> EntryKind {
    match tensor {
        LoadedTensor::Packed(matrix) => {
            let PackedHeader { n_out, k_in, bits, group_size, scale_type } = matrix.header();
            EntryKind::Packed { n_out, k_in, bits, group_size, scale_type: scale_type.name().into() }
        }
        LoadedTensor::Float(values) => EntryKind::Float { len: values.len() },
    }
}

/// Maps a cache file and gives its tensors, or says what is wrong with it. `sources` are the tensors it must have.
/// With `check_body` every tensor's checksum is compared too.
pub(super) fn open(
    path: &Path,
    content_hash: &str,
    recipe: &str,
    sources: &[SourceTensor],
    check_body: bool,
) -> Result<BTreeMap<String, LoadedTensor>, String> {
    let file = OpenFile::open(path).map_err(|error| error.to_string())?;
    let table = read_table(file.bytes())?;
    if table.content_hash != content_hash || table.recipe != recipe {
        return Err("made from another model or with other options".into());
    }
    if check_body {
        let mut problem = None;
        let check = |entry: &TableEntry| {
            part(file.bytes(), entry).is_some_and(|bytes| hexadecimal(&Sha256::digest(bytes)) == entry.sha256)
        };
        let _ = workers::in_order(&table.tensors, &check, |entry, is_intact| {
            if is_intact {
                return Ok(());
            }
            problem = Some(format!("tensor `{}` is damaged", entry.name));
            Err(())
        });
        if let Some(problem) = problem {
            return Err(problem);
        }
    }
    let mut tensors = BTreeMap::new();
    for entry in &table.tensors {
        tensors.insert(entry.name.clone(), tensor(&file, entry).ok_or(format!("tensor `{}` is damaged", entry.name))?);
    }
    let agrees = |source: &SourceTensor| match (tensors.get(&source.name), source.shape.as_slice()) {
        (Some(LoadedTensor::Packed(matrix)), &[n_out, k_in]) => matrix.n_out() == n_out && matrix.k_in() == k_in,
        (Some(LoadedTensor::Float(values)), &[len]) => values.len() == len,
        _ => false,
    };
    if tensors.len() != sources.len() || !sources.iter().all(agrees) {
        return Err("has other tensors than the model".into());
    }
    Ok(tensors)
}

fn read_table(bytes: &[u8]) -> Result<Table, String> {
    let preamble = bytes.first_chunk::<PREAMBLE_BYTES>().ok_or("cut short")?;
    let number = |at: usize| u64::from_le_bytes(preamble[at..at + 8].try_into().expect("eight bytes"));
    let versions = [FILE_VERSION.to_le_bytes(), PackedHeader::LAYOUT_VERSION.to_le_bytes()].concat();
    if preamble[..8] != *MAGIC || preamble[8..16] != versions {
        return Err("not a cache file of this version".into());
    }
    if preamble[16..20] != BYTE_ORDER_MARK.to_ne_bytes() {
        return Err("made on a machine of another byte order".into());
    }
    let start = usize::try_from(number(24)).unwrap_or(usize::MAX);
    let end = usize::try_from(number(32)).ok().and_then(|len| start.checked_add(len));
    let table = end.and_then(|end| bytes.get(start..end)).filter(|_| end == Some(bytes.len())).ok_or("cut short")?;
    if preamble[CHECKED_BYTES..][..32] != checksum(preamble, table) {
        return Err("header is damaged".into());
    }
    serde_json::from_slice(table).map_err(|error| error.to_string())
}

fn part<'a>(bytes: &'a [u8], entry: &TableEntry) -> Option<&'a [u8]> {
    let start = usize::try_from(entry.offset).ok()?;
    let end = start.checked_add(usize::try_from(entry.bytes).ok()?)?;
    bytes.get(start..end)
}

fn tensor(file: &OpenFile, entry: &TableEntry) -> Option<LoadedTensor> {
    let bytes = part(file.bytes(), entry)?;
    match &entry.kind {
        EntryKind::Packed { n_out, k_in, bits, group_size, scale_type } => {
            let scale_type = ScaleType::by_name(scale_type)?;
            let header = PackedHeader { n_out: *n_out, k_in: *k_in, bits: *bits, group_size: *group_size, scale_type };
            let start = entry.offset as usize;
            let shared = SharedBytes::of_file(file.mapped.clone(), start..start + bytes.len())?;
            PackedMatrix::from_bytes(header, shared).ok().map(|matrix| LoadedTensor::Packed(Arc::new(matrix)))
        }
        EntryKind::Float { len } => {
            let (chunks, rest) = bytes.as_chunks::<4>();
            if chunks.len() != *len || !rest.is_empty() {
                return None;
            }
            let values: Vec<f32> = chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect();
            Some(LoadedTensor::Float(FloatVector::from_slice(&values)))
        }
    }
}
