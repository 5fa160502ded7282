//! Writers and readers of test files that share no code with the crate.

use formats::{CacheMode, FormatError, LoadOptions, LoadedModel, LoadedTensor};
use kernels::{AffineMatrix, ScaleType};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn model_fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

/// Loads without a cache, so that nothing is written beside fixtures.
pub fn load(path: &Path) -> Result<LoadedModel, FormatError> {
    load_with(path, 4, 64)
}

pub fn load_with(path: &Path, bits: u32, group_size: usize) -> Result<LoadedModel, FormatError> {
    let options = LoadOptions { quantize_bits: bits, quantize_group_size: group_size, cache: CacheMode::Off };
    formats::load_model(path, &options, &mut |_| {})
}

/// The error of a load that must fail, as text.
pub fn load_error(path: &Path) -> String {
    load(path).map(|_| ()).expect_err("a bad model was loaded").to_string()
}

pub fn matrix(model: &LoadedModel, name: &str) -> AffineMatrix {
    match model.tensors.get(name) {
        Some(LoadedTensor::Packed(matrix)) => matrix.unpack(),
        other => panic!("{name}: {other:?}"),
    }
}

pub fn vector(model: &LoadedModel, name: &str) -> Vec<f32> {
    match model.tensors.get(name) {
        Some(LoadedTensor::Float(values)) => values.as_slice().to_vec(),
        other => panic!("{name}: {other:?}"),
    }
}

/// w = scale * code + bias, in float32 as the definition says.
pub fn weights(matrix: &AffineMatrix) -> Vec<f32> {
    let groups = matrix.k_in / matrix.group_size;
    let weight = |index: usize| {
        let group = index / matrix.k_in * groups + index % matrix.k_in / matrix.group_size;
        matrix.scales[group] * f32::from(matrix.codes[index]) + matrix.biases[group]
    };
    (0..matrix.codes.len()).map(weight).collect()
}

/// A tensor of a golden file.
pub struct Golden {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Golden {
    pub fn floats(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::F32 => self.bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect(),
            Dtype::F16 => self.bytes.chunks(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
            Dtype::BF16 => self.bytes.chunks(2).map(|c| half::bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
            other => panic!("{other:?}"),
        }
    }
    pub fn scale_type(&self) -> ScaleType {
        match self.dtype {
            Dtype::F32 => ScaleType::Float32,
            Dtype::F16 => ScaleType::Float16,
            Dtype::BF16 => ScaleType::BFloat16,
            other => panic!("{other:?}"),
        }
    }
}

pub fn read_goldens(path: &Path) -> BTreeMap<String, Golden> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let golden = |(name, view): (String, safetensors::tensor::TensorView)| {
        (name, Golden { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() })
    };
    file.tensors().into_iter().map(golden).collect()
}

/// Writes a safetensors file with the `safetensors` crate.
pub fn write_safetensors(path: &Path, tensors: &BTreeMap<String, Golden>) {
    let views = tensors.iter().map(|(name, tensor)| {
        (name, safetensors::tensor::TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

pub fn float32(shape: &[usize], values: impl IntoIterator<Item = f32>) -> Golden {
    let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Golden { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
}

/// Deterministic values in -1..1.
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A GGUF file, assembled byte by byte from the format's description.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub metadata: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<GgufTensor>,
    pub alignment: usize,
}

#[derive(Clone)]
pub struct GgufTensor {
    pub name: String,
    /// Innermost dimension first, as in the file.
    pub sides: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
    /// Replaces the offset that follows from the tensors before.
    pub offset: Option<u64>,
}

impl Gguf {
    pub fn new(architecture: &str) -> Self {
        let mut file = Gguf { version: 3, metadata: Vec::new(), tensors: Vec::new(), alignment: 32 };
        file.text("general.architecture", architecture);
        file
    }

    /// A llama of width 32, one block of two heads and one key/value head, with the keys that a model needs.
    pub fn small_llama() -> Self {
        let mut file = Gguf::new("llama");
        for (key, value) in [
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("block_count", 1),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("context_length", 128),
        ] {
            file.number(&format!("llama.{key}"), value);
        }
        file.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
        file.float_tensor("token_embd.weight", &[32, 8], 1);
        file.float_tensor("output_norm.weight", &[32], 2);
        file.float_tensor("blk.0.attn_norm.weight", &[32], 3);
        file.float_tensor("blk.0.attn_q.weight", &[32, 32], 4);
        file.float_tensor("blk.0.attn_k.weight", &[32, 16], 5);
        file
    }

    pub fn value(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.into(), [&kind.to_le_bytes(), bytes].concat()));
    }
    pub fn number(&mut self, key: &str, value: u32) {
        self.value(key, 4, &value.to_le_bytes());
    }
    pub fn float(&mut self, key: &str, value: f32) {
        self.value(key, 6, &value.to_le_bytes());
    }
    pub fn text(&mut self, key: &str, value: &str) {
        self.value(key, 8, &text_bytes(value));
    }
    pub fn texts(&mut self, key: &str, values: &[&str]) {
        let mut bytes = [8u32.to_le_bytes().as_slice(), &(values.len() as u64).to_le_bytes()].concat();
        bytes.extend(values.iter().flat_map(|value| text_bytes(value)));
        self.value(key, 9, &bytes);
    }
    pub fn numbers(&mut self, key: &str, values: &[i32]) {
        let mut bytes = [5u32.to_le_bytes().as_slice(), &(values.len() as u64).to_le_bytes()].concat();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.value(key, 9, &bytes);
    }
    pub fn tensor(&mut self, name: &str, sides: &[u64], type_id: u32, data: Vec<u8>) {
        self.tensors.push(GgufTensor { name: name.into(), sides: sides.to_vec(), type_id, data, offset: None });
    }
    pub fn float_tensor(&mut self, name: &str, sides: &[u64], seed: u64) {
        let count: u64 = sides.iter().product();
        let data = noise(count as usize, seed).into_iter().flat_map(f32::to_le_bytes).collect();
        self.tensor(name, sides, 0, data);
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            bytes.extend(text_bytes(key));
            bytes.extend(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            bytes.extend(text_bytes(&tensor.name));
            bytes.extend((tensor.sides.len() as u32).to_le_bytes());
            bytes.extend(tensor.sides.iter().flat_map(|side| side.to_le_bytes()));
            bytes.extend(tensor.type_id.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
            bytes.extend(&tensor.data);
        }
        bytes
    }

    /// Writes the file into `folder` and gives its path.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("model.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

pub fn text_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Copies the files of a flat folder.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
