//! Whole runs with a stand-in that learns in microseconds: interruptions everywhere, damage, faults, equalities.

use std::collections::BTreeMap;
use std::path::Path;

use data::Example;
use serde_json::Value;

use crate::config::TrainConfig;
use crate::cost::history::tests::setting;
use crate::cost::{CostHistory, RunWork};
use crate::error::TrainError;
use crate::events::{Control, TrainEvent};
use crate::fake::{Fake, KINDS, example};
use crate::files::Files;
use crate::files::crash::StopAfter;
use crate::metrics::read_metrics;
use crate::outcome::{RunEnd, TrainOutcome};
use crate::plan::{TrainPlan, Trained};
use crate::run_folder::{RunFolder, RunFolderError, RunStatus};
use crate::train::{Begin, train_learner};

mod earlier;

/// A run on a stand-in, with what the tests vary.
struct Setup {
    examples: Vec<Example>,
    validation: Vec<Example>,
    config: TrainConfig,
    base: String,
    cost_file: Option<std::path::PathBuf>,
}

impl Setup {
    /// Seven examples in windows of two for three passes: twelve updates, the last of each pass a short one.
    fn new() -> Self {
        let config = TrainConfig {
            learning_rate: 0.05,
            accumulation: 2,
            passes: 3,
            save_every_steps: 1,
            save_sync: false,
            evaluate_every: 3,
            ..TrainConfig::default()
        };
        Self {
            examples: (0..7).map(|index| example(index, 8 + index)).collect(),
            validation: (7..10).map(|index| example(index, 9)).collect(),
            config,
            base: "base".to_owned(),
            cost_file: None,
        }
    }

    fn run(
        &self,
        folder: &Path,
        learner: Fake,
        resume: bool,
        observer: &mut dyn FnMut(&TrainEvent) -> Control,
    ) -> Result<TrainOutcome, TrainError> {
        self.run_on(Files::default(), folder, learner, resume, observer)
    }

    fn run_on(
        &self,
        files: Files,
        folder: &Path,
        learner: Fake,
        resume: bool,
        observer: &mut dyn FnMut(&TrainEvent) -> Control,
    ) -> Result<TrainOutcome, TrainError> {
        let run = match RunFolder::open_on(files.clone(), folder) {
            Ok(run) => run,
            Err(_) => RunFolder::create_on(files, folder, Value::Null)?,
        };
        let begin = Begin {
            examples: &self.examples,
            validation: &self.validation,
            config: &self.config,
            base: self.base.clone(),
            base_name: "fake".to_owned(),
            stack: &[],
            work: RunWork::of_tokens(&self.examples, &self.validation),
            setting: setting("fake"),
            cost_file: self.cost_file.as_deref(),
            start: None,
        };
        train_learner(learner, begin, self.plan(), &run, resume, &mut device::NoSensors::default(), observer)
    }

    fn plan(&self) -> TrainPlan {
        TrainPlan::count(
            &self.examples,
            &self.validation,
            &self.config,
            Trained { targets: vec!["values".to_owned()], blocks: 0..1, matrices: 1, parameters: KINDS },
            &RunWork::of_tokens(&self.examples, &self.validation),
        )
    }

    fn run_to_end(&self, folder: &Path) -> TrainOutcome {
        self.run(folder, Fake::default(), false, &mut |_| Control::Continue).unwrap()
    }
    fn resume(&self, folder: &Path) -> TrainOutcome {
        self.run(folder, Fake::default(), true, &mut |_| Control::Continue).unwrap()
    }
}

/// Everything in a run folder that must not depend on interruptions.
struct Ending {
    adapters: BTreeMap<String, Vec<u8>>,
    metrics: Vec<Value>,
    parameters: Vec<f32>,
    moments: [Vec<f32>; 2],
    progress: Value,
}

