//! A made-up study whose means can be worked out by hand, and labels that were and were not read.

use eval::metrics::metric_by_name;
use eval::study::{Findings, HistoryAccount, Study, StudyUser, UnitArm, UnitResult};
use eval::{ARMS, Bootstrap, Choice, Evaluation, QueryRow};
use std::path::Path;

const STUDY: &str = r#"
title = "t"
model = "m"
length_groups = [50]
[[histories]]
name = "h"
path = "p"
queries = 2
[[configurations]]
name = "a"
arms = ["base", "adapter", "other_adapter"]
[[configurations]]
name = "b"
adapters_of = "a"
arms = ["base", "adapter"]
precision = "a8"
[[agreements]]
left = "a"
right = "b"
"#;

fn row(id: &str, loss: f64, prediction: &str) -> QueryRow {
    QueryRow {
        id: id.into(),
        gold: "x".into(),
        prediction: Some(prediction.into()),
        loss_sum: Some(loss),
        answer_tokens: 1,
        ..QueryRow::default()
    }
}

/// A person's unit; an arm has one loss for all its queries.
fn unit(user: &str, configuration: &str, arms: &[(&str, f64, &str)], queries: usize) -> UnitResult {
    let rows = |loss: f64, text: &str| (0..queries).map(|index| row(&format!("{user}{index}"), loss, text)).collect();
    UnitResult {
        fingerprint: String::new(),
        history: "h".into(),
        user: user.into(),
        configuration: configuration.into(),
        arms: arms.iter().map(|(name, loss, text)| UnitArm { name: (*name).into(), rows: rows(*loss, text) }).collect(),
        skipped: Vec::new(),
        failure: None,
        notes: Vec::new(),
        other_user: None,
        training: None,
        wall_s: 1.0,
    }
}

fn account() -> HistoryAccount {
    let user = |name: &str, seen| StudyUser { name: name.into(), seen, ..StudyUser::default() };
    HistoryAccount {
        name: "h".into(),
        metrics: vec!["loss_per_answer_token".into(), "exact_match".into()],
        users: vec![user("u", 10), user("v", 100), StudyUser { left_out: Some("no".into()), ..user("w", 0) }],
        ..HistoryAccount::default()
    }
}

fn findings() -> Findings {
    let study = Study::parse(STUDY, Path::new("")).unwrap();
    let units = [
        // u has three queries, v one: the mean over queries leans to u.
        unit("u", "a16", &[("base", 4.0, "y")], 3),
        unit("v", "a16", &[("base", 2.0, "y")], 1),
        unit("u", "a", &[("adapter", 2.0, "x"), ("other_adapter", 3.0, "y")], 3),
        unit("v", "a", &[("adapter", 1.0, "x"), ("other_adapter", 0.5, "y")], 1),
        unit("u", "a8", &[("base", 4.0, "z")], 3),
        unit("u", "b", &[("adapter", 2.0, "x")], 3),
        UnitResult { failure: Some("a NaN".into()), ..unit("v", "b", &[], 0) },
    ];
    Findings::of(&study, vec![account()], &units, 5)
}

#[test]
fn means_over_queries_and_over_people_are_those_worked_out_by_hand() {
    let found = findings();
    let section = found.section("h", "a").unwrap();
    assert_eq!((section.users.len(), section.queries), (2, 4));
    let loss = &section.metrics[0];
    let base = &loss.arms[0];
    assert_eq!(base.over_queries.unwrap().value, (3.0 * 4.0 + 2.0) / 4.0);
    assert_eq!(base.over_users.unwrap().value, (4.0 + 2.0) / 2.0);
    let difference = |of: &str, minus: &str| {
        loss.differences.iter().find(|one| one.of.name == of && one.minus.name == minus).unwrap()
    };
    let gain = difference("adapter", "base");
    assert_eq!(gain.over_queries.value, (3.0 * -2.0 - 1.0) / 4.0);
    assert_eq!(gain.over_users.value, -1.5);
    let interval = gain.over_users.interval.unwrap();
    assert_eq!((interval.low, interval.high), (-2.0, -1.0), "two people: the ends are theirs");
    let swap = difference("adapter", "other_adapter");
    assert_eq!((swap.users_better, swap.users_worse), (1, 1));
    assert_eq!(swap.by_user, [("u".into(), -1.0), ("v".into(), 0.5)]);
    let groups: Vec<_> = loss.groups.iter().map(|group| (group.records_from, group.users, group.gain.value)).collect();
    assert_eq!(groups, [(0, 1, -2.0), (50, 1, -1.0)]);
    assert_eq!(loss.best.as_ref().unwrap().arm.name, "adapter");
    assert_eq!(section.metrics[1].arms[1].over_queries.unwrap().value, 1.0);
}

#[test]
fn people_without_all_arms_are_in_no_mean_and_agreement_counts_answers() {
    let found = findings();
    assert_eq!(found.section("h", "b").unwrap().users, ["u"]);
    assert_eq!(found.failures[0].reason, "a NaN");
    assert_eq!(found.missing_units, 5);
    let share = |arm: &str| {
        found.agreements.iter().find(|one| one.arm.name == arm).map(|one| (one.queries, one.differing.value))
    };
    assert_eq!(share("adapter"), Some((3, 0.0)));
    assert_eq!(share("base"), Some((3, 1.0)), "y and z differ everywhere");
    let json = found.to_json();
    assert_eq!(json["sections"][0]["metrics"][0]["arms"][0]["over_users"]["value"], 3.0);
}

#[test]
fn what_cannot_be_read_as_a_rating_counts_as_the_farthest() {
    let rating = |id: &str, gold: &str, parsed: Option<&str>, likeliest: &str| QueryRow {
        gold: gold.into(),
        choice: Some(Choice {
            parsed: parsed.map(String::from),
            likeliest: Some(likeliest.into()),
            likeliest_per_token: Some(likeliest.into()),
            scale: Some([1.0, 5.0]),
            gold_is_listed: true,
        }),
        ..row(id, 1.0, "written")
    };
    let rows = vec![rating("a", "2", None, "2"), rating("b", "4", None, "3"), rating("c", "3", Some("3"), "3")];
    let names = ["accuracy", "mean_absolute_error", "scored_accuracy", "scored_mean_absolute_error"];
    let metrics: Vec<_> = names.iter().map(|name| metric_by_name(name).unwrap()).collect();
    let evaluation = Evaluation::from_rows(vec![(&ARMS[0], rows)], &metrics, Bootstrap::default()).unwrap();
    let value = |name: &str| evaluation.arms[0].estimate(name).unwrap().value;
    // The truth 2 lies farther from 5, the truth 4 farther from 1: three off each.
    assert_eq!(value("mean_absolute_error"), 2.0);
    assert_eq!(value("accuracy"), 1.0 / 3.0);
    assert_eq!(value("scored_accuracy"), 2.0 / 3.0);
    assert_eq!(value("scored_mean_absolute_error"), 1.0 / 3.0);
    assert_eq!(evaluation.arms[0].metric("accuracy").unwrap().unparsable, 2);
}
