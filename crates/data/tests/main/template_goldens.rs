//! Chat templates against the rendering of transformers.

use crate::support::*;
use data::{Message, TextError, TextPipeline};
use serde_json::{Map, Value};

/// Contents that are null or lists go to the template as they are.
fn message(json: &Value) -> Message {
    let mut extra: Map<String, Value> = json.as_object().unwrap().clone();
    let role = extra.remove("role").unwrap();
    let content = match extra.get("content") {
        Some(Value::String(_)) => extra.remove("content").unwrap().as_str().unwrap().to_string(),
        _ => String::new(),
    };
    Message { extra, ..Message::new(role.as_str().unwrap(), content) }
}

#[test]
fn rendered_text_is_that_of_transformers() {
    for name in ["smollm2", "qwen3", "dated", "turns", "kitchen"] {
        let fixture = read_json(&fixture(&format!("chat_templates/{name}.json")));
        let source = template(name);
        for case in fixture["cases"].as_array().unwrap() {
            let what = format!("{name}, {}", case["name"]);
            let variables = case["options"].as_object().cloned().unwrap_or_default();
            let options = options(case["date"].as_str().unwrap(), variables);
            let pipeline =
                TextPipeline::new(&hugging_face("smollm"), Some(&source), &special("smollm"), options).unwrap();
            let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
            let tools = case.get("tools").filter(|tools| !tools.is_null());
            let rendered = pipeline.render_chat(&messages, tools, case["add_generation_prompt"].as_bool().unwrap());
            match (case.get("rendered").and_then(Value::as_str), rendered) {
                (Some(expected), Ok(rendered)) => assert_eq!(rendered, expected, "{what}"),
                (None, Err(TextError::Refused(reason))) => {
                    assert_eq!(reason, case["error"].as_str().unwrap(), "{what}")
                }
                (expected, rendered) => panic!("{what}: expected {expected:?}, got {rendered:?}"),
            }
        }
    }
}

#[test]
fn hostile_templates_end_with_an_error() {
    for (source, is_limit) in [
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}",
            true,
        ),
        (
            "{% set n = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
            true,
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", false),
        ("{{ 'x' * 100000000000 }}", false),
        ("{% for m in messages", false),
        ("{{ messages | nosuchfilter }}", false),
        ("{{ raise_exception('no') }}", false),
        ("{% include 'other' %}", false),
        ("{{ ((((((((((((((((((1)))))))))))))))))) + [] }}", false),
    ] {
        let options = options("2025-01-01", Default::default());
        let built = TextPipeline::new(&hugging_face("smollm"), Some(source), &special("smollm"), options);
        let rendered = built.and_then(|pipeline| pipeline.render_chat(&[Message::new("user", "x")], None, true));
        match rendered {
            Err(TextError::TemplateLimit(_)) if is_limit => {}
            Err(TextError::Template(_) | TextError::Refused(_) | TextError::TemplateLimit(_)) if !is_limit => {}
            other => panic!("{source}: {other:?}"),
        }
    }
}
