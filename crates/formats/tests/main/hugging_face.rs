//! Hugging Face folders: shards, types, tokenizer files, names, and errors.

use crate::support::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn write_config(folder: &Path, config: Value) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// A folder with an embedding [4, 64] and a norm.
fn small_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path(), json!({"model_type": "llama", "tie_word_embeddings": true, "eos_token_id": 7}));
    write_safetensors(&folder.path().join("model.safetensors"), &small_tensors());
    folder
}

fn small_tensors() -> BTreeMap<String, Golden> {
    [
        ("model.embed_tokens.weight".to_owned(), float32(&[4, 64], noise(256, 1))),
        ("model.norm.weight".to_owned(), float32(&[64], noise(64, 2))),
    ]
    .into()
}

#[test]
fn quantizer_agrees_with_mlx_on_every_golden() {
    let goldens = read_goldens(&fixture("mlx_quantize.safetensors"));
    let mut compared = 0;
    for (name, input) in goldens.iter().filter_map(|(name, input)| Some((name.strip_suffix(".input")?, input))) {
        let group_size: usize = name.rsplit_once(".g").unwrap().1.parse().unwrap();
        for bits in [4, 8] {
            let golden = |part: &str| &goldens[&format!("{name}.b{bits}.{part}")];
            let (n_out, k_in) = (input.shape[0], input.shape[1]);
            let found = formats::quantize::quantize(&input.floats(), n_out, k_in, bits, group_size, input.scale_type())
                .unwrap();
            assert_eq!(found.codes, golden("codes").bytes, "{name} {bits} bits: codes");
            assert_eq!(found.scales, golden("scales").floats(), "{name} {bits} bits: scales");
            assert_eq!(found.biases, golden("biases").floats(), "{name} {bits} bits: biases");
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * 3 * 2, "three types, three groups, two widths");
}

#[test]
fn quantizer_refuses_what_it_cannot_do() {
    use formats::quantize::{QuantizeError, quantize};
    let scale_type = kernels::ScaleType::Float32;
    assert_eq!(quantize(&[0.0; 64], 1, 64, 3, 64, scale_type).unwrap_err(), QuantizeError::Bits { bits: 3 });
    let error = quantize(&[0.0; 64], 1, 64, 4, 48, scale_type).unwrap_err();
    assert_eq!(error, QuantizeError::GroupSize { group_size: 48 });
    let error = quantize(&[0.0; 96], 1, 96, 4, 64, scale_type).unwrap_err();
    assert_eq!(error, QuantizeError::Columns { k_in: 96, group_size: 64 });
    let mut weights = [0.5; 128];
    weights[70] = f32::INFINITY;
    let error = quantize(&weights, 2, 64, 4, 64, scale_type).unwrap_err();
    assert_eq!(error, QuantizeError::NotFinite { row: 1, column: 6 });
}

#[test]
fn narrow_rows_get_a_smaller_group_and_odd_ones_an_error() {
    let folder = small_folder();
    for (columns, group_size) in [(64, 64), (96, 32), (48, 16), (128, 128)] {
        let mut tensors = small_tensors();
        tensors.insert("model.embed_tokens.weight".into(), float32(&[2, columns], noise(2 * columns, 3)));
        write_safetensors(&folder.path().join("model.safetensors"), &tensors);
        let model = load_with(folder.path(), 4, 128).unwrap();
        assert_eq!(matrix(&model, "model.embed_tokens.weight").group_size, group_size, "{columns} columns");
    }
    let mut tensors = small_tensors();
    tensors.insert("model.embed_tokens.weight".into(), float32(&[2, 40], noise(80, 3)));
    write_safetensors(&folder.path().join("model.safetensors"), &tensors);
    let error = load_error(folder.path());
    assert!(error.contains("model.embed_tokens.weight") && error.contains("40"), "{error}");
}

#[test]
fn shards_are_read_through_their_index() {
    let model = load(&model_fixture("smollm2/hf")).unwrap();
    let single = load(&model_fixture("smollm2/mlx_q4_g64"));
    assert_eq!(model.tensors.len(), 20);
    if let Ok(single) = single {
        assert!(single.tensors.keys().eq(model.tensors.keys()));
    }
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model_fixture("smollm2/hf"), folder.path());
    std::fs::remove_file(folder.path().join("model-00002-of-00003.safetensors")).unwrap();
    let error = load_error(folder.path());
    assert!(error.contains("model-00002-of-00003.safetensors") && error.contains("index.json"), "{error}");
}

