//! From records to examples: plain models, retrieval, what is cut and in which order.

use crate::support::*;
use data::{
    ExampleError, ExampleOptions, RecordBody, Retriever, Supervise, TextError, TextPipeline, build_example,
    build_prompt,
};

fn chat_pipeline() -> TextPipeline {
    pipeline(&hugging_face("smollm"), "smollm", Some(&template("smollm2")))
}

fn plain_pipeline() -> TextPipeline {
    pipeline(&hugging_face("smollm"), "smollm", None)
}

fn commit(user: &str, sequence: usize, file: &str, subject: &str) -> data::Record {
    let fields = serde_json::json!({
        "files": [file, "README.md"], "n_files": 3, "lines_added": 12, "lines_removed": 4,
        "where": ["fn_name"], "words_added": ["alpha", "beta"], "words_removed": ["gamma"], "subject": subject,
    });
    let task = data::task_by_name("commit_subject").unwrap();
    record(user, sequence, RecordBody::Task { task, fields: fields.as_object().unwrap().clone() })
}

#[test]
fn a_plain_model_gets_prompt_and_completion_as_they_are() {
    let pipeline = plain_pipeline();
    let options = ExampleOptions::default();
    let record = record("me", 0, completion("Once upon", " a time"));
    let example = build_example(&pipeline, &record, &Retriever::none(), &options).unwrap();
    assert_eq!(pipeline.decode_with_special(&example.tokens), "Once upon a time<|im_end|>");
    assert_eq!(learned(&pipeline, &example), [" a time<|im_end|>"]);
    let prompt = build_prompt(&pipeline, &record, &Retriever::none(), &options, 4).unwrap();
    assert_eq!(prompt.tokens[..], example.tokens[..prompt.tokens.len()]);
    assert_eq!(pipeline.decode_with_special(&prompt.tokens), "Once upon");
}

#[test]
fn a_conversation_needs_a_template() {
    let record = record("me", 0, chat(&[("user", "a"), ("assistant", "b")]));
    let result = build_example(&plain_pipeline(), &record, &Retriever::none(), &ExampleOptions::default());
    assert!(matches!(result, Err(ExampleError::Text { source: TextError::NoTemplate, .. })), "{result:?}");
}

#[test]
fn a_commit_is_asked_and_answered() {
    let record = commit("me", 3, "src/reader.rs", "reader: fix it");
    let options = ExampleOptions::default();
    let pipeline = chat_pipeline();
    let example = build_example(&pipeline, &record, &Retriever::none(), &options).unwrap();
    assert_eq!(
        pipeline.decode_with_special(&example.tokens),
        "<|im_start|>system\nWrite the subject line of this commit.<|im_end|>\n<|im_start|>user\n\
         src/reader.rs, README.md and 1 more (+12 -4)\n@ fn_name\n+ alpha beta\n- gamma<|im_end|>\n\
         <|im_start|>assistant\nreader: fix it<|im_end|>"
    );
    assert_eq!(learned(&pipeline, &example), ["reader: fix it<|im_end|>"]);
    let pipeline = plain_pipeline();
    let example = build_example(&pipeline, &record, &Retriever::none(), &options).unwrap();
    assert_eq!(
        pipeline.decode_with_special(&example.tokens),
        "Write the subject line of this commit.\n\nsrc/reader.rs, README.md and 1 more (+12 -4)\n@ fn_name\n\
         + alpha beta\n- gamma\nSubject: reader: fix it<|im_end|>"
    );
    assert_eq!(learned(&pipeline, &example), [" reader: fix it<|im_end|>"]);
}

#[test]
fn a_prompt_shows_earlier_records_of_the_same_person_only() {
    let history = vec![
        commit("me", 0, "src/reader.rs", "reader: old"),
        commit("you", 1, "src/reader.rs", "READER of another"),
        commit("me", 2, "src/reader.rs", "reader: newer"),
        commit("me", 3, "src/reader.rs", "reader: asked"),
        commit("me", 4, "src/reader.rs", "reader: later"),
    ];
    let retriever = Retriever::new(&history);
    let options = ExampleOptions { retrieved_records: 4, ..ExampleOptions::default() };
    let pipeline = chat_pipeline();
    let example = build_example(&pipeline, &history[3], &retriever, &options).unwrap();
    // Equal scores: the newer one counts as nearer, and the nearest stands next to the question.
    assert_eq!(example.retrieved_ids, ["me-2", "me-0"]);
    let text = pipeline.decode_with_special(&example.tokens);
    let shown = "Earlier commits:\nsrc/reader.rs, README.md and 1 more + alpha beta -> reader: old\n\
                 src/reader.rs, README.md and 1 more + alpha beta -> reader: newer\n\nsrc/reader.rs";
    assert!(text.contains(shown), "{text}");
    assert!(!text.contains("another") && !text.contains("later"), "{text}");
    assert_eq!(learned(&pipeline, &example), ["reader: asked<|im_end|>"]);
    // The first record of a person has none before it.
    assert!(build_example(&pipeline, &history[0], &retriever, &options).unwrap().retrieved_ids.is_empty());
    assert!(retriever.earlier(&commit("nobody", 9, "src/reader.rs", "x"), 4).is_empty());
}

