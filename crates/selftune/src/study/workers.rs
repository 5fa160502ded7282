//! Hands units to workers, each as soon as what it needs is there, and tells how far it has come.
//!
//! Workers are threads that share the mapped model. Units are independent: no worker waits for another one's half of a
//! product. That this makes many workers faster than one with many threads is an assumption, not a measurement.

use super::Scene;
use super::units::{Kind, Unit, Units};
use super::work::Done;
use crate::failure::Failure;
use crate::terminal::{Terminal, human_seconds};
use crate::training::stop_asked;
use eval::study::UnitResult;
use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What came of all units.
pub struct AllDone {
    pub results: Vec<UnitResult>,
    /// Evaluations that are not there yet.
    pub missing: usize,
    /// Why the study ended early, if it was not the user.
    pub stopped_by: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    AtWork,
    Done,
    /// A training without an adapter.
    Failed,
}

/// What workers share.
struct Board {
    states: Vec<State>,
    results: Vec<UnitResult>,
    stopped_by: Option<Failure>,
}

/// A unit with the training that serves as another person's.
struct Task {
    unit: usize,
    other: Option<usize>,
}

enum Next {
    Task(Task),
    /// Something that is being done must end first.
    Wait,
    Nothing,
}

/// Does everything that is not there yet; with no workers, only looks.
pub fn do_all(scene: &Scene, units: Units, workers: usize, terminal: &Terminal) -> Result<AllDone, Failure> {
    let mut board = Board { states: vec![State::Waiting; units.all.len()], results: Vec::new(), stopped_by: None };
    let mut pace = Pace::default();
    for (place, unit) in units.all.iter().enumerate() {
        if let Some(done) = scene.look(&units, unit)? {
            pace.note(unit, seconds(&done));
            board.take(place, done);
        }
    }
    let left: f64 = pace.left(&units, &board.states);
    let there = board.states.iter().filter(|state| **state != State::Waiting).count();
    if there > 0 && workers > 0 {
        terminal.remark(format!("{there} of {} units are there already", units.all.len()));
    }
    if workers > 0 && left > 0.0 {
        work_in_parallel(scene, &units, workers, terminal, &mut board, pace)?;
    }
    let evaluations = units.all.iter().zip(&board.states).filter(|(unit, _)| unit.kind != Kind::Train);
    let missing = evaluations.filter(|(_, state)| !matches!(state, State::Done | State::Failed)).count();
    Ok(AllDone { results: board.results, missing, stopped_by: board.stopped_by })
}

fn work_in_parallel(
    scene: &Scene,
    units: &Units,
    workers: usize,
    terminal: &Terminal,
    board: &mut Board,
    mut pace: Pace,
) -> Result<(), Failure> {
    let shared =
        Mutex::new(std::mem::replace(board, Board { states: Vec::new(), results: Vec::new(), stopped_by: None }));
    let changed = Condvar::new();
    let (sender, receiver) = mpsc::channel::<(usize, f64)>();
    let bar = terminal.bar(units.all.len() as u64, "study", "units");
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let sender = sender.clone();
            let (shared, changed) = (&shared, &changed);
            scope.spawn(move || worker(scene, units, shared, changed, &sender));
        }
        drop(sender);
        loop {
            let news = receiver.recv_timeout(Duration::from_millis(500));
            let states = shared.lock().unwrap_or_else(PoisonError::into_inner).states.clone();
            if let Ok((unit, seconds)) = news {
                pace.note(&units.all[unit], Some(seconds));
            }
            let finished = states.iter().filter(|state| matches!(state, State::Done | State::Failed)).count();
            let left = human_seconds(pace.left(units, &states) / workers as f64);
            bar.set_position(finished as u64);
            bar.set_message(format!("about {left} left"));
            if let (Ok((unit, seconds)), false) = (news, terminal.shows_progress()) {
                let name = describe(scene, &units.all[unit]);
                let all = units.all.len();
                terminal.remark(format!("{finished}/{all}  {name} in {}  about {left} left", human_seconds(seconds)));
            }
            if matches!(news, Err(RecvTimeoutError::Disconnected)) {
                break;
            }
        }
    });
    bar.finish_and_clear();
    *board = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(())
}

fn describe(scene: &Scene, unit: &Unit) -> String {
    let what = match unit.kind {
        Kind::Train => "train",
        Kind::AskShared | Kind::AskAdapter => "evaluate",
    };
    format!("{what} {} {} {}", scene.history_name(unit), unit.configuration, scene.person(unit).name)
}

