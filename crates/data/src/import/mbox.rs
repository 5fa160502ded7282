//! Mailboxes in one file, as Thunderbird and Google Takeout write them.

use super::lines::read_limited_line;
use super::mail::{MESSAGE_BYTES_MAX, Store};
use super::{ImportError, ImportOptions, Importer, Needs, Sink, open};
use std::io::BufReader;
use std::path::Path;

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "mbox",
    about: "e-mails that you wrote, each with the message that it answers",
    how_to: "Gmail: takeout.google.com, choose only Mail; the file is All mail Including Spam and Trash.mbox. Thunderbird: the\n\
             files Sent and INBOX in the folder of the account (Account settings, Server settings, Local directory). Apple\n\
             Mail: Mailbox, Export Mailbox. Give all files that hold what you wrote and what you answered; say with --me\n\
             which addresses are yours. Quoted and forwarded text and signatures are taken out.",
    needs: Needs { me: true, columns: false },
    read: Some(read),
};

const LINE_BYTES_MAX: usize = 1 << 20;

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    let mut store = Store::marked();
    for path in &options.sources {
        store.add_file(path);
        each_message(path, |bytes, offset, length| store.add(bytes, offset, length, options, sink))?;
    }
    store.take_mine(sink)
}

/// Hands over the messages of a mailbox: each begins after a line that begins with `From `, at the top or after an empty
/// line.
fn each_message(path: &Path, mut take: impl FnMut(&[u8], u64, usize)) -> Result<(), ImportError> {
    let mut input = BufReader::with_capacity(1 << 16, open(path)?);
    let (mut line, mut message) = (Vec::new(), Vec::new());
    let (mut place, mut start): (u64, Option<u64>) = (0, None);
    let mut after_empty = true;
    loop {
        let count = read_limited_line(&mut input, &mut line, LINE_BYTES_MAX).map_err(ImportError::read(path))?;
        let begins = after_empty && line.starts_with(b"From ");
        if count == 0 || begins {
            if let Some(start) = start {
                take(&message, start, (place - start) as usize);
            }
            message.clear();
        }
        if count == 0 {
            break;
        }
        place += count as u64;
        if begins {
            start = Some(place);
        } else if start.is_some() && message.len() < MESSAGE_BYTES_MAX {
            message.extend_from_slice(&line);
            message.push(b'\n');
        }
        after_empty = line.iter().all(u8::is_ascii_whitespace);
    }
    match start {
        Some(_) => Ok(()),
        None => Err(ImportError::source(path, "no line begins with \"From \", as messages of an mbox file do")),
    }
}
