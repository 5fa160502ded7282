//! Tokenizers from the metadata of GGUF files.

use super::pre_tokenizers::pre_tokenizer_kind;
use crate::error::TextError;
use formats::GgufTokenizer;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::tokenizer::NormalizerWrapper;
use tokenizers::{AddedToken, Tokenizer};

/// Kinds of token in GGUF metadata.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// The space of SentencePiece vocabularies.
const SPACE_MARK: char = '\u{2581}';

/// The longest piece of a SentencePiece vocabulary whose halves are searched, in characters. Real pieces end at 93.
const PIECE_CHARACTERS_MAX: usize = 256;

/// A tokenizer and what it puts in front of texts.
pub(crate) struct Built {
    pub tokenizer: Tokenizer,
    /// Whether texts begin with the start token.
    pub adds_bos: bool,
    /// The token of the space that texts begin with, if they do.
    pub space_in_front: Option<u32>,
}

/// Builds the tokenizer.
pub(crate) fn build(gguf: &GgufTokenizer) -> Result<Built, TextError> {
    if gguf.tokens.is_empty() {
        return Err(TextError::Tokenizer("tokenizer.ggml.tokens is missing or empty".to_string()));
    }
    if !gguf.token_types.is_empty() && gguf.token_types.len() != gguf.tokens.len() {
        return Err(TextError::Tokenizer(format!(
            "tokenizer.ggml.token_type has {} entries, expected {} as tokenizer.ggml.tokens",
            gguf.token_types.len(),
            gguf.tokens.len()
        )));
    }
    match gguf.model.as_str() {
        "gpt2" => byte_level(gguf),
        "llama" => sentence_piece(gguf),
        other => Err(TextError::UnknownTokenizerModel { name: other.chars().take(40).collect() }),
    }
}

/// Byte-level pairs with merges in order of rank.
fn byte_level(gguf: &GgufTokenizer) -> Result<Built, TextError> {
    let kind = pre_tokenizer_kind(gguf.pre.as_deref().unwrap_or("default"))?;
    let vocabulary = vocabulary(gguf.tokens.iter().map(|token| token.as_str().into()));
    let mut merges = Merges::with_capacity(gguf.merges.len());
    for (rank, merge) in gguf.merges.iter().enumerate() {
        let (left, right) =
            merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty()).ok_or_else(|| {
                TextError::Tokenizer(format!("tokenizer.ggml.merges[{rank}] is not two pieces with a space between"))
            })?;
        merges.push((left.to_string(), right.to_string()));
    }
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(kind.ignore_merges).build();
    let mut tokenizer = Tokenizer::new(model.map_err(failed)?);
    tokenizer.with_normalizer(kind.normalizer()).map_err(failed)?;
    tokenizer.with_pre_tokenizer(Some(kind.pre_tokenizer()?));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    add_tokens(&mut tokenizer, gguf)?;
    Ok(Built { tokenizer, adds_bos: gguf.add_bos_token.unwrap_or(kind.adds_bos), space_in_front: None })
}

