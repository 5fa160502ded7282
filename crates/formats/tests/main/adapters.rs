//! Adapters: PEFT's own files, MLX's layout, GGUF for llama.cpp, and everything that must be refused.

use crate::support::*;
use formats::adapter::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const RANK: usize = 2;

/// Two blocks of q [8, 4] and v [6, 4].
fn small_adapter() -> AdapterFile {
    let mut matrices = Vec::new();
    for block in [1, 2] {
        for (name, n_out) in [("q_proj", 8), ("v_proj", 6)] {
            let seed = (block * 10 + n_out) as u64;
            matrices.push(AdapterMatrix {
                module: format!("model.layers.{block}.self_attn.{name}"),
                n_out,
                k_in: 4,
                a: noise(RANK * 4, seed),
                b: noise(n_out * RANK, seed + 1),
            });
        }
    }
    AdapterFile {
        config: PeftConfig {
            r: RANK,
            lora_alpha: 6.0,
            lora_dropout: 0.05,
            use_rslora: false,
            target_modules: vec!["q_proj".into(), "v_proj".into()],
            layers_to_transform: Some(vec![1, 2]),
            base_model_name_or_path: Some("org/base".into()),
        },
        metadata: Some(AdapterMetadata {
            stack: Vec::new(),
            selftune_version: "0.1.0".into(),
            base_content_hash: "ab".repeat(32),
            receipt: json!({"records": 120}),
        }),
        matrices,
    }
}

fn edit_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// The adapters that peft wrote for the tiny models, matrix by matrix against the tensors of its file.
#[test]
fn adapters_written_by_peft_are_read_completely() {
    for family in ["llama", "smollm2", "mistral", "smollm3", "qwen2", "qwen3", "gemma3"] {
        let folder = model_fixture(&format!("{family}/adapter"));
        let adapter = read_adapter(&folder).unwrap();
        assert_eq!((adapter.config.r, adapter.config.scale(), adapter.metadata), (4, 2.0, None), "{family}");
        let goldens = read_goldens(&folder.join("adapter_model.safetensors"));
        assert_eq!(2 * adapter.matrices.len(), goldens.len(), "{family}");
        for matrix in &adapter.matrices {
            let golden = |side: &str| &goldens[&format!("base_model.model.{}.{side}.weight", matrix.module)];
            let (a, b) = (golden("lora_A"), golden("lora_B"));
            assert_eq!((a.shape.clone(), b.shape.clone()), (vec![4, matrix.k_in], vec![matrix.n_out, 4]));
            assert_eq!((&matrix.a, &matrix.b), (&a.floats(), &b.floats()), "{family} {}", matrix.module);
        }
    }
}

#[test]
fn what_is_written_for_peft_has_its_keys_and_comes_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/adapter");
    let adapter = small_adapter();
    write_peft(&path, &adapter).unwrap();
    let goldens = read_goldens(&path.join("adapter_model.safetensors"));
    assert_eq!(goldens.len(), 8);
    let a = &goldens["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"];
    let b = &goldens["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"];
    assert_eq!((a.shape.as_slice(), b.shape.as_slice()), ([2, 4].as_slice(), [8, 2].as_slice()));
    assert_eq!((a.floats(), b.floats()), (adapter.matrices[0].a.clone(), adapter.matrices[0].b.clone()));
    let config: Value = serde_json::from_slice(&fs::read(path.join("adapter_config.json")).unwrap()).unwrap();
    for (key, expected) in [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("r", json!(2)),
        ("lora_alpha", json!(6)),
        ("lora_dropout", json!(0.05)),
        ("use_rslora", json!(false)),
        ("target_modules", json!(["q_proj", "v_proj"])),
        ("layers_to_transform", json!([1, 2])),
        ("base_model_name_or_path", json!("org/base")),
        ("bias", json!("none")),
        ("fan_in_fan_out", json!(false)),
    ] {
        assert_eq!(config[key], expected, "{key}");
    }
    let own: Value = serde_json::from_slice(&fs::read(path.join("selftune.json")).unwrap()).unwrap();
    assert_eq!(own["receipt"]["records"], 120);
    assert_eq!(read_adapter(&path).unwrap(), adapter);
    let before = fs::read(path.join("adapter_model.safetensors")).unwrap();
    write_peft(&path, &adapter).unwrap();
    assert_eq!(fs::read(path.join("adapter_model.safetensors")).unwrap(), before, "equal adapters give equal bytes");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
}

