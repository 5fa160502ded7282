//! Values written as Python writes them: chat templates were made for Jinja in Python, and a prompt must have the same
//! bytes.

use minijinja::value::{Value, ValueKind};
use std::fmt::Write;

/// How JSON is laid out.
pub(crate) struct JsonStyle {
    pub item_separator: String,
    pub key_separator: String,
    /// Spaces of one level, or everything on one line.
    pub indent: Option<String>,
    pub sort_keys: bool,
    pub ascii_only: bool,
}

/// Deepest nesting that is written; templates hold a handful of levels.
const DEPTH_MAX: usize = 64;

/// `json.dumps`.
pub(crate) fn json_dumps(value: &Value, style: &JsonStyle) -> Result<String, String> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("tojson: the value is nested deeper than {DEPTH_MAX} levels"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Undefined => return Err("tojson: the value is undefined".to_string()),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number_text(value)),
        ValueKind::String => write_json_string(value.as_str().unwrap_or(""), style.ascii_only, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter().map_err(|error| error.to_string())?.collect();
            write_items(items.len(), ('[', ']'), style, depth, out, |place, out| {
                write_json(&items[place], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter().map_err(|error| error.to_string())?.collect();
            if style.sort_keys {
                keys.sort_by_key(Value::to_string);
            }
            write_items(keys.len(), ('{', '}'), style, depth, out, |place, out| {
                write_json_string(&keys[place].to_string(), style.ascii_only, out);
                out.push_str(&style.key_separator);
                let item = value.get_item(&keys[place]).map_err(|error| error.to_string())?;
                write_json(&item, style, depth + 1, out)
            })?;
        }
        other => return Err(format!("tojson: cannot write {other}")),
    }
    Ok(())
}

fn write_items(
    count: usize,
    (open, close): (char, char),
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(usize, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    out.push(open);
    for place in 0..count {
        if place > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out);
        write(place, out)?;
    }
    if count > 0 {
        new_line(style, depth, out);
    }
    out.push(close);
    Ok(())
}

fn new_line(style: &JsonStyle, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn write_json_string(text: &str, ascii_only: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii_only && !c.is_ascii()) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as `repr` writes it.
fn number_text(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) => float_text(number),
        Err(_) => value.to_string(),
    }
}

/// `repr` of a float: the shortest digits that read back the same, with an exponent from 1e16 up and below 1e-4.
fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |rest| ("-", rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// `str` of a value: what `{{ value }}` writes.
pub(crate) fn text_of(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or("").to_string(),
        _ => {
            let mut out = String::new();
            write_repr(value, 0, &mut out);
            out
        }
    }
}

fn write_repr(value: &Value, depth: usize, out: &mut String) {
    match value.kind() {
        _ if depth > DEPTH_MAX => out.push_str("..."),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number_text(value).replace("Infinity", "inf").replace("NaN", "nan")),
        ValueKind::String => write_repr_string(value.as_str().unwrap_or(""), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (place, item) in value.try_iter().into_iter().flatten().enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, depth + 1, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (place, key) in value.try_iter().into_iter().flatten().enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, depth + 1, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Python quotes with ' unless the text holds ' and no ".
fn write_repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;

    fn style(indent: Option<&str>) -> JsonStyle {
        JsonStyle {
            item_separator: if indent.is_some() { "," } else { ", " }.into(),
            key_separator: ": ".into(),
            indent: indent.map(String::from),
            sort_keys: false,
            ascii_only: false,
        }
    }

    #[test]
    fn json_has_the_bytes_of_json_dumps() {
        let value = Value::from(Serde(serde_json::json!({
            "name": "naïve \"q\"\n\u{1}", "list": [1, 2.0, true, null, {}], "empty": [], "small": 1e-7, "large": 1e22
        })));
        let flat = json_dumps(&value, &style(None)).unwrap();
        assert_eq!(
            flat,
            r#"{"name": "naïve \"q\"\n\u0001", "list": [1, 2.0, true, null, {}], "empty": [], "small": 1e-07, "large": 1e+22}"#
        );
        let deep =
            json_dumps(&Value::from(Serde(serde_json::json!({"a": [1, {"b": 2}]}))), &style(Some("  "))).unwrap();
        assert_eq!(deep, "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}");
        let ascii = JsonStyle { ascii_only: true, ..style(None) };
        assert_eq!(json_dumps(&Value::from("é😀"), &ascii).unwrap(), r#""\u00e9\ud83d\ude00""#);
    }

    #[test]
    fn printed_values_are_pythons() {
        let value = Value::from(Serde(serde_json::json!({"a": [true, null, "it's", "say \"hi\""], "b": 0.5})));
        assert_eq!(text_of(&value), r#"{'a': [True, None, "it's", 'say "hi"'], 'b': 0.5}"#);
        assert_eq!(text_of(&Value::from("plain")), "plain");
        assert_eq!(text_of(&Value::UNDEFINED), "");
    }
}
