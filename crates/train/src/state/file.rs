//! The state on disk: `state/current` and its predecessor `state/previous`.
//!
//! ```text
//! 8 bytes   "SELFTUNE"
//! u32       format version (all numbers little-endian)
//! u32       length H of the header
//! u64       number N of adapter values
//! H bytes   header: identity and progress as JSON
//! 3 N f32   adapter values, first moments, second moments
//! u32 ...   CRC-32 of each 64 KiB of everything before, the last piece as long as it is
//! u32       CRC-32 of those
//! ```
//!
//! A save writes `state/incoming`, waits for the disk, moves `current` to `previous` and `incoming` to `current`. At
//! every instant one of the two names holds a whole state, and the one that a reader finds first is the newest whole one.
//! The checksums guard against torn and rotten files, not against forgery, which is why they may be the fast ones.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Identity, Progress, State};
use crate::files::{FileError, Files, open_ordinary};

const MAGIC: &[u8; 8] = b"SELFTUNE";
const VERSION: u32 = 2;
const FIXED_BYTES: usize = 24;
/// A header is a few kilobytes; a damaged length must not make us allocate.
const HEADER_BYTES_MAX: usize = 64 << 20;
/// A piece with a checksum of its own: CRC-32 finds every damage of up to 32 bits in a row and all but 1 in 2^32 others.
const PIECE_BYTES: usize = 64 << 10;
/// Handed to the system at a time: a write in progress does not hold up the process' end.
const WRITE_BYTES: usize = 1 << 20;

/// Why a saved run cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{} has format version {found}, this selftune reads version {VERSION}; use the selftune that wrote it", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error(
        "both saved states are unusable ({current}; {previous}); the adapters in the run folder are untouched. \
         `selftune train --from RUN --data FILE` starts a new run from them"
    )]
    BothDamaged { current: Box<StateError>, previous: Box<StateError> },
}

#[derive(Serialize, Deserialize)]
struct Header<I, P> {
    identity: I,
    progress: P,
}

/// What [`load`] found.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub state: State,
    /// Why the predecessor was taken, if it was.
    pub fallback: Option<String>,
}

/// A list that is shorter is copied (in under a millisecond) before a thread for it has started.
const THREAD_BYTES_MIN: usize = 4 << 20;

/// Lays a state out in `image` as it will lie on the disk, checksums excepted: one copy of the values, so that the run
/// can go on while [`save`] works on the image. An image that was used before is not allocated again.
pub(crate) fn lay_out(image: &mut Vec<u8>, identity: &Identity, progress: &Progress, values: [&[f32]; 3]) {
    let count = values[0].len();
    assert!(values.iter().all(|list| list.len() == count), "two moments for every value");
    let header = serde_json::to_vec(&Header { identity, progress }).expect("a header is plain values");
    let values_at = FIXED_BYTES + header.len();
    let len = values_at + 3 * size_of::<f32>() * count;
    image.reserve_exact((len + checksums_bytes(len)).saturating_sub(image.len()));
    image.resize(len, 0);
    image[..8].copy_from_slice(MAGIC);
    image[8..12].copy_from_slice(&VERSION.to_le_bytes());
    image[12..16].copy_from_slice(&(header.len() as u32).to_le_bytes());
    image[16..24].copy_from_slice(&(count as u64).to_le_bytes());
    image[FIXED_BYTES..values_at].copy_from_slice(&header);
    let copy = |places: &mut [u8], list: &[f32]| {
        for (place, value) in places.as_chunks_mut::<4>().0.iter_mut().zip(list) {
            *place = value.to_le_bytes();
        }
    };
    // The training stands still meanwhile: long lists are copied side by side.
    std::thread::scope(|scope| {
        let mut rest = &mut image[values_at..];
        for list in values {
            let places;
            (places, rest) = rest.split_at_mut(size_of_val(list));
            match places.len() > THREAD_BYTES_MIN {
                true => drop(scope.spawn(move || copy(places, list))),
                false => copy(places, list),
            }
        }
    });
}

/// Saves what [`lay_out`] made into `folder`; afterwards the former `current` is `previous`. Adds the checksums to the
/// image and returns the bytes written.
pub(crate) fn save(files: &Files, folder: &Path, image: &mut Vec<u8>, sync: bool) -> Result<u64, FileError> {
    let [incoming, current, previous] = names(folder);
    let checksums = checksums(image);
    image.extend_from_slice(&checksums);
    let mut file = files.create_file(&incoming)?;
    for part in image.chunks(WRITE_BYTES) {
        files.write(&mut file, &incoming, part)?;
    }
    if sync {
        files.sync(&file, &incoming)?;
    }
    drop(file);
    if current.exists() {
        files.rename(&current, &previous)?;
    }
    files.rename(&incoming, &current)?;
    if sync {
        files.sync_folder(folder)?;
    }
    Ok(image.len() as u64)
}