#[test]
fn an_index_cannot_lead_out_of_the_folder() {
    let folder = small_folder();
    for file in ["../model.safetensors", "/etc/passwd", "..", "", "a/b.safetensors"] {
        let index = json!({"weight_map": {"model.norm.weight": file}});
        std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let error = load_error(folder.path());
        assert!(error.contains("weight_map.model.norm.weight"), "{file}: {error}");
    }
}

#[test]
fn an_index_that_promises_more_is_an_error() {
    let folder = small_folder();
    let map = json!({"model.norm.weight": "model.safetensors", "model.extra.weight": "model.safetensors"});
    let index = json!({"weight_map": map}).to_string();
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let error = load_error(folder.path());
    assert!(error.contains("model.extra.weight"), "{error}");
}

#[test]
fn a_tensor_in_two_shards_is_an_error() {
    let folder = small_folder();
    std::fs::copy(folder.path().join("model.safetensors"), folder.path().join("model-2.safetensors")).unwrap();
    let error = load_error(folder.path());
    assert!(error.contains("second time") && error.contains("model-2.safetensors"), "{error}");
}

#[test]
fn tokenizer_files_are_found() {
    let folder = small_folder();
    let model = load(folder.path()).unwrap();
    assert!(matches!(model.tokenizer, formats::TokenizerSource::Missing { .. }));
    assert_eq!((model.chat_template, model.special.eos), (None, vec![7]));
    for entry in std::fs::read_dir(model_fixture("tokenizer")).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let model = load(folder.path()).unwrap();
    let formats::TokenizerSource::HuggingFace { tokenizer_json, config } = model.tokenizer else { panic!() };
    assert_eq!(tokenizer_json, folder.path().join("tokenizer.json"));
    assert!(config.unwrap().is_object());
    assert!(model.chat_template.unwrap().contains("<|im_start|>"));
    assert!(model.special.eos.contains(&2), "{:?}", model.special.eos);
}

#[test]
fn chat_templates_are_found_in_every_place() {
    let folder = small_folder();
    let template = || load(folder.path()).unwrap().chat_template;
    std::fs::write(folder.path().join("chat_template.json"), json!({"chat_template": "old"}).to_string()).unwrap();
    assert_eq!(template().as_deref(), Some("old"));
    let write = |value: Value| {
        let config = json!({"chat_template": value}).to_string();
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    };
    write(json!("one"));
    assert_eq!(template().as_deref(), Some("one"));
    write(json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]));
    assert_eq!(template().as_deref(), Some("two"));
    write(json!(3));
    assert!(load_error(folder.path()).contains("chat_template"));
    std::fs::write(folder.path().join("chat_template.jinja"), "three").unwrap();
    assert_eq!(template().as_deref(), Some("three"));
    std::fs::write(folder.path().join("chat_template.jinja"), [b'a', 0xff]).unwrap();
    assert!(load_error(folder.path()).contains("UTF-8"));
}

#[test]
fn nested_text_configurations_come_up() {
    let folder = small_folder();
    write_config(
        folder.path(),
        json!({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
            "vision_config": {"hidden_size": 1152},
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "sliding_window": 1024}}),
    );
    let tensors =
        small_tensors().into_iter().map(|(name, tensor)| (name.replace("model.", "model.language_model."), tensor));
    let mut tensors: BTreeMap<String, Golden> = tensors.collect();
    tensors.insert("model.vision_tower.conv.weight".into(), float32(&[1, 1, 1, 1], [0.0]));
    write_safetensors(&folder.path().join("model.safetensors"), &tensors);
    let model = load(folder.path()).unwrap();
    let config = &model.config;
    assert_eq!((&config["model_type"], &config["hidden_size"]), (&json!("gemma3_text"), &json!(2560)));
    assert_eq!((&config["sliding_window"], &config["head_dim"]), (&json!(1024), &json!(256)));
    assert_eq!((config.get("text_config"), config.get("vision_config")), (None, None));
    assert_eq!(model.special.eos, [1, 106]);
    assert_eq!(model.tensors.keys().collect::<Vec<_>>(), ["model.embed_tokens.weight", "model.norm.weight"]);
}

