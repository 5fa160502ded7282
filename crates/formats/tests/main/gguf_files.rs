//! GGUF: block types against gguf-py, tiny models against the weights they were made from, keys and errors.

use crate::support::*;
use serde_json::{Value, json};

/// Bits, group and scale type of every quantized type.
const KINDS: [(&str, u32, usize); 8] = [
    ("Q4_0", 2, 32),
    ("Q4_1", 3, 32),
    ("Q5_0", 6, 32),
    ("Q5_1", 7, 32),
    ("Q8_0", 8, 32),
    ("Q4_K", 12, 32),
    ("Q5_K", 13, 32),
    ("Q6_K", 14, 16),
];

#[test]
fn every_block_type_decodes_to_the_bits_of_gguf_py() {
    let goldens = read_goldens(&fixture("gguf_blocks.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    for (kind, type_id, group_size) in KINDS {
        let (raw, expected) = (&goldens[&format!("{kind}.raw")], &goldens[&format!("{kind}.values")]);
        let columns = expected.shape[1];
        let mut file = Gguf::small_llama();
        file.tensors.retain(|tensor| tensor.name != "token_embd.weight");
        file.tensor("token_embd.weight", &[columns as u64, 3], type_id, raw.bytes.clone());
        let model = load(&file.write(folder.path())).unwrap();
        let matrix = matrix(&model, "model.embed_tokens.weight");
        assert_eq!((matrix.n_out, matrix.k_in, matrix.group_size), (3, columns, group_size), "{kind}");
        for (index, (found, expected)) in weights(&matrix).into_iter().zip(expected.floats()).enumerate() {
            assert!(found == expected, "{kind} weight {index}: {found:e}, gguf-py has {expected:e}");
        }
    }
}

#[test]
fn float_vectors_are_widened_exactly() {
    let goldens = read_goldens(&fixture("gguf_blocks.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    for (kind, type_id) in [("F16", 1), ("BF16", 30)] {
        for row in 0..3 {
            let mut file = Gguf::small_llama();
            file.tensors.retain(|tensor| tensor.name != "output_norm.weight");
            let raw = goldens[&format!("{kind}.raw")].bytes[row * 64..][..64].to_vec();
            file.tensor("output_norm.weight", &[32], type_id, raw);
            let model = load(&file.write(folder.path())).unwrap();
            let expected = &goldens[&format!("{kind}.values")].floats()[row * 32..][..32];
            assert_eq!(vector(&model, "model.norm.weight"), expected, "{kind} row {row}");
        }
    }
}

/// The tiny GGUF models hold quantized copies of the weights of the Hugging Face folders: every matrix must be the one of
/// the same name, with rows in the same order, within what its block type loses; vectors must be equal.
#[test]
fn tiny_models_hold_the_weights_they_were_made_from() {
    for (gguf, folder) in
        [("llama", "smollm2"), ("llama3", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3")]
    {
        let model = load(&fixture(&format!("tiny_{gguf}.gguf"))).unwrap();
        let mut originals = std::collections::BTreeMap::new();
        for entry in std::fs::read_dir(model_fixture(&format!("{folder}/hf"))).unwrap().map(Result::unwrap) {
            if entry.path().extension().is_some_and(|extension| extension == "safetensors") {
                originals.extend(read_goldens(&entry.path()));
            }
        }
        assert!(model.tensors.keys().eq(originals.keys()), "{gguf}: {:?}", model.tensors.keys());
        for (name, original) in &originals {
            let expected = original.floats();
            if original.shape.len() == 1 {
                // 1 + w, as Gemma's file holds it, has lost what is below half a unit in the last place of 1.
                let lost = if gguf == "gemma3" { 2.0f32.powi(-24) } else { 0.0 };
                let worst = vector(&model, name).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst <= lost, "{gguf} {name}: off by {worst}");
                continue;
            }
            let found = weights(&matrix(&model, name));
            let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Q4_0, the coarsest type, counts from -8 to 7 in steps of an eighth of the extreme: a weight as far on the
            // other side is a whole step off. Rows or names that were mixed up would be off by the largest weight.
            assert!(worst < 1.05 * largest / 8.0, "{gguf} {name}: off by {worst} of {largest}");
        }
    }
}

#[test]
fn configurations_say_what_the_originals_say() {
    for (gguf, folder) in
        [("llama", "smollm2"), ("llama3", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3")]
    {
        let found = load(&fixture(&format!("tiny_{gguf}.gguf"))).unwrap().config;
        let bytes = std::fs::read(model_fixture(&format!("{folder}/hf/config.json"))).unwrap();
        let original: Value = serde_json::from_slice(&bytes).unwrap();
        for key in [
            "model_type",
            "architectures",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "rms_norm_eps",
            "max_position_embeddings",
            "vocab_size",
            "tie_word_embeddings",
            "bos_token_id",
            "eos_token_id",
        ] {
            // The tiny Gemma file has a tokenizer of its own, with other special tokens.
            if gguf == "gemma3" && key.ends_with("_token_id") {
                continue;
            }
            assert_eq!(found[key], original[key], "{gguf} {key}");
        }
        let rope = &original["rope_parameters"];
        let base =
            rope.get("rope_theta").or(rope["full_attention"].get("rope_theta")).unwrap_or(&original["rope_theta"]);
        assert_eq!(found["rope_theta"].as_f64(), base.as_f64(), "{gguf}");
        assert_eq!(found["head_dim"], 32, "{gguf}");
        assert_eq!(found.get(formats::ROPE_INV_FREQ_FACTORS_KEY).is_some(), gguf == "llama3");
    }
    let gemma = load(&fixture("tiny_gemma3.gguf")).unwrap().config;
    assert_eq!(gemma["rope_local_base_freq"], 1e4);
    assert_eq!(gemma["sliding_window"], 8);
    assert_eq!(gemma["query_pre_attn_scalar"], 32);
    assert_eq!(gemma["hidden_activation"], "gelu_pytorch_tanh");
    assert_eq!(gemma["layer_types"], json!(["sliding_attention", "sliding_attention", "sliding_attention"]));
}

/// llama3's rule, written out from the configuration that the file was made from.
#[test]
fn rope_divisors_are_those_of_the_llama3_rule() {
    let config = load(&fixture("tiny_llama3.gguf")).unwrap().config;
    let found: Vec<f64> = config[formats::ROPE_INV_FREQ_FACTORS_KEY]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    assert_eq!(found.len(), 16);
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 64.0);
    for (index, found) in found.into_iter().enumerate() {
        let wavelength = std::f64::consts::TAU * 1e4f64.powf(2.0 * index as f64 / 32.0);
        let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - smooth) / factor + smooth);
        assert!((found / expected - 1.0).abs() < 1e-5, "frequency {index}: {found}, expected {expected}");
    }
}

#[test]
fn tokenizers_and_special_tokens_are_read() {
    let model = load(&fixture("tiny_llama.gguf")).unwrap();
    let formats::TokenizerSource::Gguf(tokenizer) = &model.tokenizer else { panic!("{:?}", model.tokenizer) };
    assert_eq!((tokenizer.model.as_str(), tokenizer.pre.as_deref()), ("gpt2", Some("smollm")));
    assert_eq!((tokenizer.tokens.len(), tokenizer.token_types.len()), (256, 256));
    assert_eq!((model.special.bos, model.special.eos[0]), (Some(1), 2));
    let model = load(&fixture("tiny_gemma3.gguf")).unwrap();
    let formats::TokenizerSource::Gguf(tokenizer) = &model.tokenizer else { panic!("{:?}", model.tokenizer) };
    assert_eq!((tokenizer.model.as_str(), tokenizer.scores.len()), ("llama", 256));
}

#[test]
fn ends_of_turns_become_end_tokens_and_templates_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    file.text("tokenizer.ggml.model", "gpt2");
    file.texts("tokenizer.ggml.tokens", &["a", "<|eot_id|>", "</s>", "<|im_end|>"]);
    file.numbers("tokenizer.ggml.token_type", &[1, 3, 3, 1]);
    file.number("tokenizer.ggml.eos_token_id", 2);
    file.number("tokenizer.ggml.padding_token_id", u32::MAX);
    file.text("tokenizer.chat_template", "{{ messages }}");
    file.text("general.license", "apache-2.0");
    let path = file.write(folder.path());
    let model = load(&path).unwrap();
    assert_eq!(model.special, formats::SpecialTokens { bos: None, eos: vec![2, 1], pad: None, unk: None });
    assert_eq!(model.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!(model.source.license.as_deref(), Some("apache-2.0"));
    let summary = formats::describe_model(&path).unwrap();
    assert_eq!(summary.tokenizer, "GGUF gpt2, 4 tokens");
    assert!(summary.has_chat_template);
    file.number("tokenizer.ggml.eos_token_id", 4);
    let error = load_error(&file.write(folder.path()));
    assert!(error.contains("tokenizer.ggml.eos_token_id") && error.contains("token 4"), "{error}");
}

#[test]
fn no_tokenizer_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = load(&Gguf::small_llama().write(folder.path())).unwrap();
    assert!(matches!(model.tokenizer, formats::TokenizerSource::Missing { .. }));
}

#[test]
fn smollm3_has_no_rope_in_every_fourth_layer_and_interleaved_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    for entry in &mut file.metadata {
        entry.0 = entry.0.replace("llama.", "smollm3.");
    }
    file.text("general.architecture", "smollm3");
    file.number("smollm3.block_count", 5);
    let model = load_with(&file.write(folder.path()), 8, 32).unwrap();
    assert_eq!(model.config["no_rope_layers"], json!([1, 1, 1, 0, 1]));
    assert_eq!(model.config["model_type"], "smollm3");
    let stored = noise(32 * 32, 4);
    let found = weights(&matrix(&model, "model.layers.0.self_attn.q_proj.weight"));
    // Two heads of 16 rows: row 8 of a head is the second row stored.
    for (row, stored_row) in [(0, 0), (8, 1), (1, 2), (16, 16), (24, 17)] {
        let off = (0..32).map(|column| (found[row * 32 + column] - stored[stored_row * 32 + column]).abs());
        assert!(off.fold(0.0, f32::max) < 0.01, "row {row}");
    }
}

