//! The files of the new folder.

use super::plan::{Form, Part, PlannedTensor};
use super::{ModelRewrite, Rows, additions};
use crate::atomic_write::{self, Readers};
use crate::float_type::FloatType;
use crate::{FormatError, quantize};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Files beside the weights that belong to a model as it is used.
const COMPANIONS: [&str; 13] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
];

/// selftune's own notes in the folder.
const NOTES_FILE: &str = "selftune.json";

impl ModelRewrite<'_> {
    /// Writes weights, configuration and what belongs to them into `folder`, which should be new. `progress` is told
    /// the bytes written. The folder is complete only with [`Self::write_notes`].
    pub fn write(&self, folder: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), FormatError> {
        let mut done = 0;
        let mut report = |bytes| {
            done += bytes;
            progress(done);
        };
        let mut map = Map::new();
        let mut rest = &self.tensors[..];
        for (index, count) in self.files.iter().enumerate() {
            let (tensors, after) = rest.split_at(*count);
            rest = after;
            let name = match self.files.len() {
                1 => "model.safetensors".to_owned(),
                files => format!("model-{:05}-of-{files:05}.safetensors", index + 1),
            };
            self.write_weights(&folder.join(&name), tensors, &mut report)?;
            for part in tensors.iter().flat_map(|tensor| &tensor.parts) {
                map.insert(part.name.clone(), name.clone().into());
            }
        }
        if self.files.len() > 1 {
            let index = json!({"metadata": {"total_size": self.bytes()}, "weight_map": map});
            write_json(&folder.join("model.safetensors.index.json"), &index)?;
        }
        write_json(&folder.join("config.json"), &Value::Object(self.config.clone()))?;
        for name in COMPANIONS {
            let from = self.folder.join(name);
            if from.is_file() {
                let bytes = std::fs::read(&from).map_err(|source| FormatError::read(&from, source))?;
                atomic_write::write(&folder.join(name), &bytes, Readers::OwnerOnly)?;
            }
        }
        Ok(())
    }

    /// Writes what the folder's maker wants to be known of it, for people and programs: `selftune.json`, and a README
    /// that keeps the licence of the model.
    pub fn write_notes(&self, folder: &Path, summary: &str, notes: &Value) -> Result<(), FormatError> {
        write_json(&folder.join(NOTES_FILE), notes)?;
        let license = self.source.description.license.as_ref().map(|license| format!("license: {license}\n"));
        let readme = format!("---\n{}---\n\n{summary}\n", license.unwrap_or_default());
        atomic_write::write(&folder.join("README.md"), readme.as_bytes(), Readers::OwnerOnly)
    }

    fn write_weights(
        &self,
        path: &Path,
        tensors: &[PlannedTensor],
        report: &mut dyn FnMut(u64),
    ) -> Result<(), FormatError> {
        let failed = |source| FormatError::write(path, source);
        let file = File::create_new(path).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let parts: Vec<&Part> = tensors.iter().flat_map(|tensor| &tensor.parts).collect();
        out.write_all(&header(&parts, if self.is_written_quantized() { "mlx" } else { "pt" })).map_err(failed)?;
        for planned in tensors {
            let bytes: u64 = planned.parts.iter().map(|part| part.bytes).sum();
            let mut counted = Counted { out: &mut out, count: 0 };
            self.write_tensor(&mut counted, planned, path)?;
            assert_eq!(counted.count, bytes, "planned bytes of `{}`", planned.parts[0].name);
            report(bytes);
        }
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)
    }

    fn write_tensor(&self, out: &mut impl Write, planned: &PlannedTensor, path: &Path) -> Result<(), FormatError> {
        let failed = |source| FormatError::write(path, source);
        let tensor = &self.source.tensors[planned.index];
        if planned.form == Form::Copied {
            return tensor.stored_bytes().into_iter().try_for_each(|bytes| out.write_all(bytes)).map_err(failed);
        }
        let (n_out, k_in) = (tensor.shape[0], tensor.shape[1]);
        let mut rows = Rows::new(tensor, additions(&self.adapters, &tensor.name))?;
        let mut bytes = Vec::new();
        match planned.form {
            Form::Copied => unreachable!("copied above"),
            Form::Float(float_type) => {
                let mut values = vec![0.0; k_in];
                for row in 0..n_out {
                    rows.read(row, &mut values);
                    bytes.clear();
                    float_type.narrow(&values, &mut bytes);
                    // What a float16 cannot hold becomes infinite only now.
                    float_type.widen(&bytes, &mut values);
                    if let Some(column) = values.iter().position(|value| !value.is_finite()) {
                        return Err(rows.not_finite(row, column));
                    }
                    out.write_all(&bytes).map_err(failed)?;
                }
            }
            Form::Affine { bits, group_size, float_type } => {
                let fetch = |row: usize, values: &mut [f32]| rows.read(row, values);
                let matrix = quantize::quantize_rows(n_out, k_in, bits, group_size, float_type.scale_type(), fetch);
                let matrix = matrix.map_err(|error| match error {
                    quantize::QuantizeError::NotFinite { row, column } => rows.not_finite(row, column),
                    other => FormatError::tensor(&tensor.path, &tensor.stored_name, other.to_string()),
                })?;
                for codes in matrix.codes.chunks(CODES_A_WRITE) {
                    bytes.clear();
                    push_bit_stream(codes, bits, &mut bytes);
                    out.write_all(&bytes).map_err(failed)?;
                }
                for values in [&matrix.scales, &matrix.biases] {
                    bytes.clear();
                    float_type.narrow(values, &mut bytes);
                    out.write_all(&bytes).map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}

/// Codes that are packed at a time; a multiple of eight, so that a piece ends on a byte.
const CODES_A_WRITE: usize = 1 << 20;

/// Appends codes of `bits` bits each as a little-endian bit stream. Their number is a multiple of eight.
fn push_bit_stream(codes: &[u8], bits: u32, bytes: &mut Vec<u8>) {
    for chunk in codes.chunks_exact(8) {
        let word = chunk.iter().enumerate().fold(0u64, |word, (i, code)| word | u64::from(*code) << (i as u32 * bits));
        bytes.extend_from_slice(&word.to_le_bytes()[..bits as usize]);
    }
}

/// Length and JSON header of a safetensors file with `parts` one after the other.
fn header(parts: &[&Part], format: &str) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": format}));
    let mut offset = 0;
    for part in parts {
        let end = offset + part.bytes;
        header.insert(
            part.name.clone(),
            json!({"dtype": part.type_name, "shape": part.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Spaces after the header are allowed by the format; they align the data.
    text.resize((8 + text.len()).next_multiple_of(64) - 8, b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&text);
    bytes
}

fn write_json(path: &Path, value: &Value) -> Result<(), FormatError> {
    atomic_write::write(path, format!("{value:#}\n").as_bytes(), Readers::OwnerOnly)
}

/// Counts what passes through.
struct Counted<W> {
    out: W,
    count: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.count += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

impl FloatType {
    /// The type's name in safetensors files.
    pub(super) fn stored_name(self) -> &'static str {
        match self {
            FloatType::Float32 => "F32",
            FloatType::Float16 => "F16",
            FloatType::BFloat16 => "BF16",
        }
    }

    /// Appends `values` rounded to this type (to nearest, ties to even).
    pub(super) fn narrow(self, values: &[f32], bytes: &mut Vec<u8>) {
        match self {
            FloatType::Float32 => values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes())),
            FloatType::Float16 => {
                values.iter().for_each(|value| bytes.extend_from_slice(&half::f16::from_f32(*value).to_le_bytes()));
            }
            FloatType::BFloat16 => {
                values.iter().for_each(|value| bytes.extend_from_slice(&half::bf16::from_f32(*value).to_le_bytes()));
            }
        }
    }
}
