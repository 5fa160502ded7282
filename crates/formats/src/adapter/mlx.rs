//! Adapter folders of `mlx_lm.lora`: `adapter_config.json` and `adapters.safetensors`. A is stored as [k_in, r], B as
//! [r, n_out], and the multiplier is `scale` itself, not alpha / r.

use super::pairs::{self, Layout, transpose};
use super::peft::{METADATA_KEY, metadata_in};
use super::{AdapterFile, AdapterMatrix, PeftConfig};
use crate::atomic_write::{self, Readers};
use crate::safetensors_file::{self, TensorToWrite};
use crate::{FormatError, json};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CONFIG_FILE: &str = "adapter_config.json";
pub(super) const TENSOR_FILE: &str = "adapters.safetensors";

const LAYOUT: Layout = Layout { prefix: "", a_suffix: ".lora_a", b_suffix: ".lora_b", transposed: true };

/// Reads the MLX adapter in `folder`. `lora_alpha` becomes scale times rank.
pub fn read_mlx(folder: &Path) -> Result<AdapterFile, FormatError> {
    let config_path = folder.join(CONFIG_FILE);
    let object = json::read_object(&config_path)?;
    let error = |key: &str, problem: String| FormatError::key(&config_path, key, problem);
    if let Some(kind) = object.get("fine_tune_type").filter(|kind| **kind != json!("lora")) {
        return Err(error("fine_tune_type", format!("{kind} is not supported; expected \"lora\"")));
    }
    let parameter = |name: &str| object.get("lora_parameters").and_then(|parameters| parameters.get(name));
    let key = |name: &str| format!("lora_parameters.{name}");
    let scale = parameter("scale").and_then(Value::as_f64).filter(|scale| scale.is_finite() && *scale > 0.0);
    let scale = scale
        .ok_or_else(|| error(&key("scale"), "missing or not positive; the adapter's strength is unknown".into()))?;
    let dropout = parameter("dropout").and_then(Value::as_f64).unwrap_or(0.0);
    let tensor_path = folder.join(TENSOR_FILE);
    let file = safetensors_file::read(&tensor_path)?;
    // Old versions did not store the rank; the matrices show it.
    let rank = match parameter("rank") {
        Some(rank) => rank.as_u64().and_then(|rank| usize::try_from(rank).ok()),
        None => file
            .tensors
            .iter()
            .find_map(|(name, a)| name.ends_with(LAYOUT.a_suffix).then(|| a.shape.get(1).copied())?),
    };
    let rank = rank.filter(|rank| *rank > 0);
    let rank = rank.ok_or_else(|| error(&key("rank"), "expected a positive whole number".into()))?;
    let matrices = pairs::read(&tensor_path, &file, &LAYOUT, rank)?;
    let (blocks, names) = blocks_and_names(&matrices);
    for block in &blocks {
        for name in &names {
            let module = format!("model.layers.{block}.{name}");
            if !matrices.iter().any(|matrix| matrix.module == module) {
                let problem = "missing, though other blocks have it";
                return Err(FormatError::tensor(&tensor_path, format!("{module}{}", LAYOUT.a_suffix), problem));
            }
        }
    }
    if matrices.is_empty() {
        return Err(FormatError::tensor(&tensor_path, "lora_a", "the file holds no adapter matrices"));
    }
    let last = |name: &String| name.rsplit('.').next().unwrap_or(name).to_owned();
    Ok(AdapterFile {
        config: PeftConfig {
            r: rank,
            lora_alpha: scale * rank as f64,
            lora_dropout: dropout,
            use_rslora: false,
            target_modules: names.iter().map(last).collect(),
            layers_to_transform: Some(blocks.into_iter().collect()),
            base_model_name_or_path: object.get("model").and_then(Value::as_str).map(str::to_owned),
        },
        metadata: metadata_in(&tensor_path, &file.metadata)?,
        matrices,
    })
}

/// Writes `adapter` for a model of `blocks_total` blocks into `folder`. MLX adapts the last blocks of a model, so an
/// adapter of others cannot be written.
pub fn write_mlx(folder: &Path, adapter: &AdapterFile, blocks_total: usize) -> Result<(), FormatError> {
    adapter.check(folder)?;
    let (blocks, names) = blocks_and_names(&adapter.matrices);
    let first = blocks_total.checked_sub(blocks.len());
    if first.is_none_or(|first| !blocks.iter().copied().eq(first..blocks_total)) {
        let problem = format!("blocks {:?} are not the last of {blocks_total}, which MLX needs", adapter.blocks());
        return Err(FormatError::key(folder, "num_layers", problem));
    }
    atomic_write::create_private_folder(folder)?;
    let r = adapter.config.r;
    let mut tensors = Vec::with_capacity(2 * adapter.matrices.len());
    for matrix in &adapter.matrices {
        tensors.push(TensorToWrite {
            name: format!("{}{}", matrix.module, LAYOUT.a_suffix),
            shape: vec![matrix.k_in, r],
            values: transpose(&matrix.a, matrix.k_in).into(),
        });
        tensors.push(TensorToWrite {
            name: format!("{}{}", matrix.module, LAYOUT.b_suffix),
            shape: vec![r, matrix.n_out],
            values: transpose(&matrix.b, r).into(),
        });
    }
    let config = json!({
        "fine_tune_type": "lora",
        "model": adapter.config.base_model_name_or_path,
        "num_layers": blocks.len(),
        "lora_parameters": {
            "rank": r,
            "scale": adapter.config.scale(),
            "dropout": adapter.config.lora_dropout,
            "keys": names,
        },
    });
    atomic_write::write(&folder.join(CONFIG_FILE), format!("{config:#}\n").as_bytes(), Readers::OwnerOnly)?;
    let mut header = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
    header.extend(adapter.metadata.as_ref().map(|metadata| (METADATA_KEY.to_owned(), json!(metadata).to_string())));
    atomic_write::write(&folder.join(TENSOR_FILE), &safetensors_file::to_bytes(tensors, &header), Readers::OwnerOnly)
}

fn blocks_and_names(matrices: &[AdapterMatrix]) -> (BTreeSet<usize>, BTreeSet<String>) {
    let places = || matrices.iter().filter_map(AdapterMatrix::block_and_name);
    (places().map(|(block, _)| block).collect(), places().map(|(_, name)| name.to_owned()).collect())
}
