//! The packed cache: a model's matrices in the kernels' layout, in one file that later loads map.
//!
//! A cache file belongs to one content (its hash is in the name), one way of quantizing and one layout version. Which
//! content a model has is remembered with the size, times and inode of its files, so that a second start reads no
//! weights. Whatever is wrong with a cache, the model is packed again; whatever keeps one from being written, the model
//! is loaded into memory.

mod index;
mod packed_file;
mod workers;

use crate::FormatError;
use crate::load::{
    CacheMode, CacheReport, LoadOptions, LoadProgress, LoadStage, LoadedTensor, float_matrix_bits, pack_tensor,
};
use crate::model_source::ModelSource;
use index::{Fingerprint, Index};
use packed_file::WriteFailure;
pub(crate) use packed_file::map_through_file;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Tensors = BTreeMap<String, LoadedTensor>;
type Progress<'a> = &'a mut dyn FnMut(&LoadProgress);

/// The packed tensors of `source` and its content hash, from the cache when it is there.
pub(crate) fn obtain(
    source: &ModelSource,
    options: &LoadOptions,
    progress: Progress,
) -> Result<(Tensors, String, CacheReport), FormatError> {
    let float_bits = float_matrix_bits(source, options);
    let recipe = match float_bits {
        None => "stored".to_owned(),
        Some(bits) => format!("{bits}bit-g{}", options.quantize_group_size),
    };
    let places = places(source, &options.cache);
    let fingerprints = fingerprints(source)?;
    let content_hash = known_hash(&places, &fingerprints).unwrap_or_else(|| content_hash(source, progress));
    for place in &places {
        let path = place.packed_path(&content_hash, &recipe);
        if let Some(tensors) = open_cached(place, &path, source, &content_hash, &recipe) {
            Index::update(&place.index_path(), |index| index.add_content(fingerprints, &content_hash));
            return Ok((tensors, content_hash, CacheReport::Hit { path }));
        }
    }
    let pack = |tensor: &_| pack_tensor(tensor, float_bits.unwrap_or(options.quantize_bits), options);
    let mut reason = None;
    for place in &places {
        let path = place.packed_path(&content_hash, &recipe);
        match packed_file::write(&path, &content_hash, &recipe, &source.tensors, &pack, progress) {
            Ok(()) => {}
            Err(WriteFailure::Model(error)) => return Err(error),
            Err(WriteFailure::Cache(error)) => {
                reason.get_or_insert(error.to_string());
                continue;
            }
        }
        let written = Fingerprint::of(&path);
        match packed_file::open(&path, &content_hash, &recipe, &source.tensors, false) {
            Ok(tensors) => {
                Index::update(&place.index_path(), |index| {
                    index.add_content(fingerprints, &content_hash);
                    index.add_verified(written.ok());
                });
                return Ok((tensors, content_hash, CacheReport::Written { path }));
            }
            Err(problem) => reason = Some(format!("{}: {problem}", path.display())),
        }
    }
    let report = reason.map_or(CacheReport::Off, |reason| CacheReport::NotWritten { reason });
    Ok((pack_in_memory(source, &pack, progress)?, content_hash, report))
}

/// The content hash of `source` alone. Reads no weights where a cache remembers it.
pub(crate) fn identify(source: &ModelSource, progress: Progress) -> Result<String, FormatError> {
    let known = known_hash(&places(source, &CacheMode::BesideModel), &fingerprints(source)?);
    Ok(known.unwrap_or_else(|| content_hash(source, progress)))
}

fn fingerprints(source: &ModelSource) -> Result<Vec<Fingerprint>, FormatError> {
    source.files.iter().map(|file| Fingerprint::of(file)).collect()
}

fn known_hash(places: &[Place], fingerprints: &[Fingerprint]) -> Option<String> {
    places.iter().find_map(|place| Index::read(&place.index_path()).content_hash(fingerprints))
}

/// Opens a cache file. Its body is checked too, unless it is known to be untouched since it was written or checked.
fn open_cached(place: &Place, path: &Path, source: &ModelSource, content_hash: &str, recipe: &str) -> Option<Tensors> {
    let fingerprint = Fingerprint::of(path).ok()?;
    let verified = Index::read(&place.index_path()).is_verified(&fingerprint);
    let tensors = packed_file::open(path, content_hash, recipe, &source.tensors, !verified).ok()?;
    if !verified {
        Index::update(&place.index_path(), |index| index.add_verified(Some(fingerprint)));
    }
    Some(tensors)
}

