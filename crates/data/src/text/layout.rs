//! A conversation or a plain text as it goes to the tokenizer, with the places that are learned.

use super::TextPipeline;
use super::conversation::{Rendered, render_marked};
use super::tokenizer::MarkedText;
use crate::error::TextError;
use crate::example::Supervise;
use crate::record::Message;
use serde_json::Value;
use std::ops::Range;

/// Text to encode and what of it is learned.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    pub marked: MarkedText,
    /// Byte ranges that are learned, ascending.
    pub learned: Vec<Range<usize>>,
    /// Start token in front, where no template writes one.
    pub with_bos: bool,
    /// End token behind, where no template writes one; learned.
    pub with_eos: bool,
}

/// Tokens of a layout.
#[derive(Debug, Clone, Default)]
pub(crate) struct EncodedLayout {
    pub tokens: Vec<u32>,
    pub learned: Vec<bool>,
}

impl Layout {
    pub fn encode(&self, pipeline: &TextPipeline) -> Result<EncodedLayout, TextError> {
        let mut marked = self.marked.clone();
        marked.cuts.extend(self.learned.iter().flat_map(|range| [range.start, range.end]));
        marked.cuts.sort_unstable();
        marked.cuts.dedup();
        let text = pipeline.tokenizer().encode(&marked)?;
        let mut encoded = EncodedLayout::default();
        if let Some(bos) = pipeline.bos().filter(|_| self.with_bos) {
            encoded.tokens.push(bos);
            encoded.learned.push(false);
        }
        encoded.tokens.extend(&text.tokens);
        encoded.learned.extend(text.ranges.iter().map(|token| {
            // A cut stands at both ends of every learned range, so a token is inside by its first byte.
            self.learned.iter().any(|range| range.start <= token.start && token.start < range.end)
        }));
        if let Some(eos) = pipeline.eos().filter(|_| self.with_eos) {
            encoded.tokens.push(eos);
            encoded.learned.push(!self.learned.is_empty());
        }
        Ok(encoded)
    }
}

/// A plain prompt and its completion.
pub(crate) fn lay_out_completion(prompt: &str, completion: &str) -> Layout {
    let text = format!("{prompt}{completion}");
    let learned = prompt.len()..text.len();
    Layout { marked: MarkedText::verbatim(&text), learned: vec![learned], with_bos: true, with_eos: true }
}

/// A plain prompt alone.
pub(crate) fn lay_out_text_prompt(prompt: &str) -> Layout {
    Layout { marked: MarkedText::verbatim(prompt), with_bos: true, ..Layout::default() }
}

/// A text of which everything is learned. The end token is put once, also when the text brings it.
pub(crate) fn lay_out_text(pipeline: &TextPipeline, text: &str) -> Layout {
    let trimmed = text.trim_end();
    let end = pipeline.eos().and_then(|eos| pipeline.tokenizer().token_text(eos)).filter(|end| !end.is_empty());
    let text = end.and_then(|end| trimmed.strip_suffix(end.as_str())).unwrap_or(text);
    lay_out_completion("", text)
}

/// A conversation up to the place where the model answers.
pub(crate) fn lay_out_prompt(
    pipeline: &TextPipeline,
    messages: &[Message],
    tools: Option<&Value>,
) -> Result<Layout, TextError> {
    let rendered = render_marked(pipeline.template()?, messages, tools, true)?;
    refuse_unmarked_special(pipeline, messages, tools, &rendered)?;
    let verbatim = rendered.spans.iter().map(|span| span.range.clone()).collect();
    Ok(Layout { marked: MarkedText { text: rendered.text, verbatim, cuts: Vec::new() }, ..Layout::default() })
}

/// A conversation up to the end of its last answer.
///
/// The text before the last answer is the very text that is served when the model is to give that answer; only what
/// follows is taken from the rendering of the whole. So a template that writes history and prompt differently (as those
/// do that show reasoning only in the last turn) cannot make training and use disagree.
pub(crate) fn lay_out_conversation(
    pipeline: &TextPipeline,
    messages: &[Message],
    tools: Option<&Value>,
    supervise: Supervise,
) -> Result<Layout, TextError> {
    let template = pipeline.template()?;
    let last = messages
        .iter()
        .rposition(Message::is_answer)
        .ok_or_else(|| TextError::AnswerNotFound("there is no turn of the assistant with text".to_string()))?;
    let whole = render_marked(template, &messages[..=last], tools, false)?;
    let prompt = render_marked(template, &messages[..last], tools, true)?;
    refuse_unmarked_special(pipeline, &messages[..=last], tools, &whole)?;
    let answer = last_answer(pipeline, &messages[last], &whole, &prompt, last)?;

    let prompt_length = prompt.text.len();
    let mut layout = Layout::default();
    layout.marked.verbatim.extend(prompt.spans.iter().map(|span| span.range.clone()));
    let shifted =
        |range: &Range<usize>| range.start - answer.start + prompt_length..range.end - answer.start + prompt_length;
    let own_spans = whole.spans.iter().filter(|span| span.message == last && span.range.start >= answer.start);
    layout.marked.verbatim.extend(own_spans.map(|span| shifted(&span.range)));
    if supervise == Supervise::Answers {
        layout.learned = earlier_answers(pipeline, messages, tools, last, &prompt)?;
    }
    let answer_end = prompt_length + (answer.end - answer.start);
    if messages[last].train {
        layout.learned.push(prompt_length..answer_end);
    }
    layout.marked.cuts.push(prompt_length);
    layout.with_eos = !answer.has_stop;
    layout.marked.text = prompt.text + &whole.text[answer.start..answer.end];
    if supervise == Supervise::All {
        layout.learned = std::iter::once(0..layout.marked.text.len()).collect();
    }
    Ok(layout)
}

