//! Read-only mapped files: the bytes of model files and of the packed cache.

use std::fs::File;
use std::io;
use std::ops::Range;

/// A whole file mapped read-only. Pages are read when they are touched, and the system may drop them again.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl MappedFile {
    /// Asks the system to read bytes `range` from the disk ahead of their use. Only advice: it may be ignored.
    pub fn read_ahead(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.0.len(), "bytes {range:?} of {}", self.0.len());
        #[cfg(unix)]
        let _ = self.0.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
    }

    /// Takes the pages that hold bytes `range` out of this process' memory. A later access reads them again, from the
    /// system's file cache or the disk. Only advice: where it is ignored, memory stays taken and nothing else changes.
    pub fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.0.len(), "bytes {range:?} of {}", self.0.len());
        // SAFETY: the advice is unsafe because it drops what was written to a private mapping. Nobody writes to this
        // one, so a dropped page comes back from the file with the same bytes, also under a reader at this moment.
        #[cfg(unix)]
        unsafe {
            let _ = self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len());
        }
    }
}

/// Maps `file` read-only from its first to its last byte at this moment. An empty file gives no bytes.
pub fn map_file(file: &File) -> io::Result<MappedFile> {
    // SAFETY: the mapping is private and read-only, so this process never writes to the bytes behind the slice. What
    // remains is another process changing the file meanwhile. Our own files are never written in place (temporary
    // file, then rename: the mapping keeps the old file), and model files are treated by every tool as immutable once
    // they are complete. Every bit pattern is a valid `u8`, and readers check sizes and offsets before they use them,
    // so a changed byte gives wrong numbers, and a shortened file ends the process with SIGBUS: both as if the memory
    // itself had failed, and neither reachable by what a file contains.
    unsafe { memmap2::Mmap::map(file) }.map(MappedFile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn maps_the_whole_file_and_the_empty_file() {
        let path = std::env::temp_dir().join(format!("selftune-map-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        assert!(map_file(&file).unwrap().as_ref().is_empty());
        file.write_all(b"weights").unwrap();
        let mapped = map_file(&file).unwrap();
        assert_eq!(mapped.as_ref(), b"weights");
        mapped.read_ahead(0..7);
        mapped.release(2..5);
        assert_eq!(mapped.as_ref(), b"weights", "released bytes come back");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.as_ref(), b"weights", "a mapping outlives the file's name");
    }
    /// Resident bytes of mapped files of this process.
    #[cfg(target_os = "linux")]
    fn resident_file_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn releasing_gives_memory_back() {
        const BYTES: usize = 64 << 20;
        let path = std::env::temp_dir().join(format!("selftune-map-large-{}", std::process::id()));
        std::fs::write(&path, vec![7u8; BYTES]).unwrap();
        let mapped = map_file(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let before = resident_file_bytes();
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        assert_eq!(sum(mapped.as_ref()), 7 * BYTES as u64);
        let touched = resident_file_bytes();
        assert!(touched > before + BYTES * 3 / 4, "{touched} after {before}");
        mapped.release(0..BYTES);
        let released = resident_file_bytes();
        assert!(released + BYTES * 3 / 4 < touched, "{released} after {touched}");
        assert_eq!(sum(mapped.as_ref()), 7 * BYTES as u64);
    }
}
