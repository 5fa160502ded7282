//! Text to tokens and back.
//!
//! Special tokens (`<|im_end|>` ...) are recognised only where a chat template wrote them. In what a person wrote they
//! are text like any other, so that no message can end a turn or open one. Tokens that a vocabulary has added but does
//! not call special (`<think>` ...) are recognised everywhere, as other tools do.

use crate::error::TextError;
use aho_corasick::{AhoCorasick, MatchKind};
use std::ops::Range;
use tokenizers::normalizer::Range as NormalizedRange;
use tokenizers::pre_tokenizer::OffsetType;
use tokenizers::{
    Model, NormalizedString, Normalizer, PreTokenizedString, PreTokenizer, Split, Token, Tokenizer as InnerTokenizer,
};

/// Text with the parts that a person wrote, and the places where no token may straddle.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MarkedText {
    /// The whole text.
    pub text: String,
    /// Byte ranges, ascending, in which special tokens are only text.
    pub verbatim: Vec<Range<usize>>,
    /// Byte positions, ascending, at which a token always ends.
    pub cuts: Vec<usize>,
}

impl MarkedText {
    /// Text of a person, without any special token.
    pub fn verbatim(text: &str) -> MarkedText {
        MarkedText { text: text.to_string(), verbatim: std::iter::once(0..text.len()).collect(), cuts: Vec::new() }
    }

    /// Text of a template: special tokens are recognised.
    pub fn template(text: &str) -> MarkedText {
        MarkedText { text: text.to_string(), ..MarkedText::default() }
    }
}

/// Tokens with the bytes of the text that each one stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Byte range of each token; tokens of one character in several pieces all have the character's range.
    pub ranges: Vec<Range<usize>>,
}

/// A tokenizer and its added tokens.
pub(crate) struct TextTokenizer {
    inner: InnerTokenizer,
    added: Vec<AddedEntry>,
    /// Leftmost-longest over all added tokens, and over those that are not special.
    every: Option<AhoCorasick>,
    plain: Option<AhoCorasick>,
    /// For a pattern of `plain`, its place in `added`.
    plain_places: Vec<usize>,
    /// The token of a space, where a text is to begin with one.
    space_in_front: Option<u32>,
}

struct AddedEntry {
    id: u32,
    content: String,
    special: bool,
    strip_left: bool,
    strip_right: bool,
    single_word: bool,
}

/// An added token found in a text.
struct Match {
    range: Range<usize>,
    id: u32,
    content: String,
    special: bool,
}

