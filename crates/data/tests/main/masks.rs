//! What is learned of a conversation, for every template and random texts.

use crate::support::*;
use data::{
    Example, ExampleOptions, Message, RecordBody, Retriever, Supervise, TextPipeline, build_example, build_prompt,
};
use serde_json::Value;

fn example(pipeline: &TextPipeline, body: RecordBody, supervise: Supervise) -> Example {
    let options = ExampleOptions { supervise, tokens_max: 100_000, ..ExampleOptions::default() };
    build_example(pipeline, &record("me", 0, body), &Retriever::none(), &options).unwrap()
}

/// Pipelines of every template with a tokenizer that has its special tokens.
fn pipelines() -> Vec<(&'static str, TextPipeline)> {
    [("smollm2", "smollm"), ("qwen3", "qwen2"), ("dated", "smollm"), ("turns", "sentence_piece_gemma")]
        .into_iter()
        .map(|(name, kind)| (name, pipeline(&hugging_face(kind), kind, Some(&template(name)))))
        .collect()
}

#[test]
fn one_answer_is_learned_with_the_token_that_ends_it() {
    for (name, pipeline) in pipelines() {
        let example = example(&pipeline, chat(&[("user", "Hi there"), ("assistant", "Hello you")]), Supervise::Answers);
        let end = if name == "turns" { "<end_of_turn>" } else { "<|im_end|>" };
        assert_eq!(learned(&pipeline, &example), [format!("Hello you{end}")], "{name}");
        assert!(example.loss_mask[example.tokens.len() - 1], "{name}: nothing follows the end of the last answer");
    }
}

#[test]
fn several_answers_one_answer_or_everything() {
    let turns =
        [("user", "a b"), ("assistant", "first"), ("user", "c"), ("assistant", "second"), ("user", "no answer")];
    for (name, pipeline) in pipelines() {
        let end = if name == "turns" { "<end_of_turn>" } else { "<|im_end|>" };
        let (first, second) = (format!("first{end}"), format!("second{end}"));
        let of = |supervise| learned(&pipeline, &example(&pipeline, chat(&turns), supervise));
        assert_eq!(of(Supervise::Answers), [first, second.clone()], "{name}");
        assert_eq!(of(Supervise::LastAnswer), [second], "{name}");
        let all = example(&pipeline, chat(&turns), Supervise::All);
        assert!(all.loss_mask[1..].iter().all(|learned| *learned) && !all.loss_mask[0], "{name}");
    }
}

/// The template marks the assistant's text itself. What it marks and the served prompt does not hold is what we learn.
#[test]
fn learned_parts_are_those_that_a_marking_template_marks() {
    let fixture = read_json(&fixture("chat_templates/dated.json"));
    let mut compared = 0;
    for case in fixture["cases"].as_array().unwrap() {
        let spans = case.get("assistant_spans").and_then(Value::as_array).cloned().unwrap_or_default();
        let variables = case["options"].as_object().cloned().unwrap_or_default();
        let texts: Option<Vec<(&str, &str)>> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|turn| Some((turn["role"].as_str()?, turn["content"].as_str()?)))
            .collect();
        let Some(turns) = texts else { continue };
        let calls_tools = case["messages"].as_array().unwrap().iter().any(|turn| turn.get("tool_calls").is_some());
        if calls_tools || !matches!(turns.last(), Some(("assistant", text)) if !text.trim().is_empty()) {
            continue;
        }
        let options = options(case["date"].as_str().unwrap(), variables);
        let source = template("dated");
        let pipeline = TextPipeline::new(&hugging_face("smollm"), Some(&source), &special("smollm"), options).unwrap();
        let rendered: Vec<char> = case["rendered"].as_str().unwrap().chars().collect();
        let expected: Vec<String> = spans
            .iter()
            .map(|span| {
                let (start, end) = (span[0].as_u64().unwrap() as usize, span[1].as_u64().unwrap() as usize);
                let marked: String = rendered[start..end].iter().collect();
                marked.strip_prefix("<think>\n\n</think>\n").unwrap_or(&marked).to_string()
            })
            .collect();
        let example = example(&pipeline, chat(&turns), Supervise::Answers);
        assert_eq!(learned(&pipeline, &example), expected, "{}", case["name"]);
        compared += 1;
    }
    assert!(compared >= 8, "only {compared} cases end with an answer");
}

#[test]
fn reasoning_is_learned_only_where_the_prompt_asks_for_it() {
    let turns = [
        ("user", "q"),
        ("assistant", "<think>\nold\n</think>\n\none"),
        ("user", "r"),
        ("assistant", "<think>\nnew\n</think>\n\ntwo"),
    ];
    let source = template("qwen3");
    let with = |thinking: bool| {
        let mut options = options("2025-01-01", Default::default());
        options.variables.insert("enable_thinking".into(), thinking.into());
        TextPipeline::new(&hugging_face("qwen2"), Some(&source), &special("qwen2"), options).unwrap()
    };
    let thinking = with(true);
    let parts = learned(&thinking, &example(&thinking, chat(&turns), Supervise::Answers));
    assert_eq!(parts, ["one<|im_end|>", "<think>\nnew\n</think>\n\ntwo<|im_end|>"]);
    // The prompt closes the reasoning already, so what follows it is the answer alone.
    let silent = with(false);
    let example = example(&silent, chat(&turns), Supervise::LastAnswer);
    assert_eq!(learned(&silent, &example), ["two<|im_end|>"]);
    assert!(silent.decode_with_special(&example.tokens).contains("assistant\n<think>\n\n</think>\n\ntwo<|im_end|>"));
}

