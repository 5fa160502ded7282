//! PEFT folders: `adapter_config.json` and `adapter_model.safetensors`, as Hugging Face's `peft` writes and loads them.
//!
//! selftune's own metadata stands in the header of the tensor file, where it cannot be separated from the tensors, and
//! again in `selftune.json` for people and programs that look for it.

use super::pairs::{self, Layout};
use super::{AdapterFile, AdapterMetadata, PeftConfig, block_and_name};
use crate::atomic_write::{self, Readers};
use crate::safetensors_file::{self, TensorToWrite};
use crate::{FormatError, json};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CONFIG_FILE: &str = "adapter_config.json";
pub(super) const TENSOR_FILE: &str = "adapter_model.safetensors";
const METADATA_FILE: &str = "selftune.json";
/// Key of the tensor file's header under which [`AdapterMetadata`] stands as JSON.
pub(super) const METADATA_KEY: &str = "selftune";

const LAYOUT: Layout =
    Layout { prefix: "base_model.model.", a_suffix: ".lora_A.weight", b_suffix: ".lora_B.weight", transposed: false };

/// Writes `adapter` into `folder`, which is made if needed; files and new folders are their owner's alone. Each file is complete on the disk before it gets its name,
/// the tensors last; files of an earlier adapter stay whole until then.
pub fn write_peft(folder: &Path, adapter: &AdapterFile) -> Result<(), FormatError> {
    let files = peft_files(folder, adapter)?;
    atomic_write::create_private_folder(folder)?;
    files.into_iter().try_for_each(|(name, bytes)| atomic_write::write(&folder.join(name), &bytes, Readers::OwnerOnly))
}

/// The files of `adapter`, each with its name, in the order in which they should be written; for writers that have
/// their own way to the disk. `folder` only names the adapter in errors.
pub fn peft_files(folder: &Path, adapter: &AdapterFile) -> Result<Vec<(&'static str, Vec<u8>)>, FormatError> {
    adapter.check(folder)?;
    let mut files = Vec::new();
    let mut tensors = Vec::with_capacity(2 * adapter.matrices.len());
    for matrix in &adapter.matrices {
        let (stem, r) = (format!("{}{}", LAYOUT.prefix, matrix.module), adapter.config.r);
        tensors.push(TensorToWrite {
            name: format!("{stem}{}", LAYOUT.a_suffix),
            shape: vec![r, matrix.k_in],
            values: matrix.a.as_slice().into(),
        });
        tensors.push(TensorToWrite {
            name: format!("{stem}{}", LAYOUT.b_suffix),
            shape: vec![matrix.n_out, r],
            values: matrix.b.as_slice().into(),
        });
    }
    let mut header = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    if let Some(metadata) = &adapter.metadata {
        let metadata = json!(metadata);
        header.insert(METADATA_KEY.into(), metadata.to_string());
        files.push((METADATA_FILE, pretty(&metadata)));
    }
    files.push((CONFIG_FILE, pretty(&config_json(&adapter.config))));
    files.push((TENSOR_FILE, safetensors_file::to_bytes(tensors, &header)));
    Ok(files)
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// All keys that decide how `peft` applies the adapter; what it may leave out has its default there.
fn config_json(config: &PeftConfig) -> Value {
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.base_model_name_or_path,
        "r": config.r,
        "lora_alpha": whole_if_possible(config.lora_alpha),
        "lora_dropout": config.lora_dropout,
        "use_rslora": config.use_rslora,
        "use_dora": false,
        "target_modules": config.target_modules,
        "layers_to_transform": config.layers_to_transform,
        "layers_pattern": null,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": null,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "inference_mode": true,
    })
}