impl TextTokenizer {
    /// `space_in_front` is the token of the space that SentencePiece puts before a text (and after a special token);
    /// tokenizers read from a file do that themselves, in the way the file says.
    pub fn new(inner: InnerTokenizer, space_in_front: Option<u32>) -> Result<TextTokenizer, TextError> {
        let mut added: Vec<AddedEntry> = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| !token.content.is_empty())
            .map(|(id, token)| AddedEntry {
                id,
                content: token.content,
                special: token.special,
                strip_left: token.lstrip,
                strip_right: token.rstrip,
                single_word: token.single_word,
            })
            .collect();
        added.sort_by_key(|entry| entry.id);
        let every = searcher(added.iter().map(|entry| entry.content.as_str()))?;
        let (plain, plain_places) = plain_searcher(&added)?;
        Ok(TextTokenizer { inner, added, every, plain, plain_places, space_in_front })
    }

    /// Treats the added tokens in a text that a template wrote by itself as special: some vocabularies do not call the
    /// tokens special that open and end their turns. White space stays what it is.
    pub fn guard_tokens_of(&mut self, text: &str) -> Result<(), TextError> {
        let Some(searcher) = &self.every else { return Ok(()) };
        for found in searcher.find_iter(text) {
            let entry = &mut self.added[found.pattern().as_usize()];
            entry.special |= !entry.content.trim().is_empty();
        }
        (self.plain, self.plain_places) = plain_searcher(&self.added)?;
        Ok(())
    }

    /// Tokens of a text, without any that the text does not hold.
    pub fn encode(&self, marked: &MarkedText) -> Result<Encoded, TextError> {
        if marked.text.is_empty() {
            return Ok(Encoded::default());
        }
        let matches = self.find_added(marked);
        let mut pieces = PreTokenizedString::from(marked.text.as_str());
        let failed = |error: tokenizers::Error| TextError::Tokenizer(error.to_string());
        pieces.split(|_, whole| Ok(cut_out(&whole, &matches, self.space_in_front))).map_err(failed)?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            pieces.normalize(|piece| normalizer.normalize(piece)).map_err(failed)?;
        }
        if !marked.cuts.is_empty() {
            pieces.split(|_, piece| Ok(cut_at(piece, &marked.cuts))).map_err(failed)?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        pieces.tokenize(|piece| self.inner.get_model().tokenize(piece.get())).map_err(failed)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::Byte).map_err(failed)?;
        let ranges = encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect();
        Ok(Encoded { tokens: encoding.get_ids().to_vec(), ranges })
    }

    /// Added tokens in the text, special ones only outside of what a person wrote, and none across a cut.
    fn find_added(&self, marked: &MarkedText) -> Vec<Match> {
        let mut matches = Vec::new();
        let mut find = |within: Range<usize>, with_special: bool| {
            let mut place = within.start;
            for cut in marked.cuts.iter().copied().filter(|cut| within.contains(cut)) {
                self.find_in(marked, place..cut, with_special, &mut matches);
                place = cut;
            }
            self.find_in(marked, place..within.end, with_special, &mut matches);
        };
        let mut place = 0;
        for range in &marked.verbatim {
            find(place..range.start, true);
            find(range.clone(), false);
            place = range.end;
        }
        find(place..marked.text.len(), true);
        matches
    }

    fn find_in(&self, marked: &MarkedText, within: Range<usize>, with_special: bool, matches: &mut Vec<Match>) {
        let searcher = if with_special { &self.every } else { &self.plain };
        let (Some(searcher), false) = (searcher, within.is_empty()) else { return };
        let text = marked.text.as_str();
        for found in searcher.find_iter(&text[within.clone()]) {
            let place = found.pattern().as_usize();
            let entry = &self.added[if with_special { place } else { self.plain_places[place] }];
            let (mut start, mut end) = (within.start + found.start(), within.start + found.end());
            if entry.single_word && (ends_in_word(&text[..start]) || begins_with_word(&text[end..])) {
                continue;
            }
            let last_end = matches.last().map_or(0, |earlier: &Match| earlier.range.end);
            if entry.strip_left {
                let floor = last_cut_before(&marked.cuts, start).max(last_end);
                start = floor + text[floor..start].trim_end().len();
            }
            if entry.strip_right {
                let ceiling = first_cut_after(&marked.cuts, end).unwrap_or(text.len());
                end = ceiling - text[end..ceiling].trim_start().len();
            }
            // White space taken in by the token before may reach into this one's.
            start = start.max(last_end);
            if start < end {
                let content = entry.content.clone();
                matches.push(Match { range: start..end, id: entry.id, content, special: entry.special });
            }
        }
    }

    /// Text of tokens. Special tokens are left out unless asked for; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32], with_special: bool) -> String {
        self.inner.decode(tokens, !with_special).unwrap_or_default()
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether the tokenizer's own post-processor puts this token in front of every text.
    pub fn puts_in_front(&self, id: u32) -> bool {
        self.inner.encode("", true).is_ok_and(|encoding| encoding.get_ids().first() == Some(&id))
    }

    /// The first special token that stands in a text.
    pub fn special_in(&self, text: &str) -> Option<&str> {
        let searcher = self.every.as_ref()?;
        let mut found = searcher.find_iter(text).map(|found| &self.added[found.pattern().as_usize()]);
        found.find(|entry| entry.special).map(|entry| entry.content.as_str())
    }

    /// The added token that a text begins with.
    pub fn added_at_start(&self, text: &str) -> Option<(u32, &str)> {
        let found = self.every.as_ref()?.find(text).filter(|found| found.start() == 0)?;
        let entry = &self.added[found.pattern().as_usize()];
        Some((entry.id, entry.content.as_str()))
    }
}

