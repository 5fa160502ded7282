//! From measured units to what a report says.
//!
//! Two means, two questions. The mean *over queries* weighs a person by the questions they contribute; its interval
//! draws queries: these people, other questions. The mean *over people* weighs everyone the same; its interval draws
//! people: other people. A difference is taken within each person, over the same queries.

mod to_json;

use std::collections::BTreeSet;

use serde::Serialize;

use super::definition::{Configuration, Study};
use super::unit::{HistoryAccount, StudyUser, UnitResult, UnitTraining};
use crate::arms::{ARMS, Arm, COMPARISONS};
use crate::bootstrap::Bootstrap;
use crate::evaluation::{Estimate, Outcome, QueryRow, outcome, paired, summarize};
use crate::metrics::{Better, Metric, Score, metric_by_name};

/// Everything that a study found.
#[derive(Debug)]
pub struct Findings {
    pub accounts: Vec<HistoryAccount>,
    pub sections: Vec<Section>,
    pub agreements: Vec<AgreementFinding>,
    pub failures: Vec<UnitFailure>,
    /// Units that are not there yet: the study was stopped.
    pub missing_units: usize,
}

/// One configuration on one history.
#[derive(Debug)]
pub struct Section {
    pub history: String,
    pub task: String,
    pub configuration: String,
    pub depth: Option<usize>,
    pub arms: Vec<&'static Arm>,
    /// The people in it, in the order of the file.
    pub users: Vec<String>,
    /// Questions of all of them together.
    pub queries: usize,
    pub metrics: Vec<MetricFinding>,
    pub training: TrainingTotals,
    pub notes: Vec<String>,
}

/// One metric in one section.
#[derive(Debug)]
pub struct MetricFinding {
    pub metric: &'static Metric,
    pub arms: Vec<ArmMeans>,
    pub differences: Vec<StudyDifference>,
    /// The best arm over people, and how it stands to the next.
    pub best: Option<BestArm>,
    /// Gains of the adapter by length of the history.
    pub groups: Vec<GroupGain>,
}

/// One arm's means in one metric.
#[derive(Debug)]
pub struct ArmMeans {
    pub arm: &'static Arm,
    pub over_queries: Option<Estimate>,
    pub over_users: Option<Estimate>,
    pub unparsable: usize,
}

/// `of - minus`, over the same queries of the same people.
#[derive(Clone, Debug)]
pub struct StudyDifference {
    pub of: &'static Arm,
    pub minus: &'static Arm,
    pub question: &'static str,
    pub over_queries: Estimate,
    pub over_users: Estimate,
    /// What each person gains, in the order of the section's people.
    pub by_user: Vec<(String, f64)>,
    /// People for whom `of` is better, and worse; the others are equal.
    pub users_better: usize,
    pub users_worse: usize,
    /// By the interval over people.
    pub outcome: Outcome,
}

#[derive(Debug)]
pub struct BestArm {
    pub arm: &'static Arm,
    pub next: &'static Arm,
    /// The best minus the next, over people.
    pub difference: Estimate,
    pub outcome: Outcome,
}

/// What an adapter gains for people whose history has a certain length.
#[derive(Debug)]
pub struct GroupGain {
    pub of: &'static Arm,
    pub minus: &'static Arm,
    /// Records trained on, from, and up to but not with (none: no limit).
    pub records_from: usize,
    pub records_below: Option<usize>,
    pub users: usize,
    pub gain: Estimate,
}

impl GroupGain {
    /// `50 to 99` or `200 and more`.
    pub fn records(&self) -> String {
        match self.records_below {
            Some(below) => format!("{} to {}", self.records_from, below - 1),
            None => format!("{} and more", self.records_from),
        }
    }
}

/// What training took, over all people of a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrainingTotals {
    pub adapters: usize,
    pub examples: usize,
    pub updates: u64,
    pub tokens: u64,
    pub seconds: f64,
    pub seconds_median: f64,
}

