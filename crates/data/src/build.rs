//! The one way from a record to an example, and to the prompt that asks for its answer.
//!
//! What does not fit goes in this order: each earlier record is held to its own budget from the start; then earlier
//! records go, the least near first; then the record's own context (old turns of a conversation, then the inside or
//! the end of the input). The answer is never cut.

use crate::error::{ExampleError, TextError};
use crate::example::{Example, ExampleOptions, Prompt, RETRIEVED_RECORDS_MAX, Supervise, Truncation};
use crate::record::{Message, Record, RecordBody};
use crate::retrieve::Retriever;
use crate::tasks::Cut;
use crate::tasks::chat::asked_turn;
use crate::text::layout::{
    EncodedLayout, Layout, lay_out_completion, lay_out_conversation, lay_out_prompt, lay_out_text, lay_out_text_prompt,
};
use crate::text::{MarkedText, TextPipeline};
use serde_json::Value;

/// Shorter rests of an earlier record's input are left out: they say nothing.
const SHORT_INPUT_TOKENS_MIN: usize = 4;

/// Stands where the middle of a text was cut out.
const CUT_MARK: &str = " ... ";

/// Makes the example of a record. `earlier` gives the person's earlier records that the prompt may show.
pub fn build_example(
    pipeline: &TextPipeline,
    record: &Record,
    earlier: &Retriever,
    options: &ExampleOptions,
) -> Result<Example, ExampleError> {
    let question = Question::new(pipeline, record, earlier, options).map_err(|source| in_record(record, source))?;
    example_of(pipeline, record, question, options)
}

/// The same as if the person had answered `answer`: what one of a question's choices costs. Not for texts and
/// conversations, which have no choices; they keep their own answer.
pub fn build_choice(
    pipeline: &TextPipeline,
    record: &Record,
    earlier: &Retriever,
    options: &ExampleOptions,
    answer: &str,
) -> Result<Example, ExampleError> {
    let mut question = Question::new(pipeline, record, earlier, options).map_err(|source| in_record(record, source))?;
    if let QuestionBody::Single { answer: written, .. } = &mut question.body {
        *written = answer.to_owned();
    }
    example_of(pipeline, record, question, options)
}

fn example_of(
    pipeline: &TextPipeline,
    record: &Record,
    mut question: Question,
    options: &ExampleOptions,
) -> Result<Example, ExampleError> {
    let supervise = options.supervise;
    let encoded = if let RecordBody::Text(text) = &record.body {
        fit_text(pipeline, text, options.tokens_max, &mut question.truncation)
    } else {
        question.fit(pipeline, options.tokens_max, |question| question.lay_out_example(pipeline, supervise))
    };
    let encoded = encoded.map_err(|source| in_record(record, source))?;
    let encoded = encoded.map_err(|needed_tokens| answer_too_long(record, needed_tokens, options.tokens_max))?;
    let mut loss_mask = encoded.learned;
    if let Some(first) = loss_mask.first_mut() {
        // Nothing stands before the first token that could predict it.
        *first = false;
    }
    let example = Example {
        tokens: encoded.tokens,
        loss_mask,
        record_id: record.id.clone(),
        retrieved_ids: question.retrieved.into_iter().map(|(id, _)| id).collect(),
        truncation: question.truncation,
    };
    if example.supervised_tokens() == 0 {
        let reason = "the record has no answer that is to be learned".to_string();
        return Err(ExampleError::NothingSupervised { record_id: record.id_for_messages(), reason });
    }
    Ok(example)
}

/// Makes the prompt that asks for a record's answer, rendered as for [`build_example`]. `answer_tokens_max` tokens of
/// `options.tokens_max` are kept free for the answer.
pub fn build_prompt(
    pipeline: &TextPipeline,
    record: &Record,
    earlier: &Retriever,
    options: &ExampleOptions,
    answer_tokens_max: usize,
) -> Result<Prompt, ExampleError> {
    let mut question = Question::new(pipeline, record, earlier, options).map_err(|source| in_record(record, source))?;
    let tokens_max = options.tokens_max.saturating_sub(answer_tokens_max);
    let encoded = question
        .fit(pipeline, tokens_max, |question| question.lay_out_prompt(pipeline))
        .map_err(|source| in_record(record, source))?
        .map_err(|needed_tokens| ExampleError::PromptTooLong {
            record_id: record.id_for_messages(),
            needed_tokens,
            tokens_max: options.tokens_max,
            answer_tokens: answer_tokens_max.min(options.tokens_max),
        })?;
    Ok(Prompt {
        tokens: encoded.tokens,
        gold: record.answer(),
        record_id: record.id.clone(),
        retrieved_ids: question.retrieved.into_iter().map(|(id, _)| id).collect(),
        truncation: question.truncation,
    })
}

