//! The governor on simulated devices, and holds of whole runs: their state, their ends, their survival.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use data::Example;
use device::simulated::{DEVICES, Event, SimulatedDevice};
use device::{Battery, BatteryState, Quantity, Reading, Sensors};
use kernels::AdamWParameters;
use model::ModelError;
use serde_json::Value;

use crate::adapter_file::AdapterNotes;
use crate::config::TrainConfig;
use crate::cost::RunWork;
use crate::cost::history::tests::setting;
use crate::error::TrainError;
use crate::events::{Control, TrainEvent};
use crate::fake::{Fake, KINDS, example};
use crate::files::Files;
use crate::governor::{Governor, Limits, QuietHours, SETTLE_SECONDS};
use crate::learner::Learner;
use crate::outcome::{RunEnd, TrainOutcome};
use crate::plan::{TrainPlan, Trained};
use crate::run_folder::{RunFolder, RunStatus};
use crate::train::{Begin, train_learner};

fn phone() -> SimulatedDevice {
    SimulatedDevice::new(&DEVICES[0])
}

/// A device that the learner works on and the sensors read.
#[derive(Clone)]
struct Shared(Rc<RefCell<SimulatedDevice>>);

impl Sensors for Shared {
    fn read(&mut self) -> Reading {
        self.0.borrow_mut().read()
    }
    fn wait(&mut self, duration: Duration) {
        self.0.borrow_mut().wait(duration);
    }
}

/// A learner whose every example costs the device the work of 30,000 tokens: minutes.
struct Working {
    fake: Fake,
    device: Shared,
}

const TOKENS_OF_EXAMPLE: f64 = 30_000.0;