#[test]
fn float_matrices_beside_quantized_ones_get_eight_bits() {
    let goldens = read_goldens(&fixture("gguf_blocks.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    assert_eq!(matrix(&load(&file.write(folder.path())).unwrap(), "model.embed_tokens.weight").bits, 4);
    file.tensor("output.weight", &[96, 3], 2, goldens["Q4_0.raw"].bytes.clone());
    let model = load(&file.write(folder.path())).unwrap();
    assert_eq!(matrix(&model, "model.embed_tokens.weight").bits, 8);
    assert_eq!(matrix(&model, "lm_head.weight").bits, 4);
    assert_eq!(model.config["tie_word_embeddings"], false);
}

#[test]
fn versions_two_and_three_are_read_and_others_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    file.version = 2;
    load(&file.write(folder.path())).unwrap();
    for (version, expected) in [(1, "GGUF version 1"), (4, "GGUF version 4"), (3u32.swap_bytes(), "big-endian")] {
        file.version = version;
        let error = load_error(&file.write(folder.path()));
        assert!(error.contains(expected) && error.contains("model.gguf"), "{error}");
    }
}

#[test]
fn a_wider_alignment_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    file.alignment = 256;
    file.number("general.alignment", 256);
    let model = load_with(&file.write(folder.path()), 8, 32).unwrap();
    assert_eq!(vector(&model, "model.layers.0.input_layernorm.weight"), noise(32, 3));
}

