//! Folders of Markdown and text files: a diary, a vault of notes.

use super::{ImportError, ImportOptions, Importer, Needs, Sink};
use serde_json::{Map, Value};
use std::io::Read;
use std::path::{Path, PathBuf};

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "notes",
    about: "Markdown and text files of a folder, every word learned",
    how_to: "Give the folder of your notes (Obsidian, Logseq, a diary); it is searched with its folders. Files ending in .md,\n\
             .markdown and .txt are read; hidden files and folders, and links to other places, are not followed. A long note\n\
             becomes several records, divided between paragraphs. The time is that of the file's last change.",
    needs: Needs { me: false, columns: false },
    read: Some(read),
};

const ENDINGS: [&str; 3] = ["md", "markdown", "txt"];
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A note is divided into records of about so many characters: longer text is cut when it is learned.
const RECORD_CHARACTERS: usize = 3000;

/// Folders inside folders, at most.
const DEPTH_MAX: usize = 64;

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for source in &options.sources {
        let metadata = std::fs::metadata(source).map_err(ImportError::read(source))?;
        if metadata.is_file() {
            read_note(source, sink)?;
            continue;
        }
        for path in files_below(source, false, sink)? {
            read_note(&path, sink)?;
        }
    }
    Ok(())
}

/// The files of a folder and its folders, in the order of their names; links are not followed, so there is no circle.
pub(super) fn files_below(folder: &Path, with_hidden: bool, sink: &mut Sink) -> Result<Vec<PathBuf>, ImportError> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(source) if depth == 0 => return Err(ImportError::Read { path: folder, source }),
            Err(_) => {
                sink.leave(folder.display(), "folders that cannot be read");
                continue;
            }
        };
        for entry in entries {
            let entry = entry.and_then(|entry| Ok((entry.path(), entry.file_name(), entry.file_type()?)));
            let Ok((path, name, kind)) = entry else {
                sink.leave(folder.display(), "files that cannot be read");
                continue;
            };
            if !with_hidden && name.to_string_lossy().starts_with('.') && kind.is_dir() {
                sink.leave(path.display(), "hidden folders");
            } else if kind.is_symlink() {
                sink.leave(path.display(), "links to other places");
            } else if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
            } else if kind.is_file() {
                files.push(path);
            } else {
                sink.leave(path.display(), "what is no file, or lies too deep");
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read_note(path: &Path, sink: &mut Sink) -> Result<(), ImportError> {
    let place = path.display().to_string();
    let ending = path.extension().map_or(String::new(), |ending| ending.to_string_lossy().to_lowercase());
    let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    if name.starts_with('.') || !ENDINGS.contains(&ending.as_str()) {
        sink.leave(place, "files that do not end in .md, .markdown or .txt");
        return Ok(());
    }
    let read = || -> std::io::Result<(Vec<u8>, Option<i64>)> {
        let file = std::fs::File::open(path)?;
        let changed = file.metadata()?.modified().ok();
        let since_1970 = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok((bytes, since_1970.map(|since| since.as_secs() as i64)))
    };
    let Ok((bytes, time)) = read() else {
        sink.leave(place, "files that cannot be read");
        return Ok(());
    };
    if bytes.len() as u64 > FILE_BYTES_MAX {
        sink.leave(place, "files larger than 4 MiB");
        return Ok(());
    }
    let Ok(text) = String::from_utf8(bytes) else {
        sink.leave(place, "files that are not UTF-8");
        return Ok(());
    };
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let pieces = pieces(without_front_matter(&text));
    if pieces.is_empty() {
        sink.leave(place, "empty notes");
        return Ok(());
    }
    let title = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    for piece in pieces {
        let mut fields: Map<String, Value> = Map::new();
        fields.insert("task".into(), "text".into());
        fields.insert("title".into(), title.clone().into());
        fields.insert("time".into(), time.map_or(Value::Null, Value::from));
        fields.insert("text".into(), piece.into());
        sink.take(&place, fields)?;
    }
    Ok(())
}

/// The text after a block of properties between two lines of `---` at the top.
fn without_front_matter(text: &str) -> &str {
    let Some(rest) = text.strip_prefix("---\n") else { return text };
    rest.split_once("\n---\n").map_or(text, |(_, after)| after)
}

/// Pieces of about [`RECORD_CHARACTERS`], divided at empty lines.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n").map(str::trim_end).filter(|paragraph| !paragraph.trim().is_empty()) {
        match pieces.last_mut() {
            Some(last) if last.chars().count() + paragraph.chars().count() <= RECORD_CHARACTERS => {
                last.push_str("\n\n");
                last.push_str(paragraph);
            }
            _ => pieces.push(paragraph.to_string()),
        }
    }
    pieces
}
