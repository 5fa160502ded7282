//! Logits, every LoRA gradient and the losses of ten updates against transformers + peft, in every family and width.
//! `fixtures/README.md` says how the expected values were made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::{CacheMode, LoadOptions};
use kernels::{AdamWParameters, Isa, OpsOptions, Precision};
use model::{AdapterWeights, Generator, GeneratorOptions, Model, Projection, StepOptions, TrainingSession};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::tiny;

pub struct Bounds {
    /// Of logits and token losses, by norm.
    pub logits: f64,
    /// Of each matrix's gradient, by norm.
    pub gradients: f64,
    /// Of the mean loss, relative, while ten updates take it from about 6 to 4 nats.
    losses: f64,
}
/// Float32 sums of a few hundred terms through up to four blocks.
const EXACT: Bounds = Bounds { logits: 1e-5, gradients: 1e-5, losses: 1e-5 };
/// 2e-4 of error a product through the same blocks.
const A16: Bounds = Bounds { logits: 5e-4, gradients: 5e-4, losses: 1e-4 };

/// (folder, label): every width and group that has expected values.
const CASES: &[(&str, &str)] = &[
    ("llama", "q4_g32"),
    ("llama", "q4_g64"),
    ("llama", "q4_g128"),
    ("llama", "q8_g64"),
    ("llama", "mixed"),
    ("smollm2", "float"),
    ("mistral", "q4_g32"),
    ("mistral", "q4_g64"),
    ("mistral", "q4_g128"),
    ("smollm3", "q4_g32"),
    ("smollm3", "q4_g64"),
    ("smollm3", "q4_g128"),
    ("qwen2", "q4_g32"),
    ("qwen2", "q4_g64"),
    ("qwen2", "q4_g128"),
    ("qwen3", "q4_g32"),
    ("qwen3", "q4_g64"),
    ("qwen3", "q4_g128"),
    ("gemma3", "q4_g32"),
    ("gemma3", "q4_g64"),
];

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn numbers<T>(value: &Value, parse: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    value.as_array().expect("a list").iter().map(|entry| parse(entry).expect("a number")).collect()
}