fn worker(scene: &Scene, units: &Units, shared: &Mutex<Board>, changed: &Condvar, sender: &Sender<(usize, f64)>) {
    // A worker that panics has a bug; the others must not wait for its unit for ever.
    struct Waker<'a>(&'a Mutex<Board>, &'a Condvar);
    impl Drop for Waker<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                board.stopped_by.get_or_insert_with(|| anyhow::anyhow!("a worker broke down").into());
            }
            self.1.notify_all();
        }
    }
    let _waker = Waker(shared, changed);
    loop {
        let task = {
            let mut board = shared.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match board.next(units) {
                    Next::Nothing => return,
                    Next::Task(task) => {
                        board.states[task.unit] = State::AtWork;
                        break task;
                    }
                    Next::Wait => board = changed.wait(board).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        let start = Instant::now();
        let other = task.other.map(|other| &units.all[other]);
        let done = scene.work(units, &units.all[task.unit], other);
        let mut board = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(Done::Stopped) => board.states[task.unit] = State::Waiting,
            Ok(done) => {
                board.take(task.unit, done);
                let _ = sender.send((task.unit, start.elapsed().as_secs_f64()));
            }
            Err(failure) => {
                board.states[task.unit] = State::Waiting;
                board.stopped_by.get_or_insert(failure);
            }
        }
        drop(board);
        changed.notify_all();
    }
}

impl Board {
    fn take(&mut self, place: usize, done: Done) {
        self.states[place] = match done {
            Done::Trained { .. } => State::Done,
            Done::Result(result) => {
                let failed = result.failure.is_some();
                self.results.push(*result);
                if failed { State::Failed } else { State::Done }
            }
            Done::Stopped => State::Waiting,
        };
    }

    /// The first unit whose needs are there.
    fn next(&self, units: &Units) -> Next {
        if self.stopped_by.is_some() || stop_asked() {
            return Next::Nothing;
        }
        for (place, unit) in units.all.iter().enumerate() {
            if self.states[place] != State::Waiting {
                continue;
            }
            match self.needs(unit) {
                Needs::There { other } => return Next::Task(Task { unit: place, other }),
                Needs::Coming | Needs::Never => {}
            }
        }
        if self.states.contains(&State::AtWork) { Next::Wait } else { Next::Nothing }
    }

    fn needs(&self, unit: &Unit) -> Needs {
        match unit.training.map(|training| self.states[training]) {
            None | Some(State::Done) => {}
            Some(State::Failed) => return Needs::Never,
            Some(_) => return Needs::Coming,
        }
        let wants_other = unit.arms.iter().any(|arm| arm.adapter == eval::WhichAdapter::Other);
        if !wants_other {
            return Needs::There { other: None };
        }
        // Always the nearest that can be trained, whichever happens to be ready first: the numbers depend on it.
        match unit.others.iter().find(|other| self.states[**other] != State::Failed) {
            None => Needs::There { other: None },
            Some(other) if self.states[*other] == State::Done => Needs::There { other: Some(*other) },
            Some(_) => Needs::Coming,
        }
    }
}

enum Needs {
    There {
        other: Option<usize>,
    },
    Coming,
    /// The person's own adapter could not be trained.
    Never,
}

fn seconds(done: &Done) -> Option<f64> {
    match done {
        Done::Trained { seconds } => Some(*seconds),
        Done::Result(result) => Some(result.wall_s),
        Done::Stopped => None,
    }
}

/// Seconds that work has taken, to tell what is left.
#[derive(Default)]
struct Pace {
    /// Weight and seconds of each kind of work.
    known: HashMap<String, (f64, f64)>,
}

impl Pace {
    fn note(&mut self, unit: &Unit, seconds: Option<f64>) {
        let Some(seconds) = seconds.filter(|seconds| *seconds > 0.0) else { return };
        for name in [name_of(unit), kind_of(unit), String::new()] {
            let known = self.known.entry(name).or_default();
            known.0 += unit.weight;
            known.1 += seconds;
        }
    }

    /// Seconds of one worker for everything that is not done.
    fn left(&self, units: &Units, states: &[State]) -> f64 {
        let rate = |unit: &Unit| {
            let known = [name_of(unit), kind_of(unit), String::new()];
            let found = known.iter().filter_map(|name| self.known.get(name)).find(|(weight, _)| *weight > 0.0);
            // Before anything was measured: about what a small model takes.
            found.map_or(1.0, |(weight, seconds)| seconds / weight)
        };
        let open = units.all.iter().zip(states).filter(|(_, state)| matches!(state, State::Waiting | State::AtWork));
        // The sum of nothing would be -0.0, and shown as such.
        open.fold(0.0, |left, (unit, _)| left + unit.weight * rate(unit))
    }
}

fn name_of(unit: &Unit) -> String {
    format!("{:?} {} {}", unit.kind, unit.history, unit.configuration)
}

fn kind_of(unit: &Unit) -> String {
    format!("{:?}", unit.kind)
}