fn ending(folder: &Path) -> Ending {
    let run = RunFolder::open(folder).unwrap();
    let read = |name: &str| (name.to_owned(), std::fs::read(folder.join(name).join("values")).unwrap());
    let metrics = std::fs::read_to_string(run.metrics_path()).unwrap();
    let timeless = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let map = value.as_object_mut().unwrap();
        for key in ["seconds", "tokens_per_second", "eta_seconds", "peak_resident_bytes", "slowdown", "device"] {
            map.remove(key);
        }
        value
    };
    let (state, notice) = run.state().unwrap().unwrap();
    assert_eq!(notice, None);
    let mut progress = serde_json::to_value(&state.progress).unwrap();
    progress.as_object_mut().unwrap().remove("seconds");
    Ending {
        adapters: BTreeMap::from([read("adapter/best"), read("adapter/last")]),
        metrics: metrics.lines().map(timeless).filter(|line| line["event"] != "saved").collect(),
        parameters: state.parameters,
        moments: [state.first_moment, state.second_moment],
        progress,
    }
}

/// Compares part by part: a run's ending is too long to print.
fn assert_equal(found: &Ending, expected: &Ending, note: &str) {
    assert_eq!(found.progress, expected.progress, "{note}: progress");
    assert_eq!(found.metrics.len(), expected.metrics.len(), "{note}: lines in metrics.jsonl");
    for (found, expected) in found.metrics.iter().zip(&expected.metrics) {
        assert_eq!(found, expected, "{note}: metrics.jsonl");
    }
    assert_eq!(found.parameters, expected.parameters, "{note}: parameters");
    assert_eq!(found.moments, expected.moments, "{note}: moments");
    assert_eq!(found.adapters, expected.adapters, "{note}: adapter files");
}

fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    (parent, path)
}

#[test]
fn a_run_learns_and_leaves_everything_behind() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    let mut events = Vec::new();
    let mut observe = |event: &TrainEvent| {
        events.push(serde_json::to_value(event).unwrap());
        Control::Continue
    };
    let outcome = setup.run(&path, Fake::default(), false, &mut observe).unwrap();
    assert_eq!((outcome.end, outcome.step, outcome.steps), (RunEnd::Completed, 12, 12));
    assert!(outcome.validation_best.unwrap().loss < 0.7 * outcome.validation_before.unwrap(), "{outcome:?}");
    assert!(outcome.pass_losses[2] < 0.7 * outcome.pass_losses[0], "{outcome:?}");
    let tokens: usize = setup.examples.iter().map(|example| example.tokens.len()).sum();
    assert_eq!(outcome.tokens as usize, 3 * tokens);

    let run = RunFolder::open(&path).unwrap();
    let summary = run.summary().unwrap();
    assert_eq!(summary.status, RunStatus::Finished);
    assert_eq!(summary.config.unwrap(), setup.config);
    assert_eq!(summary.outcome.unwrap(), outcome);
    let plan = summary.plan.unwrap();
    assert_eq!((plan.updates, plan.updates_per_pass, plan.validations), (12, 4, 5));
    assert_eq!((plan.tokens_per_pass as usize, plan.tokens_total), (tokens, outcome.tokens));
    assert_eq!((plan.supervised_tokens_per_pass, plan.tokens_longest_example), (21, 14));
    assert!(plan.cost.is_some() && plan.work > 0.0);
    assert_eq!(run.examples().unwrap().unwrap().training.len(), 7);

    let (steps, validations) = read_metrics(&run.metrics_path()).unwrap();
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    assert_eq!(steps.iter().map(|step| step.pass).collect::<Vec<_>>(), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    assert_eq!(validations.iter().map(|point| point.step).collect::<Vec<_>>(), [0, 3, 6, 9, 12]);
    let supervised: u64 = steps[..4].iter().map(|step| step.supervised_tokens).sum();
    let sum: f64 = steps[..4].iter().map(|step| step.loss * step.supervised_tokens as f64).sum();
    assert_eq!(supervised, 21);
    assert!((sum / 21.0 - outcome.pass_losses[0]).abs() < 1e-12, "one definition of loss");

    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"started"));
    assert_eq!(kinds.last(), Some(&"finished"));
    let saves = kinds.iter().filter(|kind| **kind == "saved").count() as u64;
    assert!((2..=13).contains(&saves), "the first, the last, and between them as many as the disk took: {saves}");
    assert_eq!(outcome.saving.saves, saves);
    assert_eq!(events.iter().rfind(|event| event["event"] == "step").unwrap()["eta_seconds"].as_f64(), Some(0.0));
}

