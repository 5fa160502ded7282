//! Chat templates, rendered as the Python library that most templates were written for renders them.

use super::python::{JsonStyle, json_dumps, text_of};
use crate::error::TextError;
use crate::record::Message;
use crate::time::PinnedDate;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use std::collections::BTreeMap;

/// Work that one rendering may do, in the template engine's units (an instruction, or 64 bytes of text). Real templates
/// stay below a thousandth of it; the text of the conversation comes on top.
const FUEL: u64 = 2_000_000;

/// Longest template that is compiled. The longest real ones are below 20 KB.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Nesting of macros and includes.
const RECURSION_MAX: usize = 100;

/// Marks errors that the template itself raised.
const RAISED: &str = "raised by the template: ";

/// The values a template sees besides the conversation.
#[derive(Debug, Clone)]
pub(crate) struct TemplateSettings {
    pub date: PinnedDate,
    /// Further variables by name.
    pub variables: serde_json::Map<String, serde_json::Value>,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    pub pad_token: Option<String>,
    pub unk_token: Option<String>,
}

pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    settings: TemplateSettings,
}

impl ChatTemplate {
    pub fn new(source: &str, settings: TemplateSettings) -> Result<ChatTemplate, TextError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(TextError::Template(format!("it is longer than {TEMPLATE_BYTES_MAX} bytes")));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(|out, _state, value| out.write_str(&text_of(value)).map_err(Error::from));
        environment.add_filter("tojson", to_json);
        environment.add_filter("string", |value: Value| text_of(&value));
        environment.add_function("raise_exception", |message: Value| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", text_of(&message))))
        });
        let date = settings.date;
        environment.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
            date.format(format)
                .map_err(|reason| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {reason}")))
        });
        environment
            .add_template_owned("chat", without_generation_tags(source))
            .map_err(|error| template_error(&error))?;
        Ok(ChatTemplate { environment, settings })
    }

    /// The conversation as text.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let turns: Vec<serde_json::Value> = messages.iter().map(message_value).collect();
        let text_bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + text_bytes as u64));
        let settings = &self.settings;
        let mut context: BTreeMap<&str, Value> =
            settings.variables.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))).collect();
        for (name, token) in [
            ("bos_token", &settings.bos_token),
            ("eos_token", &settings.eos_token),
            ("pad_token", &settings.pad_token),
            ("unk_token", &settings.unk_token),
        ] {
            context.extend(token.as_ref().map(|token| (name, Value::from(token))));
        }
        context.insert("messages", Value::from(Serde(&turns)));
        context.insert("tools", tools.map_or(Value::from(()), |tools| Value::from(Serde(tools))));
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(add_generation_prompt));
        let template = environment.get_template("chat").map_err(|error| template_error(&error))?;
        template.render(Value::from_pairs(context)).map_err(|error| template_error(&error))
    }
}

fn message_value(message: &Message) -> serde_json::Value {
    let mut fields = serde_json::Map::new();
    fields.insert("role".to_string(), message.role.clone().into());
    fields.insert("content".to_string(), message.content.clone().into());
    fields.extend(message.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
    serde_json::Value::Object(fields)
}

fn template_error(error: &Error) -> TextError {
    let detail = error.detail().unwrap_or("");
    if let Some(reason) = detail.strip_prefix(RAISED) {
        return TextError::Refused(reason.chars().take(300).collect());
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateLimit(format!("{FUEL} units of work"));
    }
    let place = error.line().map_or(String::new(), |line| format!("line {line}: "));
    TextError::Template(format!("{place}{}", error.to_string().chars().take(300).collect::<String>()))
}

/// `tojson` with the arguments of the Python library's own filter, whose result is `json.dumps`.
fn to_json(value: Value, indent: Option<Value>, arguments: Kwargs) -> Result<String, Error> {
    let wrong = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    let indent = match indent {
        Some(indent) => Some(indent),
        None => arguments.get::<Option<Value>>("indent")?,
    };
    let given = indent.filter(|value| !value.is_none() && !value.is_undefined());
    let indent = given.map(|value| match value.as_str() {
        Some(text) => text.chars().take(16).collect(),
        None => " ".repeat(i64::try_from(value).map_or(0, |count| count.clamp(0, 16)) as usize),
    });
    let mut style = JsonStyle {
        item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
        key_separator: ": ".to_string(),
        indent,
        sort_keys: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii_only: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    if let Some(separators) = arguments.get::<Option<Value>>("separators")?.filter(|value| !value.is_none()) {
        let pair: Vec<String> = separators.try_iter()?.map(|item| text_of(&item)).collect();
        if let [item, key] = pair.as_slice() {
            style.item_separator = item.clone();
            style.key_separator = key.clone();
        } else {
            return Err(wrong("tojson: separators must be two texts".to_string()));
        }
    }
    arguments.assert_all_used()?;
    json_dumps(&value, &style).map_err(wrong)
}

/// Replaces the `generation` block, which marks the assistant's text for another library, by a block that is always
/// taken: the white space rules of blocks then stay as they are.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(close + 2);
        let inside = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match inside {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