#[cfg(unix)]
#[test]
fn adapters_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let parent = tempfile::tempdir().unwrap();
    let (peft, mlx) = (parent.path().join("adapter/best"), parent.path().join("mlx"));
    write_peft(&peft, &small_adapter()).unwrap();
    write_mlx(&mlx, &small_adapter(), 3).unwrap();
    assert_eq!(mode(&parent.path().join("adapter")), 0o700);
    for folder in [peft, mlx] {
        assert_eq!(mode(&folder), 0o700);
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // Written again, a file that others could read becomes private.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        match folder.ends_with("best") {
            true => write_peft(&folder, &small_adapter()).unwrap(),
            false => write_mlx(&folder, &small_adapter(), 3).unwrap(),
        }
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
}

#[test]
fn scales_follow_the_kind_of_lora() {
    let mut config = small_adapter().config;
    assert_eq!(config.scale(), 3.0);
    config.use_rslora = true;
    config.r = 4;
    assert_eq!(config.scale(), 3.0);
}

#[test]
fn a_write_that_cannot_be_right_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_peft(folder.path(), &small_adapter()).unwrap();
    let before = fs::read(folder.path().join("adapter_model.safetensors")).unwrap();
    type Change = fn(&mut AdapterFile);
    let changes: [(Change, &str); 4] = [
        (|adapter| adapter.matrices.clear(), "without matrices"),
        (|adapter| adapter.matrices[1].a.truncate(3), "model.layers.1.self_attn.v_proj"),
        (|adapter| adapter.matrices[0].b[3] = f32::NAN, "not finite"),
        (|adapter| adapter.matrices[0].module = "lm_head".into(), "lm_head"),
    ];
    for (change, expected) in changes {
        let mut adapter = small_adapter();
        change(&mut adapter);
        let error = write_peft(folder.path(), &adapter).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(write_mlx(folder.path(), &adapter, 3).is_err());
        assert!(write_gguf(&folder.path().join("x.gguf"), &adapter, &json!({"model_type": "qwen2"})).is_err());
    }
    assert_eq!(fs::read(folder.path().join("adapter_model.safetensors")).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// One change of a good PEFT folder, and what the error must name.
#[test]
fn peft_folders_are_read_strictly() {
    let q = "base_model.model.model.layers.1.self_attn.q_proj";
    type Change = fn(&Path);
    fn config(folder: &Path, key: &str, value: Value) {
        edit_json(&folder.join("adapter_config.json"), |config| config[key] = value);
    }
    fn tensors(folder: &Path, change: impl FnOnce(&mut BTreeMap<String, Golden>)) {
        let path = folder.join("adapter_model.safetensors");
        let mut tensors = read_goldens(&path);
        change(&mut tensors);
        write_safetensors(&path, &tensors);
    }
    let cases: Vec<(Change, Vec<&str>)> = vec![
        (|f| config(f, "peft_type", json!("IA3")), vec!["adapter_config.json", "peft_type", "IA3"]),
        (|f| config(f, "use_dora", json!(true)), vec!["use_dora"]),
        (|f| config(f, "rank_pattern", json!({"q_proj": 4})), vec!["rank_pattern"]),
        (|f| config(f, "alpha_pattern", json!({"q_proj": 4})), vec!["alpha_pattern"]),
        (|f| config(f, "modules_to_save", json!(["lm_head"])), vec!["modules_to_save", "lm_head"]),
        (|f| config(f, "bias", json!("all")), vec!["bias", "all"]),
        (|f| config(f, "fan_in_fan_out", json!(true)), vec!["fan_in_fan_out"]),
        (|f| config(f, "r", json!(0)), vec!["key `r`"]),
        (|f| config(f, "r", json!("2")), vec!["key `r`"]),
        (|f| config(f, "r", json!(4)), vec!["lora_A.weight", "rank 2", "says 4"]),
        (|f| config(f, "lora_alpha", json!(0)), vec!["lora_alpha"]),
        (|f| config(f, "lora_alpha", Value::Null), vec!["lora_alpha", "missing"]),
        (|f| config(f, "target_modules", json!(["q_proj"])), vec!["v_proj", "target_modules"]),
        (|f| config(f, "target_modules", json!(["q_proj", "v_proj", "k_proj"])), vec!["k_proj", "missing"]),
        (|f| config(f, "target_modules", json!(".*_proj")), vec!["target_modules", ".*_proj", "pattern", "list"]),
        (|f| config(f, "target_modules", json!([])), vec!["target_modules"]),
        (|f| config(f, "target_modules", json!(["q_proj", 3])), vec!["target_modules", "list of names", "3"]),
        (|f| config(f, "target_modules", Value::Null), vec!["target_modules", "null"]),
        (|f| config(f, "use_rslora", json!("yes")), vec!["use_rslora", "true or false", "yes"]),
        (|f| config(f, "use_rslora", json!(1)), vec!["use_rslora", "true or false"]),
        (|f| config(f, "use_rslora", Value::Null), vec![]),
        (|f| fs::write(f.join("selftune.json"), "").unwrap(), vec!["selftune.json", "empty", "receipt"]),
        (|f| fs::write(f.join("selftune.json"), "{\"rec").unwrap(), vec!["selftune.json:1:5", "JSON"]),
        (
            |f| fs::write(f.join("selftune.json"), "[]").unwrap(),
            vec!["selftune.json", "expected an object, found a list"],
        ),
        (|f| fs::write(f.join("selftune.json"), "{}").unwrap(), vec!["selftune.json", "selftune_version", "missing"]),
        (
            |f| edit_json(&f.join("selftune.json"), |own| own["base_content_hash"] = json!(7)),
            vec!["selftune.json", "base_content_hash", "expected a string, found a number"],
        ),
        (|f| fs::remove_file(f.join("selftune.json")).unwrap(), vec![]),
        (|f| config(f, "layers_to_transform", json!([1])), vec!["layers.2", "layers_to_transform"]),
        (|f| config(f, "layers_to_transform", json!([1, 2, 3])), vec!["layers.3", "missing"]),
        (|f| config(f, "layers_to_transform", json!("1")), vec!["layers_to_transform"]),
        (|f| config(f, "layers_to_transform", Value::Null), vec![]),
        (
            |f| tensors(f, |t| drop(t.remove("base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"))),
            vec![q, "lora_B.weight", "missing"],
        ),
        (
            |f| tensors(f, |t| t.retain(|name, _| !name.contains("layers.1.self_attn.q_proj"))),
            vec!["layers.1.*.q_proj", "missing"],
        ),
        (
            |f| tensors(f, |t| drop(t.insert("base_model.model.lm_head.weight".into(), float32(&[1, 1], [0.0])))),
            vec!["base_model.model.lm_head.weight", "unexpected"],
        ),
        (
            |f| {
                let key = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
                tensors(f, |t| drop(t.insert(key.into(), float32(&[4, 2], noise(8, 1)))));
            },
            vec![q, "[4, 2]", "rank 4"],
        ),
        (
            |f| {
                let key = "base_model.model.model.layers.2.self_attn.v_proj.lora_B.weight";
                tensors(f, |t| drop(t.insert(key.into(), float32(&[6, 2], [f32::NAN; 12]))));
            },
            vec!["layers.2.self_attn.v_proj.lora_B.weight", "not finite"],
        ),
        (
            |f| {
                let key = "base_model.model.model.layers.2.self_attn.v_proj.lora_B.weight";
                tensors(f, |t| drop(t.insert(key.into(), float32(&[12], [0.0; 12]))));
            },
            vec!["layers.2.self_attn.v_proj.lora_B.weight", "expected a matrix"],
        ),
        (|f| tensors(f, |t| t.clear()), vec!["missing"]),
        (|f| fs::remove_file(f.join("adapter_config.json")).unwrap(), vec!["adapter_config.json"]),
        (|f| fs::write(f.join("adapter_config.json"), "{").unwrap(), vec!["adapter_config.json:1:1"]),
    ];
    for (index, (change, expected)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        write_peft(folder.path(), &small_adapter()).unwrap();
        change(folder.path());
        match read_peft(folder.path()) {
            Ok(adapter) => {
                assert!(expected.is_empty(), "case {index} was read");
                assert_eq!(adapter.matrices, small_adapter().matrices);
                assert_eq!(adapter.config.target_modules, ["q_proj", "v_proj"]);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!expected.is_empty(), "case {index}: {error}");
                expected.iter().for_each(|part| assert!(error.contains(part), "case {index}, `{part}`: {error}"));
            }
        }
    }
}

