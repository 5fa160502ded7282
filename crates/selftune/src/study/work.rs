//! Does one unit: trains an adapter in a run folder, or asks arms about a person's newest records.

use super::Scene;
use super::units::{Kind, Unit, Units, make_private_folder, other_settings};
use crate::failure::{ExitStatus, Failure, InputError};
use crate::preparation::{self, HoldOut};
use crate::training::{self, RunInputs, stop_asked};
use crate::workbench::{AdapterBelow, HistoryChoice};
use data::{ExampleOptions, History};
use eval::study::{UnitArm, UnitResult, UnitTraining};
use eval::{EvalError, EvalInputs};
use kernels::{Isa, OpsOptions, Precision};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;
use train::{Control, RunEnd, RunFolder, RunStatus, TrainError, TrainInputs};

/// How a unit ended.
pub enum Done {
    /// A training has its adapter.
    Trained { seconds: f64 },
    /// Measured, or why it cannot be.
    Result(Box<UnitResult>),
    /// The user asked to stop; everything is saved.
    Stopped,
}

impl Scene {
    /// What is there already, without doing anything.
    pub fn look(&self, units: &Units, unit: &Unit) -> Result<Option<Done>, Failure> {
        let fingerprint = self.fingerprint(unit, &units.configs);
        if let Some(result) = self.read_result(unit, &fingerprint)? {
            return Ok(Some(Done::Result(Box::new(result))));
        }
        let path = self.run_path(unit);
        if unit.kind != Kind::Train || !path.join("run.json").exists() {
            return Ok(None);
        }
        let run = RunFolder::open(&path).bad_input("cannot use a run of the study")?;
        if run.inputs()["study_fingerprint"] != fingerprint.as_str() {
            return Err(other_settings(&path));
        }
        let summary = run.summary().bad_input("cannot use a run of the study")?;
        let finished = summary.status == RunStatus::Finished && run.best_adapter().is_dir();
        Ok(finished.then(|| Done::Trained { seconds: summary.outcome.map_or(0.0, |outcome| outcome.seconds) }))
    }

    /// Does the unit. `other` is the training that serves as another person's.
    pub fn work(&self, units: &Units, unit: &Unit, other: Option<&Unit>) -> Result<Done, Failure> {
        let fingerprint = self.fingerprint(unit, &units.configs);
        let mut result = UnitResult {
            fingerprint,
            history: self.history_name(unit).to_owned(),
            user: self.person(unit).name.clone(),
            configuration: unit.configuration.clone(),
            arms: Vec::new(),
            skipped: Vec::new(),
            failure: None,
            notes: Vec::new(),
            other_user: None,
            training: None,
            wall_s: 0.0,
        };
        let done = match unit.kind {
            Kind::Train => self.train(units, unit, &result.fingerprint),
            Kind::AskShared | Kind::AskAdapter => self.ask(units, unit, other, &mut result),
        };
        match done {
            // One person's records are no reason to stop; the machine's refusals are.
            Err(failure) if failure.exit == ExitStatus::BadInput => {
                result.failure = Some(failure.message());
                self.write_result(unit, &result)?;
                Ok(Done::Result(Box::new(result)))
            }
            done => done,
        }
    }

    fn train(&self, units: &Units, unit: &Unit, fingerprint: &str) -> Result<Done, Failure> {
        let person = self.person(unit);
        let settings = &self.histories[unit.history].settings;
        let on = &self.on[unit.history];
        let mut config = units.configs[&unit.configuration].clone();
        config.threads = self.threads;
        let config = config.resolved(self.bench.model.config()).bad_input("settings")?;
        let history = History {
            records: person.records.clone(),
            source_hash: self.histories[unit.history].account.source_hash.clone(),
            ..History::default()
        };
        let hold_out = HoldOut(settings.queries as f64);
        let preparation = preparation::prepare(&self.bench, &history, &config, hold_out)?;
        let path = self.run_path(unit);
        let run = match path.join("run.json").exists() {
            true => RunFolder::open(&path).bad_input("cannot use a run of the study")?,
            false => {
                let inputs = RunInputs {
                    model: self.model.clone(),
                    model_name: self.bench.model_name.clone(),
                    on: AdapterBelow::list(&settings.on, on)?,
                    history: HistoryChoice {
                        path: settings.path.clone(),
                        user: Some(person.name.clone()),
                        skip_bad_lines: true,
                        newest: settings.newest,
                        everybody: false,
                        task: None,
                        prompt_field: "prompt".into(),
                        completion_field: "completion".into(),
                        text_field: "text".into(),
                    },
                    hold_out,
                    history_hash: history.source_hash.clone(),
                    data: preparation.account(),
                    from: None,
                    replaces: None,
                    no_accept: true,
                };
                let mut inputs = serde_json::to_value(&inputs)?;
                inputs["study_fingerprint"] = fingerprint.into();
                make_private_folder(path.parent().unwrap_or(&self.folder))?;
                RunFolder::create(&path, inputs).map_err(training::run_failure)?
            }
        };
        let inputs = TrainInputs {
            model: self.bench.model.clone(),
            base_name: &self.bench.model_name,
            on,
            examples: &preparation.training,
            validation: &preparation.validation,
            config: &config,
            start: None,
            cost_file: None,
            run: &run,
            resume: true,
            // Many small runs side by side: what they cost says nothing about a run alone.
        };
        let mut observer = |_: &train::TrainEvent| if stop_asked() { Control::Stop } else { Control::Continue };
        // The machine's counters would count every worker's energy for each of them.
        let outcome = train::train(&inputs, &mut device::NoSensors::default(), &mut observer).map_err(of_one_person)?;
        match outcome.end {
            RunEnd::Interrupted => Ok(Done::Stopped),
            _ => Ok(Done::Trained { seconds: outcome.seconds }),
        }
    }