/// The last answer in the rendering of the whole conversation.
struct LastAnswer {
    start: usize,
    end: usize,
    has_stop: bool,
}

fn last_answer(
    pipeline: &TextPipeline,
    message: &Message,
    whole: &Rendered,
    prompt: &Rendered,
    last: usize,
) -> Result<LastAnswer, TextError> {
    let served = whole.text.starts_with(&prompt.text).then_some(prompt.text.len());
    let span = whole.answer_span(last, &prompt.text);
    let (start, text_end) = match (&span, served) {
        // What the template writes between the prompt and the text is the model's to write when the prompt is served.
        (Some(span), Some(served)) if served <= span.start => (served, span.end),
        (Some(span), _) => (span.start, span.end),
        // A turn that only calls tools has no text.
        (None, Some(served)) if message.extra.contains_key("tool_calls") => (served, served),
        (None, _) => return Err(TextError::AnswerNotFound("the template does not write the last answer".to_string())),
    };
    let stop = pipeline.find_stop(&whole.text[text_end..]);
    let end = stop.map_or(text_end, |(_, stop_end)| text_end + stop_end);
    Ok(LastAnswer { start, end, has_stop: stop.is_some() })
}

/// Places of the answers before the last one, in the text of the prompt, each with the token that ends it.
fn earlier_answers(
    pipeline: &TextPipeline,
    messages: &[Message],
    tools: Option<&Value>,
    last: usize,
    prompt: &Rendered,
) -> Result<Vec<Range<usize>>, TextError> {
    let turns: Vec<usize> = (0..last).filter(|turn| messages[*turn].is_answer() && messages[*turn].train).collect();
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let template = pipeline.template()?;
    let before = template.render(&messages[..last], tools, false)?;
    let opening = prompt.text.strip_prefix(before.as_str()).unwrap_or("");
    let mut learned = Vec::with_capacity(turns.len());
    for turn in turns {
        // A template may leave an old turn out, or write a turn without text: then there is nothing to learn.
        let Some(span) = prompt.answer_span(turn, opening) else { continue };
        let floor = learned.last().map_or(0, |range: &Range<usize>| range.end);
        let floor = spans_before(prompt, turn).max(floor);
        let start = match prompt.text[floor..span.start].rfind(opening) {
            Some(place) if !opening.is_empty() => floor + place + opening.len(),
            Some(_) => match template.render(&messages[..turn], tools, true) {
                Ok(served) if prompt.text.starts_with(&served) && (floor..=span.start).contains(&served.len()) => {
                    served.len()
                }
                _ => span.start,
            },
            None => span.start,
        };
        let after = &prompt.text[span.end..];
        let calls_tools = messages[turn].extra.contains_key("tool_calls");
        let end = match pipeline.find_stop(after) {
            Some((place, stop_end)) if calls_tools || after[..place].trim().is_empty() => span.end + stop_end,
            _ => span.end,
        };
        learned.push(start..end);
    }
    Ok(learned)
}

/// End of the text of the turns before this one.
fn spans_before(rendered: &Rendered, turn: usize) -> usize {
    rendered.spans.iter().filter(|span| span.message < turn).map(|span| span.range.end).max().unwrap_or(0)
}

/// What a template writes of tools, roles and unmarked texts is read with special tokens: none may be smuggled in.
fn refuse_unmarked_special(
    pipeline: &TextPipeline,
    messages: &[Message],
    tools: Option<&Value>,
    rendered: &Rendered,
) -> Result<(), TextError> {
    let refuse = |text: &str, place: &str| match pipeline.tokenizer().special_in(text) {
        Some(token) => Err(TextError::Refused(format!("{place} holds the special token {token}"))),
        None => Ok(()),
    };
    for (turn, message) in messages.iter().enumerate() {
        refuse(&message.role, "a role")?;
        for value in message.extra.values() {
            refuse(&value.to_string(), "a field of a turn")?;
        }
        if !message.content.trim().is_empty() && !rendered.spans.iter().any(|span| span.message == turn) {
            refuse(&message.content, "a text that this template treats in its own way")?;
        }
    }
    match tools {
        Some(tools) => refuse(&tools.to_string(), "a tool"),
        None => Ok(()),
    }
}
