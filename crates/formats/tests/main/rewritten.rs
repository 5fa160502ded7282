//! Models written anew with adapters in their weights. What is written is read back by the ordinary readers and
//! compared with sums made here in float64.

use crate::support::*;
use formats::adapter::{
    AdapterFile, AdapterMatrix, PeftConfig, read_adapter, read_mlx, read_peft, write_mlx, write_peft,
};
use formats::{FormatError, ModelRewrite, NewFolder, RewriteOptions, WrittenWeights, describe_model};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All tensors of a folder's weight files as float64, by stored name.
fn floats_of(folder: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "safetensors") {
            for (name, golden) in read_goldens(&entry.path()) {
                let values = golden.floats().into_iter().map(f64::from).collect();
                tensors.insert(name, (golden.shape.clone(), values));
            }
        }
    }
    tensors
}

/// What an adapter adds to each of its matrices, by the formula.
fn added(adapter: &AdapterFile) -> BTreeMap<String, Vec<f64>> {
    let (r, scale) = (adapter.config.r, adapter.config.scale());
    let product = |matrix: &AdapterMatrix| {
        let mut values = vec![0.0; matrix.n_out * matrix.k_in];
        for n in 0..matrix.n_out {
            for k in 0..matrix.k_in {
                let sum: f64 =
                    (0..r).map(|i| f64::from(matrix.b[n * r + i]) * f64::from(matrix.a[i * matrix.k_in + k])).sum();
                values[n * matrix.k_in + k] = scale * sum;
            }
        }
        values
    };
    adapter.matrices.iter().map(|matrix| (format!("{}.weight", matrix.module), product(matrix))).collect()
}

fn write(source: &Path, options: &RewriteOptions, adapters: &[&AdapterFile]) -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let place = parent.path().join("merged");
    let rewrite = ModelRewrite::open(source, options, adapters).unwrap();
    let folder = NewFolder::begin(&place).unwrap();
    let mut written = 0;
    rewrite.write(folder.path(), &mut |bytes| written = bytes).unwrap();
    rewrite.write_notes(folder.path(), "A merged model.", &json!({"merged": true})).unwrap();
    folder.keep().unwrap();
    assert_eq!(written, rewrite.bytes());
    let stored: u64 = describe_model(&place).unwrap().tensor_bytes;
    assert_eq!(stored, rewrite.bytes(), "the plan is exact");
    (parent, place)
}

/// Half a unit in the last place of each stored type, relative, and the noise of a float32 sum of a few products.
fn float_error(value: f64, significant_bits: i32) -> f64 {
    value.abs() * 2f64.powi(-significant_bits) + 1e-6
}

/// How far a weight can be from its code, in steps: half a step of rounding; one where the step was adjusted to hit zero
/// and the far end is cut off; and the roundings of scale and bias to eight significant bits, as many times as the
/// largest code. The adjustment also makes the step up to a tenth smaller than the one that was rounded with.
fn steps_of_error(bits: u32) -> f64 {
    1.1 * (1.5 + 2.0 * f64::from((1 << bits) - 1) / 512.0)
}

#[test]
fn the_float_folder_holds_the_sums_and_everything_else_as_it_was() {
    for (family, significant_bits) in [("smollm2", 8), ("llama", 8), ("gemma3", 8), ("qwen2", 8), ("smollm3", 8)] {
        let source = model_fixture(&format!("{family}/hf"));
        let adapter = read_adapter(&model_fixture(&format!("{family}/adapter"))).unwrap();
        let (_parent, place) = write(&source, &RewriteOptions::new(WrittenWeights::Float), &[&adapter, &adapter]);
        let (before, after, added) = (floats_of(&source), floats_of(&place), added(&adapter));
        assert!(before.keys().eq(after.keys()), "{family}: {:?}", after.keys());
        let mut changed = 0;
        for (name, (shape, values)) in &after {
            assert_eq!(shape, &before[name].0);
            match added.get(name) {
                None => assert_eq!(values, &before[name].1, "{family} {name}"),
                Some(added) => {
                    changed += 1;
                    for (index, (found, (base, added))) in
                        values.iter().zip(before[name].1.iter().zip(added)).enumerate()
                    {
                        let expected = base + 2.0 * added;
                        let bound = float_error(expected, significant_bits);
                        assert!((found - expected).abs() <= bound, "{family} {name}[{index}]: {found} for {expected}");
                    }
                }
            }
        }
        assert_eq!(changed, added.len());
        load(&place).unwrap();
    }
}

