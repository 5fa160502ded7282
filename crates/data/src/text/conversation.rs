//! Finds in a rendered conversation what each person wrote, and what the model must learn to write.
//!
//! A template may trim a text, leave out old reasoning, add dates and default system lines. So nothing is guessed from
//! prefixes: each text is put between two private-use characters, the conversation is rendered, the characters are
//! taken out again, and what remains must equal the rendering of the texts as they are. White space at the ends of a
//! text stays outside of the characters, so that a template that trims still trims it.

use super::template::ChatTemplate;
use crate::error::TextError;
use crate::record::Message;
use std::ops::Range;

/// A rendered conversation and the places of its texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rendered {
    pub text: String,
    /// Places of texts, ascending, without the white space at their ends.
    pub spans: Vec<Span>,
}

/// The place of one text (or of one part of it, where an answer has a part for reasoning).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub range: Range<usize>,
    /// The turn.
    pub message: usize,
}

impl Rendered {
    /// The place of a turn's text, from its first part to its last.
    pub fn span_of(&self, message: usize) -> Option<Range<usize>> {
        let mut spans = self.spans.iter().filter(|span| span.message == message);
        let first = spans.next()?;
        Some(first.range.start..spans.next_back().unwrap_or(first).range.end)
    }

    /// The same for an answer to a prompt that ends so: where the prompt closes the reasoning already, the answer is
    /// only what comes after it.
    pub fn answer_span(&self, message: usize, prompt_end: &str) -> Option<Range<usize>> {
        if prompt_end.trim_end().ends_with(REASONING_END) {
            return self.spans.iter().rfind(|span| span.message == message).map(|span| span.range.clone());
        }
        self.span_of(message)
    }
}

/// The two private-use planes; one is used that no text holds.
const PLANES: [u32; 2] = [0x10_0000, 0xF_0000];

/// Marks that one plane has room for.
const MARKS_MAX: u32 = 0xFFF0;

/// What divides an answer into reasoning and the rest in the templates that take answers apart.
const REASONING_TAGS: [&str; 2] = ["<think>", REASONING_END];
const REASONING_END: &str = "</think>";

/// Renders a conversation and finds the texts in it. Where marks in every text disturb the template, only the
/// assistant's texts are marked; `Rendered::spans` then has no others.
pub(crate) fn render_marked(
    template: &ChatTemplate,
    messages: &[Message],
    tools: Option<&serde_json::Value>,
    add_generation_prompt: bool,
) -> Result<Rendered, TextError> {
    let plain = template.render(messages, tools, add_generation_prompt)?;
    let plane = free_plane(messages, &plain)?;
    let mut reason = String::new();
    for mark_all in [true, false] {
        let (marked, owners) = with_marks(messages, plane, mark_all)?;
        let rendered = match template.render(&marked, tools, add_generation_prompt) {
            Ok(text) => without_marks(&text, plane, &owners),
            Err(error @ TextError::TemplateLimit(_)) => return Err(error),
            Err(error) => Err(error.to_string()),
        };
        match rendered {
            Ok(rendered) if rendered.text == plain => return Ok(rendered),
            Ok(_) => reason = "the template treats marked text otherwise than the text itself".to_string(),
            Err(why) => reason = why,
        }
    }
    Err(TextError::AnswerNotFound(reason))
}

fn free_plane(messages: &[Message], rendered: &str) -> Result<u32, TextError> {
    let holds = |text: &str, plane: u32| text.chars().any(|c| (plane..=plane + 0xFFFF).contains(&(c as u32)));
    PLANES
        .into_iter()
        .find(|plane| !holds(rendered, *plane) && !messages.iter().any(|message| holds(&message.content, *plane)))
        .ok_or_else(|| TextError::AnswerNotFound("it uses characters of both private-use planes".to_string()))
}

/// The messages with a mark before and behind each text, and for each pair of marks its turn.
fn with_marks(messages: &[Message], plane: u32, mark_all: bool) -> Result<(Vec<Message>, Vec<usize>), TextError> {
    let mut owners = Vec::new();
    let mut marked = messages.to_vec();
    for (turn, message) in marked.iter_mut().enumerate() {
        if !mark_all && !message.is_assistant() {
            continue;
        }
        let parts = if message.is_assistant() {
            reasoning_parts(&message.content)
        } else {
            vec![(message.content.as_str(), true)]
        };
        let mut content = String::with_capacity(message.content.len() + 8);
        for (part, is_text) in parts {
            let core = part.trim();
            if !is_text || core.is_empty() {
                content.push_str(part);
                continue;
            }
            let lead = part.len() - part.trim_start().len();
            let first = 2 * owners.len() as u32;
            if first + 1 >= MARKS_MAX {
                return Err(TextError::AnswerNotFound(format!("it has more than {} texts", MARKS_MAX / 2)));
            }
            content.push_str(&part[..lead]);
            content.extend(char::from_u32(plane + first));
            content.push_str(core);
            content.extend(char::from_u32(plane + first + 1));
            content.push_str(&part[lead + core.len()..]);
            owners.push(turn);
        }
        message.content = content;
    }
    Ok((marked, owners))
}