/// A piece of an example for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewPiece {
    /// The text of one or several tokens, special ones included.
    pub text: String,
    /// Whether they are learned.
    pub supervised: bool,
}

/// An example as text, divided where learning begins and ends, to be shown in two colours.
pub fn example_preview(pipeline: &TextPipeline, example: &Example) -> Vec<PreviewPiece> {
    let mut pieces: Vec<PreviewPiece> = Vec::new();
    let mut start = 0;
    while start < example.tokens.len() {
        let supervised = example.loss_mask[start];
        let length = example.loss_mask[start..].iter().take_while(|learned| **learned == supervised).count();
        let text = pipeline.decode_with_special(&example.tokens[start..start + length]);
        pieces.push(PreviewPiece { text, supervised });
        start += length;
    }
    pieces
}

fn in_record(record: &Record, source: TextError) -> ExampleError {
    ExampleError::Text { record_id: record.id_for_messages(), source }
}

fn answer_too_long(record: &Record, needed_tokens: usize, tokens_max: usize) -> ExampleError {
    ExampleError::AnswerTooLong { record_id: record.id_for_messages(), needed_tokens, tokens_max }
}

/// Everything learned, from the start; what does not fit is cut from the end, and then the text has no end token.
fn fit_text(
    pipeline: &TextPipeline,
    text: &str,
    tokens_max: usize,
    truncation: &mut Truncation,
) -> Result<Result<EncodedLayout, usize>, TextError> {
    let mut encoded = lay_out_text(pipeline, text).encode(pipeline)?;
    truncation.context_tokens_cut = encoded.tokens.len().saturating_sub(tokens_max);
    encoded.tokens.truncate(tokens_max);
    encoded.learned.truncate(tokens_max);
    Ok(Ok(encoded))
}

/// What is asked, in parts that can be cut.
struct Question {
    body: QuestionBody,
    /// Id and text of each earlier record shown, nearest first.
    retrieved: Vec<(String, String)>,
    earlier_label: &'static str,
    cut: Cut,
    truncation: Truncation,
}

enum QuestionBody {
    /// An instruction, an input and an answer.
    Single { instruction: &'static str, input: String, answer: String, answer_label: &'static str },
    /// Turns, up to and with the last answer.
    Turns { messages: Vec<Message>, tools: Option<Value> },
}

impl Question {
    fn new(
        pipeline: &TextPipeline,
        record: &Record,
        earlier: &Retriever,
        options: &ExampleOptions,
    ) -> Result<Question, TextError> {
        let task = record.task();
        let body = match &record.body {
            RecordBody::Chat { messages, tools } => {
                let end = asked_turn(messages).map_or(messages.len(), |asked| asked + 1);
                QuestionBody::Turns { messages: messages[..end].to_vec(), tools: tools.clone() }
            }
            _ => QuestionBody::Single {
                instruction: task.instruction(record),
                input: task.input_text(record),
                answer: task.answer(record),
                answer_label: task.answer_label(),
            },
        };
        let mut question = Question {
            body,
            retrieved: Vec::new(),
            earlier_label: task.earlier_label(),
            cut: task.cut(),
            truncation: Truncation::default(),
        };
        if !matches!(record.body, RecordBody::Text(_)) {
            question.retrieve(pipeline, record, earlier, options)?;
        }
        Ok(question)
    }

    fn retrieve(
        &mut self,
        pipeline: &TextPipeline,
        record: &Record,
        earlier: &Retriever,
        options: &ExampleOptions,
    ) -> Result<(), TextError> {
        for found in earlier.earlier(record, options.retrieved_records.min(RETRIEVED_RECORDS_MAX)) {
            let (text, was_cut) = shown_record(pipeline, found.record, options.retrieved_tokens_max)?;
            self.truncation.retrieved_cut += usize::from(was_cut);
            self.retrieved.push((found.record.id.clone(), text));
        }
        Ok(())
    }

