//! Text of tokens as they come. A character may need several tokens: nothing is given out before it is whole.

use super::TextPipeline;

/// Decodes a growing list of tokens piece by piece. The pieces together are the decoded whole.
pub struct StreamDecoder<'a> {
    pipeline: &'a TextPipeline,
    /// The last tokens: those before `pending` only give the context that decoding needs (spaces, joined characters).
    tokens: Vec<u32>,
    pending: usize,
    /// Text of the context tokens.
    context: String,
}

/// The longest character has four bytes, so at most four tokens wait; a longer wait is no UTF-8 at all.
const PENDING_TOKENS_MAX: usize = 8;

impl<'a> StreamDecoder<'a> {
    pub(crate) fn new(pipeline: &'a TextPipeline) -> StreamDecoder<'a> {
        StreamDecoder { pipeline, tokens: Vec::new(), pending: 0, context: String::new() }
    }

    /// Takes a token and gives the text that is now certain, often none.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let whole = self.pipeline.decode(&self.tokens);
        let waits = self.tokens.len() - self.pending;
        if whole.ends_with(char::REPLACEMENT_CHARACTER) && waits < PENDING_TOKENS_MAX {
            return String::new();
        }
        self.give(&whole)
    }

    /// The rest: bytes that never became a character, as U+FFFD.
    pub fn finish(&mut self) -> String {
        let whole = self.pipeline.decode(&self.tokens);
        self.give(&whole)
    }

    fn give(&mut self, whole: &str) -> String {
        let new = whole.strip_prefix(self.context.as_str()).unwrap_or("").to_string();
        // Keep the tokens just given as context for the next ones, forget those before.
        self.tokens.drain(..self.pending);
        self.pending = self.tokens.len();
        self.context = self.pipeline.decode(&self.tokens);
        new
    }
}