impl Learner for Working {
    fn learn(&mut self, example: &Example, scale: f32, seed: u64) -> Result<f64, ModelError> {
        // The probe before the run, which scales by nothing, takes no time here.
        if scale > 0.0 && self.device.0.borrow_mut().work(TOKENS_OF_EXAMPLE).is_err() {
            panic!("the device went off");
        }
        self.fake.learn(example, scale, seed)
    }
    fn loss(&mut self, example: &Example) -> Result<f64, ModelError> {
        self.fake.loss(example)
    }
    fn gradient_norm(&mut self) -> f64 {
        self.fake.gradient_norm()
    }
    fn matrices_without_gradient(&self) -> Vec<String> {
        self.fake.matrices_without_gradient()
    }
    fn update(&mut self, parameters: &AdamWParameters) {
        self.fake.update(parameters);
    }
    fn zero_gradients(&mut self) {
        self.fake.zero_gradients();
    }
    fn values(&self) -> [&[f32]; 3] {
        self.fake.values()
    }
    fn restore(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<(), ModelError> {
        self.fake.restore(parameters, first, second)
    }
    fn write_adapter(&self, files: &Files, folder: &Path, notes: &AdapterNotes) -> Result<(), TrainError> {
        self.fake.write_adapter(files, folder, notes)
    }
}

/// Seven examples for two passes: fourteen updates.
fn config() -> TrainConfig {
    TrainConfig {
        learning_rate: 0.05,
        accumulation: 1,
        passes: 2,
        save_every_steps: 3,
        save_sync: false,
        ..TrainConfig::default()
    }
}

fn run(
    folder: &Path,
    config: &TrainConfig,
    device: &Shared,
    observer: &mut dyn FnMut(&TrainEvent) -> Control,
) -> Result<TrainOutcome, TrainError> {
    let examples: Vec<Example> = (0..7).map(|index| example(index, 8 + index)).collect();
    let validation: Vec<Example> = (7..9).map(|index| example(index, 9)).collect();
    let folder = match RunFolder::open(folder) {
        Ok(run) => run,
        Err(_) => RunFolder::create(folder, Value::Null)?,
    };
    let trained = Trained { targets: vec!["values".to_owned()], blocks: 0..1, matrices: 1, parameters: KINDS };
    let plan = TrainPlan::count(&examples, &validation, config, trained, &RunWork::of_tokens(&examples, &validation));
    let begin = Begin {
        examples: &examples,
        validation: &validation,
        config,
        base: "base".to_owned(),
        base_name: "fake".to_owned(),
        stack: &[],
        start: None,
        work: RunWork::of_tokens(&examples, &validation),
        setting: setting("fake"),
        cost_file: None,
    };
    let learner = Working { fake: Fake::default(), device: device.clone() };
    train_learner(learner, begin, plan, &folder, true, &mut device.clone(), observer)
}

/// What happened, in words: holds with their conditions, ends of holds, updates as dots.
fn told(event: &TrainEvent, story: &mut String) {
    match event {
        TrainEvent::Step(_) => story.push('.'),
        TrainEvent::Held(hold) => {
            let conditions: Vec<&str> = hold.waits.iter().map(|wait| wait.condition.as_str()).collect();
            story.push_str(&format!("[{}", conditions.join("+")));
        }
        TrainEvent::WentOn { .. } => story.push(']'),
        _ => {}
    }
}

fn story_of(config: &TrainConfig, device: SimulatedDevice) -> (String, TrainOutcome, SimulatedDevice) {
    let parent = tempfile::tempdir().unwrap();
    let device = Shared(Rc::new(RefCell::new(device)));
    let mut story = String::new();
    let outcome = run(&parent.path().join("run"), config, &device, &mut |event| {
        told(event, &mut story);
        Control::Continue
    })
    .unwrap();
    assert!(RunFolder::open(&parent.path().join("run")).unwrap().hold().unwrap().is_none(), "no hold is left behind");
    let device = device.0.borrow().clone();
    (story, outcome, device)
}

#[test]
fn without_conditions_training_never_waits() {
    let (story, outcome, device) = story_of(&config(), phone().plugged_in());
    assert_eq!(story, "..............");
    assert_eq!((outcome.end, outcome.held_seconds, outcome.energy_j), (RunEnd::Completed, 0.0, None));
    // 14 examples of 30,000 tokens at half speed: the wait is all work.
    assert!((60.0 * 60.0..90.0 * 60.0).contains(&device.seconds()), "{}", device.seconds());
}

#[test]
fn only_charging_waits_for_the_charger_and_holds_when_it_is_pulled() {
    let config = TrainConfig { only_charging: true, ..config() };
    let device = phone()
        .with(3600.0, Event::PlugIn)
        .with(3600.0 + 900.0, Event::Unplug)
        // A loose plug: not long enough to count.
        .with(9000.0, Event::PlugIn)
        .with(9010.0, Event::Unplug)
        .with(20_000.0, Event::PlugIn);
    let (story, outcome, device) = story_of(&config, device);
    let holds: Vec<&str> = story.split(']').collect();
    assert_eq!(holds.len(), 3, "{story}");
    assert_eq!(holds[0], "[only_charging");
    assert!(holds[1].starts_with("..") && holds[1].ends_with(".[only_charging"), "{story}");
    assert_eq!(story.matches('.').count(), 14);
    assert_eq!(outcome.end, RunEnd::Completed);
    assert!(device.seconds() > 20_000.0 + SETTLE_SECONDS);
}

#[test]
fn the_battery_is_not_drained_below_its_floor_and_goes_on_with_a_margin() {
    // 85 % of 55.6 kJ; fourteen examples would take it to about half of that. Idling takes 18 % until the charger comes,
    // which is pulled before the charge is above the floor again, and comes back for good.
    let config = TrainConfig { battery_floor: 0.7, ..config() };
    let device = phone().charged_to(0.85).with(40_000.0, Event::PlugIn).with(40_600.0, Event::Unplug);
    let device = device.with(50_000.0, Event::PlugIn);
    let parent = tempfile::tempdir().unwrap();
    let device = Shared(Rc::new(RefCell::new(device)));
    let (mut story, mut lowest) = (String::new(), 1.0_f64);
    run(&parent.path().join("run"), &config, &device, &mut |event| {
        told(event, &mut story);
        if let (TrainEvent::Step(step), false) = (event, story.contains('[')) {
            lowest = lowest.min(step.device.battery.unwrap().charge);
        }
        Control::Continue
    })
    .unwrap();
    assert!(story.starts_with("...") && story.ends_with('.'), "{story}");
    assert_eq!((story.matches(".[battery_floor].").count(), story.matches('.').count()), (2, 14), "{story}");
    assert!(device.0.borrow().seconds() > 50_000.0 + SETTLE_SECONDS);
    // The gauge moves in steps of 5 %, so the step below the floor is where it is noticed.
    assert!(lowest >= 0.65 - 1e-9, "{lowest}");
}

#[test]
fn quiet_hours_are_kept_over_midnight_and_when_the_clock_is_set_back() {
    let config = TrainConfig { quiet_hours: "22:00-07:00".to_owned(), ..config() };
    let (story, _, device) = story_of(&config, phone().plugged_in().at_time(20, 30));
    assert_eq!(story, "[quiet_hours]..............");
    assert!(device.seconds() > 90.0 * 60.0, "it waited for 22:00");
    // Started at 06:30, interrupted at 07:00, goes on at 22:00.
    let (story, outcome, _) = story_of(&config, phone().plugged_in().at_time(6, 30));
    assert!(story.starts_with("...") && story.contains("[quiet_hours]"), "{story}");
    assert!((14.0 * 3600.0..15.2 * 3600.0).contains(&outcome.held_seconds), "{outcome:?}");
    // Ten minutes into the hold the calendar goes back a day and a bit: it is 05:00 again, and nothing breaks.
    let back = Event::ClockJump { seconds: -86_400.0 - 2.0 * 3600.0 - 600.0 };
    let (story, _, device) = story_of(&config, phone().plugged_in().at_time(6, 30).with(2700.0, back));
    assert!(story.contains("[quiet_hours]."), "{story}");
    assert!(device.seconds() < 3.0 * 3600.0, "{}", device.seconds());
}

#[test]
fn the_person_comes_first() {
    let config = TrainConfig { idle_seconds_min: 300.0, ..config() };
    let device = phone().plugged_in().with(0.0, Event::UserComes).with(600.0, Event::UserLeaves);
    let device = device.with(2000.0, Event::UserComes).with(2001.0, Event::UserLeaves);
    let (story, _, device) = story_of(&config, device);
    assert!(story.starts_with("[idle_seconds_min]."), "{story}");
    assert!(story.matches('[').count() <= 2, "{story}");
    assert!(device.seconds() > 900.0 + SETTLE_SECONDS);
}

#[test]
fn memory_pressure_holds_until_it_is_half_gone() {
    let config = TrainConfig { memory_pressure_max: 0.2, ..config() };
    let device = phone().plugged_in().with(0.0, Event::MemoryPressure { share: 0.5 });
    let device = device.with(400.0, Event::MemoryPressure { share: 0.15 });
    let device = device.with(1400.0, Event::MemoryPressure { share: 0.05 });
    let (story, _, device) = story_of(&config, device);
    assert_eq!(story, "[memory_pressure_max]..............");
    assert!(device.seconds() > 1400.0 + SETTLE_SECONDS + 60.0 * 60.0 * 0.9);
}

#[test]
fn a_hold_survives_kills_says_what_it_waits_for_and_ends_with_the_same_bytes() {
    let config = TrainConfig { only_charging: true, ..config() };
    let parent = tempfile::tempdir().unwrap();
    let undisturbed = parent.path().join("undisturbed");
    run(&undisturbed, &config, &Shared(Rc::new(RefCell::new(phone().plugged_in()))), &mut |_| Control::Continue)
        .unwrap();

    let path = parent.path().join("held");
    let device = Shared(Rc::new(RefCell::new(phone().plugged_in().with(1500.0, Event::Unplug))));
    // Ctrl-C in the hold: leaves at the next question.
    let mut questions = 0;
    let mut stop_in_hold = |event: &TrainEvent| match event {
        TrainEvent::Waiting { .. } => {
            questions += 1;
            if questions == 40 { Control::Stop } else { Control::Continue }
        }
        _ => {
            assert!(questions < 40 || matches!(event, TrainEvent::Finished(_)), "nothing more: {event:?}");
            Control::Continue
        }
    };
    let outcome = run(&path, &config, &device, &mut stop_in_hold).unwrap();
    assert_eq!((outcome.end, questions), (RunEnd::Interrupted, 40));
    let folder = RunFolder::open(&path).unwrap();
    let hold = folder.hold().unwrap().unwrap();
    assert_eq!(hold.waits[0].condition, "only_charging");
    assert!(hold.waits[0].waits_for.contains("charger"), "{hold:?}");
    assert_eq!(folder.state().unwrap().unwrap().0.progress.step, hold.step, "saved before the hold");
    assert!(hold.step > 0 && hold.step < 14);
    let summary = folder.summary().unwrap();
    assert_eq!((summary.status, summary.hold.as_ref()), (RunStatus::Stopped, Some(&hold)));

    // A new process, after a reboot, finds itself in the same hold, which began when it began.
    let mut story = String::new();
    let mut again = |event: &TrainEvent| {
        told(event, &mut story);
        if let TrainEvent::Held(now) = event {
            assert_eq!(now, &hold);
            return Control::Stop;
        }
        Control::Continue
    };
    assert_eq!(run(&path, &config, &device, &mut again).unwrap().end, RunEnd::Interrupted);
    assert_eq!(story, "[only_charging", "no work before the hold");

    // Back on the charger it goes on by itself.
    device.0.borrow_mut().wait(Duration::from_secs(10));
    let plugged = device.0.borrow().clone();
    *device.0.borrow_mut() = plugged.plugged_in();
    let outcome = run(&path, &config, &device, &mut |_| Control::Continue).unwrap();
    assert_eq!(outcome.end, RunEnd::Completed);
    assert!(RunFolder::open(&path).unwrap().hold().unwrap().is_none());
    let adapter = |path: &Path| std::fs::read(path.join("adapter/last/values")).unwrap();
    assert_eq!(adapter(&path), adapter(&undisturbed));
    let metrics = |path: &Path| std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    // How often a run is saved depends on the disk.
    let lines = |path: &Path| metrics(path).lines().filter(|line| !line.contains("\"event\":\"saved\"")).count();
    assert_eq!(lines(&path), lines(&undisturbed), "every update and validation has one line");
}

#[test]
fn a_hold_whose_condition_was_lifted_is_over() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let device = Shared(Rc::new(RefCell::new(phone())));
    let held = TrainConfig { only_charging: true, ..config() };
    let mut stop = |event: &TrainEvent| match event {
        TrainEvent::Waiting { .. } => Control::Stop,
        _ => Control::Continue,
    };
    assert_eq!(run(&path, &held, &device, &mut stop).unwrap().end, RunEnd::Interrupted);
    let outcome = run(&path, &config(), &device, &mut |_| Control::Continue).unwrap();
    assert_eq!(outcome.end, RunEnd::Completed);
    assert!(!path.join("hold.json").exists());
    assert!(outcome.energy_j.unwrap() > 0.0, "on battery the gauge measures");
}

