//! What a study found in the stable form documented in `docs/json.md`.

use serde_json::{Value, json};

use super::{AgreementFinding, ArmMeans, Findings, GroupGain, MetricFinding, Section, StudyDifference};
use crate::evaluation::Estimate;

impl Findings {
    /// The form of study.json, without its title, facts and definition.
    pub fn to_json(&self) -> Value {
        json!({
            "histories": self.accounts,
            "sections": self.sections.iter().map(Section::to_json).collect::<Vec<_>>(),
            "agreements": self.agreements.iter().map(AgreementFinding::to_json).collect::<Vec<_>>(),
            "failures": self.failures,
            "missing_units": self.missing_units,
        })
    }
}

fn estimate_json(estimate: Option<Estimate>) -> Value {
    estimate.map_or(Value::Null, |estimate| {
        let interval = estimate.interval.map(|interval| [interval.low, interval.high]);
        json!({"value": estimate.value, "interval": interval})
    })
}

impl Section {
    fn to_json(&self) -> Value {
        json!({
            "history": self.history,
            "task": self.task,
            "configuration": self.configuration,
            "adapted_blocks": self.depth,
            "users": self.users,
            "queries": self.queries,
            "metrics": self.metrics.iter().map(MetricFinding::to_json).collect::<Vec<_>>(),
            "training": self.training,
            "notes": self.notes,
        })
    }
}

impl MetricFinding {
    fn to_json(&self) -> Value {
        let arm = |arm: &ArmMeans| {
            json!({
                "name": arm.arm.name,
                "over_queries": estimate_json(arm.over_queries),
                "over_users": estimate_json(arm.over_users),
                "unparsable": arm.unparsable,
            })
        };
        let best = self.best.as_ref().map(|best| {
            json!({
                "arm": best.arm.name,
                "next": best.next.name,
                "difference": estimate_json(Some(best.difference)),
                "outcome": best.outcome.name(),
            })
        });
        json!({
            "metric": self.metric.name,
            "arms": self.arms.iter().map(arm).collect::<Vec<_>>(),
            "differences": self.differences.iter().map(StudyDifference::to_json).collect::<Vec<_>>(),
            "best": best,
            "groups": self.groups.iter().map(GroupGain::to_json).collect::<Vec<_>>(),
        })
    }
}

impl StudyDifference {
    fn to_json(&self) -> Value {
        json!({
            "of": self.of.name,
            "minus": self.minus.name,
            "over_queries": estimate_json(Some(self.over_queries)),
            "over_users": estimate_json(Some(self.over_users)),
            "users": self.by_user.len(),
            "users_better": self.users_better,
            "users_worse": self.users_worse,
            "outcome": self.outcome.name(),
            "by_user": self.by_user.iter().map(|(user, gain)| json!({"user": user, "gain": gain})).collect::<Vec<_>>(),
        })
    }
}

impl GroupGain {
    /// As in study.json.
    pub fn to_json(&self) -> Value {
        json!({
            "of": self.of.name,
            "minus": self.minus.name,
            "records_from": self.records_from,
            "records_below": self.records_below,
            "users": self.users,
            "gain": estimate_json(Some(self.gain)),
        })
    }
}

impl AgreementFinding {
    fn to_json(&self) -> Value {
        json!({
            "history": self.history,
            "left": self.left,
            "right": self.right,
            "arm": self.arm.name,
            "queries": self.queries,
            "differing_share": estimate_json(Some(self.differing)),
            "metric": self.metric.map(|metric| metric.name),
            "left_value": self.left_value,
            "right_value": self.right_value,
        })
    }
}