#[test]
fn an_interruption_at_any_place_and_another_while_resuming_change_nothing() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    let expected = ending(&path);
    let mut places = 0;
    loop {
        let (_parent, path) = folder();
        let (files, first) = StopAfter::operations(places);
        let _ = setup.run_on(files, &path, Fake::default(), false, &mut |_| Control::Continue);
        // The resumed run is interrupted too, at a place that wanders.
        let (files, _) = StopAfter::operations(places * 7 % 41);
        let _ = setup.run_on(files, &path, Fake::default(), true, &mut |_| Control::Continue);
        let outcome = setup.resume(&path);
        assert_eq!(outcome.step, 12);
        assert_equal(&ending(&path), &expected, &format!("interrupted at place {places}"));
        if !first.is_over() {
            break;
        }
        places += 1;
    }
    // Fewer where the disk is slower than the updates: the saves between are put off.
    assert!(places > 80, "only {places} places");
}

#[test]
fn stopping_after_any_event_and_resuming_changes_nothing() {
    let mut setup = Setup::new();
    for save_every_steps in [1, 5, 0] {
        setup.config.save_every_steps = save_every_steps;
        setup.config.save_every_seconds = 1e9;
        let (_parent, path) = folder();
        setup.run_to_end(&path);
        let expected = ending(&path);
        for stop_at in 0.. {
            let (_parent, path) = folder();
            let mut events = 0;
            let mut stop = |_: &TrainEvent| {
                events += 1;
                if events == stop_at + 1 { Control::Stop } else { Control::Continue }
            };
            let outcome = setup.run(&path, Fake::default(), false, &mut stop).unwrap();
            let status = RunFolder::open(&path).unwrap().summary().unwrap().status;
            if outcome.end == RunEnd::Completed {
                assert_eq!(status, RunStatus::Finished);
                break;
            }
            assert_eq!((outcome.end, status), (RunEnd::Interrupted, RunStatus::Stopped));
            assert_eq!(setup.resume(&path).end, RunEnd::Completed);
            assert_equal(&ending(&path), &expected, &format!("stopped at event {stop_at}"));
        }
    }
}

#[test]
fn resuming_a_finished_run_does_nothing_new() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    let outcome = setup.run_to_end(&path);
    let before = ending(&path);
    let again = setup.resume(&path);
    assert_eq!(TrainOutcome { seconds: outcome.seconds, saving: outcome.saving, ..again }, outcome);
    assert_equal(&ending(&path), &before, "resumed");
}

#[test]
fn the_seed_decides_everything() {
    let bytes = |seed: u64, threads: usize| {
        let mut setup = Setup::new();
        setup.config.seed = seed;
        setup.config.threads = threads;
        let (_parent, path) = folder();
        setup.run_to_end(&path);
        ending(&path).parameters
    };
    assert_eq!(bytes(1, 1), bytes(1, 2));
    assert_ne!(bytes(1, 1), bytes(2, 1));
}

