//! A disk that forgets what nobody waited for: the power-cut model.
//!
//! The real folder always holds what a process sees. Beside it this module keeps what has certainly reached the disk:
//! a file's content as of its last sync, a folder's names as of the folder's last sync. When the power is cut, any part
//! of the rest may have arrived: of a file a beginning of its later writes, the last of them torn, or its new length
//! with zeros in it; of a folder's changes a beginning, or any subset. This is harsher than the journal of any common
//! file system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use model::Random;
use train::FileOperation;

#[derive(Clone, Default)]
struct Contents {
    /// On the disk for certain.
    durable: Vec<u8>,
    /// Made since, in order.
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Append(Vec<u8>),
    Cut(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum Node {
    File(usize),
    Folder,
}

#[derive(Clone, Default)]
struct Names {
    /// As a process sees them.
    live: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<NameChange>,
}

#[derive(Clone)]
enum NameChange {
    Make(PathBuf, Node),
    Move(PathBuf, PathBuf, Node),
    Remove(PathBuf),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            NameChange::Make(path, node) => {
                names.insert(path.clone(), *node);
            }
            NameChange::Move(from, to, node) => {
                if names.get(from) == Some(node) {
                    names.remove(from);
                }
                names.insert(to.clone(), *node);
            }
            NameChange::Remove(path) => {
                names.remove(path);
            }
        }
    }
}

/// The disk below one folder, which must exist and be empty at the beginning.
pub struct Disk {
    root: PathBuf,
    files: Vec<Contents>,
    folders: BTreeMap<PathBuf, Names>,
}

impl Disk {
    pub fn new(root: &Path) -> Self {
        let folders = BTreeMap::from([(root.to_owned(), Names::default())]);
        Self { root: root.to_owned(), files: Vec::new(), folders }
    }

    /// Notes an operation that is about to be carried out.
    pub fn note(&mut self, operation: FileOperation) {
        match operation {
            FileOperation::CreateFolder(path) => {
                self.folders.entry(path.to_owned()).or_default();
                self.make(path, Node::Folder);
            }
            FileOperation::MakePrivate(_) => {}
            FileOperation::CreateFile(path) => {
                let file = self.file(path);
                self.files[file].pending.push(Change::Cut(0));
            }
            FileOperation::AppendFile(path) => {
                self.file(path);
            }
            FileOperation::Write(path, bytes) => self.append(path, bytes),
            FileOperation::Cut(path, len) => {
                let file = self.file(path);
                self.files[file].pending.push(Change::Cut(len as usize));
            }
            FileOperation::Sync(path) => {
                let file = self.file(path);
                let contents = &mut self.files[file];
                for change in std::mem::take(&mut contents.pending) {
                    change.apply(&mut contents.durable);
                }
            }
            FileOperation::Rename(from, to) => {
                let names = self.names_of(from);
                if let Some(node) = names.live.get(from).copied() {
                    let change = NameChange::Move(from.to_owned(), to.to_owned(), node);
                    change.apply(&mut names.live);
                    names.pending.push(change);
                }
            }
            FileOperation::Remove(path) => {
                let names = self.names_of(path);
                let change = NameChange::Remove(path.to_owned());
                change.apply(&mut names.live);
                names.pending.push(change);
            }
            FileOperation::SyncFolder(path) => {
                if let Some(names) = self.folders.get_mut(path) {
                    names.durable = names.live.clone();
                    names.pending.clear();
                }
            }
        }
    }

    /// Notes a write of which only a part is carried out.
    pub fn append(&mut self, path: &Path, bytes: &[u8]) {
        let file = self.file(path);
        self.files[file].pending.push(Change::Append(bytes.to_vec()));
    }

    fn names_of(&mut self, path: &Path) -> &mut Names {
        let folder = path.parent().expect("everything lies below the root");
        self.folders.entry(folder.to_owned()).or_default()
    }

    fn make(&mut self, path: &Path, node: Node) {
        let names = self.names_of(path);
        let change = NameChange::Make(path.to_owned(), node);
        change.apply(&mut names.live);
        names.pending.push(change);
    }

    /// The file called `path`, made if there is none.
    fn file(&mut self, path: &Path) -> usize {
        if let Some(Node::File(file)) = self.names_of(path).live.get(path) {
            return *file;
        }
        let file = self.files.len();
        self.files.push(Contents::default());
        self.make(path, Node::File(file));
        file
    }

    /// Cuts the power: the real folder then holds what the disk held, and that is all there ever was.
    pub fn lose_power(&mut self, random: &mut Random) -> Result<()> {
        let mut files = Vec::new();
        for contents in &self.files {
            files.push(contents.survivors(random));
        }
        for names in self.folders.values_mut() {
            names.live = names.survivors(random);
            names.durable = names.live.clone();
            names.pending.clear();
        }
        self.files = files.into_iter().map(|durable| Contents { durable, pending: Vec::new() }).collect();
        // What lies in a folder whose own name was lost is lost with it.
        let mut reached = BTreeMap::new();
        let mut to_visit = vec![self.root.clone()];
        while let Some(folder) = to_visit.pop() {
            let Some(names) = self.folders.get(&folder) else { continue };
            let folders = names.live.iter().filter(|(_, node)| **node == Node::Folder);
            to_visit.extend(folders.map(|(path, _)| path.clone()));
            reached.insert(folder.clone(), names.clone());
        }
        self.folders = reached;
        self.write_out().context("the simulated disk could not be written out")
    }

