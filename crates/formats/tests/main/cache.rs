//! The packed cache: found again, never believed without reason, never in the way.

use crate::support::*;
use formats::{CacheMode, CacheReport, LoadOptions, LoadStage, LoadedModel, LoadedTensor};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn load_cached(path: &Path, cache: CacheMode) -> LoadedModel {
    let options = LoadOptions { cache, ..LoadOptions::default() };
    formats::load_model(path, &options, &mut |_| {}).unwrap()
}

fn tiny_model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    fs::copy(fixture("tiny_llama.gguf"), &path).unwrap();
    path
}

fn assert_same_tensors(one: &LoadedModel, two: &LoadedModel) {
    assert!(one.tensors.keys().eq(two.tensors.keys()));
    for (name, tensor) in &one.tensors {
        match (tensor, &two.tensors[name]) {
            (LoadedTensor::Packed(a), LoadedTensor::Packed(b)) => {
                assert_eq!(a.header(), b.header(), "{name}");
                assert!(a.bytes() == b.bytes(), "{name}");
            }
            (LoadedTensor::Float(a), LoadedTensor::Float(b)) => assert_eq!(a.as_slice(), b.as_slice(), "{name}"),
            _ => panic!("{name} is a matrix in one and a vector in the other"),
        }
    }
    assert_eq!((&one.content_hash, &one.config, &one.special), (&two.content_hash, &two.config, &two.special));
}

/// Gives the name `path` to a new file: one that is mapped must not be cut short where it is.
fn replace(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, bytes).unwrap();
    fs::rename(beside, path).unwrap();
}

/// The cache file that was written for `model`.
fn written(model: &LoadedModel) -> PathBuf {
    match &model.cache {
        CacheReport::Written { path } => path.clone(),
        other => panic!("expected a written cache, found {other:?}"),
    }
}

#[test]
fn a_second_load_maps_what_the_first_one_packed() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let first = load_cached(&path, CacheMode::BesideModel);
    let cache = written(&first);
    assert!(cache.file_name().unwrap().to_str().unwrap().contains(&first.content_hash[..16]));
    let mut stages = Vec::new();
    let second =
        formats::load_model(&path, &LoadOptions::default(), &mut |progress| stages.push(progress.stage)).unwrap();
    assert_eq!(second.cache, CacheReport::Hit { path: cache });
    assert_eq!(stages, [], "nothing was hashed or packed");
    assert_same_tensors(&first, &second);
    assert_same_tensors(&first, &load(&path).unwrap());
}

#[test]
fn progress_counts_every_byte_of_both_stages() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let mut last = std::collections::HashMap::new();
    let options = LoadOptions::default();
    formats::load_model(&path, &options, &mut |progress| {
        let before = last.insert(progress.stage == LoadStage::Packing, *progress);
        assert!(before.is_none_or(|before| before.bytes_done < progress.bytes_done));
    })
    .unwrap();
    let bytes = formats::describe_model(&path).unwrap().tensor_bytes;
    for stage in [false, true] {
        assert_eq!((last[&stage].bytes_done, last[&stage].bytes_total), (bytes, bytes));
    }
}

#[test]
fn a_copied_or_touched_model_finds_its_cache_by_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let cache = written(&load_cached(&path, CacheMode::BesideModel));
    fs::copy(&path, folder.path().join("copy")).unwrap();
    fs::rename(folder.path().join("copy"), &path).unwrap();
    assert_eq!(load_cached(&path, CacheMode::BesideModel).cache, CacheReport::Hit { path: cache.clone() });
    fs::remove_file(folder.path().join("tiny.gguf.cache-index.json")).unwrap();
    assert_eq!(load_cached(&path, CacheMode::BesideModel).cache, CacheReport::Hit { path: cache });
}

#[test]
fn a_changed_model_gets_another_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let first = load_cached(&path, CacheMode::BesideModel);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let second = load_cached(&path, CacheMode::BesideModel);
    assert_ne!(written(&first), written(&second));
    assert_ne!(first.content_hash, second.content_hash);
}

#[test]
fn float_models_have_a_cache_for_each_way_of_quantizing() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model_fixture("qwen2/hf"), folder.path());
    let mut paths = std::collections::BTreeSet::new();
    for (quantize_bits, quantize_group_size) in [(4, 64), (4, 32), (8, 64)] {
        let options = LoadOptions { quantize_bits, quantize_group_size, cache: CacheMode::BesideModel };
        let model = formats::load_model(folder.path(), &options, &mut |_| {}).unwrap();
        paths.insert(written(&model));
        assert_same_tensors(&model, &load_with(folder.path(), quantize_bits, quantize_group_size).unwrap());
        let again = formats::load_model(folder.path(), &options, &mut |_| {}).unwrap();
        assert!(matches!(again.cache, CacheReport::Hit { .. }));
        assert_same_tensors(&model, &again);
    }
    assert_eq!(paths.len(), 3);
}

