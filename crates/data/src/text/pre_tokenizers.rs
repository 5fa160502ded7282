//! How byte-level vocabularies split text into words, by the name that GGUF files give it. One line a kind.
//!
//! The patterns are those that the vocabularies were trained with, as published in their tokenizer files.

use crate::error::TextError;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{NormalizerWrapper, SplitDelimiterBehavior};

/// One way of splitting.
pub(crate) struct PreTokenizerKind {
    /// Names in GGUF files, all for the same splitting.
    names: &'static [&'static str],
    words: Words,
    /// A word that is in the vocabulary is one token, whatever the merges say.
    pub ignore_merges: bool,
    /// Start token where the file does not say.
    pub adds_bos: bool,
    /// Composed characters first (Unicode NFC).
    composes: bool,
}

enum Words {
    /// GPT-2's own pattern.
    Gpt2,
    /// Each digit by itself, then GPT-2's pattern.
    SingleDigitsThenGpt2,
    /// A pattern of its own.
    Pattern(&'static str),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Every kind we know.
static KINDS: &[PreTokenizerKind] = &[
    PreTokenizerKind {
        names: &["default", "gpt-2", "gpt2", "phi-2", "olmo", "mpt", "jina-en", "gigachat"],
        words: Words::Gpt2,
        ignore_merges: false,
        adds_bos: false,
        composes: false,
    },
    PreTokenizerKind {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        words: Words::SingleDigitsThenGpt2,
        ignore_merges: false,
        adds_bos: false,
        composes: false,
    },
    PreTokenizerKind {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        words: Words::Pattern(LLAMA3),
        ignore_merges: true,
        adds_bos: true,
        composes: false,
    },
    PreTokenizerKind {
        names: &["dbrx", "smaug-bpe"],
        words: Words::Pattern(LLAMA3),
        ignore_merges: false,
        adds_bos: false,
        composes: false,
    },
    PreTokenizerKind {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        words: Words::Pattern(QWEN2),
        ignore_merges: false,
        adds_bos: false,
        composes: true,
    },
    PreTokenizerKind {
        names: &["stablelm2", "hunyuan"],
        words: Words::Pattern(QWEN2),
        ignore_merges: false,
        adds_bos: false,
        composes: false,
    },
    PreTokenizerKind {
        names: &["gpt-4o", "llama4", "o200k"],
        words: Words::Pattern(GPT4O),
        ignore_merges: false,
        adds_bos: false,
        composes: false,
    },
    PreTokenizerKind {
        names: &["tekken"],
        words: Words::Pattern(TEKKEN),
        ignore_merges: true,
        adds_bos: true,
        composes: false,
    },
];

/// The kind of that name.
pub(crate) fn pre_tokenizer_kind(name: &str) -> Result<&'static PreTokenizerKind, TextError> {
    KINDS.iter().find(|kind| kind.names.contains(&name)).ok_or_else(|| TextError::UnknownPreTokenizer {
        name: name.chars().filter(|c| !c.is_control()).take(40).collect(),
        known: KINDS.iter().flat_map(|kind| kind.names).copied().collect::<Vec<_>>().join(", "),
    })
}

impl PreTokenizerKind {
    pub fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TextError> {
        let first: PreTokenizerWrapper = match self.words {
            Words::Gpt2 => return Ok(ByteLevel::new(false, true, true).into()),
            Words::SingleDigitsThenGpt2 => Digits::new(true).into(),
            Words::Pattern(pattern) => {
                Split::new(SplitPattern::Regex(pattern.to_string()), SplitDelimiterBehavior::Isolated, false)
                    .map_err(|error| TextError::Tokenizer(error.to_string()))?
                    .into()
            }
        };
        let splits_itself = !matches!(self.words, Words::Pattern(_));
        let bytes = ByteLevel::new(false, true, splits_itself).into();
        Ok(Sequence::new(vec![first, bytes]).into())
    }

    pub fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.composes.then(|| NFC.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_builds_and_no_name_stands_twice() {
        let mut names = std::collections::BTreeSet::new();
        for kind in KINDS {
            kind.pre_tokenizer().unwrap();
            assert!(kind.names.iter().all(|name| names.insert(*name)), "{:?}", kind.names);
        }
    }

    #[test]
    fn an_unknown_kind_is_named_with_those_we_know() {
        let error = pre_tokenizer_kind("klingon").err().unwrap().to_string();
        assert!(error.contains("klingon") && error.contains("smollm") && error.contains("qwen2"), "{error}");
    }
}
