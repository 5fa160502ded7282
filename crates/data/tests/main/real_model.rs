//! Checks on a real model file: set `SELFTUNE_MODEL` to SmolLM2-135M-Instruct.Q4_1.gguf.

use crate::support::*;
use data::{ExampleOptions, Message, ReadOptions, Retriever, TextOptions, TextPipeline, build_example, read_history};
use serde_json::Value;
use std::path::Path;

fn real_pipeline() -> Option<TextPipeline> {
    let Ok(path) = std::env::var("SELFTUNE_MODEL") else {
        eprintln!("skipped: SELFTUNE_MODEL is not set");
        return None;
    };
    let options = formats::LoadOptions::default();
    let model = formats::load_model(Path::new(&path), &options, &mut |_| {}).unwrap();
    let text = TextOptions::new("2025-10-28".parse().unwrap());
    Some(TextPipeline::new(&model.tokenizer, model.chat_template.as_deref(), &model.special, text).unwrap())
}

fn ids(case: &Value) -> Vec<u32> {
    case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn ids_are_those_of_transformers_and_llama_cpp() {
    let Some(pipeline) = real_pipeline() else { return };
    for case in read_json(&fixture("smollm2_tokens.json"))["cases"].as_array().unwrap() {
        assert_eq!(pipeline.encode_rendered(case["text"].as_str().unwrap()).unwrap(), ids(case), "{}", case["text"]);
    }
    for case in read_json(&fixture("smollm2_chats.json"))["cases"].as_array().unwrap() {
        let turn = |turn: &Value| Message::new(turn["role"].as_str().unwrap(), turn["content"].as_str().unwrap());
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(turn).collect();
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let rendered = pipeline.render_chat(&messages, None, prompt).unwrap();
        assert_eq!(rendered, case["rendered"].as_str().unwrap());
        assert_eq!(pipeline.encode_rendered(&rendered).unwrap(), ids(case));
        if prompt {
            assert_eq!(pipeline.encode_chat_prompt(&messages, None).unwrap(), ids(case));
        }
    }
}

#[test]
fn commit_prompts_are_cheap() {
    let Some(pipeline) = real_pipeline() else { return };
    for author in ["author-01", "author-08", "author-12"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../data/git-commits/{author}.jsonl"));
        let history = read_history(&path, &ReadOptions::default()).unwrap();
        for retrieved_records in [0, 4] {
            let options = ExampleOptions { retrieved_records, ..ExampleOptions::default() };
            let retriever = Retriever::new(&history.records);
            let start = std::time::Instant::now();
            let mut lengths: Vec<usize> = Vec::new();
            for record in &history.records {
                lengths.push(build_example(&pipeline, record, &retriever, &options).unwrap().tokens.len());
            }
            let mean = lengths.iter().sum::<usize>() / lengths.len();
            lengths.sort_unstable();
            let (median, longest) = (lengths[lengths.len() / 2], lengths[lengths.len() - 1]);
            let each_ms = start.elapsed().as_secs_f64() * 1e3 / lengths.len() as f64;
            println!(
                "{author}, {retrieved_records} retrieved: mean {mean}, median {median}, longest {longest} tokens; {each_ms:.2} ms each"
            );
            if retrieved_records == 0 {
                assert!(mean <= 150, "{author}: {mean} tokens a prompt");
            }
        }
    }
}
