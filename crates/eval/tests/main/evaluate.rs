//! The five arms on a tiny random model, with adapters trained here for the purpose.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use data::{
    ExampleOptions, OnBadLine, PinnedDate, ReadOptions, Record, Retriever, TextOptions, TextPipeline, build_example,
    read_history,
};
use eval::verdict::judge;
use eval::{ARMS, Arm, Decision, EvalError, EvalInputs, Evaluation, Outcome, QueryRow, evaluate};
use formats::{CacheMode, LoadOptions, load_model};
use kernels::{AdamWParameters, Isa, OpsOptions, Precision};
use model::{AdapterSpec, AdapterWeights, Model, Projection, StepOptions, TrainingSession};

/// What one person always writes, and what the other does.
const OWN_ANSWER: &str = "fix it";
const OTHER_ANSWER: &str = "NEW!";

struct Bench {
    model: Arc<Model>,
    text: TextPipeline,
    earlier: Vec<Record>,
    queries: Vec<Record>,
}

impl Bench {
    fn new() -> Bench {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
        let folder = tempfile::tempdir().unwrap();
        for (folder_name, names) in [
            ("llama/mlx_q4_g64", &["config.json", "model.safetensors"][..]),
            ("tokenizer", &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]),
        ] {
            for name in names {
                std::fs::copy(fixtures.join(folder_name).join(name), folder.path().join(name)).unwrap();
            }
        }
        let options = LoadOptions { cache: CacheMode::Off, ..LoadOptions::default() };
        let loaded = load_model(folder.path(), &options, &mut |_| {}).unwrap();
        let date = TextOptions::new("2026-11-30".parse::<PinnedDate>().unwrap());
        let text =
            TextPipeline::new(&loaded.tokenizer, loaded.chat_template.as_deref(), &loaded.special, date).unwrap();
        let model = Arc::new(Model::from_loaded(loaded).unwrap());
        let mut records = history(20, OWN_ANSWER);
        let queries = records.split_off(10);
        Bench { model, text, earlier: records, queries }
    }

    fn inputs<'a>(&'a self, arms: &'a [&'static Arm]) -> EvalInputs<'a> {
        EvalInputs {
            model: Arc::clone(&self.model),
            text: &self.text,
            earlier: &self.earlier,
            queries: &self.queries,
            on: &[],
            adapter: None,
            other_adapter: None,
            arms,
            options: ExampleOptions { tokens_max: 400, retrieved_records: 2, ..ExampleOptions::default() },
            answer_tokens_max: Some(12),
            score_choices: true,
            ops: ops(),
        }
    }

    /// An adapter after a few updates on records that are all answered alike.
    fn trained(&self, records: &[Record]) -> AdapterWeights {
        let spec = AdapterSpec {
            rank: 4,
            lora_alpha: 16.0,
            dropout: 0.0,
            targets: vec![Projection::Query, Projection::Value, Projection::Up, Projection::Down],
            blocks: 0..2,
            use_rslora: false,
        };
        let fresh = AdapterWeights::initialized(self.model.config(), spec, 1).unwrap();
        let mut session = TrainingSession::new(Arc::clone(&self.model), &fresh, step_options()).unwrap();
        let options = ExampleOptions { tokens_max: 400, ..ExampleOptions::default() };
        for (step, record) in (1..=24).zip(records.iter().cycle()) {
            let example = build_example(&self.text, record, &Retriever::none(), &options).unwrap();
            session.zero_gradients();
            let scale = 1.0 / example.supervised_tokens() as f32;
            session.step(&example.tokens, &example.loss_mask, scale, 0).unwrap();
            session.update(&AdamWParameters {
                learning_rate: 1e-2,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.0,
                step,
                gradient_factor: 1.0,
            });
        }
        session.adapter()
    }
}

fn ops() -> OpsOptions {
    OpsOptions { threads: 2, isa: Isa::best(), precision: Precision::Exact }
}

fn step_options() -> StepOptions {
    StepOptions { ops: ops(), ..StepOptions::new(400) }
}

