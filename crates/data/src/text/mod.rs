//! The way from text to tokens of one model: its tokenizer, its chat template, its special tokens.

mod conversation;
mod gguf;
pub(crate) mod layout;
mod pre_tokenizers;
mod python;
mod stream;
mod template;
mod tokenizer;

pub use stream::StreamDecoder;
pub use tokenizer::{Encoded, MarkedText};

use crate::error::TextError;
use crate::record::Message;
use crate::time::PinnedDate;
use formats::{SpecialTokens, TokenizerSource};
use serde_json::{Map, Value};
use template::{ChatTemplate, TemplateSettings};
use tokenizer::TextTokenizer;

/// What the rendered text depends on besides the conversation. Kept with an adapter: a prompt served with other
/// options is not the prompt that was trained.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TextOptions {
    /// The date that templates see as today.
    pub date: PinnedDate,
    /// Further variables of the template, such as `enable_thinking`.
    #[serde(default)]
    pub variables: Map<String, Value>,
}

impl TextOptions {
    /// That date, and `enable_thinking` off: answers come without a reasoning block, in training and in use alike.
    pub fn new(date: PinnedDate) -> TextOptions {
        let variables = std::iter::once(("enable_thinking".to_string(), Value::Bool(false))).collect();
        TextOptions { date, variables }
    }

    /// Today's date.
    pub fn today() -> TextOptions {
        TextOptions::new(PinnedDate::today())
    }
}

/// Tokenizer, chat template and special tokens of a model.
pub struct TextPipeline {
    tokenizer: TextTokenizer,
    template: Option<ChatTemplate>,
    options: TextOptions,
    /// Put in front of text that no template renders.
    bos: Option<u32>,
    /// The token that ends a text.
    eos: Option<u32>,
    stop_tokens: Vec<u32>,
    /// The stop tokens as text.
    stop_texts: Vec<String>,
    takes_system_turn: bool,
}

