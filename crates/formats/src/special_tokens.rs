//! Which token ids begin and end texts, from the several places where model folders say so.

use crate::FormatError;
use crate::json;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// Token ids with a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<u32>,
    /// Every token that ends a generation, the one that ends a text or an assistant's turn first.
    pub eos: Vec<u32>,
    pub pad: Option<u32>,
    pub unk: Option<u32>,
}

impl SpecialTokens {
    /// Adds an end token unless it is known.
    pub(crate) fn add_eos(&mut self, id: u32) {
        if !self.eos.contains(&id) {
            self.eos.push(id);
        }
    }
}

/// Collects from `generation_config.json`, `config.json` and `tokenizer_config.json`, in this order: what tells how to
/// generate is the most exact about where to stop.
pub(crate) fn from_folder(
    folder: &Path,
    config: &Map<String, Value>,
    tokenizer_config: Option<&Map<String, Value>>,
) -> Result<SpecialTokens, FormatError> {
    let mut special = SpecialTokens::default();
    let generation_path = folder.join("generation_config.json");
    if let Some(generation) = json::read_object_if_there(&generation_path)? {
        add_ids(&mut special, &generation, &generation_path)?;
    }
    add_ids(&mut special, config, &folder.join("config.json"))?;
    if let Some(tokenizer_config) = tokenizer_config {
        add_named(&mut special, folder, tokenizer_config)?;
    }
    Ok(special)
}

/// `bos_token_id`, `eos_token_id` (a number or a list), `pad_token_id`, `unk_token_id`.
fn add_ids(special: &mut SpecialTokens, object: &Map<String, Value>, path: &Path) -> Result<(), FormatError> {
    let ids = |key: &str| token_ids(object.get(key)).map_err(|problem| FormatError::key(path, key, problem));
    for id in ids("eos_token_id")? {
        special.add_eos(id);
    }
    special.bos = special.bos.or(ids("bos_token_id")?.first().copied());
    special.pad = special.pad.or(ids("pad_token_id")?.first().copied());
    special.unk = special.unk.or(ids("unk_token_id")?.first().copied());
    Ok(())
}

fn token_ids(value: Option<&Value>) -> Result<Vec<u32>, String> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("expected a token id, found {value}"))
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        // Some configurations say "none" as -1.
        Some(Value::Number(number)) if number.as_i64().is_some_and(|number| number < 0) => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(id).collect(),
        Some(value) => id(value).map(|id| vec![id]),
    }
}

/// `bos_token` and the like are texts: their ids stand among the added tokens.
fn add_named(
    special: &mut SpecialTokens,
    folder: &Path,
    tokenizer_config: &Map<String, Value>,
) -> Result<(), FormatError> {
    let text = |key: &str| match tokenizer_config.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let (bos, eos, pad, unk) = (text("bos_token"), text("eos_token"), text("pad_token"), text("unk_token"));
    let wanted = [
        bos.as_ref().filter(|_| special.bos.is_none()),
        eos.as_ref(),
        pad.as_ref().filter(|_| special.pad.is_none()),
        unk.as_ref().filter(|_| special.unk.is_none()),
    ];
    if wanted.iter().all(Option::is_none) {
        return Ok(());
    }
    let mut added = added_tokens_of_config(tokenizer_config);
    let all_found =
        |added: &[(String, u32)]| wanted.iter().flatten().all(|text| added.iter().any(|(content, _)| content == *text));
    if !all_found(&added) {
        added.extend(added_tokens_of_tokenizer(&folder.join("tokenizer.json"))?);
    }
    let id = |text: &Option<String>| {
        let text = text.as_ref()?;
        added.iter().find(|(content, _)| content == text).map(|(_, id)| *id)
    };
    special.bos = special.bos.or(id(&bos));
    special.pad = special.pad.or(id(&pad));
    special.unk = special.unk.or(id(&unk));
    if let Some(id) = id(&eos) {
        special.add_eos(id);
    }
    Ok(())
}

fn added_tokens_of_config(tokenizer_config: &Map<String, Value>) -> Vec<(String, u32)> {
    let Some(Value::Object(added)) = tokenizer_config.get("added_tokens_decoder") else { return Vec::new() };
    let entry = |(id, token): (&String, &Value)| Some((token.get("content")?.as_str()?.to_owned(), id.parse().ok()?));
    added.iter().filter_map(entry).collect()
}

fn added_tokens_of_tokenizer(path: &Path) -> Result<Vec<(String, u32)>, FormatError> {
    #[derive(Deserialize)]
    struct Tokenizer {
        #[serde(default)]
        added_tokens: Vec<AddedToken>,
    }
    #[derive(Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    if !path.is_file() {
        return Ok(Vec::new());
    }
    // Everything but `added_tokens` is skipped without being stored.
    let tokenizer: Tokenizer = json::parse(path, &json::read_bytes(path)?)?;
    Ok(tokenizer.added_tokens.into_iter().map(|token| (token.content, token.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn collect(files: &[(&str, Value)]) -> Result<SpecialTokens, FormatError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content.to_string()).unwrap();
        }
        let read = |name| json::read_object_if_there(&folder.path().join(name)).unwrap();
        let config = read("config.json").unwrap_or_default();
        from_folder(folder.path(), &config, read("tokenizer_config.json").as_ref())
    }

    #[test]
    fn joins_all_places_with_the_generation_config_first() {
        let special = collect(&[
            ("generation_config.json", json!({"eos_token_id": [9, 7], "pad_token_id": 3})),
            ("config.json", json!({"eos_token_id": 7, "bos_token_id": 1, "pad_token_id": 4})),
            (
                "tokenizer_config.json",
                json!({"eos_token": {"content": "<end>"}, "unk_token": "<unk>",
                "added_tokens_decoder": {"8": {"content": "<end>"}, "0": {"content": "<unk>"}}}),
            ),
        ])
        .unwrap();
        assert_eq!(special, SpecialTokens { bos: Some(1), eos: vec![9, 7, 8], pad: Some(3), unk: Some(0) });
    }

    #[test]
    fn names_are_looked_up_in_the_tokenizer_when_its_config_lacks_them() {
        let special = collect(&[
            ("config.json", json!({"bos_token_id": null, "pad_token_id": -1})),
            ("tokenizer_config.json", json!({"eos_token": "<|im_end|>", "bos_token": null})),
            (
                "tokenizer.json",
                json!({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 5, "content": "<|im_end|>"}]}),
            ),
        ])
        .unwrap();
        assert_eq!(special, SpecialTokens { bos: None, eos: vec![5], pad: None, unk: None });
    }

    #[test]
    fn a_wrong_id_is_named() {
        let error = collect(&[("config.json", json!({"eos_token_id": "</s>"}))]).unwrap_err().to_string();
        assert!(error.contains("config.json") && error.contains("eos_token_id") && error.contains("</s>"), "{error}");
    }
}