/// SentencePiece pieces with scores: of all neighbours that make a piece, those with the best score are joined first.
/// That is pair merging with the scores as ranks.
fn sentence_piece(gguf: &GgufTokenizer) -> Result<Built, TextError> {
    if gguf.scores.len() != gguf.tokens.len() {
        return Err(TextError::Tokenizer(format!(
            "tokenizer.ggml.scores has {} entries, expected {} as tokenizer.ggml.tokens",
            gguf.scores.len(),
            gguf.tokens.len()
        )));
    }
    // User-defined pieces are found in the text as it is, so their spaces are spaces; files write them either way.
    let vocabulary = vocabulary(gguf.tokens.iter().enumerate().map(|(id, token)| match gguf.token_types.get(id) {
        Some(&USER_DEFINED) => with_plain_spaces(token).into(),
        _ => token.as_str().into(),
    }));
    let merges = merges_by_score(gguf, &vocabulary);
    let space_in_front = vocabulary.get(SPACE_MARK.encode_utf8(&mut [0; 4]) as &str).copied();
    let space_in_front = space_in_front.filter(|_| gguf.add_space_prefix.unwrap_or(true));
    let unknown = gguf.unk_token_id.and_then(|id| gguf.tokens.get(id as usize));
    let mut model = BPE::builder().vocab_and_merges(vocabulary, merges).fuse_unk(true).byte_fallback(true);
    if let Some(unknown) = unknown {
        model = model.unk_token(unknown.clone());
    }
    let mut tokenizer = Tokenizer::new(model.build().map_err(failed)?);

    let mark: NormalizerWrapper = Replace::new(" ", SPACE_MARK.to_string()).map_err(failed)?.into();
    tokenizer.with_normalizer(Some(mark)).map_err(failed)?;

    let space: DecoderWrapper = Replace::new(SPACE_MARK.to_string(), " ").map_err(failed)?.into();
    let mut decoders = vec![space, ByteFallback::new().into(), Fuse::new().into()];
    if space_in_front.is_some() {
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    add_tokens(&mut tokenizer, gguf)?;
    Ok(Built { tokenizer, adds_bos: gguf.add_bos_token.unwrap_or(true), space_in_front })
}

/// Token text to id; of tokens with the same text the first counts.
fn vocabulary<'a>(tokens: impl Iterator<Item = std::borrow::Cow<'a, str>>) -> Vocab {
    let mut vocabulary = Vocab::default();
    for (id, token) in tokens.enumerate() {
        vocabulary.entry(token.into_owned()).or_insert(id as u32);
    }
    vocabulary
}

/// Every way of joining two pieces into a third, best score of the third first; of equal scores the shorter left
/// piece, then the shorter right piece first.
fn merges_by_score(gguf: &GgufTokenizer, vocabulary: &Vocab) -> Merges {
    let mut found: Vec<(f32, usize, usize, u32, usize)> = Vec::new();
    for (piece, id) in vocabulary {
        if piece.chars().count() > PIECE_CHARACTERS_MAX {
            continue;
        }
        let score = gguf.scores[*id as usize];
        let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
        for (place, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(place);
            if vocabulary.contains_key(left) && vocabulary.contains_key(right) {
                found.push((score, left.chars().count(), right.chars().count(), *id, place));
            }
        }
    }
    found.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3, a.4).cmp(&(b.1, b.2, b.3, b.4))));
    let text: Vec<&str> = {
        let mut text = vec![""; gguf.tokens.len()];
        vocabulary.iter().for_each(|(piece, id)| text[*id as usize] = piece);
        text
    };
    found
        .into_iter()
        .map(|(_, _, _, id, place)| {
            let (left, right) = text[id as usize].split_at(place);
            (left.to_string(), right.to_string())
        })
        .collect()
}

fn with_plain_spaces(piece: &str) -> String {
    piece.replace(SPACE_MARK, " ")
}

/// Control tokens are special; user-defined ones are found in every text, before anything is joined.
fn add_tokens(tokenizer: &mut Tokenizer, gguf: &GgufTokenizer) -> Result<(), TextError> {
    let marks_spaces = gguf.model == "llama";
    let mut added = Vec::new();
    for (token, kind) in gguf.tokens.iter().zip(&gguf.token_types) {
        match *kind {
            CONTROL => added.push(AddedToken::from(token.clone(), true)),
            USER_DEFINED => {
                let text = if marks_spaces { with_plain_spaces(token) } else { token.clone() };
                added.push(AddedToken::from(text, false).normalized(false));
            }
            _ => {}
        }
    }
    tokenizer.add_tokens(added).map_err(failed)?;
    Ok(())
}

fn failed(error: tokenizers::Error) -> TextError {
    TextError::Tokenizer(error.to_string())
}
