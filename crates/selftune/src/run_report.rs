//! The report of a run: what `train`, `eval --run`, `demo` and `forget` write beside its adapter.

use crate::failure::Failure;
use crate::terminal::{Terminal, human_bytes, human_count, human_seconds};
use crate::training::RunInputs;
use eval::report::{Cost, Fact, ReportInputs, TrainingCurves};
use std::path::{Path, PathBuf};
use train::{RunFolder, TrainOutcome};

/// Writes a report, or says why it could not: what was computed is shown all the same.
pub fn write_report(folder: &Path, report: &ReportInputs, terminal: &Terminal) -> Option<PathBuf> {
    match eval::report::write_report(folder, report) {
        Ok(files) => Some(files.html),
        Err(error) => {
            terminal.warning(format!("the report was not written: {error}"));
            None
        }
    }
}

/// Writes the report of a training into its run folder.
pub fn leave_report(run: &RunFolder, inputs: &RunInputs, terminal: &Terminal) -> Result<(), Failure> {
    let who = inputs.history.user.clone().unwrap_or_else(|| inputs.history.path.display().to_string());
    let report = report_inputs(run, inputs, &who)?;
    if let Some(report) = write_report(run.path(), &report, terminal) {
        terminal.line(format!("  report: {}", report.display()));
    }
    Ok(())
}

/// Facts of a run for its report: curves, cost, configuration, data.
pub fn report_inputs<'a>(run: &RunFolder, inputs: &RunInputs, who: &str) -> Result<ReportInputs<'a>, Failure> {
    let summary = run.summary()?;
    let mut report = ReportInputs {
        title: format!("{who} on {}", inputs.model_name),
        facts: vec![
            Fact::new("Model", inputs.model_name.clone()),
            Fact::new("History", who),
            Fact::new("Machine", summary.machine.to_string()),
            Fact::new("selftune", summary.selftune_version.clone()),
        ],
        training: Some(curves(run, summary.outcome.as_ref())?),
        samples_max: 3,
        ..ReportInputs::default()
    };
    if let Some(config) = &summary.config {
        report.configuration = eval::report::configuration_facts(&serde_json::Value::Object(config.to_map()));
    }
    report.data = eval::report::configuration_facts(&without_lists(&inputs.data));
    if let Some(plan) = &summary.plan {
        let outcome = summary.outcome.as_ref();
        report.costs = vec![
            Cost {
                name: "Training time".into(),
                planned: plan.cost.as_ref().map(|cost| human_seconds(cost.time_s.value)),
                measured: outcome.map(|outcome| human_seconds(outcome.seconds)),
            },
            Cost {
                name: "Tokens".into(),
                planned: Some(human_count(plan.tokens_total)),
                measured: outcome.map(|outcome| human_count(outcome.tokens)),
            },
            Cost {
                name: "Memory of the process".into(),
                planned: Some(human_bytes(plan.memory_total_bytes as u64)),
                measured: peak_memory(run)?.map(human_bytes),
            },
        ];
    }
    Ok(report)
}

/// The counts of a data account; the lists of single records stay in run.json.
fn without_lists(account: &serde_json::Value) -> serde_json::Value {
    let mut account = account.clone();
    if let Some(map) = account.as_object_mut() {
        for value in map.values_mut() {
            if let Some(list) = value.as_array() {
                *value = list.len().into();
            }
        }
    }
    account
}

fn curves(run: &RunFolder, outcome: Option<&TrainOutcome>) -> Result<TrainingCurves, Failure> {
    let (steps, validations) = train::read_metrics(&run.metrics_path())?;
    Ok(TrainingCurves {
        loss: steps.iter().map(|step| (step.step as f64, step.loss)).collect(),
        validation_loss: validations.iter().map(|point| (point.step as f64, point.loss)).collect(),
        learning_rate: steps.iter().map(|step| (step.step as f64, step.learning_rate)).collect(),
        best_step: outcome.and_then(|outcome| outcome.validation_best).map(|best| best.step),
    })
}

/// The most memory that the process took in any update, bytes.
pub fn peak_memory(run: &RunFolder) -> Result<Option<u64>, Failure> {
    let (steps, _) = train::read_metrics(&run.metrics_path())?;
    Ok(steps.iter().filter_map(|step| step.peak_resident_bytes).max())
}