/// Records of one person, oldest first, each answered with the same words.
fn history(count: usize, answer: &str) -> Vec<Record> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    let line = |index: usize| {
        let prompt = format!("file {} of part {}", index * 37 % 20, ["core", "docs", "tests"][index % 3]);
        serde_json::json!({"id": format!("r{index:02}"), "prompt": prompt, "completion": answer}).to_string()
    };
    let lines: Vec<String> = (0..count).map(line).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    let options = ReadOptions { on_bad_line: OnBadLine::Stop, ..ReadOptions::default() };
    read_history(&path, &options).unwrap().records
}

fn rows<'a>(evaluation: &'a Evaluation, arm: &str) -> &'a [QueryRow] {
    &evaluation.arm(arm).unwrap().rows
}

fn go_on(_: &eval::EvalProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_trained_adapter_is_kept_and_writes_what_the_person_writes() {
    let bench = Bench::new();
    let own = bench.trained(&bench.earlier);
    let other = bench.trained(&history(10, OTHER_ANSWER));
    let arms: Vec<&Arm> = ARMS.iter().collect();
    let inputs = EvalInputs { adapter: Some(&own), other_adapter: Some(&other), ..bench.inputs(&arms) };
    let mut seen = Vec::new();
    let evaluation = evaluate(&inputs, &mut |progress| {
        seen.push((progress.arm.name, progress.done, progress.total));
        ControlFlow::Continue(())
    })
    .unwrap();

    assert_eq!(seen.len(), 50);
    assert_eq!((seen[0], seen[49]), (("base", 1, 50), ("other_adapter", 50, 50)));
    let names: Vec<&str> = evaluation.arms.iter().map(|result| result.arm.name).collect();
    assert_eq!(names, ["base", "retrieval", "adapter", "adapter_retrieval", "other_adapter"]);
    assert_eq!(evaluation.skipped, []);

    let verdict = judge(&evaluation).unwrap();
    assert_eq!(verdict.decision, Decision::Kept, "{verdict:?}");
    for comparison in ["adapter_minus_base", "adapter_minus_other_adapter"] {
        for metric in ["loss_per_answer_token", "rouge_1", "exact_match"] {
            let difference = evaluation.difference(comparison, metric).unwrap();
            assert_eq!(difference.outcome, Outcome::Better, "{comparison} {metric}: {difference:?}");
        }
    }
    for row in rows(&evaluation, "adapter") {
        assert_eq!(row.prediction.as_deref(), Some(OWN_ANSWER), "{row:?}");
        // The answer and the token that ends it.
        assert_eq!(row.answer_tokens, bench.text.encode(OWN_ANSWER).unwrap().len() + 1);
    }
    for row in rows(&evaluation, "other_adapter") {
        assert_eq!((row.gold.as_str(), row.prediction.as_deref()), (OWN_ANSWER, Some(OTHER_ANSWER)));
    }
}

#[test]
fn the_loss_of_a_query_is_the_training_forwards() {
    let bench = Bench::new();
    let own = bench.trained(&bench.earlier[..3]);
    let arms = [&ARMS[2], &ARMS[3]];
    let inputs = EvalInputs { adapter: Some(&own), answer_tokens_max: None, ..bench.inputs(&arms) };
    let evaluation = evaluate(&inputs, &mut go_on).unwrap();
    let mut session = TrainingSession::new(Arc::clone(&bench.model), &own, step_options()).unwrap();
    let known: Vec<Record> = bench.earlier.iter().chain(&bench.queries).cloned().collect();
    for (arm, retriever, retrieved_records) in
        [("adapter", Retriever::none(), 0), ("adapter_retrieval", Retriever::new(&known), 2)]
    {
        for (row, record) in rows(&evaluation, arm).iter().zip(&bench.queries) {
            let options = ExampleOptions { retrieved_records, ..inputs.options.clone() };
            let example = build_example(&bench.text, record, &retriever, &options).unwrap();
            let expected = session.loss(&example.tokens, &example.loss_mask).unwrap().loss_sum;
            let found = row.loss_sum.unwrap();
            assert!((found - expected).abs() <= 1e-5 * expected, "{arm} {}: {found}, expected {expected}", row.id);
            assert_eq!(row.prediction, None, "nothing was to be generated");
        }
    }
    assert!(evaluation.arms[0].estimate("rouge_1").is_none());
}

#[test]
fn retrieval_shows_only_what_was_written_before() {
    let bench = Bench::new();
    let arms = [&ARMS[0], &ARMS[1]];
    let evaluation = evaluate(&bench.inputs(&arms), &mut go_on).unwrap();
    for (plain, retrieved) in rows(&evaluation, "base").iter().zip(rows(&evaluation, "retrieval")) {
        assert_eq!((plain.retrieved_records, retrieved.retrieved_records), (0, 2));
        assert!(retrieved.prompt_tokens > plain.prompt_tokens, "{plain:?} {retrieved:?}");
    }
    // The first of a history has nothing before it, though nine later records are there.
    let inputs = EvalInputs { earlier: &[], queries: &bench.earlier, ..bench.inputs(&arms) };
    let evaluation = evaluate(&inputs, &mut go_on).unwrap();
    let counts: Vec<usize> = rows(&evaluation, "retrieval").iter().map(|row| row.retrieved_records).collect();
    assert_eq!(counts, [0, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn the_same_evaluation_has_the_same_bits_with_one_thread_and_two() {
    let bench = Bench::new();
    let own = bench.trained(&bench.earlier[..3]);
    let arms = [&ARMS[0], &ARMS[3]];
    let run = |threads| {
        let inputs = EvalInputs { adapter: Some(&own), ops: OpsOptions { threads, ..ops() }, ..bench.inputs(&arms) };
        evaluate(&inputs, &mut go_on).unwrap().to_json(true)
    };
    assert_eq!(run(1), run(2));
}

#[test]
fn a_record_that_cannot_be_asked_is_left_out_of_every_arm_and_named() {
    let bench = Bench::new();
    let mut queries = bench.queries.clone();
    queries.truncate(3);
    queries[1].body = data::RecordBody::Completion { prompt: "long".into(), completion: "word ".repeat(500) };
    queries[2].body = data::RecordBody::Completion { prompt: "empty".into(), completion: " ".into() };
    let arms = [&ARMS[0], &ARMS[1]];
    let evaluation = evaluate(&EvalInputs { queries: &queries, ..bench.inputs(&arms) }, &mut go_on).unwrap();
    let ids = |arm| rows(&evaluation, arm).iter().map(|row| row.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids("base"), [queries[0].id.clone()]);
    assert_eq!(ids("retrieval"), ids("base"));
    assert_eq!(evaluation.skipped.len(), 2);
    assert!(evaluation.skipped[0].reason.contains("tokens"), "{:?}", evaluation.skipped);
    assert_eq!(evaluation.skipped[1].reason, "it has no answer");

    let only_bad = evaluate(&EvalInputs { queries: &queries[1..], ..bench.inputs(&arms) }, &mut go_on);
    assert!(matches!(&only_bad, Err(EvalError::NoUsableQueries { skipped: 2, .. })), "{only_bad:?}");
}

#[test]
fn what_cannot_be_run_is_said_before_anything_runs() {
    let bench = Bench::new();
    let refused = |inputs: EvalInputs| evaluate(&inputs, &mut |_| panic!("nothing may run")).unwrap_err().to_string();
    assert_eq!(refused(bench.inputs(&[&ARMS[2]])), "arm \"adapter\" needs an adapter, which was not given");
    assert_eq!(
        refused(bench.inputs(&[&ARMS[4]])),
        "arm \"other_adapter\" needs another person's adapter, which was not given"
    );
    assert!(refused(EvalInputs { queries: &[], ..bench.inputs(&[&ARMS[0]]) }).starts_with("nothing to evaluate"));
    assert!(refused(bench.inputs(&[])).starts_with("no arm to evaluate"));
    let without = ExampleOptions { retrieved_records: 0, ..bench.inputs(&[]).options };
    assert!(
        refused(EvalInputs { options: without, ..bench.inputs(&[&ARMS[1]]) }).contains("at least one retrieved record")
    );
}

#[test]
fn the_watcher_can_stop_an_evaluation() {
    let bench = Bench::new();
    let mut calls = 0;
    let stopped = evaluate(&bench.inputs(&[&ARMS[0]]), &mut |progress| {
        calls += 1;
        if progress.done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(EvalError::Stopped)));
    assert_eq!(calls, 3);
}
