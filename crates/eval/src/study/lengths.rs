//! Gains by the length of a person's history, for an evaluation of many people's questions at once.

use std::collections::BTreeMap;

use super::definition::defaults;
use super::findings::{GROUPED, GroupGain, Person, group_gains};
use super::unit::StudyUser;
use crate::evaluation::{ArmResult, Evaluation, QueryRow};
use crate::metrics::Metric;

/// What adapters gain for people with histories of about the same length, each person weighing the same, in the groups of
/// a study. `owners` says whose each question is, by its id; `seen` how many records of each person lie before their
/// questions. Empty where all questions are one person's.
pub fn gains_by_length(
    evaluation: &Evaluation,
    owners: &BTreeMap<&str, &str>,
    seen: &BTreeMap<&str, usize>,
) -> Vec<(&'static Metric, GroupGain)> {
    let Some(first) = evaluation.arms.first() else { return Vec::new() };
    let owner = |id: &str| owners.get(id).copied().unwrap_or_default();
    let mut users: Vec<StudyUser> = Vec::new();
    for row in &first.rows {
        let name = owner(&row.id);
        if !users.iter().any(|user| user.name == name) {
            let seen = seen.get(name).copied().unwrap_or(0);
            users.push(StudyUser { name: name.to_owned(), seen, ..StudyUser::default() });
        }
    }
    if users.len() < 2 {
        return Vec::new();
    }
    let people: Vec<Person> = users
        .iter()
        .map(|user| {
            let of_user = |row: &&QueryRow| owner(&row.id) == user.name;
            let rows = |arm: &ArmResult| (arm.arm, arm.rows.iter().filter(of_user).cloned().collect::<Vec<_>>());
            Person { user, arms: evaluation.arms.iter().map(rows).collect(), training: None }
        })
        .collect();
    let bounds = defaults::length_groups();
    let metrics = first.metrics.iter().map(|result| result.metric);
    let groups = metrics.flat_map(|metric| GROUPED.iter().map(move |pair| (metric, pair)));
    groups
        .flat_map(|(metric, (of, minus))| {
            let found = group_gains(metric, of, minus, &people, &bounds, &evaluation.bootstrap);
            found.into_iter().map(move |group| (metric, group))
        })
        .collect()
}
