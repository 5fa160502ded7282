//! Whole runs on a random model through the public interface.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::Example;
use model::{
    AdapterStack, AdapterWeights, BoundaryType, KeptType, Model, ModelError, Projection, StepOptions, TrainingSession,
};
use serde_json::Value;
use train::{
    Control, MemoryLimit, RunEnd, RunFolder, SaveTotals, TrainConfig, TrainError, TrainEvent, TrainInputs, TrainOutcome,
};

use crate::tiny;

struct Setup {
    model: Arc<Model>,
    examples: Vec<Example>,
    validation: Vec<Example>,
    config: TrainConfig,
    on: AdapterStack,
}

impl Setup {
    /// Ten examples in windows of three for three passes: twelve updates.
    fn new() -> Self {
        Self {
            model: tiny::model(1),
            examples: tiny::examples(0..10),
            validation: tiny::examples(10..14),
            config: tiny::config(),
            on: AdapterStack::default(),
        }
    }

    fn run(
        &self,
        path: &Path,
        resume: bool,
        observer: &mut dyn FnMut(&TrainEvent) -> Control,
    ) -> Result<TrainOutcome, TrainError> {
        let run = match resume {
            true => RunFolder::open(path)?,
            false => RunFolder::create(path, Value::Null)?,
        };
        let inputs = TrainInputs {
            model: Arc::clone(&self.model),
            base_name: "tiny",
            on: &self.on,
            examples: &self.examples,
            validation: &self.validation,
            config: &self.config,
            start: None,
            run: &run,
            resume,
            cost_file: None,
        };
        train::train(&inputs, &mut device::NoSensors::default(), observer)
    }

    fn run_to_end(&self) -> (tempfile::TempDir, PathBuf, TrainOutcome) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let outcome = self.run(&path, false, &mut |_| Control::Continue).unwrap();
        (parent, path, outcome)
    }

    /// A run that was stopped after five updates.
    fn run_interrupted(&self) -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let mut stop = |event: &TrainEvent| match event {
            TrainEvent::Step(step) if step.step == 5 => Control::Stop,
            _ => Control::Continue,
        };
        assert_eq!(self.run(&path, false, &mut stop).unwrap().end, RunEnd::Interrupted);
        (parent, path)
    }
}