/// What is wrong with a small model, and what the message must contain.
#[test]
fn bad_models_are_named() {
    let folder = tempfile::tempdir().unwrap();
    type Change = fn(&mut Gguf);
    let cases: [(&str, Change, &[&str]); 21] = [
        ("architecture", |file| file.text("general.architecture", "mamba"), &["`mamba`", "llama, smollm3, qwen2"]),
        ("no architecture", |file| drop(file.metadata.remove(0)), &["general.architecture", "missing"]),
        ("missing key", |file| file.metadata.retain(|(key, _)| key != "llama.block_count"), &["llama.block_count"]),
        ("kind of key", |file| file.text("llama.block_count", "one"), &["llama.block_count", "number"]),
        ("no heads", |file| file.number("llama.attention.head_count", 0), &["llama.attention.head_count"]),
        ("odd heads", |file| file.number("llama.attention.head_count", 5), &["blk.0.attn_q.weight", "5 heads"]),
        ("experts", |file| file.number("llama.expert_count", 8), &["llama.expert_count", "experts"]),
        ("partial rope", |file| file.number("llama.rope.dimension_count", 8), &["llama.rope.dimension_count", "16"]),
        ("tensor type", |file| file.tensors[3].type_id = 10, &["blk.0.attn_q.weight", "Q2_K", "Q4_K"]),
        ("unknown type", |file| file.tensors[3].type_id = 77, &["blk.0.attn_q.weight", "type 77"]),
        ("unknown tensor", |file| file.tensors[3].name = "blk.0.ssm_a".into(), &["blk.0.ssm_a", "llama"]),
        ("twice", |file| file.tensors[4].name = "blk.0.attn_q.weight".into(), &["blk.0.attn_q.weight", "twice"]),
        ("no embedding", |file| drop(file.tensors.remove(0)), &["token_embd.weight"]),
        ("overlap", |file| file.tensors[4].offset = Some(32), &["overlap"]),
        ("alignment", |file| file.tensors[4].offset = Some(33), &["blk.0.attn_k.weight", "alignment"]),
        ("far away", |file| file.tensors[4].offset = Some(u64::MAX - 31), &["blk.0.attn_k.weight", "outside"]),
        ("huge", |file| file.tensors[4].sides = vec![1 << 40, 1 << 40], &["blk.0.attn_k.weight", "impossible"]),
        ("columns", |file| file.tensors[3].type_id = 12, &["blk.0.attn_q.weight", "impossible"]),
        ("rope factors", |file| file.float_tensor("rope_freqs.weight", &[4], 1), &["rope_freqs.weight", "positive"]),
        (
            "number of rope factors",
            |file| file.tensor("rope_freqs.weight", &[2], 0, [1.0f32, 2.0].map(f32::to_le_bytes).concat()),
            &["rope_freqs.weight", "2 numbers", "16"],
        ),
        ("alignment of 3", |file| file.number("general.alignment", 3), &["general.alignment", "power of two"]),
    ];
    for (what, change, expected) in cases {
        let mut file = Gguf::small_llama();
        change(&mut file);
        let error = load_error(&file.write(folder.path()));
        for part in expected.iter().chain(&["model.gguf"]) {
            assert!(error.contains(part), "{what}: {error}");
        }
    }
}