/// The newest whole state in `folder`, or none if nothing was ever saved.
pub(crate) fn load(folder: &Path) -> Result<Option<Loaded>, StateError> {
    let [_, current, previous] = names(folder);
    let newest = match read(&current) {
        Ok(Some(state)) => return Ok(Some(Loaded { state, fallback: None })),
        // A newer selftune's state is whole: taking the predecessor would throw work away.
        Err(error @ StateError::Version { .. }) => return Err(error),
        Ok(None) => None,
        Err(error) => Some(error),
    };
    match (newest, read(&previous)) {
        (None, Ok(None)) => Ok(None),
        (Some(error), Ok(None)) => Err(error),
        // A save was interrupted between its two moves.
        (None, Ok(Some(state))) => Ok(Some(Loaded { state, fallback: None })),
        (Some(error), Ok(Some(state))) => {
            let fallback = format!("{error}; going on from the state before it, after update {}", state.progress.step);
            Ok(Some(Loaded { state, fallback: Some(fallback) }))
        }
        (None, Err(error)) => Err(error),
        (Some(current), Err(previous)) => {
            Err(StateError::BothDamaged { current: Box::new(current), previous: Box::new(previous) })
        }
    }
}

fn names(folder: &Path) -> [PathBuf; 3] {
    ["incoming", "current", "previous"].map(|name| folder.join(name))
}

/// Bytes of the checksums of `len` bytes.
fn checksums_bytes(len: usize) -> usize {
    4 * (len.div_ceil(PIECE_BYTES) + 1)
}

