//! What the frozen blocks below the first adapted one made of each example, kept on disk between its visits.
//!
//! One file an example: a head of 64 bytes (magic, number of values, SHA-256 of the key and the values) and the values,
//! float32 in little-endian order. Its name is the hash of the key and the example, so that a file of another model,
//! another example or another part of the model is never found. A file is only a saving: one that is damaged is made
//! again, and where none can be written the prefix is computed as without it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use data::Example;
use sha2::{Digest, Sha256};

use crate::files::{FileError, Files, open_ordinary};
use crate::hash::{example_hash, hex};

const MAGIC: &[u8; 16] = b"selftune prefix1";
const HEAD_BYTES: usize = 64;
/// Values converted at a time.
const CHUNK_VALUES: usize = 16 << 10;

/// What the outputs of a prefix depend on besides the example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixKey([u8; 32]);

impl PrefixKey {
    /// `parts`: content hash of the base, the frozen adapters on it, the precision of the products.
    pub(crate) fn new(parts: &[&str], blocks: usize) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update((blocks as u64).to_le_bytes());
        Self(hash.finalize().into())
    }
}

/// The kept prefixes of a run.
pub(crate) struct KeptPrefixes {
    files: Files,
    folder: PathBuf,
    key: PrefixKey,
    /// The prefix read last.
    values: Vec<f32>,
    bytes: Vec<u8>,
    /// How much more may be written; zero after a failure.
    room_bytes: u64,
    notices: Vec<String>,
}

impl KeptPrefixes {
    /// Prefixes in `folder`, which is made. At most half of the disk's free room is used.
    pub(crate) fn new(files: &Files, folder: &Path, key: PrefixKey) -> Self {
        let mut kept = Self {
            files: files.clone(),
            folder: folder.to_owned(),
            key,
            values: Vec::new(),
            bytes: vec![0; CHUNK_VALUES * size_of::<f32>()],
            room_bytes: 0,
            notices: Vec::new(),
        };
        match files.create_folder(folder) {
            Ok(()) => kept.room_bytes = device::free_disk_bytes(folder).unwrap_or(0) / 2,
            Err(error) => kept.notices.push(format!("prefixes are computed in every pass: {error}")),
        }
        kept
    }