#[test]
fn weights_that_are_not_finite_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (tensor, column, expected) in [(3, 5, "[2, 5]"), (1, 4, "element 4")] {
        let mut file = Gguf::small_llama();
        let at = if tensor == 3 { (2 * 32 + column) * 4 } else { column * 4 };
        file.tensors[tensor].data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let error = load_error(&file.write(folder.path()));
        // Row 2 of q is stored as row 1 of the first head's interleaved order, so its name in the model is row 1.
        let expected = if tensor == 3 { "[1, 5]" } else { expected };
        assert!(error.contains(&file.tensors[tensor].name) && error.contains(expected), "{error}");
    }
    let goldens = read_goldens(&fixture("gguf_blocks.safetensors"));
    let mut file = Gguf::small_llama();
    let mut raw = goldens["Q4_1.raw"].bytes.clone();
    raw[20..22].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    file.tensor("output.weight", &[96, 3], 3, raw);
    let error = load_error(&file.write(folder.path()));
    assert!(error.contains("output.weight") && error.contains("row 0, group 1"), "{error}");
}

#[test]
fn a_folder_with_one_gguf_file_is_a_model_and_with_two_is_a_question() {
    let folder = tempfile::tempdir().unwrap();
    let path = Gguf::small_llama().write(folder.path());
    assert_eq!(load(folder.path()).unwrap().content_hash, load(&path).unwrap().content_hash);
    std::fs::copy(&path, folder.path().join("other.gguf")).unwrap();
    assert!(load_error(folder.path()).contains("several GGUF files"));
}

#[test]
fn other_kinds_of_gguf_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    file.text("general.type", "adapter");
    assert!(load_error(&file.write(folder.path())).contains("`adapter`, expected `model`"));
    let mut file = Gguf::small_llama();
    file.value("split.count", 2, &3u16.to_le_bytes());
    assert!(load_error(&file.write(folder.path())).contains("split.count"));
}