#[test]
fn a_damaged_state_falls_back_says_so_and_ends_the_same() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    let expected = ending(&path);

    let (_parent, path) = folder();
    let mut stop = |event: &TrainEvent| match event {
        TrainEvent::Step(step) if step.step == 7 => Control::Stop,
        _ => Control::Continue,
    };
    setup.run(&path, Fake::default(), false, &mut stop).unwrap();
    let current = path.join("state/current");
    let mut bytes = std::fs::read(&current).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&current, bytes).unwrap();
    let (mut seen, mut resumed) = (Vec::new(), Vec::new());
    let mut observe = |event: &TrainEvent| {
        match event {
            TrainEvent::Notice { message } => seen.push(message.clone()),
            TrainEvent::Started { resumed_at, .. } => resumed.extend(*resumed_at),
            _ => {}
        }
        Control::Continue
    };
    setup.run(&path, Fake::default(), true, &mut observe).unwrap();
    assert!(resumed.len() == 1 && resumed[0] < 7, "{resumed:?}");
    let before = format!("after update {}", resumed[0]);
    assert!(seen.iter().any(|message| message.contains("damaged") && message.contains(&before)), "{seen:?}");
    assert_equal(&ending(&path), &expected, "resumed");
}

#[test]
fn whatever_changed_is_named_and_nothing_is_lost() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    let mut stop_early = |_: &TrainEvent| Control::Stop;
    setup.run(&path, Fake::default(), false, &mut stop_early).unwrap();
    let state = std::fs::read(path.join("state/current")).unwrap();

    let refused = |change: &dyn Fn(&mut Setup), parts: &[&str]| {
        let mut changed = Setup::new();
        change(&mut changed);
        let error = changed.run(&path, Fake::default(), true, &mut |_| Control::Continue).unwrap_err();
        assert!(matches!(error, TrainError::Mismatch { .. }), "{error}");
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(std::fs::read(path.join("state/current")).unwrap(), state);
    };
    refused(&|setup| setup.base = "other".into(), &["the base model changed: base in the saved run, other now"]);
    refused(&|setup| setup.config.rank = 4, &["`rank` changed: 8 in the saved run, 4 now"]);
    refused(&|setup| setup.config.seed = 1, &["`seed` changed: 42 in the saved run, 1 now"]);
    refused(
        &|setup| setup.examples[2].tokens[0] ^= 1,
        &["the training examples changed", "record-2 reads differently"],
    );
    refused(
        &|setup| setup.examples[2].record_id = "other".into(),
        &["record record-2 is no longer there", "record other is new"],
    );
    refused(&|setup| drop(setup.validation.pop()), &["the validation examples changed", "record-9 is no longer there"]);

    let error = setup.run(&path, Fake::default(), false, &mut |_| Control::Continue).unwrap_err();
    assert!(matches!(error, TrainError::Begun { .. }), "{error}");
    // What changes no result may change.
    let mut threads = Setup::new();
    threads.config.threads = 7;
    threads.config.save_every_steps = 3;
    assert_eq!(threads.resume(&path).end, RunEnd::Completed);
}

#[test]
fn a_loss_that_is_no_number_names_its_record_and_keeps_the_state_before() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    let expected = ending(&path);

    let (_parent, path) = folder();
    let mut stop = |event: &TrainEvent| match event {
        TrainEvent::Step(step) if step.step == 5 => Control::Stop,
        _ => Control::Continue,
    };
    setup.run(&path, Fake::default(), false, &mut stop).unwrap();
    let poisoned = Fake { poisoned_record: Some("record-5".to_owned()), ..Fake::default() };
    let error = setup.run(&path, poisoned, true, &mut |_| Control::Continue).unwrap_err();
    let TrainError::LossNotFinite { record, update, .. } = &error else { panic!("{error}") };
    assert_eq!(record, "record-5");
    let (state, _) = RunFolder::open(&path).unwrap().state().unwrap().unwrap();
    assert_eq!(state.progress.step + 1, *update);
    assert!(state.parameters.iter().all(|value| value.is_finite()));
    setup.resume(&path);
    assert_equal(&ending(&path), &expected, "resumed");
}