/// PEFT's `lora_alpha` is declared as an integer; other values work and are kept.
fn whole_if_possible(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// Reads the PEFT adapter in `folder`. Everything that would change what the adapter computes and is not supported is
/// an error, and so is every key that is missing, unexpected or of another shape.
pub fn read_peft(folder: &Path) -> Result<AdapterFile, FormatError> {
    let config_path = folder.join(CONFIG_FILE);
    let object = json::read_object(&config_path)?;
    let tensor_path = folder.join(TENSOR_FILE);
    if !tensor_path.is_file() {
        let expected = format!("an adapter folder holds it beside {CONFIG_FILE}");
        return Err(FormatError::MissingFile { path: tensor_path, expected });
    }
    let file = safetensors_file::read(&tensor_path)?;
    let config = read_config(&config_path, &object)?;
    let matrices = pairs::read(&tensor_path, &file, &LAYOUT, config.r)?;
    let modules: Vec<&str> = matrices.iter().map(|matrix| matrix.module.as_str()).collect();
    check_coverage(&tensor_path, &config, &modules)?;
    let metadata = metadata_in(&tensor_path, &file.metadata)?;
    check_metadata_file(&folder.join(METADATA_FILE))?;
    Ok(AdapterFile { config, metadata, matrices })
}

/// What selftune wrote into the header of the tensor file at `path`, if it did.
pub(super) fn metadata_in(
    path: &Path,
    header: &BTreeMap<String, String>,
) -> Result<Option<AdapterMetadata>, FormatError> {
    header.get(METADATA_KEY).map(|text| read_metadata(path, json::parse(path, text.as_bytes())?)).transpose()
}

/// What the tensor file says counts, but a damaged file beside it is a sign that the folder is not as it was written.
fn check_metadata_file(path: &Path) -> Result<(), FormatError> {
    if !path.exists() {
        return Ok(());
    }
    let bytes = json::read_bytes(path)?;
    if bytes.trim_ascii().is_empty() {
        let problem = "empty, expected a JSON object with selftune_version, base_content_hash and receipt";
        return Err(FormatError::malformed(path, 0, problem));
    }
    read_metadata(path, json::parse(path, &bytes)?).map(drop)
}

pub(super) fn read_metadata(path: &Path, value: Value) -> Result<AdapterMetadata, FormatError> {
    let Value::Object(mut object) = value else {
        let problem = format!("expected an object, found {}", json::kind_name(&value));
        return Err(FormatError::key(path, METADATA_KEY, problem));
    };
    let text = |key: &str| match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(FormatError::key(path, key, format!("expected a string, found {}", json::kind_name(other)))),
        None => Err(FormatError::key(path, key, "missing, expected a string")),
    };
    Ok(AdapterMetadata {
        selftune_version: text("selftune_version")?,
        base_content_hash: text("base_content_hash")?,
        stack: match object.remove("stack") {
            None => Vec::new(),
            Some(stack) => serde_json::from_value(stack).map_err(|error| {
                let expected = "expected a list of adapters with name and content_hash";
                FormatError::key(path, "stack", format!("{error}; {expected}"))
            })?,
        },
        receipt: object
            .remove("receipt")
            .ok_or_else(|| FormatError::key(path, "receipt", "missing, expected how the adapter was made"))?,
    })
}

fn read_config(path: &Path, object: &Map<String, Value>) -> Result<PeftConfig, FormatError> {
    let error = |key: &str, problem: String| FormatError::key(path, key, problem);
    if object.get("peft_type") != Some(&json!("LORA")) {
        let found = object.get("peft_type").map_or("nothing".to_owned(), Value::to_string);
        return Err(error("peft_type", format!("{found}, expected \"LORA\"")));
    }
    refuse_unsupported(path, object)?;
    let number = |key: &str, default: Option<f64>| match object.get(key) {
        Some(Value::Number(number)) => Ok(number.as_f64().unwrap_or(f64::NAN)),
        None | Some(Value::Null) => default.ok_or_else(|| error(key, "missing".into())),
        Some(other) => Err(error(key, format!("expected a number, found {other}"))),
    };
    let r = object.get("r").and_then(Value::as_u64).and_then(|r| usize::try_from(r).ok()).filter(|r| *r > 0);
    let lora_alpha = number("lora_alpha", None)?;
    if !lora_alpha.is_finite() || lora_alpha <= 0.0 {
        return Err(error("lora_alpha", format!("{lora_alpha}, expected a positive number")));
    }
    Ok(PeftConfig {
        r: r.ok_or_else(|| error("r", "expected a positive whole number".into()))?,
        lora_alpha,
        lora_dropout: number("lora_dropout", Some(0.0))?,
        use_rslora: match object.get("use_rslora") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(value)) => *value,
            Some(other) => return Err(error("use_rslora", format!("expected true or false, found {other}"))),
        },
        target_modules: target_modules(path, object.get("target_modules"))?,
        layers_to_transform: layers(path, object.get("layers_to_transform"))?,
        base_model_name_or_path: object.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned),
    })
}