/// Every damage must be seen, the cache made anew, and the model must be right.
#[test]
fn damaged_caches_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let right = load_cached(&path, CacheMode::BesideModel);
    let cache = written(&right);
    let good = fs::read(&cache).unwrap();
    let table_start = u64::from_le_bytes(good[24..32].try_into().unwrap()) as usize;
    let mut damages: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), Vec::new()),
        ("foreign".into(), b"not a cache at all, but long enough to hold a header".repeat(10)),
        ("longer".into(), [good.as_slice(), b"x"].concat()),
    ];
    for len in [1, 127, 128, 129, table_start - 1, table_start, good.len() - 1] {
        damages.push((format!("cut to {len}"), good[..len].to_vec()));
    }
    // Magic, versions, byte order, table place, checksum, first and last byte of the body, the table.
    for at in [0, 8, 12, 16, 24, 31, 32, 40, 71, 128, table_start / 2, table_start, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        damages.push((format!("byte {at} flipped"), bytes));
    }
    for (what, bytes) in damages {
        replace(&cache, &bytes);
        let model = load_cached(&path, CacheMode::BesideModel);
        // Padding between tensors is the only place where a flipped bit does not matter.
        assert_eq!(model.cache, CacheReport::Written { path: cache.clone() }, "{what}");
        assert_same_tensors(&model, &right);
        assert_eq!(fs::read(&cache).unwrap(), good, "{what}");
    }
}

/// A table with a right checksum and wrong entries: what a hostile or buggy writer could leave.
#[test]
fn tables_that_lie_are_not_believed() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let right = load_cached(&path, CacheMode::BesideModel);
    let cache = written(&right);
    let good = fs::read(&cache).unwrap();
    let start = u64::from_le_bytes(good[24..32].try_into().unwrap()) as usize;
    let table: serde_json::Value = serde_json::from_slice(&good[start..]).unwrap();
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 7] = [
        ("offset", |table| table["tensors"][0]["offset"] = u64::MAX.into()),
        ("bytes", |table| table["tensors"][0]["bytes"] = u64::MAX.into()),
        ("shorter", |table| table["tensors"][0]["bytes"] = 64.into()),
        ("n_out", |table| table["tensors"][0]["kind"]["packed"]["n_out"] = u64::MAX.into()),
        ("group", |table| table["tensors"][0]["kind"]["packed"]["group_size"] = 0.into()),
        ("name", |table| table["tensors"][0]["name"] = "other".into()),
        ("hash", |table| table["content_hash"] = "0".repeat(64).into()),
    ];
    for (what, change) in changes {
        let mut table = table.clone();
        assert!(table["tensors"][0]["kind"]["packed"].is_object());
        change(&mut table);
        let table = serde_json::to_vec(&table).unwrap();
        let mut bytes = [&good[..start], &table].concat();
        bytes[32..40].copy_from_slice(&(table.len() as u64).to_le_bytes());
        let checksum = Sha256::new().chain_update(&bytes[..40]).chain_update(&table).finalize();
        bytes[40..72].copy_from_slice(&checksum);
        replace(&cache, &bytes);
        let model = load_cached(&path, CacheMode::BesideModel);
        assert_eq!(model.cache, CacheReport::Written { path: cache.clone() }, "{what}");
        assert_same_tensors(&model, &right);
    }
}

#[test]
fn a_broken_index_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let cache = written(&load_cached(&path, CacheMode::BesideModel));
    let index = folder.path().join("tiny.gguf.cache-index.json");
    for content in ["", "{", "[]", r#"{"contents": [{"files": [], "content_hash": "../../x"}], "verified": []}"#] {
        fs::write(&index, content).unwrap();
        assert_eq!(load_cached(&path, CacheMode::BesideModel).cache, CacheReport::Hit { path: cache.clone() });
    }
}

#[test]
fn a_folder_can_be_named() {
    let (folder, caches) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = tiny_model(folder.path());
    let mode = CacheMode::Folder(caches.path().join("deeper/still"));
    let first = load_cached(&path, mode.clone());
    assert!(written(&first).starts_with(caches.path()));
    assert!(matches!(load_cached(&path, mode.clone()).cache, CacheReport::Hit { .. }));
    let other = tempfile::tempdir().unwrap();
    let copy = load_cached(&tiny_model(other.path()), mode);
    assert_eq!(copy.cache, CacheReport::Hit { path: written(&first) }, "a copy elsewhere is the same content");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing beside the model");
}

#[test]
fn a_place_that_cannot_be_written_is_reported_and_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    // A file where the folder should be: fails for every user, root included.
    let blocked = folder.path().join("blocked");
    fs::write(&blocked, "").unwrap();
    let model = load_cached(&path, CacheMode::Folder(blocked.join("caches")));
    assert!(matches!(&model.cache, CacheReport::NotWritten { reason } if !reason.is_empty()), "{:?}", model.cache);
    assert_same_tensors(&model, &load(&path).unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_system_that_takes_no_files_is_reported_and_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    let model = load_cached(&path, CacheMode::Folder("/proc/self/selftune".into()));
    assert!(matches!(&model.cache, CacheReport::NotWritten { .. }), "{:?}", model.cache);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_read_only_model_folder_falls_back_or_loads_without() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    fs::set_permissions(folder.path(), Permissions::from_mode(0o555)).unwrap();
    let is_root = fs::write(folder.path().join("probe"), "").is_ok();
    let model = load_cached(&path, CacheMode::BesideModel);
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert_same_tensors(&model, &load(&path).unwrap());
    if is_root {
        // Rights do not bind root; the fallback to another folder is covered by the case of a blocked folder.
        written(&model);
        return;
    }
    match &model.cache {
        CacheReport::Written { path } => {
            assert!(!path.starts_with(folder.path()));
            let (parent, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
            let prefix = name.split_once(&model.content_hash[..16]).unwrap().0.to_owned();
            for entry in fs::read_dir(parent).unwrap().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    fs::remove_file(entry.path()).unwrap();
                }
            }
        }
        CacheReport::NotWritten { reason } => assert!(!reason.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_temporary_file_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path());
    written(&load_cached(&path, CacheMode::BesideModel));
    let mut names: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("tiny.gguf")), "{names:?}");
}