pub fn floats(tensors: &SafeTensors, name: &str) -> Vec<f32> {
    let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// One folder under one label: model, adapter, input and what must come out.
pub struct Case {
    pub name: String,
    pub model: Arc<Model>,
    pub adapter: AdapterWeights,
    pub tokens: Vec<u32>,
    pub mask: Vec<bool>,
    expected: Value,
    pub tensors: Option<Vec<u8>>,
}

impl Case {
    fn load(folder: &str, label: &str) -> Self {
        let path = fixtures().join(folder);
        // Where the folder has no MLX form of the label, the float weights are quantized to it.
        let mlx = path.join(format!("mlx_{label}"));
        let model = if mlx.is_dir() { mlx } else { path.join("hf") };
        let (quantize_bits, quantize_group_size) = match label {
            "q4_g32" => (4, 32),
            "q4_g128" => (4, 128),
            "q8_g64" => (8, 64),
            // Weights of the case `float` are such that 4 bits lose nothing.
            _ => (4, 64),
        };
        let options = LoadOptions { quantize_bits, quantize_group_size, cache: CacheMode::Off };
        let loaded = formats::load_model(&model, &options, &mut |_| {}).expect("the fixture loads");
        let model = Arc::new(Model::from_loaded(loaded).expect("a complete model"));
        let file = formats::adapter::read_peft(&path.join("adapter")).expect("the adapter loads");
        let adapter = AdapterWeights::from_file(&file, &model).expect("the adapter fits");
        let input = read_json(&path.join("input.json"));
        Self {
            name: format!("{folder} {label}"),
            adapter,
            model,
            tokens: numbers(&input["tokens"], |token| token.as_u64().map(|token| token as u32)),
            mask: numbers(&input["loss_mask"], Value::as_bool),
            expected: read_json(&path.join(format!("expected_{label}.json"))),
            tensors: std::fs::read(path.join(format!("expected_{label}.safetensors"))).ok(),
        }
    }

    /// The adapter of a variant: its matrices among all of them.
    fn variant(&self, variant: &str) -> AdapterWeights {
        let mut adapter = self.adapter.clone();
        match variant {
            "all" => {}
            "qv" => adapter.spec.targets = vec![Projection::Query, Projection::Value],
            "last" => adapter.spec.blocks.start = adapter.spec.blocks.end - 1,
            _ => unreachable!("a variant of the fixtures"),
        }
        let spec = adapter.spec.clone();
        adapter.matrices.retain(|m| spec.blocks.contains(&m.block) && spec.targets.contains(&m.projection));
        adapter
    }

    pub fn supervised(&self) -> usize {
        self.mask.iter().filter(|supervised| **supervised).count()
    }

    fn session(&self, variant: &str, precision: Precision) -> TrainingSession {
        let ops = OpsOptions { threads: 1, isa: Isa::best(), precision };
        let options = StepOptions { ops, ..StepOptions::new(self.tokens.len()) };
        TrainingSession::new(Arc::clone(&self.model), &self.variant(variant), options).expect("a session")
    }

    /// Gradients of the mean loss, each within the bound of the expected.
    fn check_gradients(&self, variant: &str, precision: Precision, bounds: &Bounds) {
        let Some(bytes) = &self.tensors else { return };
        let tensors = SafeTensors::deserialize(bytes).expect("valid expected tensors");
        let mut session = self.session(variant, precision);
        session.step(&self.tokens, &self.mask, 1.0 / self.supervised() as f32, 0).expect("a step");
        for gradient in session.gradients() {
            let expected = floats(&tensors, &format!("{variant}.grad.{}", gradient.name));
            let difference = tiny::norm_difference(&gradient.values, &expected);
            let what = format!("{} {} {variant} {}", self.name, precision.name(), gradient.name);
            assert!(difference < bounds.gradients, "{what}: off by {difference}");
        }
    }

    fn check_logits(&self, precision: Precision, bounds: &Bounds) {
        let Some(bytes) = &self.tensors else { return };
        let tensors = SafeTensors::deserialize(bytes).expect("valid expected tensors");
        let ops = OpsOptions { threads: 1, isa: Isa::best(), precision };
        let options = GeneratorOptions::new(ops, self.tokens.len());
        for (variant, adapter) in [("base", None), ("all", Some(&self.adapter))] {
            let logits = floats(&tensors, &format!("{variant}.logits"));
            let losses = floats(&tensors, &format!("{variant}.token_losses"));
            let mut generator = Generator::new(Arc::clone(&self.model), adapter, options).expect("a generator");
            let every = vec![true; self.tokens.len()];
            let found = generator.losses(&self.tokens, &every).expect("losses").losses;
            let what = format!("{} {} {variant}", self.name, precision.name());
            let difference = tiny::norm_difference(&found, &losses[1..]);
            assert!(difference < bounds.logits, "{what} losses: off by {difference}");
            for (index, expected) in logits.chunks_exact(self.model.config().vocabulary).enumerate() {
                let found = generator.logits(&self.tokens[..=index]).expect("logits");
                let difference = tiny::norm_difference(&found, expected);
                assert!(difference < bounds.logits, "{what} logits at {index}: off by {difference}");
            }
        }
    }

    /// Mean losses before each of ten updates and after the last.
    fn check_losses(&self, variant: &str, precision: Precision, bounds: &Bounds) {
        let expected = numbers(&self.expected[variant]["losses"], Value::as_f64);
        assert_eq!(expected.len(), 11);
        let mut session = self.session(variant, precision);
        for (index, expected) in expected.iter().enumerate() {
            session.zero_gradients();
            let loss = session.step(&self.tokens, &self.mask, 1.0 / self.supervised() as f32, 0).expect("a step");
            let mean = loss.loss_sum / loss.supervised_tokens as f64;
            let what = format!("{} {} {variant}", self.name, precision.name());
            let difference = (mean / expected - 1.0).abs();
            assert!(difference < bounds.losses, "{what}: loss {index} is {mean} for {expected}");
            session.update(&AdamWParameters {
                learning_rate: 3e-4,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.01,
                step: index as u64 + 1,
                gradient_factor: 1.0,
            });
        }
    }
}

pub fn for_each_case(mut check: impl FnMut(&Case, Precision, &Bounds)) {
    for (folder, label) in CASES {
        let case = Case::load(folder, label);
        check(&case, Precision::Exact, &EXACT);
        check(&case, Precision::A16, &A16);
    }
}

#[test]
fn every_fixture_is_tested() {
    let mut found = Vec::new();
    for folder in std::fs::read_dir(fixtures()).expect("the fixtures").flatten() {
        for file in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            let (folder, file) = (folder.file_name(), file.file_name());
            let (folder, file) = (folder.to_string_lossy(), file.to_string_lossy());
            if let Some(label) = file.strip_prefix("expected_").and_then(|rest| rest.strip_suffix(".json")) {
                found.push((folder.to_string(), label.to_string()));
            }
        }
    }
    let mut tested: Vec<_> = CASES.iter().map(|(folder, label)| (folder.to_string(), label.to_string())).collect();
    found.sort();
    tested.sort();
    assert_eq!(found, tested);
}

#[test]
fn logits_and_token_losses_agree() {
    for_each_case(|case, precision, bounds| case.check_logits(precision, bounds));
}

#[test]
fn gradients_of_all_projections_agree() {
    for_each_case(|case, precision, bounds| case.check_gradients("all", precision, bounds));
}

#[test]
fn gradients_of_queries_and_values_agree() {
    for_each_case(|case, precision, bounds| case.check_gradients("qv", precision, bounds));
}

#[test]
fn ten_updates_agree() {
    for_each_case(|case, precision, bounds| {
        for variant in ["all", "qv", "last"] {
            case.check_losses(variant, precision, bounds);
        }
    });
}
