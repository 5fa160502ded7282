//! The tokenizer and the special tokens in a GGUF file's metadata.

use super::container::Container;
use crate::FormatError;
use crate::special_tokens::SpecialTokens;

/// A tokenizer as GGUF metadata holds it (`tokenizer.ggml.*`). What a file does not say is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `gpt2` (byte-level BPE), `llama` (SentencePiece), ...
    pub model: String,
    /// Name of the pre-tokenizer: `smollm`, `llama-bpe`, `qwen2`, ...
    pub pre: Option<String>,
    /// Texts of the tokens; the index is the id.
    pub tokens: Vec<String>,
    /// A score a token (SentencePiece), or empty.
    pub scores: Vec<f32>,
    /// A kind a token, or empty: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// BPE merges, `left right`, best first, or empty.
    pub merges: Vec<String>,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    /// End of an assistant's turn.
    pub eot_token_id: Option<u32>,
    pub unk_token_id: Option<u32>,
    pub pad_token_id: Option<u32>,
    pub add_bos_token: Option<bool>,
    pub add_eos_token: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub remove_extra_whitespaces: Option<bool>,
}

/// The kind of a token that only marks structure.
const CONTROL: i32 = 3;
/// Control tokens that end a turn in the chat formats of the supported families. Files often name only one of them.
const TURN_ENDS: [&str; 4] = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>"];

/// Reads the tokenizer; `None` when the file has no token list.
pub(super) fn read(container: &Container) -> Result<Option<GgufTokenizer>, FormatError> {
    let Some(tokens) = container.texts("tokenizer.ggml.tokens")? else { return Ok(None) };
    let vocabulary = tokens.len();
    let id = |key: &str| {
        let key = format!("tokenizer.ggml.{key}");
        match container.unsigned(&key)? {
            None => Ok(None),
            Some(id) if id < vocabulary as u64 => Ok(Some(id as u32)),
            // "None" is written as all ones by some converters.
            Some(id) if id == u64::from(u32::MAX) => Ok(None),
            Some(id) => Err(container.key_error(&key, format!("token {id} of a vocabulary of {vocabulary}"))),
        }
    };
    let token_types = container.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
    let tokenizer = GgufTokenizer {
        model: container.text("tokenizer.ggml.model")?.unwrap_or_default().to_owned(),
        pre: container.text("tokenizer.ggml.pre")?.map(str::to_owned),
        scores: container.floats("tokenizer.ggml.scores")?.unwrap_or_default(),
        token_types: token_types.into_iter().map(|kind| i32::try_from(kind).unwrap_or_default()).collect(),
        merges: container.texts("tokenizer.ggml.merges")?.unwrap_or_default(),
        bos_token_id: id("bos_token_id")?,
        eos_token_id: id("eos_token_id")?,
        eot_token_id: id("eot_token_id")?,
        unk_token_id: id("unknown_token_id")?,
        pad_token_id: id("padding_token_id")?,
        add_bos_token: container.bool("tokenizer.ggml.add_bos_token")?,
        add_eos_token: container.bool("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: container.bool("tokenizer.ggml.add_space_prefix")?,
        remove_extra_whitespaces: container.bool("tokenizer.ggml.remove_extra_whitespaces")?,
        tokens,
    };
    for (key, len) in [("scores", tokenizer.scores.len()), ("token_type", tokenizer.token_types.len())] {
        if len != 0 && len != vocabulary {
            let problem = format!("{len} values for {vocabulary} tokens");
            return Err(container.key_error(&format!("tokenizer.ggml.{key}"), problem));
        }
    }
    Ok(Some(tokenizer))
}

/// The special tokens, with every token that ends a turn among the end tokens.
pub(super) fn special_tokens(tokenizer: &GgufTokenizer) -> SpecialTokens {
    let mut special = SpecialTokens {
        bos: tokenizer.bos_token_id,
        pad: tokenizer.pad_token_id,
        unk: tokenizer.unk_token_id,
        eos: Vec::new(),
    };
    for id in [tokenizer.eos_token_id, tokenizer.eot_token_id].into_iter().flatten() {
        special.add_eos(id);
    }
    for (id, kind) in tokenizer.token_types.iter().enumerate() {
        if *kind == CONTROL && TURN_ENDS.contains(&tokenizer.tokens[id].as_str()) {
            special.add_eos(id as u32);
        }
    }
    special
}