#[test]
fn a_folder_quantized_once_is_the_float_folder_quantized() {
    let source = model_fixture("llama/hf");
    let adapter = read_adapter(&model_fixture("llama/adapter")).unwrap();
    for (bits, group_size) in [(4, 64), (4, 32), (8, 128)] {
        let (_parent, place) =
            write(&source, &RewriteOptions::new(WrittenWeights::Affine { bits, group_size }), &[&adapter]);
        let config: Value = serde_json::from_slice(&std::fs::read(place.join("config.json")).unwrap()).unwrap();
        for name in ["quantization", "quantization_config"] {
            assert_eq!((&config[name]["bits"], &config[name]["group_size"]), (&json!(bits), &json!(group_size)));
        }
        let written = load(&place).unwrap();
        // The float sums, in the type of the file, are at most half a step of the codes from what was written.
        let (before, added) = (floats_of(&source), added(&adapter));
        for (name, (shape, base)) in &before {
            if shape.len() != 2 {
                assert!(vector(&written, name).iter().map(|x| f64::from(*x)).eq(base.iter().copied()), "{name}");
                continue;
            }
            let matrix = matrix(&written, name);
            assert_eq!((matrix.bits, matrix.group_size), (bits, group_size), "{name}");
            let zeros = vec![0.0; base.len()];
            let sums = base.iter().zip(added.get(name).unwrap_or(&zeros)).map(|(base, added)| base + added);
            for (index, (found, expected)) in weights(&matrix).iter().zip(sums).enumerate() {
                let scale = f64::from(matrix.scales[index / group_size]).abs();
                let bound = scale * steps_of_error(bits) + float_error(expected, 8);
                assert!((f64::from(*found) - expected).abs() <= bound, "{name}[{index}]: {found} for {expected}");
            }
        }
        // Without an adapter it is what MLX makes of the same weights.
        if (bits, group_size) == (4, 64) {
            let (_parent, place) =
                write(&source, &RewriteOptions::new(WrittenWeights::Affine { bits, group_size }), &[]);
            let (ours, mlx) = (load(&place).unwrap(), load(&model_fixture("llama/mlx_q4_g64")).unwrap());
            assert!(ours.tensors.keys().eq(mlx.tensors.keys()));
            for name in ours.tensors.keys().filter(|name| before[*name].0.len() == 2) {
                assert_eq!(matrix(&ours, name), matrix(&mlx, name), "{name}");
            }
        }
    }
}