#[test]
fn adapters_cut_short_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    write_peft(folder.path(), &small_adapter()).unwrap();
    let path = folder.path().join("adapter_model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for len in (0..bytes.len()).step_by(7) {
        fs::write(&path, &bytes[..len]).unwrap();
        let error = read_peft(folder.path()).unwrap_err().to_string();
        assert!(error.contains("adapter_model.safetensors"), "{error}");
    }
    for at in (0..bytes.len()).step_by(3) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x20;
        fs::write(&path, &changed).unwrap();
        let _ = read_peft(folder.path());
    }
}

/// A folder as `mlx_lm.lora` writes it: A is [k_in, r], B is [r, n_out], the multiplier is `scale`.
#[test]
fn mlx_adapters_are_transposed_and_keep_their_strength() {
    let adapter = small_adapter();
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = BTreeMap::new();
    for matrix in &adapter.matrices {
        let a = (0..4).flat_map(|k| (0..RANK).map(move |r| (r, k))).map(|(r, k)| matrix.a[r * 4 + k]);
        let b = (0..RANK).flat_map(|r| (0..matrix.n_out).map(move |n| (r, n))).map(|(r, n)| matrix.b[n * RANK + r]);
        tensors.insert(format!("{}.lora_a", matrix.module), float32(&[4, RANK], a));
        tensors.insert(format!("{}.lora_b", matrix.module), float32(&[RANK, matrix.n_out], b));
    }
    write_safetensors(&folder.path().join("adapters.safetensors"), &tensors);
    let config = json!({"fine_tune_type": "lora", "num_layers": 2, "model": "org/base",
        "lora_parameters": {"rank": 2, "scale": 20.0, "dropout": 0.0}});
    fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    let read = read_adapter(folder.path()).unwrap();
    assert_eq!(read.matrices, adapter.matrices);
    assert_eq!((read.config.scale(), read.config.r), (20.0, 2));
    assert_eq!(read.config.layers_to_transform, Some(vec![1, 2]));

    let config_path = folder.path().join("adapter_config.json");
    edit_json(&config_path, |config| drop(config["lora_parameters"].as_object_mut().unwrap().remove("rank")));
    assert_eq!(read_adapter(folder.path()).unwrap().config.r, 2, "old versions did not store the rank");
    edit_json(&config_path, |config| config["fine_tune_type"] = json!("dora"));
    assert!(read_adapter(folder.path()).unwrap_err().to_string().contains("dora"));
    edit_json(&config_path, |config| {
        config["fine_tune_type"] = json!("lora");
        drop(config["lora_parameters"].as_object_mut().unwrap().remove("scale"));
    });
    assert!(read_adapter(folder.path()).unwrap_err().to_string().contains("lora_parameters.scale"));
    edit_json(&config_path, |config| config["lora_parameters"] = json!({"scale": 1.0, "rank": 3}));
    assert!(read_adapter(folder.path()).unwrap_err().to_string().contains("rank 2"));
    edit_json(&config_path, |config| config["lora_parameters"] = json!({"scale": 1.0, "rank": 2}));
    tensors.retain(|name, _| !name.starts_with("model.layers.1.self_attn.v_proj"));
    write_safetensors(&folder.path().join("adapters.safetensors"), &tensors);
    let error = read_adapter(folder.path()).unwrap_err().to_string();
    assert!(error.contains("model.layers.1.self_attn.v_proj.lora_a"), "{error}");
}