/// Keys that make PEFT compute something else than `x + scale * (x A^T) B^T`.
fn refuse_unsupported(path: &Path, object: &Map<String, Value>) -> Result<(), FormatError> {
    const MUST_BE_EMPTY: [&str; 10] = [
        "use_dora",
        "lora_bias",
        "fan_in_fan_out",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "layer_replication",
        "trainable_token_indices",
        "target_parameters",
        "use_qalora",
    ];
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    for key in MUST_BE_EMPTY {
        if let Some(value) = object.get(key).filter(|value| !is_empty(value)) {
            return Err(FormatError::key(path, key, format!("{value} is not supported by this program")));
        }
    }
    match object.get("bias") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(bias)) if bias == "none" => Ok(()),
        Some(other) => Err(FormatError::key(path, "bias", format!("{other} is not supported; expected \"none\""))),
    }
}

/// Names of the adapted modules.
fn target_modules(path: &Path, value: Option<&Value>) -> Result<Vec<String>, FormatError> {
    let error = |found: &dyn std::fmt::Display| {
        FormatError::key(path, "target_modules", format!("expected a list of names, found {found}"))
    };
    match value {
        Some(Value::String(pattern)) => {
            let problem = format!("the pattern \"{pattern}\" is not supported; expected a list of module names");
            Err(FormatError::key(path, "target_modules", problem))
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| error(item))).collect()
        }
        Some(other) => Err(error(other)),
        None => Err(error(&"nothing")),
    }
}

fn layers(path: &Path, value: Option<&Value>) -> Result<Option<Vec<usize>>, FormatError> {
    let error = || FormatError::key(path, "layers_to_transform", "expected a number or a list of numbers");
    let layer = |value: &Value| value.as_u64().and_then(|layer| usize::try_from(layer).ok()).ok_or_else(error);
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => items.iter().map(layer).collect::<Result<_, _>>().map(Some),
        Some(single) => Ok(Some(vec![layer(single)?])),
    }
}

/// Checks that the tensors are those of every target in every adapted block, and no others.
fn check_coverage(path: &Path, config: &PeftConfig, modules: &[&str]) -> Result<(), FormatError> {
    let matches = |module: &str, target: &str| {
        module.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let block_of = |module: &str| block_and_name(module).map(|(block, _)| block);
    let blocks: BTreeSet<usize> = match &config.layers_to_transform {
        Some(layers) => layers.iter().copied().collect(),
        None => modules.iter().filter_map(|module| block_of(module)).collect(),
    };
    for module in modules {
        let key = format!("{}{module}{}", LAYOUT.prefix, LAYOUT.a_suffix);
        if block_of(module).is_none_or(|block| !blocks.contains(&block)) {
            return Err(FormatError::tensor(path, key, "of a block that `layers_to_transform` does not name"));
        }
        if !config.target_modules.iter().any(|target| matches(module, target)) {
            let targets = config.target_modules.join(", ");
            return Err(FormatError::tensor(path, key, format!("none of `target_modules` ({targets})")));
        }
    }
    for block in &blocks {
        for target in &config.target_modules {
            let is_there = |module: &&str| block_of(module) == Some(*block) && matches(module, target);
            if !modules.iter().any(is_there) {
                let key = format!("{}model.layers.{block}.*.{target}{}", LAYOUT.prefix, LAYOUT.a_suffix);
                return Err(FormatError::tensor(path, key, "missing, though the configuration names it"));
            }
        }
    }
    if modules.is_empty() {
        return Err(FormatError::tensor(path, "lora_A", "the file holds no adapter matrices"));
    }
    Ok(())
}