    /// What [`Self::read`] found.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
    /// Deletes all of them.
    pub(crate) fn remove(self) {
        // Left files cost room and nothing else, and nobody can act on it here.
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// Reads the prefix of `example`, which has `values` values, if it is there and whole.
    pub(crate) fn read(&mut self, example: &Example, values: usize) -> bool {
        let path = self.path(example);
        let Ok(file) = open_ordinary(&path) else { return false };
        let found = self.read_file(file, values);
        if found.is_err() {
            self.notices.push(format!("the kept prefix of record {} is damaged and is made again", example.record_id));
        }
        found.is_ok()
    }

    fn read_file(&mut self, file: File, values: usize) -> std::io::Result<()> {
        let mut file = BufReader::with_capacity(self.bytes.len(), file);
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        let damaged = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        if head[..16] != *MAGIC || head[16..24] != (values as u64).to_le_bytes() {
            return Err(damaged());
        }
        let mut hash = Sha256::new_with_prefix(self.key.0);
        self.values.clear();
        self.values.reserve_exact(values);
        while self.values.len() < values {
            let part = &mut self.bytes[..(values - self.values.len()).min(CHUNK_VALUES) * size_of::<f32>()];
            file.read_exact(part)?;
            hash.update(&*part);
            let (chunks, _) = part.as_chunks::<4>();
            self.values.extend(chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        if head[32..] != *hash.finalize() || file.read(&mut [0])? != 0 {
            return Err(damaged());
        }
        Ok(())
    }

    /// Keeps the prefix of `example` if there is room.
    pub(crate) fn write(&mut self, example: &Example, values: &[f32]) {
        let bytes = (HEAD_BYTES + size_of_val(values)) as u64;
        if bytes > self.room_bytes {
            if self.room_bytes > 0 {
                self.notices.push("no more room on the disk for kept prefixes: the rest is computed".to_owned());
                self.room_bytes = 0;
            }
            return;
        }
        match self.write_file(&self.path(example), values) {
            Ok(()) => self.room_bytes -= bytes,
            Err(error) => {
                self.notices.push(format!("prefixes are computed from here on, none can be kept: {error}"));
                self.room_bytes = 0;
            }
        }
    }

    /// By way of a temporary name. There is no wait for the disk: what a power cut damages is made again.
    fn write_file(&self, path: &Path, values: &[f32]) -> Result<(), FileError> {
        let new = path.with_extension("new");
        let mut file = BufWriter::with_capacity(CHUNK_VALUES * size_of::<f32>(), self.files.create_file(&new)?);
        let mut write = || {
            file.write_all(&[0; HEAD_BYTES])?;
            let mut hash = Sha256::new_with_prefix(self.key.0);
            for value in values {
                file.write_all(&value.to_le_bytes())?;
            }
            for values in values.chunks(CHUNK_VALUES) {
                values.iter().for_each(|value| hash.update(value.to_le_bytes()));
            }
            let mut head = [0; HEAD_BYTES];
            head[..16].copy_from_slice(MAGIC);
            head[16..24].copy_from_slice(&(values.len() as u64).to_le_bytes());
            head[32..].copy_from_slice(&hash.finalize());
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&head)?;
            file.flush()
        };
        write().map_err(FileError::new("write", &new))?;
        self.files.rename(&new, path)
    }

    fn path(&self, example: &Example) -> PathBuf {
        let mut hash = Sha256::new_with_prefix(self.key.0);
        hash.update(example_hash(example));
        self.folder.join(format!("{}.prefix", &hex(&hash.finalize())[..32]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::example;

    fn kept(folder: &Path, base: &str) -> KeptPrefixes {
        KeptPrefixes::new(&Files::default(), &folder.join("prefix"), PrefixKey::new(&[base, "", "a16"], 3))
    }

    #[test]
    fn a_prefix_comes_back_for_its_example_and_base_only() {
        let folder = tempfile::tempdir().unwrap();
        let values: Vec<f32> = (0..CHUNK_VALUES + 77).map(|index| index as f32 * 0.37 - 5.0).collect();
        let mut first = kept(folder.path(), "base");
        assert!(!first.read(&example(1, 9), values.len()), "nothing is there yet");
        first.write(&example(1, 9), &values);
        assert!(first.read(&example(1, 9), values.len()));
        assert_eq!(first.values(), values);
        let mut again = kept(folder.path(), "base");
        assert!(again.read(&example(1, 9), values.len()), "another session finds it");
        assert_eq!(again.values(), values);
        assert!(!again.read(&example(2, 9), values.len()));
        assert!(!kept(folder.path(), "other base").read(&example(1, 9), values.len()));
        assert_eq!(again.take_notices(), Vec::<String>::new());
        #[cfg(unix)]
        for entry in std::fs::read_dir(folder.path().join("prefix")).unwrap() {
            let mode = std::os::unix::fs::PermissionsExt::mode(&entry.unwrap().metadata().unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        again.remove();
        assert!(!folder.path().join("prefix").exists());
    }

    #[test]
    fn every_damage_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let values = [1.0, -2.0, 3.5];
        let mut kept = kept(folder.path(), "base");
        kept.write(&example(1, 9), &values);
        let path = kept.path(&example(1, 9));
        let whole = std::fs::read(&path).unwrap();
        for place in (0..24).chain(32..whole.len()) {
            let mut damaged = whole.clone();
            damaged[place] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            assert!(!kept.read(&example(1, 9), 3), "byte {place}");
        }
        for bytes in [&whole[..0], &whole[..70], &[whole.as_slice(), b"x"].concat()] {
            std::fs::write(&path, bytes).unwrap();
            assert!(!kept.read(&example(1, 9), 3), "{} bytes", bytes.len());
        }
        std::fs::write(&path, &whole).unwrap();
        assert!(!kept.read(&example(1, 9), 4), "another number of values");
        assert!(kept.take_notices().iter().all(|notice| notice.contains("record-1 is damaged")));
        assert!(kept.read(&example(1, 9), 3));
    }

    #[test]
    fn without_room_nothing_is_written_and_it_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut kept = kept(folder.path(), "base");
        kept.room_bytes = 150;
        kept.write(&example(1, 9), &[1.0; 9]);
        kept.write(&example(2, 9), &[1.0; 9]);
        kept.write(&example(3, 9), &[1.0; 9]);
        assert_eq!(kept.take_notices().len(), 1);
        assert!(kept.read(&example(1, 9), 9) && !kept.read(&example(2, 9), 9));
        std::fs::remove_dir_all(folder.path().join("prefix")).unwrap();
        let mut blocked =
            KeptPrefixes::new(&Files::default(), &folder.path().join("file/prefix"), PrefixKey::new(&[], 1));
        blocked.room_bytes = 1 << 20;
        std::fs::remove_dir_all(folder.path().join("file")).unwrap();
        blocked.write(&example(1, 9), &[1.0; 9]);
        assert!(blocked.take_notices()[0].contains("none can be kept"));
    }
}
