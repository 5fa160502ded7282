//! Paths that come from outside: they may lead to anything, and need not be text.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a file to read. What is no ordinary file is refused: a pipe would wait for a writer for ever.
pub fn open_ordinary(path: &Path) -> io::Result<File> {
    if std::fs::metadata(path)?.is_file() { File::open(path) } else { Err(not_ordinary()) }
}

/// The error of what is no ordinary file where one is needed.
pub fn not_ordinary() -> io::Error {
    io::Error::other("it is no ordinary file; remove it, or move it away")
}

/// For `#[serde(serialize_with)]` of a path that is only shown: what is not UTF-8 in it becomes `U+FFFD`, where serde
/// would refuse the whole value.
pub fn serialize_lossily<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    #[test]
    fn a_path_that_is_no_text_is_shown() {
        #[derive(serde::Serialize)]
        struct Shown {
            #[serde(serialize_with = "serialize_lossily")]
            path: PathBuf,
        }
        let shown = Shown { path: OsStr::from_bytes(b"runs/\xff").into() };
        assert_eq!(serde_json::to_string(&shown).unwrap(), "{\"path\":\"runs/\u{fffd}\"}");
    }

    #[test]
    fn only_ordinary_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open_ordinary(folder.path()).unwrap_err().to_string().contains("no ordinary file"));
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(open_ordinary(&pipe).unwrap_err().to_string().contains("no ordinary file"));
        assert_eq!(open_ordinary(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
