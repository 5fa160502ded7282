//! Files that somebody made wrong on purpose: every one must give an error or a model, never a panic.

use crate::support::*;
use std::fs;
use std::path::Path;

/// Loads and describes; errors must name the file. Whether it was loaded.
fn survive(path: &Path) -> bool {
    let (described, loaded) = (formats::describe_model(path).err(), load(path).err());
    let is_loaded = loaded.is_none();
    for error in [described, loaded].into_iter().flatten() {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(name), "{error}");
    }
    is_loaded
}

/// Where to cut a file of which the first `dense` bytes have structure.
fn interesting(len: usize, dense: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..dense.min(len)).collect();
    cuts.extend((dense..len).step_by(257));
    cuts.push(len - 1);
    cuts
}

#[test]
fn gguf_cut_anywhere_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Gguf::small_llama().bytes();
    let path = folder.path().join("model.gguf");
    for len in interesting(bytes.len(), 1200) {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(!survive(&path), "cut to {len} of {} bytes", bytes.len());
    }
}

#[test]
fn gguf_with_any_byte_changed_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Gguf::small_llama();
    file.texts("tokenizer.ggml.tokens", &["a", "b", "</s>"]);
    file.numbers("tokenizer.ggml.token_type", &[1, 1, 3]);
    let bytes = file.bytes();
    let path = folder.path().join("model.gguf");
    for at in 4..1300 {
        for change in [0xff, 0x01] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            fs::write(&path, &changed).unwrap();
            survive(&path);
        }
    }
}

/// Every 64-bit word of the header replaced by numbers that overflow, wrap or ask for everything.
#[test]
fn gguf_sizes_that_overflow_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Gguf::small_llama().bytes();
    let path = folder.path().join("model.gguf");
    for at in 8..900 {
        for size in [u64::MAX - 31, 1 << 63, 1 << 40] {
            let mut changed = bytes.clone();
            changed[at..at + 8].copy_from_slice(&size.to_le_bytes());
            fs::write(&path, &changed).unwrap();
            survive(&path);
        }
    }
}

#[test]
fn gguf_metadata_of_every_wrong_kind_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let list = |kind: u32, count: u64, rest: &[u8]| [&kind.to_le_bytes(), &count.to_le_bytes()[..], rest].concat();
    let mut nested = list(4, 0, &[]);
    for _ in 0..100_000 {
        nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &nested].concat();
        if nested.len() > 1_000_000 {
            break;
        }
    }
    for (kind, value) in [
        (8, [&5u64.to_le_bytes()[..], &[0xff, 0xfe, 0xfd, 0xfc, 0xfb]].concat()),
        (9, list(8, u64::MAX, &[])),
        (9, list(4, 1 << 62, &[])),
        (9, list(13, 1, &[0])),
        (9, nested),
        (7, vec![2]),
        (99, vec![0]),
    ] {
        let mut file = Gguf::small_llama();
        file.value("general.odd", kind, &value);
        let error = load_error(&file.write(folder.path()));
        assert!(error.contains("model.gguf") && error.contains("at byte"), "{error}");
    }
    let mut file = Gguf::small_llama();
    let first = file.metadata[0].clone();
    file.metadata.push(first);
    assert!(load_error(&file.write(folder.path())).contains("appears twice"));
}

/// A safetensors file with this header and `data` bytes of zeros.
fn safetensors_bytes(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn safetensors_that_lie_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let path = folder.path().join("model.safetensors");
    let deep = format!("{{\"x\":{}", "[".repeat(100_000));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "too few"),
        (vec![1; 7], "too few"),
        (u64::MAX.to_le_bytes().to_vec(), "header of"),
        (safetensors_bytes("{}", 0)[..9].to_vec(), "header of"),
        (safetensors_bytes("[]", 0), "JSON"),
        (safetensors_bytes("{", 0), "JSON"),
        (safetensors_bytes("\u{0}\u{1}", 0), "JSON"),
        (safetensors_bytes(&deep, 0), "JSON"),
        ([&2u64.to_le_bytes()[..], &[0xff, 0xff]].concat(), "JSON"),
        (safetensors_bytes(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}"#, 8), "outside"),
        (safetensors_bytes(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8), "outside"),
        (safetensors_bytes(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8), "12 bytes"),
        (
            safetensors_bytes(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,16],"data_offsets":[0,8]}}"#, 8),
            "more bytes than",
        ),
        (
            safetensors_bytes(
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#,
                16,
            ),
            "twice",
        ),
        (
            safetensors_bytes(
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                12,
            ),
            "overlap",
        ),
        (safetensors_bytes(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#, 8), "JSON"),
        (safetensors_bytes("{}", 0), "no language model"),
    ];
    for (bytes, expected) in cases {
        fs::write(&path, &bytes).unwrap();
        let error = load_error(folder.path());
        assert!(error.contains(expected), "expected `{expected}`: {error}");
    }
}

#[test]
fn safetensors_cut_or_changed_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = [("model.embed_tokens.weight".to_owned(), float32(&[4, 32], noise(128, 1)))];
    write_safetensors(&path, &tensors.into());
    let bytes = fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(load(folder.path()).is_err(), "cut to {len}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x11;
        fs::write(&path, &changed).unwrap();
        let _ = load(folder.path());
        let _ = formats::describe_model(folder.path());
    }
}

#[test]
fn json_of_every_wrong_shape_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [("model.embed_tokens.weight".to_owned(), float32(&[4, 32], noise(128, 1)))];
    write_safetensors(&folder.path().join("model.safetensors"), &tensors.into());
    let values = ["null", "[]", "3", "-1", "1e400", "\"x\"", "{}", "[[[]]]", "{\"bits\":{}}", "true", "[-1]", "4.5"];
    for key in [
        "quantization",
        "quantization_config",
        "text_config",
        "eos_token_id",
        "bos_token_id",
        "tie_word_embeddings",
        "model_type",
        "_name_or_path",
    ] {
        for value in values {
            fs::write(folder.path().join("config.json"), format!("{{\"{key}\": {value}}}")).unwrap();
            let _ = load(folder.path());
        }
    }
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    for file in ["generation_config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors.index.json"] {
        for value in values {
            for key in
                ["eos_token_id", "eos_token", "chat_template", "added_tokens_decoder", "added_tokens", "weight_map"]
            {
                fs::write(folder.path().join(file), format!("{{\"eos_token\": \"x\", \"{key}\": {value}}}")).unwrap();
                let _ = load(folder.path());
            }
            fs::write(folder.path().join(file), value).unwrap();
            let _ = load(folder.path());
        }
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    load(folder.path()).unwrap();
}