#[test]
fn a_hold_tells_of_the_quiet_hours_of_now() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let device = Shared(Rc::new(RefCell::new(phone().plugged_in().at_time(12, 0))));
    let within = |hours: &str| TrainConfig { quiet_hours: hours.to_owned(), ..config() };
    for hours in ["22:00-07:00", "23:00-05:00"] {
        let mut told = Vec::new();
        let mut stop = |event: &TrainEvent| match event {
            TrainEvent::Waiting { waits } => {
                told.extend(waits.iter().map(|wait| wait.waits_for.clone()));
                Control::Stop
            }
            _ => Control::Continue,
        };
        assert_eq!(run(&path, &within(hours), &device, &mut stop).unwrap().end, RunEnd::Interrupted);
        let hold = RunFolder::open(&path).unwrap().hold().unwrap().unwrap();
        told.extend(hold.waits.iter().map(|wait| wait.waits_for.clone()));
        assert!(told.len() >= 2 && told.iter().all(|text| text.contains(hours)), "{hours}: {told:?}");
    }
    // Hours that it is within: only that it stays so is waited for.
    let mut told = Vec::new();
    let mut listen = |event: &TrainEvent| {
        if let TrainEvent::Waiting { waits } = event {
            told.extend(waits.iter().map(|wait| wait.waits_for.clone()));
        }
        Control::Continue
    };
    assert_eq!(run(&path, &within("11:00-18:00"), &device, &mut listen).unwrap().end, RunEnd::Completed);
    assert!(!told.is_empty() && told.iter().all(|text| text.contains("quiet_hours to stay")), "{told:?}");
}

