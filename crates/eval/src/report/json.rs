//! The report as JSON, with every query's row.

use serde_json::{Map, Value, json};

use super::{Cost, Fact, ReportInputs, TrainingCurves, samples};

/// All that the page shows, and the rows it was computed from.
pub fn render_json(inputs: &ReportInputs) -> Value {
    let samples = inputs.evaluation.map(|evaluation| samples(evaluation, inputs.samples_max)).unwrap_or_default();
    json!({
        "title": inputs.title,
        "facts": facts(&inputs.facts),
        "verdict": inputs.verdict.map(|verdict| verdict.to_json()),
        "evaluation": inputs.evaluation.map(|evaluation| evaluation.to_json(true)),
        "samples": samples.iter().map(|sample| sample.to_json()).collect::<Vec<_>>(),
        "training": inputs.training.as_ref().map(training),
        "costs": inputs.costs.iter().map(cost).collect::<Vec<_>>(),
        "data": facts(&inputs.data),
        "configuration": facts(&inputs.configuration),
    })
}

fn facts(facts: &[Fact]) -> Value {
    Value::Object(facts.iter().map(|fact| (fact.name.clone(), json!(fact.value))).collect::<Map<_, _>>())
}

fn cost(cost: &Cost) -> Value {
    json!({"name": cost.name, "planned": cost.planned, "measured": cost.measured})
}

/// A value that is not finite becomes `null`: JSON has no other word for it.
fn training(curves: &TrainingCurves) -> Value {
    json!({
        "loss": curves.loss,
        "validation_loss": curves.validation_loss,
        "learning_rate": curves.learning_rate,
        "best_step": curves.best_step,
    })
}