/// How often two configurations answer differently.
#[derive(Debug)]
pub struct AgreementFinding {
    pub history: String,
    pub left: String,
    pub right: String,
    pub arm: &'static Arm,
    pub queries: usize,
    /// Share of answers that differ, with the interval over queries.
    pub differing: Estimate,
    pub metric: Option<&'static Metric>,
    pub left_value: Option<f64>,
    pub right_value: Option<f64>,
}

/// A person and configuration of which nothing could be measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnitFailure {
    pub history: String,
    pub user: String,
    pub configuration: String,
    pub reason: String,
}

/// Differences that a study reports beside [`COMPARISONS`].
const MORE_COMPARISONS: [(&str, &str, &str); 2] = [
    ("adapter_retrieval", "base", "Do training and retrieval together help?"),
    ("other_adapter", "base", "Does another person's adapter help?"),
];

/// The gains that are grouped by history length.
pub(super) const GROUPED: [(&str, &str); 2] = [("adapter", "base"), ("adapter_retrieval", "retrieval")];

/// One person's rows of every arm of a section, over the queries that all arms answered.
pub(super) struct Person<'a> {
    pub user: &'a StudyUser,
    pub arms: Vec<(&'static Arm, Vec<QueryRow>)>,
    pub training: Option<&'a UnitTraining>,
}

impl Findings {
    /// Puts together what is there. Units that are missing are counted, not guessed.
    pub fn of(study: &Study, accounts: Vec<HistoryAccount>, units: &[UnitResult], missing_units: usize) -> Findings {
        let bootstrap = Bootstrap { seed: study.seed, ..Bootstrap::default() };
        let mut sections = Vec::new();
        for account in &accounts {
            for configuration in study.configurations_of(&account.name) {
                sections.extend(section(study, account, configuration, units, &bootstrap));
            }
        }
        let failure = |unit: &UnitResult| {
            Some(UnitFailure {
                history: unit.history.clone(),
                user: unit.user.clone(),
                configuration: unit.configuration.clone(),
                reason: unit.failure.clone()?,
            })
        };
        Findings {
            agreements: agreements(study, &accounts, units, &bootstrap),
            failures: units.iter().filter_map(failure).collect(),
            sections,
            accounts,
            missing_units,
        }
    }

    pub fn section(&self, history: &str, configuration: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.history == history && section.configuration == configuration)
    }
}

fn section(
    study: &Study,
    account: &HistoryAccount,
    configuration: &Configuration,
    units: &[UnitResult],
    bootstrap: &Bootstrap,
) -> Option<Section> {
    let unit = |user: &StudyUser, name: &str| {
        units
            .iter()
            .find(|unit| unit.history == account.name && unit.user == user.name && unit.configuration == name)
            .filter(|unit| unit.failure.is_none())
    };
    // An arm that nobody of this history has, as another person's adapter where there is one person, hides no other arm.
    let is_measured = |arm: &&'static Arm| {
        account.studied().any(|user| {
            let names = [&configuration.name, &configuration.compute_name()].map(|name| unit(user, name));
            names.into_iter().flatten().any(|unit| unit.rows(arm).is_some())
        })
    };
    let (arms, absent): (Vec<_>, Vec<_>) = configuration.arms().into_iter().partition(is_measured);
    let mut notes: BTreeSet<String> = absent.iter().map(|arm| format!("{}: measured for nobody", arm.label)).collect();
    let mut people = Vec::new();
    for user in account.studied() {
        let shared = unit(user, &configuration.compute_name());
        let own = unit(user, &configuration.name);
        let rows_of = |arm: &&'static Arm| {
            let rows = [own, shared].into_iter().flatten().find_map(|unit| unit.rows(arm))?;
            Some((*arm, rows.to_vec()))
        };
        let Some(rows) = arms.iter().map(rows_of).collect::<Option<Vec<_>>>() else { continue };
        notes.extend([own, shared].into_iter().flatten().flat_map(|unit| unit.notes.iter().cloned()));
        let rows = in_common(rows);
        if rows.first().is_some_and(|(_, rows)| !rows.is_empty()) {
            people.push(Person { user, arms: rows, training: own.and_then(|unit| unit.training.as_ref()) });
        }
    }
    if people.is_empty() {
        return None;
    }
    let metrics = account.metrics.iter().filter_map(|name| metric_by_name(name));
    let metrics: Vec<MetricFinding> =
        metrics.map(|metric| metric_finding(metric, &arms, &people, &study.length_groups, bootstrap)).collect();
    Some(Section {
        history: account.name.clone(),
        task: account.task.clone(),
        configuration: configuration.name.clone(),
        depth: configuration.depth,
        users: people.iter().map(|person| person.user.name.clone()).collect(),
        queries: people.iter().map(|person| person.arms[0].1.len()).sum(),
        training: training_totals(&people),
        metrics: metrics
            .into_iter()
            .filter(|metric| metric.arms.iter().any(|arm| arm.over_queries.is_some()))
            .collect(),
        arms,
        notes: notes.into_iter().collect(),
    })
}

