//! Read-only mapped files: the bytes of model files and of the packed cache.

use std::fs::File;
use std::io;

/// A whole file mapped read-only. Pages are read when they are touched, and the system may drop them again.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
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
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.as_ref(), b"weights", "a mapping outlives the file's name");
    }
}