#[test]
fn needed_sensors_that_are_missing_are_named_before_anything_begins() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    for (config, quantity) in [
        (TrainConfig { only_charging: true, ..config() }, Quantity::Charger),
        (TrainConfig { battery_floor: 0.3, ..config() }, Quantity::Battery),
        (TrainConfig { temperature_max_c: 80.0, ..config() }, Quantity::Temperature),
        (TrainConfig { memory_pressure_max: 0.1, ..config() }, Quantity::MemoryPressure),
        (TrainConfig { idle_seconds_min: 60.0, ..config() }, Quantity::UserActivity),
    ] {
        let governor = Governor::new(config.limits());
        let missing = governor.missing(&device::NoSensors::default().absent());
        assert_eq!(missing.iter().map(|missing| missing.quantity).collect::<Vec<_>>(), [quantity]);
        let folder = RunFolder::create(&path, Value::Null).unwrap();
        let examples = [example(0, 9)];
        let trained = Trained { targets: Vec::new(), blocks: 0..1, matrices: 1, parameters: KINDS };
        let plan = TrainPlan::count(&examples, &[], &config, trained, &RunWork::of_tokens(&examples, &[]));
        let begin = Begin {
            examples: &examples,
            validation: &[],
            config: &config,
            base: String::new(),
            base_name: String::new(),
            stack: &[],
            start: None,
            work: RunWork::of_tokens(&examples, &[]),
            setting: setting("fake"),
            cost_file: None,
        };
        let mut sensors = device::NoSensors::default();
        let error =
            train_learner(Fake::default(), begin, plan, &folder, false, &mut sensors, &mut |_| Control::Continue)
                .unwrap_err();
        assert!(matches!(&error, TrainError::SensorMissing { quantity: found, .. } if *found == quantity), "{error}");
        assert!(error.to_string().contains(quantity.name()) && error.to_string().contains("no sensors"), "{error}");
        assert!(!path.join("config.json").exists());
    }
    // Local time is always there.
    let quiet = Limits { quiet_hours: QuietHours::parse("22:00-07:00"), ..Limits::default() };
    assert_eq!(Governor::new(quiet).missing(&device::NoSensors::default().absent()), []);
}