    /// Lays out, and takes parts away until the tokens fit. The inner error is the length of what cannot be cut.
    fn fit(
        &mut self,
        pipeline: &TextPipeline,
        tokens_max: usize,
        lay_out: impl Fn(&Question) -> Result<Layout, TextError>,
    ) -> Result<Result<EncodedLayout, usize>, TextError> {
        loop {
            let encoded = lay_out(self)?.encode(pipeline)?;
            let excess = encoded.tokens.len().saturating_sub(tokens_max);
            if excess == 0 {
                return Ok(Ok(encoded));
            }
            if self.retrieved.pop().is_some() {
                self.truncation.retrieved_dropped += 1;
            } else if !self.drop_oldest_turns() && !self.cut_input(pipeline, excess)? {
                return Ok(Err(encoded.tokens.len()));
            }
        }
    }

    fn lay_out_example(&self, pipeline: &TextPipeline, supervise: Supervise) -> Result<Layout, TextError> {
        match &self.body {
            QuestionBody::Turns { messages, tools } => {
                lay_out_conversation(pipeline, &self.with_earlier(messages), tools.as_ref(), supervise)
            }
            QuestionBody::Single { answer, .. } if pipeline.has_template() => {
                let mut messages = self.single_messages(pipeline);
                messages.push(Message::new("assistant", answer.clone()));
                lay_out_conversation(pipeline, &messages, None, supervise)
            }
            QuestionBody::Single { answer, .. } => {
                let (prompt, separator) = self.plain_prompt();
                let mut layout = lay_out_completion(&prompt, &format!("{separator}{answer}"));
                if supervise == Supervise::All {
                    layout.learned = std::iter::once(0..layout.marked.text.len()).collect();
                }
                Ok(layout)
            }
        }
    }

    fn lay_out_prompt(&self, pipeline: &TextPipeline) -> Result<Layout, TextError> {
        match &self.body {
            QuestionBody::Turns { messages, tools } => {
                let end = messages.len() - usize::from(messages.last().is_some_and(Message::is_assistant));
                lay_out_prompt(pipeline, &self.with_earlier(messages)[..end], tools.as_ref())
            }
            QuestionBody::Single { .. } if pipeline.has_template() => {
                lay_out_prompt(pipeline, &self.single_messages(pipeline), None)
            }
            QuestionBody::Single { .. } => Ok(lay_out_text_prompt(&self.plain_prompt().0)),
        }
    }

    /// The turns before the answer. The instruction is the system turn where the template takes one: it stands in for
    /// the template's own default, which would be longer.
    fn single_messages(&self, pipeline: &TextPipeline) -> Vec<Message> {
        let QuestionBody::Single { instruction, input, .. } = &self.body else { return Vec::new() };
        let asked = join_parts(&[&self.earlier_text(), input]);
        match (instruction.is_empty(), pipeline.takes_system_turn()) {
            (true, _) => vec![Message::new("user", asked)],
            (false, true) => vec![Message::new("system", *instruction), Message::new("user", asked)],
            (false, false) => vec![Message::new("user", join_parts(&[instruction, &asked]))],
        }
    }

    /// The prompt for a model without chat template, and what stands between it and the answer. A label ends without a
    /// space, because words of byte-level vocabularies begin with theirs.
    fn plain_prompt(&self) -> (String, &'static str) {
        let QuestionBody::Single { instruction, input, answer_label, .. } = &self.body else {
            return Default::default();
        };
        let earlier = self.earlier_text();
        if answer_label.is_empty() {
            return (if earlier.is_empty() { input.clone() } else { join_parts(&[&earlier, input]) }, "");
        }
        (join_parts(&[instruction, &earlier, input]) + "\n" + answer_label, " ")
    }

    fn earlier_text(&self) -> String {
        if self.retrieved.is_empty() {
            return String::new();
        }
        // The nearest stands last, next to the question.
        let shown: Vec<&str> = self.retrieved.iter().rev().map(|(_, text)| text.as_str()).collect();
        format!("{}\n{}", self.earlier_label, shown.join("\n"))
    }

    /// The turns with the earlier records in front of the last question.
    fn with_earlier(&self, messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        let earlier = self.earlier_text();
        if !earlier.is_empty()
            && let Some(question) = messages.iter_mut().rev().find(|message| message.role == "user")
        {
            question.content = join_parts(&[&earlier, &question.content]);
        }
        messages
    }