#[test]
fn a_quantized_folder_keeps_what_no_adapter_touches_to_the_bit() {
    for label in ["mlx_q4_g64", "mlx_q8_g64", "mlx_mixed"] {
        let source = model_fixture(&format!("llama/{label}"));
        let mut adapter = read_adapter(&model_fixture("llama/adapter")).unwrap();
        adapter.matrices.retain(|matrix| matrix.module.ends_with("q_proj") || matrix.module.ends_with("v_proj"));
        let options = RewriteOptions::new(WrittenWeights::AsStored);
        // Widths that the quantizer does not write are refused where an adapter adds to them.
        let stored = load(&source).unwrap();
        let bits_of = |name: &str| matrix(&stored, name).bits;
        let (added, is_writable) = (added(&adapter), |bits| bits == 4 || bits == 8);
        if !added.keys().all(|name| is_writable(bits_of(name))) {
            let error = ModelRewrite::open(&source, &options, &[&adapter]).err().expect("refused").to_string();
            assert!(error.contains("4 and 8 are supported"), "{label}: {error}");
            continue;
        }
        let (_parent, place) = write(&source, &options, &[&adapter]);
        let written = load(&place).unwrap();
        for name in stored.tensors.keys() {
            if !name.ends_with("norm.weight") {
                let (before, after) = (matrix(&stored, name), matrix(&written, name));
                assert_eq!((before.bits, before.group_size), (after.bits, after.group_size), "{label} {name}");
                assert_eq!(before == after, !added.contains_key(name), "{label} {name}");
            }
        }
        // More bits for what is added to, the rest as it was.
        let options = RewriteOptions::new(WrittenWeights::Affine { bits: 8, group_size: 32 });
        let (_parent, place) = write(&source, &options, &[&adapter]);
        let written = load(&place).unwrap();
        for name in stored.tensors.keys().filter(|name| !name.ends_with("norm.weight")) {
            let after = matrix(&written, name);
            match added.get(name) {
                None => assert_eq!(after, matrix(&stored, name), "{label} {name}"),
                Some(added) => {
                    assert_eq!((after.bits, after.group_size), (8, 32));
                    let base = weights(&matrix(&stored, name));
                    for (index, (found, base)) in weights(&after).iter().zip(base).enumerate() {
                        let expected = f64::from(base) + added[index];
                        let scale = f64::from(after.scales[index / 32]).abs();
                        let bound = scale * steps_of_error(8) + float_error(expected, 8);
                        assert!((f64::from(*found) - expected).abs() <= bound, "{label} {name}[{index}]");
                    }
                }
            }
        }
    }
}

#[test]
fn large_models_are_divided_into_files_with_an_index() {
    let source = model_fixture("smollm2/hf");
    let adapter = read_adapter(&model_fixture("smollm2/adapter")).unwrap();
    let whole = write(&source, &RewriteOptions::new(WrittenWeights::Float), &[&adapter]);
    let options = RewriteOptions { file_bytes_max: 20_000, ..RewriteOptions::new(WrittenWeights::Float) };
    let divided = write(&source, &options, &[&adapter]);
    assert_eq!(floats_of(&whole.1), floats_of(&divided.1));
    assert!(!whole.1.join("model.safetensors.index.json").exists());
    let index: Value =
        serde_json::from_slice(&std::fs::read(divided.1.join("model.safetensors.index.json")).unwrap()).unwrap();
    let files: std::collections::BTreeSet<_> =
        index["weight_map"].as_object().unwrap().values().map(Value::to_string).collect();
    assert!(files.len() > 2, "{files:?}");
    let (one, other) = (load(&whole.1).unwrap(), load(&divided.1).unwrap());
    assert_eq!(one.content_hash, other.content_hash);
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let adapter = read_adapter(&model_fixture("llama/adapter")).unwrap();
    let refusal = |source: &Path, weights, adapter: &AdapterFile| {
        ModelRewrite::open(source, &RewriteOptions::new(weights), &[adapter]).err().expect("refused").to_string()
    };
    let source = model_fixture("llama/hf");
    let mut other = adapter.clone();
    other.matrices[0].module = "model.layers.77.self_attn.q_proj".into();
    let error = refusal(&source, WrittenWeights::Float, &other);
    assert!(error.contains("model.layers.77.self_attn.q_proj.weight") && error.contains("no such tensor"), "{error}");
    let mut other = adapter.clone();
    other.matrices[0].n_out += 1;
    assert!(refusal(&source, WrittenWeights::Float, &other).contains("the adapter adds ["));
    assert!(refusal(&source, WrittenWeights::Affine { bits: 3, group_size: 64 }, &adapter).contains("4 and 8"));
    assert!(refusal(&source, WrittenWeights::Affine { bits: 4, group_size: 16 }, &adapter).contains("32, 64 or 128"));

    let folder = tempfile::tempdir().unwrap();
    let gguf = Gguf::small_llama().write(folder.path());
    let error = ModelRewrite::open(&gguf, &RewriteOptions::new(WrittenWeights::Float), &[]).err().expect("refused");
    assert!(matches!(error, FormatError::Unsupported { .. }), "{error}");

    // A sum that is no number is found where it is.
    let mut infinite = adapter.clone();
    infinite.matrices[0].a[1] = f32::MAX;
    infinite.matrices[0].b[0] = f32::MAX;
    for weights in [WrittenWeights::Float, WrittenWeights::Affine { bits: 4, group_size: 64 }] {
        let parent = tempfile::tempdir().unwrap();
        let rewrite = ModelRewrite::open(&source, &RewriteOptions::new(weights), &[&infinite]).unwrap();
        let folder = NewFolder::begin(&parent.path().join("out")).unwrap();
        let error = rewrite.write(folder.path(), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("not finite in [0, "), "{error}");
    }
}