/// Only queries that every arm answered, in one order: a difference must not compare unlike things.
fn in_common(arms: Vec<(&'static Arm, Vec<QueryRow>)>) -> Vec<(&'static Arm, Vec<QueryRow>)> {
    let ids = |rows: &[QueryRow]| rows.iter().map(|row| row.id.clone()).collect::<BTreeSet<_>>();
    let sets = arms.iter().map(|(_, rows)| ids(rows));
    let common = sets.reduce(|left, right| left.intersection(&right).cloned().collect()).unwrap_or_default();
    let kept = |mut rows: Vec<QueryRow>| {
        rows.retain(|row| common.contains(&row.id));
        rows
    };
    arms.into_iter().map(|(arm, rows)| (arm, kept(rows))).collect()
}

fn training_totals(people: &[Person]) -> TrainingTotals {
    let runs: Vec<&UnitTraining> = people.iter().filter_map(|person| person.training).collect();
    let mut seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    TrainingTotals {
        adapters: runs.len(),
        examples: runs.iter().map(|run| run.examples).sum(),
        updates: runs.iter().map(|run| run.updates).sum(),
        tokens: runs.iter().map(|run| run.tokens).sum(),
        seconds: seconds.iter().sum(),
        seconds_median: seconds.get(seconds.len() / 2).copied().unwrap_or(0.0),
    }
}

fn metric_finding(
    metric: &'static Metric,
    arms: &[&'static Arm],
    people: &[Person],
    length_groups: &[usize],
    bootstrap: &Bootstrap,
) -> MetricFinding {
    let means: Vec<ArmMeans> = (0..arms.len()).map(|place| arm_means(metric, place, people, bootstrap)).collect();
    let named = COMPARISONS.iter().map(|comparison| (comparison.of, comparison.minus, comparison.question));
    let differences = named
        .chain(MORE_COMPARISONS)
        .filter_map(|(of, minus, question)| difference(metric, of, minus, question, people, bootstrap))
        .collect();
    let groups = GROUPED
        .iter()
        .flat_map(|(of, minus)| group_gains(metric, of, minus, people, length_groups, bootstrap))
        .collect();
    MetricFinding { metric, best: best_arm(metric, &means, people, bootstrap), arms: means, differences, groups }
}

fn arm_means(metric: &'static Metric, place: usize, people: &[Person], bootstrap: &Bootstrap) -> ArmMeans {
    let pooled: Vec<QueryRow> = people.iter().flat_map(|person| person.arms[place].1.iter().cloned()).collect();
    let over_queries = summarize(metric, &pooled, bootstrap);
    let by_user: Vec<f64> = people.iter().filter_map(|person| value(metric, &person.arms[place].1)).collect();
    ArmMeans {
        arm: people[0].arms[place].0,
        over_queries: over_queries.estimate,
        over_users: mean(&by_user, bootstrap),
        unparsable: over_queries.unparsable,
    }
}

/// One person's value of a metric, without an interval.
fn value(metric: &'static Metric, rows: &[QueryRow]) -> Option<f64> {
    let once = Bootstrap { resamples: 0, seed: 0 };
    summarize(metric, rows, &once).estimate.map(|estimate| estimate.value)
}

/// The mean over people with the interval from drawing people.
fn mean(values: &[f64], bootstrap: &Bootstrap) -> Option<Estimate> {
    let scores: Vec<Score> = values.iter().map(|value| Score { value: *value, weight: 1.0 }).collect();
    let value = crate::bootstrap::weighted_mean(&scores)?;
    Some(Estimate { value, interval: bootstrap.mean_interval(&scores) })
}

/// What each person gains: `of - minus`.
fn gains<'a>(metric: &'static Metric, of: &str, minus: &str, people: &'a [Person]) -> Vec<(&'a StudyUser, f64)> {
    let rows = |person: &'a Person, name: &str| {
        person.arms.iter().find(|(arm, _)| arm.name == name).map(|(_, rows)| rows.as_slice())
    };
    people
        .iter()
        .filter_map(|person| {
            let gain = value(metric, rows(person, of)?)? - value(metric, rows(person, minus)?)?;
            Some((person.user, gain))
        })
        .collect()
}