fn searcher<'a>(contents: impl Iterator<Item = &'a str>) -> Result<Option<AhoCorasick>, TextError> {
    let contents: Vec<&str> = contents.collect();
    if contents.is_empty() {
        return Ok(None);
    }
    let searcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
    searcher.map(Some).map_err(|error| TextError::Tokenizer(format!("added tokens: {error}")))
}

/// Finds the added tokens that are not special; with the place of each among all.
fn plain_searcher(added: &[AddedEntry]) -> Result<(Option<AhoCorasick>, Vec<usize>), TextError> {
    let places: Vec<usize> = (0..added.len()).filter(|place| !added[*place].special).collect();
    Ok((searcher(places.iter().map(|place| added[*place].content.as_str()))?, places))
}

/// Divides the whole text into added tokens and what lies between. A space goes in front of the text and of what
/// follows a special token, if there is to be one.
fn cut_out(whole: &NormalizedString, matches: &[Match], space_in_front: Option<u32>) -> Vec<Split> {
    let mut splits = Vec::with_capacity(2 * matches.len() + 1);
    let mut wants_space = space_in_front;
    let mut place = 0;
    let slice =
        |range: Range<usize>| (!range.is_empty()).then(|| whole.slice(NormalizedRange::Normalized(range))).flatten();
    for found in matches {
        if let Some(mut piece) = slice(place..found.range.start) {
            if wants_space.take().is_some() {
                piece.prepend(" ");
            }
            splits.push(Split::from((piece, None)));
        }
        let mut tokens = Vec::with_capacity(2);
        if !found.special {
            tokens.extend(wants_space.take().map(|space| Token::new(space, String::new(), (0, 0))));
        }
        tokens.push(Token::new(found.id, found.content.clone(), (0, found.range.len())));
        splits.extend(slice(found.range.clone()).map(|piece| Split::from((piece, Some(tokens)))));
        if found.special {
            wants_space = space_in_front;
        }
        place = found.range.end;
    }
    if let Some(mut piece) = slice(place..whole.len()) {
        if wants_space.is_some() {
            piece.prepend(" ");
        }
        splits.push(Split::from((piece, None)));
    }
    splits
}

/// Divides a piece at the cuts that lie inside it (positions of the whole text).
fn cut_at(piece: NormalizedString, cuts: &[usize]) -> Vec<Split> {
    let (start, end) = piece.offsets_original();
    let inside: Vec<usize> =
        cuts.iter().copied().filter(|cut| *cut > start && *cut < end).map(|cut| cut - start).collect();
    if inside.is_empty() {
        return vec![Split::from((piece, None))];
    }
    let mut bounds = vec![0];
    bounds.extend(inside);
    bounds.push(end - start);
    let slices: Option<Vec<Split>> = bounds
        .windows(2)
        .map(|pair| piece.slice(NormalizedRange::Original(pair[0]..pair[1])).map(|slice| Split::from((slice, None))))
        .collect();
    // A normalizer that joins characters across the cut leaves no place to cut at: then the piece stays whole.
    slices.unwrap_or_else(|| vec![Split::from((piece, None))])
}

fn last_cut_before(cuts: &[usize], place: usize) -> usize {
    cuts.iter().rev().copied().find(|cut| *cut <= place).unwrap_or(0)
}

fn first_cut_after(cuts: &[usize], place: usize) -> Option<usize> {
    cuts.iter().copied().find(|cut| *cut >= place)
}

fn ends_in_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn begins_with_word(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '_')
}