/// An adapter with these modules of blocks `blocks`.
fn adapter(
    modules: &[(&str, usize, usize)],
    blocks: std::ops::Range<usize>,
    r: usize,
    alpha: f64,
    seed: u64,
) -> AdapterFile {
    let mut matrices = Vec::new();
    for block in blocks.clone() {
        for (index, (name, n_out, k_in)) in modules.iter().enumerate() {
            let seed = seed + (block * 10 + index) as u64;
            let module = format!("model.layers.{block}.{name}");
            matrices.push(AdapterMatrix {
                module,
                n_out: *n_out,
                k_in: *k_in,
                a: noise(r * k_in, seed),
                b: noise(n_out * r, seed + 5),
            });
        }
    }
    let config = PeftConfig {
        r,
        lora_alpha: alpha,
        lora_dropout: 0.0,
        use_rslora: r == 3,
        target_modules: modules.iter().map(|(name, ..)| name.rsplit('.').next().unwrap().to_owned()).collect(),
        layers_to_transform: Some(blocks.collect()),
        base_model_name_or_path: None,
    };
    AdapterFile { config, metadata: None, matrices }
}

#[test]
fn a_stack_as_one_adapter_adds_the_same_and_is_read_by_everybody() {
    const Q: (&str, usize, usize) = ("self_attn.q_proj", 8, 4);
    const V: (&str, usize, usize) = ("self_attn.v_proj", 6, 4);
    const DOWN: (&str, usize, usize) = ("mlp.down_proj", 4, 12);
    let bottom = adapter(&[DOWN, Q], 1..4, 2, 6.0, 100);
    let top = adapter(&[Q, V], 2..4, 3, 5.0, 900);
    let one = AdapterFile::concatenated(&[&bottom, &top]);
    assert_eq!((one.config.r, one.config.scale()), (5, 1.0));
    let (one_added, bottom_added, top_added) = (added(&one), added(&bottom), added(&top));
    assert_eq!(one_added.len(), 9, "three modules in three blocks");
    for (name, values) in &one_added {
        for (index, found) in values.iter().enumerate() {
            let of = |added: &BTreeMap<String, Vec<f64>>| added.get(name).map_or(0.0, |values| values[index]);
            let expected = of(&bottom_added) + of(&top_added);
            assert!(
                (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                "{name}[{index}]: {found} for {expected}"
            );
        }
    }
    // Every reader takes it, strictly, and finds the same.
    let folder = tempfile::tempdir().unwrap();
    write_peft(&folder.path().join("peft"), &one).unwrap();
    assert_eq!(added(&read_peft(&folder.path().join("peft")).unwrap()), one_added);
    write_mlx(&folder.path().join("mlx"), &one, 4).unwrap();
    assert_eq!(added(&read_mlx(&folder.path().join("mlx")).unwrap()), one_added);
    // What an adapter computes identifies it, in whatever format.
    let mlx = read_mlx(&folder.path().join("mlx")).unwrap();
    assert_eq!(mlx.content_hash(), one.content_hash());
    assert_ne!(bottom.content_hash(), top.content_hash());
    let mut other = one.clone();
    other.matrices[3].b[1] += 1e-3;
    assert_ne!(other.content_hash(), one.content_hash());
}