impl std::fmt::Debug for TextPipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextPipeline")
            .field("vocabulary", &self.vocabulary_size())
            .field("has_template", &self.has_template())
            .field("stop_tokens", &self.stop_tokens)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl TextPipeline {
    /// Builds the pipeline of a model. `chat_template` is the Jinja source, if the model has one.
    pub fn new(
        source: &TokenizerSource,
        chat_template: Option<&str>,
        special: &SpecialTokens,
        options: TextOptions,
    ) -> Result<TextPipeline, TextError> {
        let (inner, adds_bos, space_in_front) = match source {
            TokenizerSource::HuggingFace { tokenizer_json, config } => {
                let inner = tokenizers::Tokenizer::from_file(tokenizer_json)
                    .map_err(|error| TextError::Tokenizer(format!("{}: {error}", tokenizer_json.display())))?;
                let adds_bos = config.as_ref().and_then(|config| config.get("add_bos_token")).and_then(Value::as_bool);
                (inner, adds_bos, None)
            }
            TokenizerSource::Gguf(gguf) => {
                let built = gguf::build(gguf)?;
                (built.tokenizer, Some(built.adds_bos), built.space_in_front)
            }
            TokenizerSource::Missing { expected } => {
                return Err(TextError::Tokenizer(format!("{} is missing; text needs it", expected.display())));
            }
        };
        let tokenizer = TextTokenizer::new(inner, space_in_front)?;
        let adds_bos = adds_bos.unwrap_or_else(|| special.bos.is_some_and(|bos| tokenizer.puts_in_front(bos)));
        let text_of = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
        let template = match chat_template {
            None => None,
            Some(source) => Some(ChatTemplate::new(
                source,
                TemplateSettings {
                    date: options.date,
                    variables: options.variables.clone(),
                    bos_token: text_of(special.bos),
                    eos_token: text_of(special.eos.first().copied()),
                    pad_token: text_of(special.pad),
                    unk_token: text_of(special.unk),
                },
            )?),
        };
        let mut pipeline = TextPipeline {
            bos: special.bos.filter(|_| adds_bos),
            eos: special.eos.first().copied(),
            stop_tokens: special.eos.clone(),
            stop_texts: Vec::new(),
            takes_system_turn: false,
            tokenizer,
            template,
            options,
        };
        pipeline.learn_template_manners()?;
        pipeline.stop_texts = pipeline
            .stop_tokens
            .iter()
            .filter_map(|id| pipeline.tokenizer.token_text(*id))
            .filter(|text| !text.is_empty())
            .collect();
        Ok(pipeline)
    }

    /// Renders two small conversations to see which tokens make up a turn, which one ends it, and whether a system turn
    /// is taken.
    fn learn_template_manners(&mut self) -> Result<(), TextError> {
        let Some(template) = &self.template else { return Ok(()) };
        let exchange = [Message::new("user", "question"), Message::new("assistant", "selftune answer")];
        if let Ok(text) = template.render(&exchange, None, false) {
            self.tokenizer.guard_tokens_of(&text)?;
            if let Some((_, after)) = text.rsplit_once("selftune answer")
                && let Some((id, _)) = self.tokenizer.added_at_start(after.trim_start())
                && Some(id) != self.bos
                && !self.stop_tokens.contains(&id)
            {
                self.stop_tokens.push(id);
            }
        }
        let system = [Message::new("system", "selftune system line"), Message::new("user", "question")];
        let rendered = template.render(&system, None, true);
        self.takes_system_turn = rendered.is_ok_and(|text| text.contains("selftune system line"));
        Ok(())
    }

    /// The options it was built with.
    pub fn options(&self) -> &TextOptions {
        &self.options
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether the template takes a turn of the role `system`.
    pub fn takes_system_turn(&self) -> bool {
        self.takes_system_turn
    }

    /// Number of tokens in the vocabulary, added ones included.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.vocabulary_size()
    }

    /// The tokens that end an answer: the model's end tokens and the one that ends a turn in its template.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Tokens of a person's text: nothing is added, and special tokens in it are only text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.encode(&MarkedText::verbatim(text))?.tokens)
    }

    /// Tokens of text that a template rendered: special tokens are recognised, nothing is added.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.encode(&MarkedText::template(text))?.tokens)
    }

    /// Tokens with their places, for text of both kinds.
    pub fn encode_marked(&self, text: &MarkedText) -> Result<Encoded, TextError> {
        self.tokenizer.encode(text)
    }

    /// The token of exactly this text, special or not.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_id(token)
    }

    /// Text of tokens without the special ones.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, false)
    }

    /// Text of tokens with the special ones.
    pub fn decode_with_special(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true)
    }

    /// Decodes tokens as they come, whole characters only.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// A conversation as the model's template writes it.
    pub fn render_chat(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        self.template.as_ref().ok_or(TextError::NoTemplate)?.render(messages, tools, add_generation_prompt)
    }

    /// Tokens of a conversation up to where the model answers; special tokens in the turns' texts are only text.
    pub fn encode_chat_prompt(&self, messages: &[Message], tools: Option<&Value>) -> Result<Vec<u32>, TextError> {
        layout::lay_out_prompt(self, messages, tools).and_then(|layout| Ok(layout.encode(self)?.tokens))
    }

    /// Tokens of a plain text up to where the model goes on, with the start token if the model wants one.
    pub fn encode_text_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(layout::lay_out_text_prompt(text).encode(self)?.tokens)
    }

    pub(crate) fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    pub(crate) fn template(&self) -> Result<&ChatTemplate, TextError> {
        self.template.as_ref().ok_or(TextError::NoTemplate)
    }

    pub(crate) fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub(crate) fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Where the first stop token in a text begins and ends, in bytes.
    pub(crate) fn find_stop(&self, text: &str) -> Option<(usize, usize)> {
        self.stop_texts
            .iter()
            .filter_map(|stop| text.find(stop.as_str()).map(|place| (place, place + stop.len())))
            .min()
    }
}