/// A folder for cache files, and how names begin there.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    packed_prefix: String,
    index_prefix: String,
}

impl Place {
    fn packed_path(&self, content_hash: &str, recipe: &str) -> PathBuf {
        let layout = kernels::PackedHeader::LAYOUT_VERSION;
        self.folder.join(format!("{}.{}-{recipe}-v{layout}.packed", self.packed_prefix, &content_hash[..16]))
    }
    fn index_path(&self) -> PathBuf {
        self.folder.join(format!("{}.cache-index.json", self.index_prefix))
    }
}

fn places(source: &ModelSource, mode: &CacheMode) -> Vec<Place> {
    let stem = &source.cache_stem;
    let prefix = stem.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // In a folder shared by many models the name of the index says where the model is; copies share cache files.
    let shared = |folder: PathBuf| {
        let absolute = stem.canonicalize().or_else(|_| std::path::absolute(stem)).unwrap_or_else(|_| stem.clone());
        let hash = hexadecimal(&Sha256::digest(absolute.as_os_str().as_encoded_bytes()));
        Place { folder, packed_prefix: prefix.clone(), index_prefix: format!("{prefix}-{}", &hash[..8]) }
    };
    match mode {
        CacheMode::Off => Vec::new(),
        CacheMode::Folder(folder) => vec![shared(folder.clone())],
        CacheMode::BesideModel => {
            let folder = stem.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = folder.to_owned();
            let beside = Place { folder, packed_prefix: prefix.clone(), index_prefix: prefix.clone() };
            std::iter::once(beside).chain(user_cache_folder().map(shared)).collect()
        }
    }
}

/// `$XDG_CACHE_HOME/selftune`, else the system's usual place for a user's caches.
fn user_cache_folder() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home_caches = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let folder = from("XDG_CACHE_HOME")
        .or_else(|| if cfg!(windows) { from("LOCALAPPDATA") } else { None })
        .or_else(|| from("HOME").map(|home| home.join(home_caches)))?;
    Some(folder.join("selftune"))
}

/// SHA-256 over the identity and every tensor's name, encoding, shape and bytes.
pub(crate) fn content_hash(source: &ModelSource, progress: Progress) -> String {
    let mut tensors: Vec<_> = source.tensors.iter().collect();
    tensors.sort_by(|one, two| one.name.cmp(&two.name));
    let bytes = |tensor: &&crate::tensor_encoding::SourceTensor| tensor.stored_len();
    let mut report = report(LoadStage::Hashing, tensors.iter().map(bytes).sum(), progress);
    let mut all = Sha256::new();
    all.update(source.identity);
    let hash_one = |tensor: &&crate::tensor_encoding::SourceTensor| {
        let mut hash = Sha256::new();
        hash.update(serde_json::json!([tensor.name, tensor.encoding_name(), tensor.shape]).to_string());
        for part in tensor.stored_bytes() {
            hash.update(part);
        }
        hash.finalize()
    };
    workers::in_order(&tensors, &hash_one, |tensor, hash| {
        all.update(hash);
        report(tensor.stored_len());
        Ok::<(), std::convert::Infallible>(())
    })
    .unwrap_or_else(|never| match never {});
    hexadecimal(&all.finalize())
}

fn pack_in_memory(
    source: &ModelSource,
    pack: &(dyn Fn(&crate::tensor_encoding::SourceTensor) -> Result<LoadedTensor, FormatError> + Sync),
    progress: Progress,
) -> Result<Tensors, FormatError> {
    let total = source.tensors.iter().map(|tensor| tensor.stored_len()).sum();
    let mut report = report(LoadStage::Packing, total, progress);
    let mut tensors = Tensors::new();
    workers::in_order(&source.tensors, pack, |tensor, packed| {
        tensors.insert(tensor.name.clone(), packed?);
        report(tensor.stored_len());
        Ok(())
    })?;
    Ok(tensors)
}

/// A counter of bytes that calls `progress`.
fn report(stage: LoadStage, bytes_total: u64, progress: Progress) -> impl FnMut(u64) {
    let mut bytes_done = 0;
    move |bytes| {
        bytes_done += bytes;
        progress(&LoadProgress { stage, bytes_done, bytes_total });
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