    fn ask(&self, units: &Units, unit: &Unit, other: Option<&Unit>, result: &mut UnitResult) -> Result<Done, Failure> {
        let start = Instant::now();
        let person = self.person(unit);
        let own_run = unit.training.map(|place| self.run_path(&units.all[place]));
        let adapter = own_run.as_deref().map(|run| self.adapter(unit, run)).transpose()?;
        let other_adapter = other.map(|other| self.adapter(other, &self.run_path(other))).transpose()?;
        let mut arms = unit.arms.clone();
        if other_adapter.is_none() && arms.iter().any(|arm| arm.adapter == eval::WhichAdapter::Other) {
            arms.retain(|arm| arm.adapter != eval::WhichAdapter::Other);
            result.notes.push("no other person's adapter could be trained".into());
        }
        let settings = &self.study.evaluation;
        let inputs = EvalInputs {
            model: self.bench.model.clone(),
            text: &self.bench.text,
            earlier: &person.seen,
            queries: &person.queries,
            on: &self.on[unit.history].weights(),
            adapter: adapter.as_ref().and_then(|stack| stack.weights().pop()),
            other_adapter: other_adapter.as_ref().and_then(|stack| stack.weights().pop()),
            arms: &arms,
            options: ExampleOptions {
                tokens_max: settings.tokens_max.min(self.bench.model.config().context_tokens_max),
                retrieved_records: settings.retrieve,
                retrieved_tokens_max: settings.retrieved_tokens_max,
                ..ExampleOptions::default()
            },
            answer_tokens_max: (settings.answer_tokens_max > 0).then_some(settings.answer_tokens_max),
            score_choices: settings.score_choices,
            ops: self.ops(unit)?,
        };
        let mut watch = |_: &eval::EvalProgress| match stop_asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let evaluation = match eval::evaluate(&inputs, &mut watch) {
            Err(EvalError::Stopped) => return Ok(Done::Stopped),
            evaluation => evaluation.bad_input("cannot evaluate")?,
        };
        result.arms = evaluation
            .arms
            .into_iter()
            .map(|found| UnitArm { name: found.arm.name.to_owned(), rows: found.rows })
            .collect();
        result.skipped = evaluation.skipped;
        if !result.skipped.is_empty() {
            result.notes.push(format!("some queries were left out, such as one because {}", result.skipped[0].reason));
        }
        result.other_user = other.map(|other| self.person(other).name.clone());
        result.training = own_run.as_deref().map(training_of).transpose()?.flatten();
        result.wall_s = start.elapsed().as_secs_f64();
        self.write_result(unit, result)?;
        Ok(Done::Result(Box::new(result.clone())))
    }

    /// The adapter of a run, checked to be for what lies below it.
    fn adapter(&self, unit: &Unit, run: &Path) -> Result<model::AdapterStack, Failure> {
        let run = RunFolder::open(run).bad_input("cannot use a run of the study")?;
        let on = &self.histories[unit.history].settings.on;
        self.bench.adapters(&[&on[..], &[crate::serving::adapter_of(&run)?]].concat())
    }

    fn ops(&self, unit: &Unit) -> Result<OpsOptions, Failure> {
        let (precision, isa) = match unit.kind {
            Kind::AskShared => unit
                .configuration
                .split_once('-')
                .map_or((unit.configuration.as_str(), None), |(precision, isa)| (precision, Some(isa))),
            _ => {
                let configuration = self.study.configuration(&unit.configuration).expect("units are made from them");
                (configuration.precision.as_str(), configuration.isa.as_deref())
            }
        };
        let isa = match isa {
            None => Isa::best(),
            Some(name) => Isa::by_name(name)
                .ok_or_else(|| Failure::usage(format!("this machine has no instruction set {name:?}")))?,
        };
        let precision = Precision::by_name(precision).expect("the study's file was checked");
        Ok(OpsOptions { threads: self.threads, isa, precision })
    }
}

/// Numbers that break down on one person's records belong to that person; a refusing machine concerns everyone.
fn of_one_person(error: TrainError) -> Failure {
    use TrainError::*;
    let is_of_person = matches!(error, LossNotFinite { .. } | GradientNotFinite { .. } | NoGradient { .. });
    let failure = training::training_failure(error);
    if is_of_person { Failure { exit: ExitStatus::BadInput, ..failure } } else { failure }
}

fn training_of(run: &Path) -> Result<Option<UnitTraining>, Failure> {
    let run = RunFolder::open(run).bad_input("cannot use a run of the study")?;
    let summary = run.summary().bad_input("cannot use a run of the study")?;
    let (Some(outcome), Some(config)) = (summary.outcome, summary.config) else { return Ok(None) };
    let examples = run.examples().bad_input("cannot use a run of the study")?;
    Ok(Some(UnitTraining {
        examples: examples.map_or(0, |examples| examples.training.len()),
        updates: outcome.step,
        tokens: outcome.tokens,
        seconds: outcome.seconds,
        adapted_blocks: usize::try_from(config.adapted_blocks).unwrap_or(0),
        left_out: summary.inputs["data"]["left_out"].as_array().map_or(0, Vec::len),
    }))
}