#[test]
fn what_does_not_fit_goes_in_order_and_the_answer_never() {
    let pipeline = chat_pipeline();
    let long: String = (0..300).map(|word| format!("word{word} ")).collect();
    let history: Vec<_> =
        (0..6).map(|place| record("me", place, completion(&format!("{place} {long}"), "the answer"))).collect();
    let retriever = Retriever::new(&history);
    let build = |tokens_max, retrieved_records| {
        let options = ExampleOptions {
            tokens_max,
            retrieved_records,
            retrieved_tokens_max: 60,
            supervise: Supervise::Answers,
            ..ExampleOptions::default()
        };
        build_example(&pipeline, &history[5], &retriever, &options)
    };
    let whole = build(100_000, 4).unwrap();
    assert_eq!((whole.retrieved_ids.len(), whole.truncation.retrieved_cut), (4, 4));
    assert_eq!(whole.truncation.context_tokens_cut, 0);
    let length = whole.tokens.len();
    // Earlier records go first, the least near one first.
    let less = build(length - 1, 4).unwrap();
    assert_eq!(less.truncation.retrieved_dropped, 1);
    assert_eq!((less.retrieved_ids.as_slice(), less.truncation.context_tokens_cut), (&whole.retrieved_ids[..3], 0));
    // Then the record's own text.
    for tokens_max in [200, 120, 80, 65] {
        let short = build(tokens_max, 4).unwrap();
        assert!(short.tokens.len() <= tokens_max, "{} of {tokens_max}", short.tokens.len());
        assert!(short.tokens.len() + 12 > tokens_max, "{} of {tokens_max}: too much was cut", short.tokens.len());
        assert_eq!(short.truncation.retrieved_dropped, 4);
        assert!(short.truncation.context_tokens_cut > 0);
        assert_eq!(learned(&pipeline, &short), ["the answer<|im_end|>"]);
    }
    // Both ends of a prompt are kept.
    let text = pipeline.decode(&build(200, 0).unwrap().tokens);
    assert!(text.contains("5 word0") && text.contains(" ... ") && text.contains("word299"), "{text}");
    let error = build(10, 4).unwrap_err();
    assert!(matches!(error, ExampleError::AnswerTooLong { tokens_max: 10, needed_tokens: 11.., .. }), "{error}");
}

#[test]
fn a_long_conversation_loses_its_oldest_turns_first() {
    let pipeline = chat_pipeline();
    let words = |name: &str| (0..40).map(|word| format!("{name}{word} ")).collect::<String>();
    let (a, b, c) = (words("a"), words("b"), words("c"));
    let turns = [
        ("user", a.as_str()),
        ("assistant", "one"),
        ("user", &b),
        ("assistant", "two"),
        ("user", &c),
        ("assistant", "three"),
    ];
    let build = |tokens_max| {
        let options = ExampleOptions { tokens_max, ..ExampleOptions::default() };
        build_example(&pipeline, &record("me", 0, chat(&turns)), &Retriever::none(), &options).unwrap()
    };
    let whole = build(100_000);
    assert_eq!(learned(&pipeline, &whole).len(), 3);
    let less = build(whole.tokens.len() - 1);
    assert_eq!((less.truncation.turns_dropped, less.truncation.context_tokens_cut), (2, 0));
    assert_eq!(learned(&pipeline, &less), ["two<|im_end|>", "three<|im_end|>"]);
    let least = build(120);
    assert_eq!(least.truncation.turns_dropped, 4);
    assert!(least.truncation.context_tokens_cut > 0);
    assert_eq!(learned(&pipeline, &least), ["three<|im_end|>"]);
}

