//! Token ids against transformers, sentencepiece and llama.cpp.

use crate::support::*;
use data::TextPipeline;
use formats::TokenizerSource;
use serde_json::Value;

fn ids(case: &Value, name: &str) -> Option<Vec<u32>> {
    Some(case.get(name)?.as_array()?.iter().map(|id| id.as_u64().unwrap() as u32).collect())
}

fn check_case(pipeline: &TextPipeline, case: &Value, expected: &[u32], what: &str) {
    let text = case["text"].as_str().unwrap();
    let tokens = pipeline.encode_rendered(text).unwrap();
    assert_eq!(tokens, expected, "{what}: {text:?}");
    if tokens == ids(case, "ids").unwrap() {
        let decoded = case["decoded"].as_str().unwrap();
        assert_eq!(pipeline.decode_with_special(&tokens), decoded, "{what}: decoding {text:?}");
    }
    let mut stream = pipeline.stream();
    let mut streamed: String = tokens.iter().map(|token| stream.push(*token)).collect();
    streamed += &stream.finish();
    assert_eq!(streamed, pipeline.decode(&tokens), "{what}: streaming {text:?}");
}

#[test]
fn tokenizer_json_gives_the_ids_of_transformers() {
    for kind in KINDS {
        let pipeline = pipeline(&hugging_face(kind), kind, None);
        let goldens = read_json(&fixture(&format!("tokenizers/{kind}/goldens.json")));
        for case in goldens["cases"].as_array().unwrap() {
            let expected = ids(case, "ids_tokenizer_json").or_else(|| ids(case, "ids")).unwrap();
            check_case(&pipeline, case, &expected, kind);
        }
    }
}

/// The GGUF form of a Qwen 2 tokenizer leaves Unicode composition out. We put it back, so that a model has the same
/// tokens whatever file it comes in; the expected ids are therefore those of tokenizer.json.
#[test]
fn gguf_metadata_gives_the_same_ids() {
    for kind in KINDS {
        let source = TokenizerSource::Gguf(Box::new(gguf(kind)));
        let pipeline = pipeline(&source, kind, None);
        let goldens = read_json(&fixture(&format!("tokenizers/{kind}/goldens.json")));
        for case in goldens["cases"].as_array().unwrap() {
            check_case(&pipeline, case, &ids(case, "ids").unwrap(), &format!("{kind} from GGUF"));
        }
    }
}

#[test]
fn what_a_person_writes_never_becomes_a_special_token() {
    for kind in KINDS {
        let pipeline = pipeline(&hugging_face(kind), kind, None);
        let stop = pipeline.decode_with_special(pipeline.stop_tokens());
        let text = format!("a{stop}b {stop}");
        let tokens = pipeline.encode(&text).unwrap();
        assert!(!tokens.iter().any(|token| pipeline.stop_tokens().contains(token)), "{kind}: {tokens:?}");
        assert_eq!(pipeline.decode(&tokens), text, "{kind}");
        assert!(pipeline.encode_rendered(&text).unwrap().iter().any(|token| pipeline.stop_tokens().contains(token)));
    }
}

#[test]
fn the_start_token_comes_once_where_the_model_wants_one() {
    for kind in KINDS {
        for wants in [true, false] {
            let TokenizerSource::HuggingFace { tokenizer_json, .. } = hugging_face(kind) else { unreachable!() };
            let config = Some(serde_json::json!({"add_bos_token": wants}));
            let mut gguf = gguf(kind);
            gguf.add_bos_token = Some(wants);
            for source in
                [TokenizerSource::HuggingFace { tokenizer_json, config }, TokenizerSource::Gguf(Box::new(gguf))]
            {
                let tokens = pipeline(&source, kind, None).encode_text_prompt("Hello").unwrap();
                let bos = special(kind).bos.unwrap();
                let found: Vec<usize> = (0..tokens.len()).filter(|place| tokens[*place] == bos).collect();
                assert_eq!(found, if wants { vec![0] } else { vec![] }, "{kind}: {tokens:?}");
            }
        }
    }
}

#[test]
fn broken_metadata_is_said() {
    let expect = |change: &dyn Fn(&mut formats::GgufTokenizer), words: &str| {
        let mut broken = gguf("smollm");
        change(&mut broken);
        let source = TokenizerSource::Gguf(Box::new(broken));
        let options = options("2025-01-01", Default::default());
        let error = TextPipeline::new(&source, None, &special("smollm"), options).unwrap_err().to_string();
        assert!(error.contains(words), "{error} should say {words}");
    };
    expect(&|gguf| gguf.tokens.clear(), "tokenizer.ggml.tokens");
    expect(&|gguf| gguf.token_types.truncate(3), "token_type has 3 entries");
    expect(&|gguf| gguf.merges[7] = "nospace".into(), "merges[7]");
    expect(&|gguf| gguf.merges[7] = "zzzz yyyy".into(), "zzzz");
    expect(&|gguf| gguf.model = "rwkv".into(), "known are: gpt2, llama");
    expect(&|gguf| gguf.pre = Some("klingon".into()), "known are: default");
    expect(&|gguf| gguf.model = "llama".into(), "tokenizer.ggml.scores");
}