fn checksums(content: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        content.chunks(PIECE_BYTES).flat_map(|piece| crc32fast::hash(piece).to_le_bytes()).collect();
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// The state in the file `path`; none if there is no such file.
fn read(path: &Path) -> Result<Option<State>, StateError> {
    let mut file = match open_ordinary(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::new("open", path)(error).into()),
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(FileError::new("read", path))?;
    parse(&bytes, path).map(Some)
}

fn parse(bytes: &[u8], path: &Path) -> Result<State, StateError> {
    let damaged = |what: String| StateError::Damaged { path: path.to_owned(), what };
    if bytes.len() < FIXED_BYTES || &bytes[..8] != MAGIC {
        return Err(damaged(format!("{} bytes that do not begin like a saved state", bytes.len())));
    }
    let version = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
    if version != VERSION {
        return Err(StateError::Version { path: path.to_owned(), found: version });
    }
    let header_len = u32::from_le_bytes(bytes[12..16].try_into().expect("4 bytes")) as usize;
    let count = u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes"));
    let content_len = usize::try_from(count)
        .ok()
        .filter(|_| header_len <= HEADER_BYTES_MAX)
        .and_then(|count| count.checked_mul(12)?.checked_add(FIXED_BYTES + header_len));
    let expected = content_len.and_then(|len| len.checked_add(checksums_bytes(len)));
    let content_len = match content_len {
        Some(len) if expected == Some(bytes.len()) => len,
        _ => {
            let expected = expected.map_or_else(|| "an impossible number of".to_owned(), |len| len.to_string());
            return Err(damaged(format!("{} bytes, its header announces {expected}", bytes.len())));
        }
    };
    let (content, found) = bytes.split_at(content_len);
    let computed = checksums(content);
    if let Some(piece) = found.chunks(4).zip(computed.chunks(4)).position(|(found, computed)| found != computed) {
        let start = piece * PIECE_BYTES;
        return Err(damaged(match start < content.len() {
            true => {
                format!("bytes {start} to {} do not have their checksum", content.len().min(start + PIECE_BYTES) - 1)
            }
            false => "its list of checksums does not have its own".to_owned(),
        }));
    }
    let (header, values) = content[FIXED_BYTES..].split_at(header_len);
    let header: Header<Identity, Progress> =
        serde_json::from_slice(header).map_err(|error| damaged(format!("its header is not understood: {error}")))?;
    let floats = |part: &[u8]| part.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let third = values.len() / 3;
    Ok(State {
        identity: header.identity,
        progress: header.progress,
        parameters: floats(&values[..third]),
        first_moment: floats(&values[third..2 * third]),
        second_moment: floats(&values[2 * third..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::crash::StopAfter;
    use crate::state::{LossTotal, ValidationPoint};

    fn state(step: u64) -> State {
        let values = |offset: f32| (0..40_000).map(|i| offset + i as f32 * 0.1).collect::<Vec<f32>>();
        State {
            identity: Identity {
                base: "base".into(),
                examples: "examples".into(),
                validation: "validation".into(),
                trained: "trained".into(),
                start: String::new(),
                config: serde_json::Map::new(),
            },
            progress: Progress {
                step,
                tokens: 7 * step,
                passes: vec![LossTotal { loss_sum: 0.1 + 0.2, supervised_tokens: 3 }],
                // Not a short decimal: must come back to the bit.
                first_loss: Some(1.0 / 3.0 + f64::EPSILON),
                validations: vec![ValidationPoint { step: 0, loss: std::f64::consts::LN_2 * 1e-7 }],
                best: None,
                seconds: 1.5,
                held_seconds: 0.0,
                energy_j: Some(1.0 / 3.0),
            },
            parameters: values(step as f32),
            first_moment: values(-0.0),
            second_moment: values(f32::MIN_POSITIVE),
        }
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn save_on(files: &Files, folder: &Path, state: &State, sync: bool) -> Result<u64, FileError> {
        let mut image = Vec::new();
        let values = [&state.parameters, &state.first_moment, &state.second_moment].map(Vec::as_slice);
        lay_out(&mut image, &state.identity, &state.progress, values);
        super::save(files, folder, &mut image, sync)
    }
    fn save(folder: &Path, state: &State, sync: bool) -> Result<u64, FileError> {
        save_on(&Files::default(), folder, state, sync)
    }

    #[test]
    fn what_is_saved_is_loaded_to_the_bit() {
        let folder = folder();
        assert!(load(folder.path()).unwrap().is_none());
        for step in 1..4 {
            let bytes = save(folder.path(), &state(step), step % 2 == 0).unwrap();
            assert_eq!(bytes, std::fs::metadata(folder.path().join("current")).unwrap().len());
            let loaded = load(folder.path()).unwrap().unwrap();
            assert_eq!(loaded.state, state(step));
            assert_eq!(loaded.fallback, None);
        }
        assert_eq!(read(&folder.path().join("previous")).unwrap().unwrap(), state(2));
    }

    #[test]
    fn every_interruption_of_a_save_leaves_the_old_or_the_new_state() {
        let mut places = 0;
        loop {
            let folder = folder();
            save(folder.path(), &state(1), true).unwrap();
            save(folder.path(), &state(2), true).unwrap();
            let (files, _) = StopAfter::operations(places);
            let result = save_on(&files, folder.path(), &state(3), true);
            let loaded = load(folder.path()).unwrap().unwrap();
            let step = loaded.state.progress.step;
            assert!(step == 2 || step == 3, "place {places}: update {step}");
            assert_eq!(loaded.state, state(step), "place {places}");
            assert_eq!(loaded.fallback, None, "place {places}: an interruption is no damage");
            // And the next save works over whatever was left.
            save(folder.path(), &state(4), true).unwrap();
            assert_eq!(load(folder.path()).unwrap().unwrap().state, state(4));
            if result.is_ok() {
                break;
            }
            places += 1;
        }
        assert_eq!(places, 6, "create, write, sync, two moves, sync of the folder");
    }

    #[test]
    fn damage_anywhere_falls_back_to_the_predecessor_and_says_so() {
        let folder = folder();
        let current = folder.path().join("current");
        save(folder.path(), &state(1), false).unwrap();
        save(folder.path(), &state(2), false).unwrap();
        let whole = std::fs::read(&current).unwrap();
        let mut damages: Vec<Vec<u8>> =
            [0, 1, 23, 24, 55, 56, 1000, whole.len() - 1].map(|len| whole[..len].to_vec()).to_vec();
        damages.push([whole.as_slice(), &[0]].concat());
        damages.push(vec![0; whole.len()]);
        // Every field, the header, the numbers and the checksum. (8..12 is the version.)
        for at in [0, 7, 12, 15, 16, 23, 24, 100, whole.len() / 2, whole.len() - 33, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x40;
            damages.push(flipped);
        }
        for (index, damage) in damages.iter().enumerate() {
            std::fs::write(&current, damage).unwrap();
            let loaded = load(folder.path()).unwrap().unwrap();
            assert_eq!(loaded.state, state(1), "damage {index}");
            let fallback = loaded.fallback.unwrap();
            assert!(fallback.contains("current is damaged") && fallback.contains("after update 1"), "{fallback}");
        }
        std::fs::write(folder.path().join("previous"), b"x").unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(matches!(error, StateError::BothDamaged { .. }), "{error}");
        std::fs::remove_file(folder.path().join("previous")).unwrap();
        assert!(matches!(load(folder.path()).unwrap_err(), StateError::Damaged { .. }));
    }

    #[test]
    fn a_newer_format_is_refused_and_not_passed_over() {
        let folder = folder();
        save(folder.path(), &state(1), false).unwrap();
        save(folder.path(), &state(2), false).unwrap();
        let current = folder.path().join("current");
        let mut bytes = std::fs::read(&current).unwrap();
        bytes[8] = 9;
        std::fs::write(&current, bytes).unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(error.to_string().contains("format version 9"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_and_a_read_only_folder_leave_the_earlier_state() {
        let folder = folder();
        save(folder.path(), &state(1), false).unwrap();
        // Every write to this device fails as on a full disk.
        std::os::unix::fs::symlink("/dev/full", folder.path().join("incoming")).unwrap();
        let error = save(folder.path(), &state(2), false).unwrap_err();
        assert_eq!(error.source.kind(), std::io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("incoming") && error.to_string().contains("free some space"), "{error}");
        assert_eq!(load(folder.path()).unwrap().unwrap().state, state(1));

        let error = save(Path::new("/proc/self"), &state(2), false).unwrap_err();
        assert!(error.to_string().contains("could not create /proc/self/incoming"), "{error}");
    }
}