#[test]
fn a_matrix_without_gradient_is_an_error_in_the_first_update() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    let unreached = Fake { without_gradient: vec!["model.layers.0.q.lora_B".to_owned()], ..Fake::default() };
    let error = setup.run(&path, unreached, false, &mut |_| Control::Continue).unwrap_err();
    assert!(matches!(error, TrainError::NoGradient { .. }));
    assert!(error.to_string().contains("no gradient reaches one matrix of the adapter"), "{error}");
    assert!(error.to_string().contains("model.layers.0.q.lora_B"), "{error}");
}

#[test]
fn training_stops_when_validation_no_longer_improves() {
    let mut setup = Setup::new();
    // Held out is what training moves away from: the same tokens would need other values.
    setup.config.learning_rate = 1.0;
    setup.config.early_stop_patience = 1;
    setup.config.evaluate_every = 1;
    setup.config.passes = 50;
    let (_parent, path) = folder();
    let outcome = setup.run_to_end(&path);
    assert_eq!(outcome.end, RunEnd::StoppedEarly);
    assert_eq!(outcome.step, outcome.validation_best.unwrap().step + 1);
    assert_eq!(RunFolder::open(&path).unwrap().summary().unwrap().status, RunStatus::Finished);
    let best = ending(&path).adapters;
    assert_ne!(best["adapter/best"], best["adapter/last"]);
    assert_eq!(setup.resume(&path).end, RunEnd::StoppedEarly);
}

#[test]
fn without_validation_the_last_adapter_is_the_best() {
    let mut setup = Setup::new();
    setup.validation.clear();
    setup.config.accumulation = 100;
    let (_parent, path) = folder();
    let mut notices = Vec::new();
    let mut observe = |event: &TrainEvent| {
        if let TrainEvent::Notice { message } = event {
            notices.push(message.clone());
        }
        Control::Continue
    };
    let outcome = setup.run(&path, Fake::default(), false, &mut observe).unwrap();
    assert_eq!(outcome.steps, 3, "one window a pass");
    assert!(notices.iter().any(|notice| notice.contains("7 examples")), "{notices:?}");
    assert!(notices.iter().any(|notice| notice.contains("held out")), "{notices:?}");
    let adapters = ending(&path).adapters;
    assert_eq!(adapters["adapter/best"], adapters["adapter/last"]);
}

#[test]
fn a_best_adapter_that_was_taken_away_is_chosen_anew() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    let mut stop = |event: &TrainEvent| match event {
        TrainEvent::Step(step) if step.step == 4 => Control::Stop,
        _ => Control::Continue,
    };
    setup.run(&path, Fake::default(), false, &mut stop).unwrap();
    std::fs::remove_dir_all(path.join("adapter/best")).unwrap();
    let mut said = false;
    let mut observe = |event: &TrainEvent| {
        said |= matches!(event, TrainEvent::Notice { message } if message.contains("best adapter, of update 3"));
        Control::Continue
    };
    setup.run(&path, Fake::default(), true, &mut observe).unwrap();
    assert!(said);
    assert!(path.join("adapter/best/values").exists());
}

#[test]
fn a_trained_run_without_its_state_is_not_trained_over() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    std::fs::remove_dir_all(path.join("state")).unwrap();
    let adapter = std::fs::read(path.join("adapter/best/values")).unwrap();
    let metrics = std::fs::read(path.join("metrics.jsonl")).unwrap();
    let refused = |parts: &[&str]| {
        for resume in [true, false] {
            let error = setup.run(&path, Fake::default(), resume, &mut |_| Control::Continue).unwrap_err();
            assert!(matches!(error, TrainError::Run(RunFolderError::StateGone { .. })), "{error}");
            let message = error.to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            assert!(message.contains("state is gone") && message.contains("new run in another folder"), "{message}");
        }
    };
    refused(&["adapters (adapter)", "summary.json", "metrics of 12 updates"]);
    assert_eq!(std::fs::read(path.join("adapter/best/values")).unwrap(), adapter);
    assert_eq!(std::fs::read(path.join("metrics.jsonl")).unwrap(), metrics);
    // Each alone is reason enough; without any of them nothing was ever trained.
    std::fs::remove_file(path.join("summary.json")).unwrap();
    refused(&["adapters (adapter)"]);
    std::fs::rename(path.join("adapter"), path.join("elsewhere")).unwrap();
    refused(&["metrics of 12 updates"]);
    std::fs::remove_file(path.join("metrics.jsonl")).unwrap();
    std::fs::create_dir(path.join("state")).unwrap();
    assert_eq!(setup.resume(&path).step, 12);
}