fn difference(
    metric: &'static Metric,
    of: &str,
    minus: &str,
    question: &'static str,
    people: &[Person],
    bootstrap: &Bootstrap,
) -> Option<StudyDifference> {
    let place = |name: &str| people[0].arms.iter().position(|(arm, _)| arm.name == name);
    let (of_place, minus_place) = (place(of)?, place(minus)?);
    let pooled = |place: usize| -> Vec<QueryRow> {
        people.iter().flat_map(|person| person.arms[place].1.iter().cloned()).collect()
    };
    let over = paired(metric, &pooled(of_place), &pooled(minus_place), bootstrap)?;
    let gains = gains(metric, of, minus, people);
    let values: Vec<f64> = gains.iter().map(|(_, gain)| *gain).collect();
    let over_users = mean(&values, bootstrap)?;
    let better = |gain: &&f64| match metric.better {
        Better::Higher => **gain > 0.0,
        Better::Lower => **gain < 0.0,
    };
    let users_better = values.iter().filter(better).count();
    let equal = values.iter().filter(|gain| **gain == 0.0).count();
    Some(StudyDifference {
        of: people[0].arms[of_place].0,
        minus: people[0].arms[minus_place].0,
        question,
        over_queries: Estimate { value: over.of_value - over.minus_value, interval: over.interval },
        over_users,
        users_better,
        users_worse: values.len() - users_better - equal,
        by_user: gains.into_iter().map(|(user, gain)| (user.name.clone(), gain)).collect(),
        outcome: outcome(metric, over_users),
    })
}