#[test]
fn the_prompt_asks_for_the_empty_turn_at_the_end() {
    let pipeline = chat_pipeline();
    let turns = [("user", "first"), ("assistant", "one"), ("user", "second"), ("assistant", "")];
    let asked = data::Record::ad_hoc("me", chat(&turns));
    let prompt = data::build_prompt(&pipeline, &asked, &Retriever::none(), &ExampleOptions::default(), 10).unwrap();
    let text = pipeline.decode_with_special(&prompt.tokens);
    assert!(text.contains("first") && text.contains("one") && text.contains("second"), "{text}");
    assert!(text.ends_with("second<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    assert_eq!(prompt.gold, "");
}

#[test]
fn a_prompt_that_does_not_fit_is_said_in_the_words_of_the_user() {
    let (pipeline, retriever) = (chat_pipeline(), Retriever::none());
    let asked = data::Record::ad_hoc("me", completion("a question", ""));
    for (tokens_max, kept, words) in [
        (5, 3, "the prompt does not fit: 5 tokens are allowed, and 3 of them are kept for the answer"),
        (5, usize::MAX, "the prompt does not fit: 5 tokens are allowed, and 5 of them are kept for the answer"),
        (0, 1, "the prompt does not fit: 0 tokens are allowed, and 0 of them are kept for the answer"),
    ] {
        let options = ExampleOptions { tokens_max, ..ExampleOptions::default() };
        let error = data::build_prompt(&pipeline, &asked, &retriever, &options, kept).unwrap_err();
        assert!(matches!(error, ExampleError::PromptTooLong { .. }), "{error}");
        assert_eq!(error.to_string(), words);
        let error = build_example(&pipeline, &asked, &retriever, &options).unwrap_err();
        assert!(!error.to_string().starts_with("now"), "{error}");
        let named = record("me", 3, completion("a question", "b"));
        let error = data::build_prompt(&pipeline, &named, &retriever, &options, kept).unwrap_err();
        assert_eq!(error.to_string(), format!("me-3: {words}"));
    }
}

#[test]
fn a_text_is_learned_whole_and_ends_once() {
    let pipeline = plain_pipeline();
    let options = ExampleOptions::default();
    let build = |text: &str, options: &ExampleOptions| {
        build_example(&pipeline, &record("me", 0, RecordBody::Text(text.to_string())), &Retriever::none(), options)
            .unwrap()
    };
    let end = pipeline.stop_tokens()[0];
    for text in ["A diary.", "A diary.<|im_end|>", "A diary.<|im_end|>\n"] {
        let example = build(text, &options);
        assert_eq!(pipeline.decode_with_special(&example.tokens), "A diary.<|im_end|>");
        assert_eq!(example.tokens.iter().filter(|token| **token == end).count(), 1);
        assert_eq!(example.supervised_tokens(), example.tokens.len() - 1);
    }
    // A text that was cut does not end where it was cut.
    let cut = build("one two three four five six", &ExampleOptions { tokens_max: 4, ..options });
    assert_eq!(cut.tokens.len(), 4);
    assert!(cut.truncation.context_tokens_cut > 0 && !cut.tokens.contains(&end));
}

#[test]
fn nothing_to_learn_is_an_error() {
    let pipeline = chat_pipeline();
    let RecordBody::Chat { mut messages, tools } = chat(&[("user", "a"), ("assistant", "b")]) else { unreachable!() };
    messages[1].train = false;
    let silent = record("me", 0, RecordBody::Chat { messages, tools });
    let error = build_example(&pipeline, &silent, &Retriever::none(), &ExampleOptions::default()).unwrap_err();
    assert!(matches!(error, ExampleError::NothingSupervised { .. }), "{error}");
    assert!(error.to_string().starts_with("me-0: "), "{error}");
    let one = ExampleOptions { tokens_max: 1, ..ExampleOptions::default() };
    let text = record("me", 1, RecordBody::Text("word".into()));
    assert!(matches!(
        build_example(&plain_pipeline(), &text, &Retriever::none(), &one),
        Err(ExampleError::NothingSupervised { .. })
    ));
}

#[test]
fn a_thousand_hostile_records_give_examples_within_bounds_or_typed_errors() {
    let pipelines = [chat_pipeline(), plain_pipeline()];
    let mut random = Random(11);
    let history: Vec<_> =
        (0..40).map(|place| record("me", place, completion(&random.text(), &format!("x{}", random.text())))).collect();
    let retriever = Retriever::new(&history);
    for round in 0..500 {
        for pipeline in &pipelines {
            let options = ExampleOptions {
                tokens_max: random.below(90),
                retrieved_records: random.below(7),
                retrieved_tokens_max: random.below(30),
                supervise: [Supervise::Answers, Supervise::LastAnswer, Supervise::All][random.below(3)],
                ..ExampleOptions::default()
            };
            let record = &history[random.below(history.len())];
            match build_example(pipeline, record, &retriever, &options) {
                Ok(example) => {
                    assert!(example.tokens.len() <= options.tokens_max, "round {round}");
                    assert_eq!(example.tokens.len(), example.loss_mask.len());
                    assert!(example.supervised_tokens() > 0 && !example.loss_mask[0]);
                    assert!(example.retrieved_ids.len() <= 4);
                    assert_eq!(example.tokens.last(), pipeline.stop_tokens().first(), "round {round}: the end is kept");
                }
                Err(ExampleError::AnswerTooLong { needed_tokens, tokens_max, .. }) => {
                    assert!(needed_tokens > tokens_max)
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    }
}
