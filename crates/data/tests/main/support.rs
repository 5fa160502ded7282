//! Fixtures as pipelines.

use data::{TextOptions, TextPipeline};
use formats::{GgufTokenizer, SpecialTokens, TokenizerSource};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub const KINDS: [&str; 6] = ["gpt2", "smollm", "llama_bpe", "qwen2", "sentence_piece_prefix", "sentence_piece_gemma"];

fn list<T>(json: &Value, name: &str, item: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    json[name].as_array().map_or(Vec::new(), |items| items.iter().map(|value| item(value).unwrap()).collect())
}

/// The GGUF form of a small tokenizer.
pub fn gguf(kind: &str) -> GgufTokenizer {
    let json = read_json(&fixture(&format!("tokenizers/{kind}/gguf.json")));
    let id = |name: &str| json[name].as_u64().map(|id| id as u32);
    GgufTokenizer {
        model: json["model"].as_str().unwrap().to_string(),
        pre: json["pre"].as_str().map(String::from),
        tokens: list(&json, "tokens", |value| value.as_str().map(String::from)),
        scores: list(&json, "scores", |value| value.as_f64().map(|score| score as f32)),
        token_types: list(&json, "token_types", |value| value.as_i64().map(|kind| kind as i32)),
        merges: list(&json, "merges", |value| value.as_str().map(String::from)),
        bos_token_id: id("bos_token_id"),
        eos_token_id: id("eos_token_id"),
        unk_token_id: id("unknown_token_id"),
        pad_token_id: id("padding_token_id"),
        add_bos_token: json["add_bos_token"].as_bool(),
        add_space_prefix: json["add_space_prefix"].as_bool(),
        ..GgufTokenizer::default()
    }
}

pub fn special(kind: &str) -> SpecialTokens {
    let gguf = gguf(kind);
    SpecialTokens {
        bos: gguf.bos_token_id,
        eos: gguf.eos_token_id.into_iter().collect(),
        pad: gguf.pad_token_id,
        unk: gguf.unk_token_id,
    }
}

pub fn hugging_face(kind: &str) -> TokenizerSource {
    TokenizerSource::HuggingFace {
        tokenizer_json: fixture(&format!("tokenizers/{kind}/tokenizer.json")),
        config: Some(read_json(&fixture(&format!("tokenizers/{kind}/tokenizer_config.json")))),
    }
}

pub fn options(date: &str, variables: Map<String, Value>) -> TextOptions {
    TextOptions { date: date.parse().unwrap(), variables }
}

/// A small tokenizer in one of its two forms, with a chat template.
pub fn pipeline(source: &TokenizerSource, kind: &str, template: Option<&str>) -> TextPipeline {
    let options = TextOptions::new("2025-10-28".parse().unwrap());
    TextPipeline::new(source, template, &special(kind), options).unwrap()
}

pub fn template(name: &str) -> String {
    std::fs::read_to_string(fixture(&format!("chat_templates/{name}.jinja"))).unwrap()
}

/// A record of a user, later the larger its sequence.
pub fn record(user: &str, sequence: usize, body: data::RecordBody) -> data::Record {
    let mut record = data::Record::ad_hoc(user, body);
    record.id = format!("{user}-{sequence}");
    record.sequence = sequence;
    record
}

pub fn completion(prompt: &str, completion: &str) -> data::RecordBody {
    data::RecordBody::Completion { prompt: prompt.to_string(), completion: completion.to_string() }
}

pub fn chat(turns: &[(&str, &str)]) -> data::RecordBody {
    let messages = turns.iter().map(|(role, content)| data::Message::new(role, *content)).collect();
    data::RecordBody::Chat { messages, tools: None }
}

/// The learned parts of an example as text.
pub fn learned(pipeline: &TextPipeline, example: &data::Example) -> Vec<String> {
    let pieces = data::example_preview(pipeline, example).into_iter();
    pieces.filter(|piece| piece.supervised).map(|piece| piece.text).collect()
}

/// A small generator of random numbers, the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }

    /// A text of pieces that have made trouble elsewhere.
    pub fn text(&mut self) -> String {
        const PIECES: [&str; 24] = [
            "word",
            " ",
            "\n",
            "\n\n",
            "  ",
            "é",
            "日本",
            "😀",
            "<|im_end|>",
            "<|im_start|>",
            "<end_of_turn>",
            "42",
            "don't",
            "\t",
            "\"q\"",
            "{{ x }}",
            "{% y %}",
            "<s>",
            "</s>",
            "A",
            ".",
            "\u{200d}",
            "\u{e000}",
            "\\n",
        ];
        (0..1 + self.below(8)).map(|_| PIECES[self.below(PIECES.len())]).collect()
    }
}