    fn write_out(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.root)? {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(&path)? } else { std::fs::remove_file(&path)? }
        }
        // Parents come before what is in them.
        for (folder, names) in &self.folders {
            std::fs::create_dir_all(folder)?;
            for (path, node) in &names.live {
                match node {
                    Node::Folder => std::fs::create_dir_all(path)?,
                    Node::File(file) => std::fs::write(path, &self.files[*file].durable)?,
                }
            }
        }
        Ok(())
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Append(bytes) => content.extend_from_slice(bytes),
            Change::Cut(len) => content.resize(*len, 0),
        }
    }
}

impl Contents {
    /// What of a file a power cut leaves.
    fn survivors(&self, random: &mut Random) -> Vec<u8> {
        let mut content = self.durable.clone();
        let whole = below(random, self.pending.len() + 1);
        for change in &self.pending[..whole] {
            change.apply(&mut content);
        }
        if let Some(Change::Append(bytes)) = self.pending.get(whole) {
            content.extend_from_slice(&bytes[..below(random, bytes.len() + 1)]);
            // The length is often written before the content.
            if below(random, 2) == 0 {
                content.resize(content.len() + below(random, bytes.len() + 1), 0);
            }
        }
        content
    }
}

impl Names {
    /// Which names of a folder a power cut leaves.
    fn survivors(&self, random: &mut Random) -> BTreeMap<PathBuf, Node> {
        let mut names = self.durable.clone();
        let (ordered, count) = (below(random, 2) == 0, below(random, self.pending.len() + 1));
        for (index, change) in self.pending.iter().enumerate() {
            if if ordered { index < count } else { below(random, 2) == 0 } {
                change.apply(&mut names);
            }
        }
        names
    }
}

/// A number from 0 to `bound` - 1.
pub fn below(random: &mut Random, bound: usize) -> usize {
    ((u128::from(random.next_u64()) * bound as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a cut can leave of a file that is replaced, after each number of operations: the old content or the
    /// new one and never nothing, unless a sync is left out.
    fn endings(leave_out_sync: bool) -> std::collections::BTreeSet<Vec<u8>> {
        let mut endings = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let folder = tempfile::tempdir().unwrap();
            let (name, new) = (folder.path().join("name"), folder.path().join("new"));
            let mut disk = Disk::new(folder.path());
            for operation in [
                FileOperation::CreateFile(&name),
                FileOperation::Write(&name, b"old"),
                FileOperation::Sync(&name),
                FileOperation::SyncFolder(folder.path()),
            ] {
                disk.note(operation);
            }
            let replace = [
                FileOperation::CreateFile(&new),
                FileOperation::Write(&new, b"something new"),
                FileOperation::Sync(&new),
                FileOperation::Rename(&new, &name),
                FileOperation::SyncFolder(folder.path()),
            ];
            let mut random = Random::new(seed);
            for operation in &replace[..below(&mut random, replace.len() + 1)] {
                if !(leave_out_sync && matches!(operation, FileOperation::Sync(_))) {
                    disk.note(*operation);
                }
            }
            disk.lose_power(&mut random).unwrap();
            endings.insert(std::fs::read(&name).unwrap());
        }
        endings
    }

    #[test]
    fn a_careful_replacement_survives_and_a_careless_one_is_caught() {
        let careful = endings(false).into_iter().collect::<Vec<_>>();
        assert_eq!(careful, [b"old".to_vec(), b"something new".to_vec()]);
        let careless = endings(true);
        assert!(careless.len() > 2 && careless.contains(&Vec::new()), "{careless:?}");
    }

    #[test]
    fn names_without_a_sync_of_their_folder_may_be_lost() {
        let mut lost = 0;
        for seed in 0..100 {
            let folder = tempfile::tempdir().unwrap();
            let (inner, file) = (folder.path().join("inner"), folder.path().join("inner/file"));
            let mut disk = Disk::new(folder.path());
            for operation in [
                FileOperation::CreateFolder(&inner),
                FileOperation::CreateFile(&file),
                FileOperation::Write(&file, b"content"),
                FileOperation::Sync(&file),
                FileOperation::SyncFolder(&inner),
            ] {
                disk.note(operation);
            }
            disk.lose_power(&mut Random::new(seed)).unwrap();
            assert!(!inner.exists() || std::fs::read(&file).unwrap() == b"content");
            lost += usize::from(!inner.exists());
        }
        assert!((20..80).contains(&lost), "{lost} of 100");
    }
}
