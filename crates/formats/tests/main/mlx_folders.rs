//! MLX folders against MLX: packing of every width, and the folders of the tiny models.

use crate::support::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A folder with one quantized matrix.
fn write_folder(folder: &Path, tensors: BTreeMap<String, Golden>, quantization: Value) {
    let config = json!({"model_type": "llama", "quantization": quantization});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    write_safetensors(&folder.join("model.safetensors"), &tensors);
}

fn packing_tensors(bits: u32, group_size: usize) -> BTreeMap<String, Golden> {
    let mut goldens = read_goldens(&fixture("mlx_packing.safetensors"));
    let mut take = |part: &str| goldens.remove(&format!("b{bits}.g{group_size}.{part}")).unwrap();
    ["weight", "scales", "biases"].map(|part| (format!("model.embed_tokens.{part}"), take(part))).into()
}

#[test]
fn every_width_and_group_unpacks_as_mlx_packed_it() {
    let goldens = read_goldens(&fixture("mlx_packing.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            let tensors = packing_tensors(bits, group_size);
            write_folder(folder.path(), tensors, json!({"bits": bits, "group_size": group_size}));
            let found = matrix(&load(folder.path()).unwrap(), "model.embed_tokens.weight");
            let golden = |part: &str| &goldens[&format!("b{bits}.g{group_size}.{part}")];
            assert_eq!((found.bits, found.group_size, found.n_out, found.k_in), (bits, group_size, 3, 128));
            assert_eq!(found.scale_type, golden("scales").scale_type());
            assert_eq!(found.codes, golden("codes").bytes, "{bits} bits, group {group_size}");
            assert_eq!(found.scales, golden("scales").floats());
            assert_eq!(found.biases, golden("biases").floats());
            assert_eq!(weights(&found), golden("values").floats());
        }
    }
}