fn best_arm(metric: &'static Metric, means: &[ArmMeans], people: &[Person], bootstrap: &Bootstrap) -> Option<BestArm> {
    let mut ranked: Vec<(&'static Arm, f64)> =
        means.iter().filter_map(|arm| Some((arm.arm, arm.over_users?.value))).collect();
    ranked.sort_by(|left, right| match metric.better {
        Better::Higher => right.1.total_cmp(&left.1),
        Better::Lower => left.1.total_cmp(&right.1),
    });
    let [(arm, _), (next, _), ..] = ranked.as_slice() else { return None };
    let found = difference(metric, arm.name, next.name, "", people, bootstrap)?;
    Some(BestArm { arm, next, difference: found.over_users, outcome: found.outcome })
}

pub(super) fn group_gains(
    metric: &'static Metric,
    of: &str,
    minus: &str,
    people: &[Person],
    bounds: &[usize],
    bootstrap: &Bootstrap,
) -> Vec<GroupGain> {
    let gains = gains(metric, of, minus, people);
    let arm = |name: &str| ARMS.iter().find(|arm| arm.name == name);
    let (Some(of), Some(minus)) = (arm(of), arm(minus)) else { return Vec::new() };
    let froms = std::iter::once(0).chain(bounds.iter().copied());
    let belows = bounds.iter().copied().map(Some).chain([None]);
    froms
        .zip(belows)
        .filter_map(|(records_from, records_below)| {
            let inside =
                |user: &StudyUser| user.seen >= records_from && records_below.is_none_or(|below| user.seen < below);
            let values: Vec<f64> = gains.iter().filter(|(user, _)| inside(user)).map(|(_, gain)| *gain).collect();
            let gain = mean(&values, bootstrap)?;
            Some(GroupGain { of, minus, records_from, records_below, users: values.len(), gain })
        })
        .collect()
}

fn agreements(
    study: &Study,
    accounts: &[HistoryAccount],
    units: &[UnitResult],
    bootstrap: &Bootstrap,
) -> Vec<AgreementFinding> {
    let mut found = Vec::new();
    for agreement in &study.agreements {
        let sides = [&agreement.left, &agreement.right].map(|name| study.configuration(name));
        let [Some(left), Some(right)] = sides else { continue };
        for account in accounts {
            for arm in &ARMS {
                found.extend(agreement_finding(account, left, right, arm, units, bootstrap));
            }
        }
    }
    found
}

fn agreement_finding(
    account: &HistoryAccount,
    left: &Configuration,
    right: &Configuration,
    arm: &'static Arm,
    units: &[UnitResult],
    bootstrap: &Bootstrap,
) -> Option<AgreementFinding> {
    let name_of = |configuration: &Configuration| match arm.adapter {
        crate::WhichAdapter::None => configuration.compute_name(),
        _ => configuration.name.clone(),
    };
    let (left_name, right_name) = (name_of(left), name_of(right));
    if left_name == right_name {
        return None;
    }
    let rows = |name: &str, user: &StudyUser| {
        units
            .iter()
            .find(|unit| unit.history == account.name && unit.user == user.name && unit.configuration == *name)
            .and_then(|unit| unit.rows(arm))
    };
    let (mut left_rows, mut right_rows) = (Vec::new(), Vec::new());
    for user in account.studied() {
        let (Some(ours), Some(theirs)) = (rows(&left_name, user), rows(&right_name, user)) else { continue };
        for row in ours {
            if let Some(other) = theirs.iter().find(|other| other.id == row.id) {
                left_rows.push(row.clone());
                right_rows.push(other.clone());
            }
        }
    }
    let differs = |(ours, theirs): (&QueryRow, &QueryRow)| {
        let (ours, theirs) = (answer(ours)?, answer(theirs)?);
        Some(Score { value: f64::from(u8::from(ours != theirs)), weight: 1.0 })
    };
    let scores: Vec<Score> = left_rows.iter().zip(&right_rows).filter_map(differs).collect();
    let value = crate::bootstrap::weighted_mean(&scores)?;
    let differing = Estimate { value, interval: bootstrap.mean_interval(&scores) };
    let metric = account.metrics.iter().filter_map(|name| metric_by_name(name)).find(|metric| is_written(metric));
    let value_of = |rows: &[QueryRow]| metric.and_then(|metric| self::value(metric, rows));
    Some(AgreementFinding {
        history: account.name.clone(),
        left: left.name.clone(),
        right: right.name.clone(),
        arm,
        queries: scores.len(),
        differing,
        metric,
        left_value: value_of(&left_rows),
        right_value: value_of(&right_rows),
    })
}

/// A metric of written answers, which is what an agreement is about.
fn is_written(metric: &Metric) -> bool {
    metric.name != "loss_per_answer_token"
}

/// The answer as it counts: the label that was read, else the text.
fn answer(row: &QueryRow) -> Option<&str> {
    let written = row.prediction.as_deref()?;
    Some(row.choice.as_ref().and_then(|choice| choice.parsed.as_deref()).unwrap_or(written))
}