#[test]
fn what_is_written_for_mlx_has_its_layout() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = small_adapter();
    write_mlx(folder.path(), &adapter, 3).unwrap();
    let goldens = read_goldens(&folder.path().join("adapters.safetensors"));
    let (a, b) =
        (&goldens["model.layers.2.self_attn.v_proj.lora_a"], &goldens["model.layers.2.self_attn.v_proj.lora_b"]);
    assert_eq!((a.shape.as_slice(), b.shape.as_slice()), ([4, 2].as_slice(), [2, 6].as_slice()));
    let matrix = &adapter.matrices[3];
    assert_eq!((a.floats()[3], b.floats()[7]), (matrix.a[4 + 1], matrix.b[2 + 1]), "transposed");
    let config: Value = serde_json::from_slice(&fs::read(folder.path().join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["num_layers"], &config["lora_parameters"]["scale"]), (&json!(2), &json!(3.0)));
    assert_eq!(config["lora_parameters"]["keys"], json!(["self_attn.q_proj", "self_attn.v_proj"]));
    assert_eq!(read_adapter(folder.path()).unwrap().matrices, adapter.matrices);
    for blocks_total in [2, 4] {
        let error = write_mlx(folder.path(), &adapter, blocks_total).unwrap_err().to_string();
        assert!(error.contains("last of"), "{error}");
    }
}