#[test]
fn a_turn_marked_as_not_learned_is_not() {
    for (name, pipeline) in pipelines() {
        let RecordBody::Chat { mut messages, tools } =
            chat(&[("user", "a"), ("assistant", "first"), ("user", "c"), ("assistant", "second")])
        else {
            unreachable!()
        };
        messages[1].train = false;
        let example = example(&pipeline, RecordBody::Chat { messages, tools }, Supervise::Answers);
        let parts = learned(&pipeline, &example);
        assert!(parts.len() == 1 && parts[0].starts_with("second"), "{name}: {parts:?}");
    }
}

#[test]
fn calls_of_tools_are_learned() {
    let pipeline = pipeline(&hugging_face("qwen2"), "qwen2", Some(&template("qwen3")));
    let call =
        serde_json::json!([{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]);
    let mut turn = Message::new("assistant", "");
    turn.extra.insert("tool_calls".into(), call);
    let tools = serde_json::json!([{"type": "function", "function": {"name": "weather", "parameters": {}}}]);
    let body =
        RecordBody::Chat { messages: vec![Message::new("user", "How is it?"), turn.clone()], tools: Some(tools) };
    let parts = learned(&pipeline, &example(&pipeline, body, Supervise::Answers));
    assert_eq!(parts.len(), 1);
    assert!(parts[0].contains("\"name\": \"weather\"") && parts[0].ends_with("<|im_end|>"), "{parts:?}");
    // A special token inside of a call would be read as one.
    turn.extra["tool_calls"][0]["function"]["arguments"]["city"] = "<|im_end|>".into();
    let body = RecordBody::Chat { messages: vec![Message::new("user", "How is it?"), turn], tools: None };
    let options = ExampleOptions::default();
    let error = build_example(&pipeline, &record("me", 0, body), &Retriever::none(), &options).unwrap_err();
    assert!(error.to_string().contains("special token <|im_end|>"), "{error}");
}

#[test]
fn random_conversations_keep_their_answers_and_their_turns() {
    let mut random = Random(7);
    for (name, pipeline) in pipelines() {
        let stop = *pipeline
            .encode_rendered(if name == "turns" { "<end_of_turn>" } else { "<|im_end|>" })
            .unwrap()
            .first()
            .unwrap();
        for round in 0..120 {
            let questions = 1 + random.below(3);
            let mut messages = Vec::new();
            if pipeline.takes_system_turn() && random.below(2) == 0 {
                messages.push(Message::new("system", format!("s{}", random.text())));
            }
            for _ in 0..questions {
                messages.push(Message::new("user", format!("u{}", random.text())));
                messages.push(Message::new("assistant", format!("a{}", random.text())));
            }
            let what = format!("{name}, round {round}: {messages:?}");
            let answers: Vec<String> = messages
                .iter()
                .filter(|message| message.is_assistant())
                .map(|message| message.content.clone())
                .collect();
            let record = record("me", 0, RecordBody::Chat { messages: messages.clone(), tools: None });
            let options = ExampleOptions { tokens_max: 100_000, ..ExampleOptions::default() };
            let example = build_example(&pipeline, &record, &Retriever::none(), &options).unwrap();

            assert_eq!(example.tokens.len(), example.loss_mask.len(), "{what}");
            // No text of a person opens or closes a turn.
            let ends = example.tokens.iter().filter(|token| **token == stop).count();
            let system_turns = match (name, messages[0].role == "system") {
                ("turns", true) => 0,
                (_, true) | ("smollm2" | "dated", _) => 1,
                _ => 0,
            };
            assert_eq!(ends, 2 * questions + system_turns, "{what}");
            // What is learned is the answers, whole, each with its end.
            let parts = learned_runs(&example, stop);
            assert_eq!(parts.len(), answers.len(), "{what}");
            for (part, answer) in parts.iter().zip(&answers) {
                assert_eq!(*part.last().unwrap(), stop, "{what}");
                let text = pipeline.decode_with_special(&part[..part.len() - 1]);
                assert_eq!(text.trim(), answer.trim(), "{what}");
            }
            // Training and use see the same prompt, token for token.
            let prompt = build_prompt(&pipeline, &record, &Retriever::none(), &options, 8).unwrap();
            let last_length = parts.last().unwrap().len();
            assert_eq!(prompt.tokens, example.tokens[..example.tokens.len() - last_length], "{what}");
            assert_eq!(prompt.gold, *answers.last().unwrap(), "{what}");
        }
    }
}

/// Runs of learned tokens, each up to a stop token.
fn learned_runs(example: &Example, stop: u32) -> Vec<Vec<u32>> {
    let mut runs = vec![Vec::new()];
    for (token, learned) in example.tokens.iter().zip(&example.loss_mask) {
        if *learned {
            runs.last_mut().unwrap().push(*token);
            if *token == stop {
                runs.push(Vec::new());
            }
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}