#[test]
fn a_copy_of_a_tied_head_is_left_out() {
    let folder = small_folder();
    let mut tensors = small_tensors();
    tensors.insert("lm_head.weight".into(), float32(&[4, 64], noise(256, 1)));
    write_safetensors(&folder.path().join("model.safetensors"), &tensors);
    assert!(!load(folder.path()).unwrap().tensors.contains_key("lm_head.weight"));
    write_config(folder.path(), json!({"model_type": "llama"}));
    assert!(load(folder.path()).unwrap().tensors.contains_key("lm_head.weight"));
}

#[test]
fn descriptions_need_no_packing() {
    let folder = small_folder();
    std::fs::write(folder.path().join("README.md"), "---\ntags:\n- a\nlicense: apache-2.0\n---\n# A model").unwrap();
    let summary = formats::describe_model(folder.path()).unwrap();
    assert_eq!((summary.parameter_count, summary.tensor_bytes), (320, 1280));
    assert_eq!((summary.source.kind.as_str(), summary.source.quantization.as_str()), ("Hugging Face folder", "f32 x1"));
    assert_eq!(summary.source.license.as_deref(), Some("apache-2.0"));
    let names: Vec<&str> = summary.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    assert_eq!((summary.tensors[0].encoding.as_str(), &summary.tensors[0].shape), ("f32", &vec![4, 64]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "describing writes nothing");
}

#[test]
fn what_is_no_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert!(load_error(&missing).contains("missing"));
    assert!(load_error(folder.path()).contains("no config.json and no GGUF file"));
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "notes").unwrap();
    assert!(load_error(&file).contains("GGUF"));
    write_config(folder.path(), json!({"model_type": "llama"}));
    assert!(load_error(folder.path()).contains("model.safetensors"));
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    assert!(load_error(folder.path()).contains("safetensors"));
    std::fs::write(folder.path().join("config.json"), "{\n\"a\" 1}").unwrap();
    assert!(load_error(folder.path()).contains("config.json:2:5"));
}

#[test]
fn other_quantizations_are_named() {
    let folder = small_folder();
    write_config(
        folder.path(),
        json!({"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}),
    );
    let error = load_error(folder.path());
    assert!(error.contains("gptq") && error.contains("config.json"), "{error}");
}

#[test]
fn options_are_checked() {
    let folder = small_folder();
    for (bits, group_size, expected) in [(5, 64, "5 bits"), (4, 100, "group size 100")] {
        let error = load_with(folder.path(), bits, group_size).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bad_tensors_are_named() {
    let folder = small_folder();
    let cases = [
        ("x.weight", Golden { dtype: safetensors::Dtype::I32, shape: vec![2], bytes: vec![0; 8] }, "I32"),
        ("y.weight", float32(&[1, 2, 2], [0.0; 4]), "[1, 2, 2]"),
        ("z.weight", float32(&[0, 64], []), "[0, 64]"),
        ("n.weight", float32(&[2], [0.0, f32::NAN]), "element 1"),
        ("i.weight", float32(&[1, 16], [f32::INFINITY; 16]), "[0, 0]"),
    ];
    for (name, tensor, expected) in cases {
        let mut tensors = small_tensors();
        tensors.insert(name.into(), tensor);
        write_safetensors(&folder.path().join("model.safetensors"), &tensors);
        let error = load_error(folder.path());
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

#[test]
fn the_content_hash_follows_content_and_not_options_or_layout() {
    let folder = small_folder();
    let hash = || load(folder.path()).unwrap().content_hash;
    let first = hash();
    assert_eq!(first.len(), 64);
    assert_eq!(load_with(folder.path(), 8, 32).unwrap().content_hash, first);
    write_config(folder.path(), json!({"eos_token_id": 7, "tie_word_embeddings": true, "model_type": "llama"}));
    assert_eq!(hash(), first, "order of keys");
    let mut tensors = small_tensors();
    tensors.get_mut("model.norm.weight").unwrap().bytes[0] ^= 1;
    write_safetensors(&folder.path().join("model.safetensors"), &tensors);
    assert_ne!(hash(), first, "one bit of one weight");
}