/// A Hugging Face folder quantized at load equals the folder that MLX quantized, code for code.
#[test]
fn quantizing_at_load_gives_what_mlx_gave() {
    let mut compared = 0;
    for (folder, label, bits, group_size) in [
        ("llama", "mlx_q4_g32", 4, 32),
        ("llama", "mlx_q4_g64", 4, 64),
        ("llama", "mlx_q4_g128", 4, 128),
        ("llama", "mlx_q8_g64", 8, 64),
        ("mistral", "mlx_q4_g64", 4, 64),
        ("gemma3", "mlx_q4_g64", 4, 64),
        ("qwen2", "mlx_q4_g64", 4, 64),
        ("qwen3", "mlx_q4_g64", 4, 64),
        ("smollm3", "mlx_q4_g64", 4, 64),
    ] {
        let quantized_here = load_with(&model_fixture(&format!("{folder}/hf")), bits, group_size).unwrap();
        let by_mlx = load(&model_fixture(&format!("{folder}/{label}"))).unwrap();
        assert!(quantized_here.tensors.keys().eq(by_mlx.tensors.keys()), "{folder} {label}");
        for name in by_mlx.tensors.keys() {
            if name.ends_with("norm.weight") || name.ends_with(".bias") {
                assert_eq!(vector(&quantized_here, name), vector(&by_mlx, name), "{folder} {label} {name}");
            } else {
                assert_eq!(matrix(&quantized_here, name), matrix(&by_mlx, name), "{folder} {label} {name}");
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "only {compared} matrices compared");
}

#[test]
fn layers_may_have_their_own_width() {
    let model = load(&model_fixture("llama/mlx_mixed")).unwrap();
    let shape = |name: &str| {
        let matrix = matrix(&model, name);
        (matrix.bits, matrix.group_size)
    };
    assert_eq!(shape("model.embed_tokens.weight"), (6, 64));
    assert_eq!(shape("model.layers.0.self_attn.q_proj.weight"), (3, 64));
    assert_eq!(shape("model.layers.0.mlp.down_proj.weight"), (5, 32));
    assert_eq!(shape("model.layers.1.self_attn.o_proj.weight"), (6, 128));
    assert_eq!(shape("model.layers.1.mlp.gate_proj.weight"), (2, 32));
    assert_eq!(shape("model.layers.1.self_attn.q_proj.weight"), (4, 64));
    let original = load_with(&model_fixture("llama/hf"), 8, 32).unwrap();
    for name in ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"] {
        let (found, expected) = (matrix(&model, name), weights(&matrix(&original, name)));
        let scale_max = found.scales.iter().fold(0.0f32, |largest, scale| largest.max(scale.abs()));
        let worst = weights(&found).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Moving the range so that zero is hit exactly can leave the far end up to a step outside.
        assert!(worst < scale_max, "{name}: off by {worst}, a step is {scale_max}");
    }
}

#[test]
fn a_layer_left_in_float_is_quantized_to_eight_bits() {
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = packing_tensors(4, 64);
    tensors.insert("lm_head.weight".into(), float32(&[3, 96], noise(3 * 96, 9)));
    let quantization = json!({"bits": 4, "group_size": 64, "mode": "affine", "lm_head": false});
    write_folder(folder.path(), tensors, quantization);
    let head = matrix(&load(folder.path()).unwrap(), "lm_head.weight");
    assert_eq!((head.bits, head.group_size, head.scale_type.name()), (8, 32, "f32"));
}

#[test]
fn text_models_of_multimodal_folders_lose_their_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let mut tensors: BTreeMap<String, Golden> =
        packing_tensors(4, 64).into_iter().map(|(name, tensor)| (format!("language_model.{name}"), tensor)).collect();
    tensors.insert("vision_tower.patch.weight".into(), float32(&[1, 1, 1, 1], [0.0]));
    tensors.insert("multi_modal_projector.w".into(), float32(&[1], [0.0]));
    write_folder(
        folder.path(),
        tensors,
        json!({"bits": 8, "group_size": 32,
        "language_model.model.embed_tokens": {"bits": 4, "group_size": 64}}),
    );
    let model = load(folder.path()).unwrap();
    assert_eq!(model.tensors.keys().collect::<Vec<_>>(), ["model.embed_tokens.weight"]);
    assert_eq!(matrix(&model, "model.embed_tokens.weight").bits, 4);
}

#[test]
fn bad_folders_are_named() {
    let good = || packing_tensors(4, 64);
    let affine = json!({"bits": 4, "group_size": 64});
    type Change = fn(&mut BTreeMap<String, Golden>);
    let cases: [(Value, Change, &[&str]); 9] = [
        (json!({"bits": 7, "group_size": 64}), |_| {}, &["config.json", "quantization.bits", "7"]),
        (json!({"bits": 4, "group_size": 48}), |_| {}, &["quantization.group_size", "48"]),
        (json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}), |_| {}, &["mxfp4", "affine"]),
        (json!({"bits": 4}), |_| {}, &["quantization", "group_size"]),
        (json!({"bits": 4, "group_size": 32}), |_| {}, &["model.embed_tokens.weight", "[3, 2]", "[3, 4]"]),
        (
            json!({"bits": 4, "group_size": 64, "model.embed_tokens": false}),
            |_| {},
            &["model.embed_tokens.weight", "not quantized"],
        ),
        (affine.clone(), |tensors| drop(tensors.remove("model.embed_tokens.biases")), &["model.embed_tokens.biases"]),
        (affine.clone(), |tensors| drop(tensors.remove("model.embed_tokens.weight")), &["biases", "`.weight`"]),
        (
            affine,
            |tensors| drop(tensors.insert("model.embed_tokens.biases".into(), float32(&[3, 2], [0.0; 6]))),
            &["BF16 and F32"],
        ),
    ];
    for (quantization, change, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = good();
        change(&mut tensors);
        write_folder(folder.path(), tensors, quantization.clone());
        let error = load_error(folder.path());
        for part in expected {
            assert!(error.contains(part), "{quantization}: {error}");
        }
    }
}
