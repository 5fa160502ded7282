//! Folders with one file a message: Maildir, and exports of .eml files.

use super::mail::{MESSAGE_BYTES_MAX, Store};
use super::notes::files_below;
use super::{ImportError, ImportOptions, Importer, Needs, Sink};
use std::io::Read;
use std::path::Path;

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "maildir",
    about: "e-mails that you wrote, from a folder with one file a message",
    how_to: "The folder that holds cur and new, or any folder above (mbsync, offlineimap, notmuch), or a folder of .eml files.\n\
             Say with --me which addresses are yours. Quoted and forwarded text and signatures are taken out.",
    needs: Needs { me: true, columns: false },
    read: Some(read),
};

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    let mut store = Store::default();
    for folder in &options.sources {
        for path in files_below(folder, true, sink)? {
            let parent =
                path.parent().and_then(|parent| parent.file_name()).map(|name| name.to_string_lossy().into_owned());
            let is_message = matches!(parent.as_deref(), Some("cur" | "new"))
                || path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("eml"));
            if !is_message {
                sink.leave(path.display(), "files that are no message");
                continue;
            }
            let Ok((bytes, length)) = beginning(&path) else {
                sink.leave(path.display(), "files that cannot be read");
                continue;
            };
            store.add_file(&path);
            store.add(&bytes, 0, length, options, sink);
        }
    }
    store.take_mine(sink)
}

/// As much of a message as is looked at, and how long it is.
fn beginning(path: &Path) -> std::io::Result<(Vec<u8>, usize)> {
    let file = std::fs::File::open(path)?;
    let length = file.metadata()?.len() as usize;
    let mut bytes = Vec::new();
    file.take(MESSAGE_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok((bytes, length))
}