/// Sides (innermost first) and values by name.
type GgufTensors = BTreeMap<String, (Vec<u64>, Vec<f32>)>;

/// Reads the parts of a GGUF file that an adapter has: texts, one float, float32 tensors.
fn read_adapter_gguf(path: &Path) -> (BTreeMap<String, String>, f32, GgufTensors) {
    let bytes = fs::read(path).unwrap();
    let at = std::cell::Cell::new(8);
    let take = |len: usize| {
        at.set(at.get() + len);
        &bytes[at.get() - len..at.get()]
    };
    let u64_ = || u64::from_le_bytes(take(8).try_into().unwrap());
    let u32_ = || u32::from_le_bytes(take(4).try_into().unwrap());
    let text = || String::from_utf8(take(u64_() as usize).to_vec()).unwrap();
    assert_eq!(&bytes[..8], b"GGUF\x03\0\0\0");
    let (tensor_count, key_count) = (u64_(), u64_());
    let (mut texts, mut alpha) = (BTreeMap::new(), f32::NAN);
    for _ in 0..key_count {
        let key = text();
        match u32_() {
            8 => drop(texts.insert(key, text())),
            6 => {
                assert_eq!(key, "adapter.lora.alpha");
                alpha = f32::from_le_bytes(take(4).try_into().unwrap());
            }
            other => panic!("{other}"),
        }
    }
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        let name = text();
        let sides: Vec<u64> = (0..u32_()).map(|_| u64_()).collect();
        assert_eq!(u32_(), 0, "float32");
        entries.push((name, sides, u64_() as usize));
    }
    let data = &bytes[at.get().next_multiple_of(32)..];
    let tensors = entries.into_iter().map(|(name, sides, offset)| {
        let count = sides.iter().product::<u64>() as usize;
        let values = data[offset..offset + 4 * count].chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()));
        (name, (sides, values.collect()))
    });
    (texts, alpha, tensors.collect())
}