/// Not a test by itself: the process that [`killed_processes_lose_nothing`] kills.
#[test]
#[ignore = "runs only as the child of another test"]
fn child_that_trains_until_it_is_killed() {
    let Some(path) = std::env::var_os("SELFTUNE_TEST_RUN_FOLDER") else { return };
    let setup = slow_setup();
    let _ = setup.run(Path::new(&path), Fake::default(), true, &mut |_| Control::Continue);
}

/// Long enough to be killed in the middle.
fn slow_setup() -> Setup {
    let mut setup = Setup::new();
    setup.config.passes = 300;
    setup.config.evaluate_every = 0;
    setup
}

#[test]
fn killed_processes_lose_nothing() {
    let setup = slow_setup();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    let expected = ending(&path);

    let (_parent, path) = folder();
    let mut kills = 0;
    for wait_ms in (3..60).cycle().step_by(7) {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::child_that_trains_until_it_is_killed", "--ignored"])
            .env("SELFTUNE_TEST_RUN_FOLDER", &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        // SIGKILL: no chance to clean up.
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(kills < 1000, "the run makes no progress");
    }
    setup.resume(&path);
    assert_equal(&ending(&path), &expected, &format!("after {kills} kills"));
    // How many depends on how busy the machine is.
    assert!(kills > 0, "the run was over before it could be killed");
}

#[test]
fn what_a_session_took_is_remembered_and_nothing_depends_on_it() {
    let mut setup = Setup::new();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    let expected = ending(&path);

    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("costs.json");
    setup.cost_file = Some(file.clone());
    let (_parent, path) = folder();
    let mut events = 0;
    let mut stop_midway = |event: &TrainEvent| {
        events += usize::from(matches!(event, TrainEvent::Step(_)));
        if events == 5 { Control::Stop } else { Control::Continue }
    };
    setup.run(&path, Fake::default(), false, &mut stop_midway).unwrap();
    setup.resume(&path);
    assert_equal(&ending(&path), &expected, "with a cost file");
    let measurements = CostHistory::read(&file).unwrap().measurements;
    assert_eq!(measurements.iter().map(|session| session.updates).collect::<Vec<_>>(), [5, 7]);
    let plan = RunFolder::open(&path).unwrap().plan().unwrap().unwrap();
    let work: f64 = measurements.iter().map(|session| session.work).sum();
    assert!((work / plan.work - 1.0).abs() < 1e-9, "both sessions did what was planned: {work} of {}", plan.work);
    assert_eq!(measurements.iter().map(|session| session.tokens).sum::<u64>(), plan.tokens_total);

    // A file that cannot be read or written is said and stops nothing.
    std::fs::write(&file, "broken").unwrap();
    let (_parent, path) = folder();
    let mut said = Vec::new();
    let mut listen = |event: &TrainEvent| {
        if let TrainEvent::Notice { message } = event {
            said.push(message.clone());
        }
        Control::Continue
    };
    setup.run(&path, Fake::default(), false, &mut listen).unwrap();
    assert!(said.iter().any(|message| message.contains("costs.json")), "{said:?}");
    setup.cost_file = Some(path.join("run.json/costs.json"));
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    assert_equal(&ending(&path), &expected, "with a cost file that cannot be");
}