/// All files of both adapters.
fn adapters(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for adapter in ["best", "last"] {
        for entry in std::fs::read_dir(run.join("adapter").join(adapter)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{adapter}/{}", entry.file_name().to_string_lossy());
            files.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    assert!(files.contains_key("best/adapter_model.safetensors"), "{:?}", files.keys());
    files
}

#[test]
fn loss_falls_and_the_saved_adapter_is_the_trained_one() {
    let mut setup = Setup::new();
    setup.config.passes = 12;
    let (_parent, path, outcome) = setup.run_to_end();
    let (before, best) = (outcome.validation_before.unwrap(), outcome.validation_best.unwrap().loss);
    assert!(best < before - 2.0, "held-out loss went from {before} to {best}");
    assert!(outcome.pass_losses[11] < outcome.pass_losses[0] - 2.0, "{:?}", outcome.pass_losses);

    // Read back, the last adapter gives the last validation loss to the bit.
    let file = formats::adapter::read_peft(&path.join("adapter/last")).unwrap();
    assert_eq!(file.config.base_model_name_or_path.as_deref(), Some("tiny"));
    let receipt = &file.metadata.as_ref().unwrap().receipt;
    assert_eq!(receipt["examples"].as_array().unwrap().len(), 10);
    assert_eq!(receipt["examples"][3], train::example_hash(&setup.examples[3]));
    assert_eq!(receipt["config"]["rank"], 4);
    let adapter = AdapterWeights::from_file(&file, &setup.model).unwrap();
    let mut session = TrainingSession::new(Arc::clone(&setup.model), &adapter, StepOptions::new(64)).unwrap();
    let (mut sum, mut tokens) = (0.0, 0);
    for example in &setup.validation {
        let losses = session.loss(&example.tokens, &example.loss_mask).unwrap();
        sum += losses.loss_sum;
        tokens += losses.losses.len();
    }
    assert_eq!(sum / tokens as f64, outcome.validation_last.unwrap().loss);
}

#[test]
fn stopped_after_every_update_a_run_ends_with_the_same_bytes() {
    let setup = Setup::new();
    let (_parent, path, outcome) = setup.run_to_end();
    let expected = adapters(&path);

    // Stopped after each single update: twelve sessions, each with a new model session.
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let mut stop_after_step = |event: &TrainEvent| match event {
        TrainEvent::Step(_) => Control::Stop,
        _ => Control::Continue,
    };
    let mut sessions = 1;
    let mut last = setup.run(&path, false, &mut stop_after_step).unwrap();
    while last.end == RunEnd::Interrupted {
        sessions += 1;
        last = setup.run(&path, true, &mut stop_after_step).unwrap();
    }
    assert_eq!(sessions, 12);
    let timeless = |outcome| TrainOutcome {
        seconds: 0.0,
        saving: SaveTotals::default(),
        adapter_best: "".into(),
        adapter_last: "".into(),
        ..outcome
    };
    assert_eq!(timeless(last), timeless(outcome));
    assert_eq!(adapters(&path), expected);
}

#[test]
fn a_run_goes_on_with_the_kept_values_that_it_began_with() {
    let floats = Setup::new();
    let (_parent, path, _) = floats.run_to_end();
    let chosen = |path: &Path| RunFolder::open(path).unwrap().config().unwrap().unwrap();
    assert_eq!(chosen(&path).kept_values, Some(KeptType::Float32), "where all fits");
    let weights = |path: &Path| formats::adapter::read_peft(&path.join("adapter/last")).unwrap().matrices;
    let in_floats = weights(&path);

    let mut setup = Setup::new();
    setup.config.kept_values = Some(KeptType::Int16);
    let (_parent, path, _) = setup.run_to_end();
    let expected = adapters(&path);
    assert_ne!(weights(&path), in_floats);

    let (_parent, path) = setup.run_interrupted();
    let error = floats.run(&path, true, &mut |_| Control::Continue).unwrap_err().to_string();
    assert!(error.contains(r#"`kept_values` changed: "int16" in the saved run, "float32" now"#), "{error}");
    // As the command does: the run folder's settings, within another limit.
    setup.config = TrainConfig { memory: MemoryLimit(Some(8 << 30)), ..chosen(&path) };
    setup.run(&path, true, &mut |_| Control::Continue).unwrap();
    assert!(adapters(&path) == expected, "the adapter differs from that of the uninterrupted run");
}

/// With bfloat16 boundaries gradients depend on which blocks run again, so a run that goes on runs the same ones again.
#[test]
fn a_run_with_bfloat16_boundaries_goes_on_with_the_blocks_that_it_kept() {
    let mut setup = Setup::new();
    setup.config.boundaries = Some(BoundaryType::Bfloat16);
    let (_parent, path, _) = setup.run_to_end();
    let chosen = |path: &Path| RunFolder::open(path).unwrap().config().unwrap().unwrap();
    assert!(chosen(&path).blocks_kept > 1, "all fits: {}", chosen(&path).blocks_kept);
    let weights = |path: &Path| formats::adapter::read_peft(&path.join("adapter/last")).unwrap().matrices;
    let all_kept = weights(&path);

    setup.config.blocks_kept = 1;
    let (_parent, path, _) = setup.run_to_end();
    let expected = adapters(&path);
    assert_ne!(weights(&path), all_kept);

    let (_parent, path) = setup.run_interrupted();
    // More would fit.
    setup.config = TrainConfig { memory: MemoryLimit(Some(8 << 30)), ..chosen(&path) };
    setup.run(&path, true, &mut |_| Control::Continue).unwrap();
    assert!(adapters(&path) == expected, "the adapter differs from that of the uninterrupted run");
}

/// Runs the last block's adapter with kept prefixes; `between` may touch the run folder when a session has stopped.
fn with_kept_prefix(between: impl Fn(&Path)) -> (BTreeMap<String, Vec<u8>>, Vec<String>) {
    let mut setup = Setup::new();
    setup.config.adapted_blocks = 1;
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let mut notices = Vec::new();
    let mut resume = false;
    loop {
        let mut observer = |event: &TrainEvent| match event {
            TrainEvent::Notice { message } => {
                notices.push(message.clone());
                Control::Continue
            }
            TrainEvent::Step(step) if step.step == 5 => Control::Stop,
            _ => Control::Continue,
        };
        let end = setup.run(&path, resume, &mut observer).unwrap().end;
        if end != RunEnd::Interrupted {
            assert!(!path.join("prefix").exists(), "a finished run keeps no prefixes");
            return (adapters(&path), notices);
        }
        let kept = std::fs::read_dir(path.join("prefix")).unwrap().count();
        assert_eq!(kept, 14, "every example and held-out record was seen once");
        between(&path);
        resume = true;
    }
}

#[test]
fn kept_prefixes_change_no_bit_whatever_happens_to_them() {
    let mut setup = Setup::new();
    setup.config.adapted_blocks = 1;
    setup.config.kept_prefix = false;
    let (_parent, path, _) = setup.run_to_end();
    assert!(!path.join("prefix").exists());
    // The configuration in the adapter's receipt leaves `kept_prefix` out, so whole files are comparable.
    let expected = adapters(&path);

    let damaged = |notices: &[String]| notices.iter().filter(|notice| notice.contains("is damaged")).count();
    let (found, notices) = with_kept_prefix(|_| {});
    assert!(found == expected, "kept prefixes change the adapter");
    assert_eq!(damaged(&notices), 0);
    let (found, notices) = with_kept_prefix(|run| {
        for entry in std::fs::read_dir(run.join("prefix")).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    });
    assert!(found == expected, "damaged prefixes change the adapter");
    assert_eq!(damaged(&notices), 14, "each is named once and made again");
    let (found, _) = with_kept_prefix(|run| std::fs::remove_dir_all(run.join("prefix")).unwrap());
    assert!(found == expected, "lost prefixes change the adapter");
}

#[test]
fn a_memory_limit_is_kept_in_the_plan_or_refused_with_what_would_fit() {
    let setup = Setup::new();
    let costs = train::cost::CostHistory::default();
    let planned = |memory: u64, boundaries| {
        let config = TrainConfig { memory: MemoryLimit(Some(memory)), boundaries, ..setup.config.clone() };
        train::plan(&setup.model, &setup.on, &setup.examples, &setup.validation, &config, &costs, false)
            .map(|planned| planned.plan)
    };
    let plan = planned(8 << 30, None).unwrap();
    assert_eq!(plan.memory_total_bytes, plan.memory.iter().map(|item| item.bytes).sum::<usize>());
    let peak = plan.memory_peak;
    assert_eq!(plan.memory_total_bytes as u64, peak.anonymous_bytes + peak.mapped_bytes);
    assert!(plan.memory_choice.contains("float32"), "{}", plan.memory_choice);
    assert!(plan.step_work.macs < plan.step_work.macs_full);
    assert!(plan.step_work.savings.iter().any(|saving| saving.share > 0.1), "{:?}", plan.step_work);
    let halves = planned(8 << 30, Some(BoundaryType::Bfloat16)).unwrap();
    assert!(halves.memory_choice.contains("bfloat16"), "{}", halves.memory_choice);
    let error = planned(1 << 20, None).unwrap_err();
    assert!(matches!(error, TrainError::Model(ModelError::NothingFits { budget_bytes: 1_048_576, .. })), "{error}");
}

#[test]
fn threads_change_no_bit_and_seeds_change_all() {
    let weights = |threads: usize, seed: u64| {
        let mut setup = Setup::new();
        setup.config.threads = threads;
        setup.config.seed = seed;
        let (_parent, path, _) = setup.run_to_end();
        formats::adapter::read_peft(&path.join("adapter/last")).unwrap().matrices
    };
    let one = weights(1, 42);
    assert_eq!(one, weights(2, 42));
    assert_eq!(one, weights(1, 42));
    assert_ne!(one, weights(1, 43));
}

#[test]
fn a_window_has_the_gradient_of_its_examples_taken_as_one() {
    // The gradient of the window's mean loss is the token-weighted mean of the gradients of its examples' means.
    let setup = Setup::new();
    let spec = setup.config.adapter_spec(setup.model.config()).unwrap();
    let mut adapter = AdapterWeights::initialized(setup.model.config(), spec, 7).unwrap();
    let mut random = model::Random::new(8);
    for matrix in &mut adapter.matrices {
        matrix.b.iter_mut().for_each(|value| *value = random.symmetric(0.2));
    }
    let mut options = StepOptions::new(64);
    // The integers of the other precisions round a scaled gradient differently.
    options.ops.precision = kernels::Precision::Exact;
    let mut session = TrainingSession::new(Arc::clone(&setup.model), &adapter, options).unwrap();
    let window = &setup.examples[..3];
    let supervised = |example: &Example| example.loss_mask.iter().filter(|target| **target).count() as f64;
    let total: f64 = window.iter().map(supervised).sum();

    let mut weighted_mean: Vec<f64> = Vec::new();
    for example in window {
        session.zero_gradients();
        session.step(&example.tokens, &example.loss_mask, (1.0 / supervised(example)) as f32, 0).unwrap();
        let weight = supervised(example) / total;
        weighted_mean.resize(session.flat_gradients().len(), 0.0);
        for (sum, gradient) in weighted_mean.iter_mut().zip(session.flat_gradients()) {
            *sum += weight * f64::from(*gradient);
        }
    }
    session.zero_gradients();
    for example in window {
        session.step(&example.tokens, &example.loss_mask, (1.0 / total) as f32, 0).unwrap();
    }
    let largest = weighted_mean.iter().fold(0f64, |most, value| most.max(value.abs()));
    for (index, (expected, found)) in weighted_mean.iter().zip(session.flat_gradients()).enumerate() {
        let difference = (expected - f64::from(*found)).abs();
        assert!(difference < 1e-5 * largest, "value {index}: {found}, expected {expected}");
    }
    // And the unweighted mean, the usual mistake, is something else.
    assert!(supervised(&window[0]) != supervised(&window[1]));
}

#[test]
fn what_is_trained_is_what_was_asked_for() {
    let mut setup = Setup::new();
    setup.config.targets = vec![Projection::Query, Projection::Value];
    setup.config.adapted_blocks = 1;
    let (_parent, path, _) = setup.run_to_end();
    let run = RunFolder::open(&path).unwrap();
    let plan = run.plan().unwrap().unwrap();
    assert_eq!(plan.targets, ["self_attn.q_proj", "self_attn.v_proj"]);
    assert_eq!((plan.adapted_blocks, plan.trained_matrices), ([1, 2], 2));
    // Query: A [4, 64], B [64, 4]; value: A [4, 64], B [32, 4].
    assert_eq!(plan.adapter_parameters, 4 * (64 + 64) + 4 * (64 + 32));
    assert_eq!(plan.memory_total_bytes, plan.memory.iter().map(|item| item.bytes).sum::<usize>());
    assert!(plan.memory_total_bytes > 0 && plan.cost.is_some());
    assert_eq!(run.config().unwrap().unwrap().adapted_blocks, 1);
    let file = formats::adapter::read_peft(&path.join("adapter/last")).unwrap();
    let modules: Vec<&str> = file.matrices.iter().map(|matrix| matrix.module.as_str()).collect();
    assert_eq!(modules, ["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"]);
    assert!(file.matrices.iter().all(|matrix| matrix.b.iter().any(|value| *value != 0.0)), "every matrix has moved");
    // "All" is written out as what it means.
    let resolved = tiny::config().resolved(setup.model.config()).unwrap();
    assert_eq!((resolved.adapted_blocks, resolved.targets.len(), resolved.tokens_max), (2, 7, 256));
}

#[test]
fn impossible_requests_are_refused_before_anything_is_written() {
    let refused = |change: &dyn Fn(&mut Setup), expected: &str| {
        let mut setup = Setup::new();
        change(&mut setup);
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let error = setup.run(&path, false, &mut |_| Control::Continue).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let mut left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "run.json"]);
        // What never began makes way for the next attempt.
        RunFolder::create(&path, Value::Null).unwrap();
    };
    refused(&|setup| setup.examples.clear(), "no examples");
    refused(&|setup| setup.examples[3].loss_mask.fill(false), "1 of 14 examples have no supervised token");
    // Only the first token is a target, and nothing comes before it.
    let first_only = |setup: &mut Setup| {
        setup.examples[3].loss_mask.fill(false);
        setup.examples[3].loss_mask[0] = true;
    };
    refused(&first_only, "record-3");
    refused(&|setup| setup.examples[2].loss_mask.truncate(3), "record record-2 has");
    refused(&|setup| setup.config.tokens_max = 8, "more than tokens_max = 8");
    refused(&|setup| setup.config.adapted_blocks = 3, "expected -1 or 1 to 2, the blocks of this model");
    refused(&|setup| setup.config.rank = 100, "rank is 100");
    refused(&|setup| setup.config.warmup_steps = 12, "`warmup_steps = 12` is not possible: expected less than the 12");
}

#[cfg(unix)]
#[test]
fn everything_in_a_run_folder_is_private() {
    use std::os::unix::fs::PermissionsExt;
    fn check(path: &Path, seen: &mut usize) {
        let metadata = std::fs::metadata(path).unwrap();
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{}", path.display());
        *seen += 1;
        if metadata.is_dir() {
            std::fs::read_dir(path).unwrap().for_each(|entry| check(&entry.unwrap().path(), seen));
        }
    }
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Setup::new().run(&path, false, &mut |_| Control::Continue).unwrap();
    let mut seen = 0;
    check(&path, &mut seen);
    assert!(path.join("adapter/last/selftune.json").exists() && seen > 15, "{seen} files and folders");
}

#[test]
fn another_base_model_cannot_go_on_with_a_run() {
    let setup = Setup::new();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    setup.run(&path, false, &mut |_| Control::Stop).unwrap();
    let other = Setup { model: tiny::model(2), ..Setup::new() };
    let error = other.run(&path, true, &mut |_| Control::Continue).unwrap_err().to_string();
    assert!(error.contains("the base model changed: tiny model 1 in the saved run, tiny model 2 now"), "{error}");
}

#[test]
fn the_paper_preset_trains() {
    let mut setup = Setup::new();
    setup.config = TrainConfig { tokens_max: 64, ..TrainConfig::preset("paper").unwrap() };
    let (_parent, path, outcome) = setup.run_to_end();
    assert_eq!(outcome.steps, 30, "three passes of one example an update");
    let (steps, _) = train::read_metrics(&path.join("metrics.jsonl")).unwrap();
    assert!(steps.iter().all(|step| step.learning_rate == 1e-5 && !step.clipped));
    let file = formats::adapter::read_peft(&path.join("adapter/last")).unwrap();
    assert_eq!(file.matrices.len(), 4);
    assert!(file.matrices.iter().all(|matrix| matrix.b.iter().any(|value| *value != 0.0)));
}

#[test]
fn an_adapter_on_top_of_another_remembers_it_and_is_refused_without() {
    let task = Setup::new();
    let (_parent, task_path, _) = task.run_to_end();
    let task_file = formats::adapter::read_peft(&task_path.join("adapter/last")).unwrap();
    let on = AdapterStack::from_files(&[("task".to_owned(), task_file.clone())], &task.model).unwrap();
    let mut user = Setup { examples: tiny::examples(20..28), validation: tiny::examples(28..32), ..Setup::new() };
    (user.config.targets, user.config.seed) = (vec![Projection::Query, Projection::Value], 9);
    user.on = on.clone();
    let (_parent, path, outcome) = user.run_to_end();

    // What it started from is the model with the task adapter.
    let mean = |session: &mut TrainingSession| {
        let losses = user.validation.iter().map(|example| session.loss(&example.tokens, &example.loss_mask).unwrap());
        let (sum, tokens) = losses.fold((0.0, 0), |(sum, tokens), l| (sum + l.loss_sum, tokens + l.losses.len()));
        sum / tokens as f64
    };
    let last = AdapterWeights::from_file(&task_file, &task.model).unwrap();
    let mut session = TrainingSession::new(Arc::clone(&task.model), &last, StepOptions::new(64)).unwrap();
    let (found, expected) = (outcome.validation_before.unwrap(), mean(&mut session));
    assert!((found / expected - 1.0).abs() < 1e-5, "{found} for {expected}");

    // Read back with it, the adapter is the trained one; without it, or with another below, it is refused.
    let file = formats::adapter::read_peft(&path.join("adapter/last")).unwrap();
    assert_eq!(file.metadata.as_ref().unwrap().stack, on.entries());
    let files = [("task".to_owned(), task_file), ("user".to_owned(), file.clone())];
    let stack = AdapterStack::from_files(&files, &user.model).unwrap();
    let [task_weights, user_weights] = stack.weights()[..] else { panic!("two adapters") };
    let options = StepOptions::new(64);
    let mut session =
        TrainingSession::stacked(Arc::clone(&user.model), &[task_weights], user_weights, options).unwrap();
    assert_eq!(mean(&mut session), outcome.validation_last.unwrap().loss);
    let refused = AdapterWeights::from_file(&file, &user.model).unwrap_err();
    assert!(matches!(&refused, ModelError::AdapterWrongStack { .. }));
    let hash = &on.entries()[0].content_hash[..12];
    assert!(refused.to_string().contains(&format!("on top of task ({hash})")), "{refused}");
    let mut other = files[0].1.clone();
    other.matrices[0].a[0] += 1.0;
    let refused = AdapterStack::from_files(&[("task".to_owned(), other), files[1].clone()], &user.model).unwrap_err();
    assert!(matches!(&refused, ModelError::AdapterWrongStack { .. }), "{refused}");

    // A run cannot go on without it either.
    user.on = AdapterStack::default();
    let error = user.run(&path, true, &mut |_| Control::Continue).unwrap_err().to_string();
    assert!(error.contains(&on.entries()[0].content_hash), "{error}");
}
