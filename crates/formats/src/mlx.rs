//! MLX folders: as Hugging Face's, with affine-quantized matrices as three tensors (`.weight` with packed codes, `.scales`,
//! `.biases`) and a `quantization` entry in `config.json`, which may differ for single layers.

use crate::FormatError;
use crate::hugging_face::{Folder, float_tensor, hugging_face_name};
use crate::json;
use crate::model_source::{Format, ModelSource};
use crate::quantize::GROUP_SIZES;
use crate::safetensors_file::StoredTensor;
use crate::tensor_encoding::{Encoding, RowOrder, SourceTensor};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

pub(crate) const FORMAT: Format = Format { name: "MLX folder", detect, open };

/// Bits that MLX's affine quantization knows.
const BITS: [u64; 6] = [2, 3, 4, 5, 6, 8];

fn detect(path: &Path) -> Option<PathBuf> {
    let config = json::read_object(&path.join("config.json")).ok()?;
    quantization(&config).is_some().then(|| path.to_owned())
}

/// MLX writes the entry under two names; the second one is shared with other methods, which name themselves.
fn quantization(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    if let Some(Value::Object(entry)) = config.get("quantization") {
        return Some(entry);
    }
    match config.get("quantization_config") {
        Some(Value::Object(entry)) if entry.contains_key("group_size") && !entry.contains_key("quant_method") => {
            Some(entry)
        }
        _ => None,
    }
}

fn open(path: &Path) -> Result<ModelSource, FormatError> {
    let folder = Folder::open(path)?;
    let config_path = folder.config_path();
    let settings = quantization(&folder.config).cloned().unwrap_or_default();
    let default = parameters(&config_path, "quantization", &Value::Object(settings.clone()), None)?;
    let mut tensors = Vec::new();
    for (stored_name, stored) in &folder.weights {
        let Some(name) = hugging_face_name(stored_name) else { continue };
        let (layer, part) = stored_name.rsplit_once('.').unwrap_or((stored_name, ""));
        let has = |part: &str| folder.weights.contains_key(&format!("{layer}.{part}"));
        if matches!(part, "scales" | "biases") {
            if !has("weight") {
                return Err(FormatError::tensor(stored.data.path(), stored_name, "without a `.weight` beside it"));
            }
            continue;
        }
        if part != "weight" || !has("scales") {
            tensors.push(float_tensor(name, stored_name, stored)?);
            continue;
        }
        let parameters = match settings.get(layer) {
            Some(Value::Bool(false)) => {
                let problem = "has scales, but config.json says that it is not quantized";
                return Err(FormatError::tensor(stored.data.path(), stored_name, problem));
            }
            Some(own @ Value::Object(_)) => parameters(&config_path, &format!("quantization.{layer}"), own, default)?,
            _ => default,
        };
        let Some(parameters) = parameters else {
            return Err(FormatError::key(&config_path, "quantization", "expected `group_size` and `bits`"));
        };
        tensors.push(affine_tensor(&folder, name, layer, stored, parameters)?);
    }
    folder.into_source(FORMAT.name, tensors)
}

#[derive(Clone, Copy)]
struct Parameters {
    bits: u32,
    group_size: usize,
}

/// `bits` and `group_size` of an entry; what it leaves out is `default`'s. `None` when neither says anything.
fn parameters(
    path: &Path,
    key: &str,
    entry: &Value,
    default: Option<Parameters>,
) -> Result<Option<Parameters>, FormatError> {
    if let Some(mode) = entry.get("mode").and_then(Value::as_str).filter(|mode| *mode != "affine") {
        return Err(FormatError::Unsupported {
            path: path.to_owned(),
            what: "MLX quantization mode",
            found: mode.to_owned(),
            supported: "affine".into(),
        });
    }
    let number = |name: &str, default: Option<u64>| match entry.get(name) {
        None => Ok(default),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| {
            FormatError::key(path, format!("{key}.{name}"), format!("expected a number, found {value}"))
        }),
    };
    let bits = number("bits", default.map(|default| default.bits.into()))?;
    let group_size = number("group_size", default.map(|default| default.group_size as u64))?;
    let (Some(bits), Some(group_size)) = (bits, group_size) else { return Ok(None) };
    if !BITS.contains(&bits) {
        return Err(FormatError::key(path, format!("{key}.bits"), format!("{bits}, expected 2, 3, 4, 5, 6 or 8")));
    }
    if !GROUP_SIZES.iter().any(|size| *size as u64 == group_size) {
        let problem = format!("{group_size}, expected 16, 32, 64 or 128");
        return Err(FormatError::key(path, format!("{key}.group_size"), problem));
    }
    Ok(Some(Parameters { bits: bits as u32, group_size: group_size as usize }))
}

fn affine_tensor(
    folder: &Folder,
    name: String,
    layer: &str,
    codes: &StoredTensor,
    Parameters { bits, group_size }: Parameters,
) -> Result<SourceTensor, FormatError> {
    let path = codes.data.path().to_owned();
    let stored_name = format!("{layer}.weight");
    let error = |problem: String| FormatError::tensor(&path, &stored_name, problem);
    let part = |part: &str| {
        folder.weights.get(&format!("{layer}.{part}")).ok_or_else(|| error(format!("`{layer}.{part}` is missing")))
    };
    let (scales, biases) = (part("scales")?, part("biases")?);
    let &[n_out, words] = codes.shape.as_slice() else {
        return Err(error(format!("expected packed codes [n_out, words], found shape {:?}", codes.shape)));
    };
    if codes.type_name != "U32" {
        return Err(error(format!("type {}, expected packed codes of type U32", codes.type_name)));
    }
    let row_bits = words.checked_mul(32).filter(|row_bits| row_bits.is_multiple_of(bits as usize));
    let k_in = row_bits.map(|row_bits| row_bits / bits as usize).filter(|k_in| k_in.is_multiple_of(group_size));
    let Some(k_in) = k_in.filter(|k_in| *k_in > 0) else {
        return Err(error(format!("rows of {words} words are no whole groups of {group_size} codes of {bits} bits")));
    };
    let expected = [n_out, k_in / group_size];
    for (part, tensor) in [("scales", scales), ("biases", biases)] {
        if tensor.shape != expected {
            let problem = format!(
                "`{layer}.{part}` has shape {:?}, expected {expected:?} for {bits} bits in groups of {group_size}",
                tensor.shape
            );
            return Err(error(problem));
        }
    }
    let Some(float_type) = scales.float_type().filter(|_| scales.type_name == biases.type_name) else {
        let found = format!("{} and {}", scales.type_name, biases.type_name);
        return Err(error(format!("scales and biases of type {found}, expected both F32, F16 or BF16")));
    };
    Ok(SourceTensor {
        name,
        stored_name: stored_name.clone(),
        path: path.clone(),
        shape: vec![n_out, k_in],
        encoding: Encoding::Affine {
            bits,
            group_size,
            float_type,
            codes: codes.data.clone(),
            scales: scales.data.clone(),
            biases: biases.data.clone(),
        },
        row_order: RowOrder::AsNamed,
        added: 0.0,
    })
}