#[test]
fn gguf_adapters_have_llama_cpp_names_and_row_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    let mut adapter = small_adapter();
    adapter.config.use_rslora = true;
    let config = json!({"model_type": "mistral", "num_attention_heads": 2, "num_key_value_heads": 1});
    write_gguf(&path, &adapter, &config).unwrap();
    let (texts, alpha, tensors) = read_adapter_gguf(&path);
    assert_eq!((texts["general.type"].as_str(), texts["adapter.type"].as_str()), ("adapter", "lora"));
    assert_eq!(texts["general.architecture"], "llama");
    assert_eq!(alpha, (6.0 / 2.0f64.sqrt() * 2.0) as f32, "llama.cpp divides by the rank");
    assert_eq!(tensors.len(), 8);
    let (sides, a) = &tensors["blk.1.attn_q.weight.lora_a"];
    assert_eq!((sides, a), (&vec![4, 2], &adapter.matrices[0].a));
    let (sides, b) = &tensors["blk.1.attn_q.weight.lora_b"];
    assert_eq!(sides, &vec![2, 8]);
    // Two heads of four rows: rows 0 and 2 of a head are a pair and stand together.
    let rows: Vec<&[f32]> = [0, 2, 1, 3, 4, 6, 5, 7].iter().map(|row| &adapter.matrices[0].b[row * 2..][..2]).collect();
    assert_eq!(b, &rows.concat());
    assert_eq!(tensors["blk.2.attn_v.weight.lora_b"].1, adapter.matrices[3].b, "v keeps its order");

    write_gguf(&path, &adapter, &json!({"model_type": "qwen2", "num_attention_heads": 2})).unwrap();
    assert_eq!(read_adapter_gguf(&path).2["blk.1.attn_q.weight.lora_b"].1, adapter.matrices[0].b);
    let error = write_gguf(&path, &adapter, &json!({"model_type": "mamba"})).unwrap_err().to_string();
    assert!(error.contains("mamba") && error.contains("qwen3"), "{error}");
    let error = write_gguf(&path, &adapter, &json!({"model_type": "llama", "num_attention_heads": 3})).unwrap_err();
    assert!(error.to_string().contains("num_attention_heads"), "{error}");
    adapter.matrices[0].module = "model.layers.1.self_attn.qkv".into();
    let error = write_gguf(&path, &adapter, &json!({"model_type": "qwen2"})).unwrap_err().to_string();
    assert!(error.contains("self_attn.qkv"), "{error}");
}

#[test]
fn gguf_adapters_tell_their_receipt_and_damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    let adapter = small_adapter();
    let config = json!({"model_type": "qwen2", "num_attention_heads": 2});
    write_gguf(&path, &adapter, &config).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&read_adapter_gguf(&path).0["selftune.metadata"]).unwrap(),
        json!(adapter.metadata)
    );
    let found = describe_gguf(&path).unwrap();
    assert!(is_gguf(&path) && adapter.metadata.is_some());
    assert_eq!((&found.metadata, found.rank, found.lora_alpha), (&adapter.metadata, 2, adapter.config.scale() * 2.0));
    assert_eq!((found.architecture.as_str(), found.matrices.len()), ("qwen2", adapter.matrices.len()));
    assert_eq!(
        (found.matrices[0].name.as_str(), found.matrices[0].n_out, found.matrices[0].k_in),
        ("blk.1.attn_q.weight", 8, 4)
    );

    let whole = fs::read(&path).unwrap();
    let damaged = |bytes: &[u8], words: &str| {
        fs::write(&path, bytes).unwrap();
        let error = describe_gguf(&path).unwrap_err().to_string();
        assert!(error.contains("adapter.gguf") && error.contains(words), "{words}: {error}");
    };
    let replaced = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        [&whole[..at], to.as_bytes(), &whole[at + from.len()..]].concat()
    };
    // The last bytes only fill up to the alignment.
    (0..whole.len() - 32).for_each(|len| damaged(&whole[..len], ""));
    damaged(&replaced("attn_q.weight.lora_b", "attn_q.weight.lora_c"), "lora_c");
    damaged(&replaced("attn_q.weight.lora_b", "attn_x.weight.lora_b"), "blk.1.attn_q.weight.lora_b");
    damaged(&replaced("base_content_hash", "base_content_hush"), "base_content_hash");
    damaged(&replaced("\"receipt\"", " receipt\""), "");
    damaged(&replaced("adapter.lora.alpha", "adapter.lora.alphb"), "adapter.lora.alpha");
    damaged(&replaced("adapter.typ", "adapter.top"), "adapter.type");

    write_gguf(&path, &AdapterFile { metadata: None, ..adapter }, &config).unwrap();
    assert_eq!(describe_gguf(&path).unwrap().metadata, None);
    fs::write(&path, "no GGUF").unwrap();
    assert!(!is_gguf(&path) && !is_gguf(folder.path()));
}

#[test]
fn a_folder_without_an_adapter_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = read_adapter(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("adapter_model.safetensors (PEFT)") && error.contains("adapters.safetensors (MLX)"),
        "{error}"
    );
}