#[test]
fn values_near_a_limit_do_not_flap() {
    let mut governor = Governor::new(Limits { battery_floor: Some(0.3), ..Limits::default() });
    let mut now = 0.0;
    let mut held_at = |charge: f64, state: BatteryState| {
        now += 60.0;
        let battery = Some(Battery { charge, state, capacity_wh: None, power_w: None });
        !governor.decide(&Reading { battery, monotonic_seconds: now, ..Reading::default() }).is_empty()
    };
    use BatteryState::{Charging, Discharging};
    assert!(!held_at(0.30, Discharging), "the floor itself is allowed");
    assert!(held_at(0.29, Discharging));
    for charge in [0.30, 0.31, 0.33] {
        assert!(held_at(charge, Discharging), "{charge} is within the margin");
    }
    assert!(held_at(0.35, Discharging), "not yet for long enough");
    assert!(!held_at(0.35, Discharging));
    assert!(held_at(0.2, Discharging));
    assert!(held_at(0.2, Charging));
    assert!(!held_at(0.2, Charging), "a charger keeps the charge up");

    let mut governor = Governor::new(Limits { temperature_max_c: Some(80.0), ..Limits::default() });
    let mut holds = 0;
    let mut was_held = false;
    for second in 0..600 {
        let temperature_c = Some(79.0 + 2.0 * f64::from(second % 2));
        let reading = Reading { temperature_c, monotonic_seconds: f64::from(second), ..Reading::default() };
        let is_held = !governor.decide(&reading).is_empty();
        holds += u32::from(is_held && !was_held);
        was_held = is_held;
    }
    assert_eq!((holds, was_held), (1, true));
    // A sensor that falls silent neither ends nor begins a hold.
    assert!(!governor.decide(&Reading { monotonic_seconds: 1e4, ..Reading::default() }).is_empty());
    assert!(!governor.decide(&Reading { monotonic_seconds: 2e4, ..Reading::default() }).is_empty());
}

#[test]
fn quiet_hours_are_read_strictly_and_wrap() {
    let hours = QuietHours::parse("22:00-07:00").unwrap();
    assert_eq!(hours.to_string(), "22:00-07:00");
    for (minute, inside) in [(22 * 60, true), (22 * 60 - 1, false), (0, true), (7 * 60 - 1, true), (7 * 60, false)] {
        assert_eq!(hours.contain(minute), inside, "{minute}");
    }
    let day = QuietHours::parse("9:30 - 17:00").unwrap();
    assert!(day.contain(9 * 60 + 30) && !day.contain(17 * 60) && !day.contain(0));
    for text in [
        "",
        "22:00",
        "22-7",
        "24:00-07:00",
        "22:00-07:60",
        "22:00-22:00",
        "22:0-07:00",
        "+2:00-07:00",
        "a:00-b:00",
        "22:00-07:00-08:00",
    ] {
        assert_eq!(QuietHours::parse(text), None, "{text}");
    }
}
