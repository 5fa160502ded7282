//! Adapters that were accepted, under a name of their own: every version is kept, one is in use.
//!
//! `SELFTUNE_HOME/adapters/NAME/v001/` is a copy of the adapter with `accepted.json`; `NAME/current` names the version in
//! use. A version appears whole or not at all, and is never written again.

use crate::failure::{Failure, InputError};
use crate::model_store;
use anyhow::Context;
use eval::Acceptance;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a version remembers of its making.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcceptedNote {
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub run: PathBuf,
    pub model_name: String,
    /// Content hash of the base model, and those of the adapters below.
    pub base: String,
    pub below: Vec<String>,
    pub accepted_unix_seconds: f64,
    pub acceptance: Acceptance,
}

/// One accepted version.
#[derive(Clone, Debug, Serialize)]
pub struct Version {
    pub number: u32,
    /// An adapter folder in PEFT layout.
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub folder: PathBuf,
    pub in_use: bool,
    pub note: AcceptedNote,
}

const NOTE: &str = "accepted.json";
const CURRENT: &str = "current";

fn store() -> Result<PathBuf, Failure> {
    Ok(model_store::home()?.join("adapters"))
}

/// Names become folders: no path, nothing hidden.
pub fn is_name(name: &str) -> bool {
    let plain = |character: char| character.is_alphanumeric() || "-_.".contains(character);
    !name.is_empty() && name.len() <= 80 && !name.starts_with('.') && name.chars().all(plain)
}

/// What a person or history is called where no name was given.
pub fn name_for(text: &str) -> String {
    let plain = |character: char| if character.is_alphanumeric() || "-_".contains(character) { character } else { '-' };
    let name: String = text.chars().map(plain).take(60).collect();
    let name = name.trim_matches('-').to_owned();
    if is_name(&name) { name } else { "me".to_owned() }
}

/// All names with an accepted adapter, sorted.
pub fn names() -> Result<Vec<String>, Failure> {
    let Ok(entries) = std::fs::read_dir(store()?) else { return Ok(Vec::new()) };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_name(name))
        .collect();
    names.sort();
    Ok(names)
}

/// The versions of a name, oldest first. Empty if there is none.
pub fn versions(name: &str) -> Result<Vec<Version>, Failure> {
    if !is_name(name) {
        return Err(Failure::usage(format!("{name:?} is no name of an adapter: letters, digits, '-', '_' and '.'")));
    }
    let folder = store()?.join(name);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(Vec::new()) };
    // Versions can be listed, and one chosen, whatever happened to this file: `current` says what is wrong with it.
    let current = number_in_use(&folder).ok().flatten();
    let mut versions = Vec::new();
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let number = file_name.to_str().and_then(|name| name.strip_prefix('v')).and_then(|text| text.parse().ok());
        let Some(number) = number else { continue };
        let path = entry.path().join(NOTE);
        let note = train::read_own_text(&path)
            .map_err(anyhow::Error::new)
            .and_then(|text| Ok(serde_json::from_str(&text.context("it is not there")?)?));
        let note = note.bad_input(format!(
            "cannot use {}: put it back from a copy, or remove the folder {} to do without version {number} of {name}",
            path.display(),
            entry.path().display()
        ))?;
        versions.push(Version { number, folder: entry.path(), in_use: Some(number) == current, note });
    }
    versions.sort_by_key(|version| version.number);
    Ok(versions)
}

/// The number in the file that names the version in use; none without one.
fn number_in_use(folder: &Path) -> anyhow::Result<Option<u32>> {
    let Some(text) = train::read_own_text(&folder.join(CURRENT))? else { return Ok(None) };
    let number =
        text.trim().parse().ok().with_context(|| format!("{:?} is no number of a version", shortened(&text)))?;
    Ok(Some(number))
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(40).collect()
}

/// The version in use.
pub fn current(name: &str) -> Result<Option<Version>, Failure> {
    let versions = versions(name)?;
    let folder = store()?.join(name);
    let known = versions.iter().map(|version| version.number.to_string()).collect::<Vec<_>>().join(", ");
    let context = || {
        format!(
            "{} does not tell which version of {name} is in use; `selftune rollback {name} --to VERSION` chooses one of {known}",
            folder.join(CURRENT).display()
        )
    };
    let number = number_in_use(&folder).bad_input(context())?;
    let version = versions.into_iter().find(|version| version.in_use);
    match (number, &version) {
        (Some(number), None) if !known.is_empty() => {
            Err(Failure::input(format!("{}: there is no version {number}", context())))
        }
        _ => Ok(version),
    }
}

/// The folder of the version in use, if `path` is the name of an accepted adapter and nothing lies there.
pub fn folder_of(path: &Path) -> Result<Option<PathBuf>, Failure> {
    match path.to_str().filter(|name| is_name(name) && !path.exists()) {
        Some(name) => Ok(current(name)?.map(|version| version.folder)),
        None => Ok(None),
    }
}

/// Keeps a copy of an adapter as the next version, and uses it from now on.
pub fn keep(name: &str, adapter: &Path, note: &AcceptedNote) -> Result<Version, Failure> {
    let number = versions(name)?.last().map_or(1, |version| version.number + 1);
    let folder = store()?.join(name);
    crate::study::make_private_folder(&folder)?;
    let made = private_folder().prefix(".new-").tempdir_in(&folder).context("cannot keep the adapter")?;
    let entries = std::fs::read_dir(adapter).with_context(|| format!("cannot read {}", adapter.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let copy = made.path().join(entry.file_name());
            std::fs::copy(entry.path(), &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        }
    }
    crate::study::write_whole(&made.path().join(NOTE), &format!("{}\n", serde_json::to_string_pretty(note)?))?;
    let path = folder.join(format!("v{number:03}"));
    std::fs::rename(made.keep(), &path).with_context(|| format!("cannot keep {}", path.display()))?;
    use_version(name, number)?;
    Ok(Version { number, folder: path, in_use: true, note: note.clone() })
}

/// Adapters remember what they were trained on: their folders are their owner's only.
fn private_folder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder
}

/// Removes a version. If it was in use, the newest of those left is, or none.
pub fn remove(name: &str, number: u32) -> Result<(), Failure> {
    let all = versions(name)?;
    let Some(version) = all.iter().find(|version| version.number == number) else { return Ok(()) };
    if version.in_use {
        match all.iter().rev().find(|other| other.number != number) {
            Some(newest) => use_version(name, newest.number)?,
            None => {
                let current = store()?.join(name).join(CURRENT);
                std::fs::remove_file(&current).with_context(|| format!("cannot remove {}", current.display()))?;
            }
        }
    }
    let folder = &version.folder;
    // Out of the list at once: a removal that is interrupted leaves no half version, only a hidden folder.
    let hidden = folder.with_file_name(format!(".gone-{number:03}"));
    let removed = std::fs::rename(folder, &hidden).and_then(|()| std::fs::remove_dir_all(&hidden));
    Ok(removed.with_context(|| format!("cannot remove {}", folder.display()))?)
}

/// Uses a version that was accepted before.
pub fn use_version(name: &str, number: u32) -> Result<(), Failure> {
    crate::study::write_whole(&store()?.join(name).join(CURRENT), &format!("{number}\n"))
}