/// Divides at reasoning tags; `true` for text, `false` for a tag.
fn reasoning_parts(content: &str) -> Vec<(&str, bool)> {
    let mut parts = Vec::new();
    let mut rest = content;
    while let Some((place, tag)) = REASONING_TAGS.iter().filter_map(|tag| Some((rest.find(tag)?, *tag))).min() {
        parts.push((&rest[..place], true));
        parts.push((&rest[place..place + tag.len()], false));
        rest = &rest[place + tag.len()..];
    }
    parts.push((rest, true));
    parts
}

/// Takes the marks out and notes where they stood.
fn without_marks(text: &str, plane: u32, owners: &[usize]) -> Result<Rendered, String> {
    let mut rendered = Rendered { text: String::with_capacity(text.len()), spans: Vec::new() };
    let mut open: Option<(u32, usize)> = None;
    let mut seen = vec![0usize; owners.len()];
    for c in text.chars() {
        let Some(mark) = (c as u32).checked_sub(plane).filter(|mark| *mark < 2 * owners.len() as u32) else {
            rendered.text.push(c);
            continue;
        };
        let (pair, place) = (mark / 2, rendered.text.len());
        match (open, mark % 2) {
            (None, 0) => open = Some((pair, place)),
            (Some((opened, start)), 1) if opened == pair => {
                open = None;
                seen[pair as usize] += 1;
                rendered.spans.push(Span { range: start..place, message: owners[pair as usize] });
            }
            _ => return Err(format!("the template takes the text of turn {} apart", owners[pair as usize] + 1)),
        }
    }
    if let Some((pair, _)) = open {
        return Err(format!("the template cuts the text of turn {}", owners[pair as usize] + 1));
    }
    match seen.iter().position(|count| *count > 1) {
        Some(pair) => Err(format!("the template writes the text of turn {} more than once", owners[pair] + 1)),
        None => Ok(rendered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::template::TemplateSettings;

    fn template(source: &str) -> ChatTemplate {
        let settings = TemplateSettings {
            date: "2025-10-28".parse().unwrap(),
            variables: Default::default(),
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            pad_token: None,
            unk_token: None,
        };
        ChatTemplate::new(source, settings).unwrap()
    }

    fn turns(texts: &[(&str, &str)]) -> Vec<Message> {
        texts.iter().map(|(role, content)| Message::new(role, *content)).collect()
    }

    const TRIMMING: &str =
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}</s>\n{% endfor %}";

    #[test]
    fn texts_are_found_where_a_template_trims_them() {
        let messages = turns(&[("user", "  hi \n"), ("assistant", "\n yes, hi  ")]);
        let rendered = render_marked(&template(TRIMMING), &messages, None, false).unwrap();
        assert_eq!(rendered.text, "<s>[user]hi</s>\n[assistant]yes, hi</s>\n");
        assert_eq!(&rendered.text[rendered.span_of(1).unwrap()], "yes, hi");
        assert_eq!(&rendered.text[rendered.span_of(0).unwrap()], "hi");
    }

    #[test]
    fn reasoning_that_a_template_drops_is_not_found_and_the_answer_is() {
        let source =
            "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endfor %}";
        let messages = turns(&[("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nthe answer")]);
        let rendered = render_marked(&template(source), &messages, None, false).unwrap();
        assert_eq!(rendered.text, "<user>q<assistant>the answer");
        assert_eq!(&rendered.text[rendered.span_of(1).unwrap()], "the answer");
    }

    #[test]
    fn a_template_that_looks_at_the_users_text_still_gives_the_answers_place() {
        let source =
            "{% for m in messages %}{% if m.content.startswith('!') %}LOUD {% endif %}{{ m.content }};{% endfor %}";
        let messages = turns(&[("user", "!now"), ("assistant", "ok")]);
        let rendered = render_marked(&template(source), &messages, None, false).unwrap();
        assert_eq!(rendered.text, "LOUD !now;ok;");
        assert_eq!(rendered.span_of(0), None);
        assert_eq!(&rendered.text[rendered.span_of(1).unwrap()], "ok");
    }

    #[test]
    fn what_cannot_be_found_is_refused() {
        let messages = turns(&[("user", "q"), ("assistant", "answer")]);
        for source in [
            "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{{ m.content[:3] }}{% endfor %}",
            "{% for m in messages %}{{ m.content | length }}{% endfor %}",
        ] {
            let result = render_marked(&template(source), &messages, None, false);
            assert!(matches!(result, Err(TextError::AnswerNotFound(_))), "{source}: {result:?}");
        }
    }

    #[test]
    fn private_use_characters_of_the_person_are_text() {
        let messages = turns(&[("user", "\u{100000}\u{100001}x"), ("assistant", "a\u{100003}b")]);
        let rendered = render_marked(&template(TRIMMING), &messages, None, false).unwrap();
        assert_eq!(&rendered.text[rendered.span_of(1).unwrap()], "a\u{100003}b");
        let both = turns(&[("user", "\u{100000}\u{F0000}"), ("assistant", "b")]);
        assert!(render_marked(&template(TRIMMING), &both, None, false).is_err());
    }
}