    /// Takes the oldest question with its answers out of a conversation that has more than one.
    fn drop_oldest_turns(&mut self) -> bool {
        let QuestionBody::Turns { messages, .. } = &mut self.body else { return false };
        let mut questions = (0..messages.len()).filter(|turn| messages[*turn].role == "user");
        let (Some(first), Some(second)) = (questions.next(), questions.next()) else { return false };
        self.truncation.turns_dropped += second - first;
        messages.drain(first..second);
        true
    }

    /// Takes at least `excess` tokens out of the input; `false` when nothing is left to take.
    fn cut_input(&mut self, pipeline: &TextPipeline, excess: usize) -> Result<bool, TextError> {
        let input = match &mut self.body {
            QuestionBody::Single { input, .. } => input,
            QuestionBody::Turns { messages, .. } => {
                let last = asked_turn(messages).unwrap_or(messages.len());
                match messages[..last].iter_mut().rev().find(|message| message.role == "user") {
                    Some(question) => &mut question.content,
                    None => return Ok(false),
                }
            }
        };
        let before = pipeline.encode(input)?.len();
        if before == 0 {
            return Ok(false);
        }
        *input = cut_text(pipeline, input, before.saturating_sub(excess), self.cut)?;
        self.truncation.context_tokens_cut += before - pipeline.encode(input)?.len().min(before);
        Ok(true)
    }
}

/// Parts that are not empty, with an empty line between.
fn join_parts(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("\n\n")
}

/// An earlier record in one line, `input -> answer` (or its answer alone), in at most so many tokens; and whether it had to be cut.
fn shown_record(pipeline: &TextPipeline, record: &Record, tokens_max: usize) -> Result<(String, bool), TextError> {
    let task = record.task();
    let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (input, answer) = (one_line(task.short_input_text(record)), one_line(task.answer(record)));
    if input.is_empty() {
        let cut = cut_text(pipeline, &answer, tokens_max, Cut::End)?;
        let was_cut = cut != answer;
        return Ok((cut, was_cut));
    }
    let whole = format!("{input} -> {answer}");
    let whole_tokens = pipeline.encode(&whole)?.len();
    if whole_tokens <= tokens_max {
        return Ok((whole, false));
    }
    let answer_tokens = pipeline.encode(&format!(" -> {answer}"))?.len();
    let input_tokens = tokens_max.saturating_sub(answer_tokens);
    if input_tokens < SHORT_INPUT_TOKENS_MIN {
        return Ok((cut_text(pipeline, &answer, tokens_max, Cut::End)?, true));
    }
    let input = cut_text(pipeline, &input, input_tokens, Cut::End)?;
    Ok((format!("{input} -> {answer}"), true))
}

/// A text of at most `tokens_max` tokens, cut between characters; always shorter than a text that has more.
fn cut_text(pipeline: &TextPipeline, text: &str, tokens_max: usize, cut: Cut) -> Result<String, TextError> {
    let mut tokens_max = tokens_max;
    loop {
        let encoded = pipeline.encode_marked(&MarkedText::verbatim(text))?;
        let count = encoded.tokens.len();
        if count <= tokens_max {
            return Ok(text.to_string());
        }
        let mark_tokens = pipeline.encode(CUT_MARK)?.len();
        let kept = match cut {
            Cut::Middle if tokens_max > mark_tokens + 2 => {
                let kept = tokens_max - mark_tokens;
                let (head, tail) = (kept.div_ceil(2), kept / 2);
                let head_end = floor_boundary(text, encoded.ranges[head].start);
                let tail_start = encoded.ranges[count - tail].start.max(head_end);
                let tail_start =
                    (tail_start..=text.len()).find(|place| text.is_char_boundary(*place)).unwrap_or(text.len());
                format!("{}{CUT_MARK}{}", text[..head_end].trim_end(), text[tail_start..].trim_start())
            }
            _ => text[..floor_boundary(text, encoded.ranges[tokens_max].start)].trim_end().to_string(),
        };
        // The cut text may divide into more tokens than its part of the whole: then cut once more, shorter.
        let kept_tokens = pipeline.encode(&kept)?.len();
        if kept_tokens <= tokens_max || tokens_max == 0 {
            return Ok(kept);
        }
        tokens_max = tokens_max.saturating_sub(kept_tokens - tokens_max);
    }
}

fn floor_boundary(text: &str, place: usize) -> usize {
    (0..=place.min(text.len())).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0)
}
