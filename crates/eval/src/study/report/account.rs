//! The parts of the page that account for a study: what training took, whose records were read, what went wrong.

use super::{Part, strings, tokens_per_second};
use crate::study::StudyUser;
use crate::study::findings::{Findings, Section};

pub(super) fn cost_part(findings: &Findings) -> Option<Part> {
    let row = |section: &Section| {
        let training = section.training;
        vec![
            section.history.clone(),
            section.configuration.clone(),
            training.adapters.to_string(),
            training.examples.to_string(),
            training.tokens.to_string(),
            format!("{:.0}", training.seconds),
            format!("{:.0}", training.seconds_median),
            tokens_per_second(section),
        ]
    };
    let rows: Vec<Vec<String>> =
        findings.sections.iter().filter(|section| section.training.adapters > 0).map(row).collect();
    let text = "Time in training, of one worker each, with whatever else ran on the machine.".to_owned();
    let headings = ["History", "Configuration", "Adapters", "Records", "Tokens", "Seconds", "Median", "Tokens/s"];
    (!rows.is_empty()).then(|| Part {
        heading: "Cost of training".into(),
        text,
        headings: strings(headings),
        rows,
        figures: Vec::new(),
    })
}

/// Whose records were studied, and what was wrong with them.
pub(super) fn data_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    let mut remarks = Vec::new();
    for account in &findings.accounts {
        let sum = |count: fn(&StudyUser) -> usize| account.studied().map(count).sum::<usize>().to_string();
        rows.push(vec![
            account.name.clone(),
            account.task.clone(),
            account.studied().count().to_string(),
            account.users.iter().filter(|user| user.left_out.is_some()).count().to_string(),
            sum(|user| user.seen),
            sum(|user| user.queries),
            sum(|user| user.queries_without_answer),
            sum(|user| user.answers_outside_labels),
            account.studied().filter(|user| user.all_answers_equal).count().to_string(),
            account.skipped_lines.len().to_string(),
        ]);
        for user in &account.users {
            if let Some(reason) = &user.left_out {
                remarks.push(format!("{}, {}: left out: {reason}", account.name, user.name));
            } else if user.all_answers_equal {
                remarks.push(format!("{}, {}: all answers are the same", account.name, user.name));
            }
        }
        remarks.extend(account.skipped_lines.iter().take(5).map(|line| format!("{}: {line}", account.name)));
    }
    for section in &findings.sections {
        remarks
            .extend(section.notes.iter().map(|note| format!("{}, {}: {note}", section.history, section.configuration)));
    }
    const REMARKS_MAX: usize = 30;
    let more = remarks.len().saturating_sub(REMARKS_MAX);
    remarks.truncate(REMARKS_MAX);
    if more > 0 {
        remarks.push(format!("and {more} more (all in study.json)"));
    }
    let text = match remarks.is_empty() {
        true => "Nobody was left out.".to_owned(),
        false => format!("{}.", remarks.join("; ")),
    };
    let headings = [
        "History",
        "Task",
        "People",
        "Left out",
        "Records before",
        "Queries",
        "Queries without answer",
        "Answers outside the labels",
        "People with one answer",
        "Lines left out",
    ];
    (!rows.is_empty()).then(|| Part {
        heading: "The data".into(),
        text,
        headings: strings(headings),
        rows,
        figures: Vec::new(),
    })
}

pub(super) fn failures_part(findings: &Findings) -> Option<Part> {
    let rows: Vec<Vec<String>> = findings
        .failures
        .iter()
        .map(|one| vec![one.history.clone(), one.user.clone(), one.configuration.clone(), one.reason.clone()])
        .collect();
    (!rows.is_empty()).then(|| Part {
        heading: "What could not be measured".into(),
        text: "These people are in no mean of the configuration.".into(),
        headings: strings(["History", "User", "Configuration", "Reason"]),
        rows,
        figures: Vec::new(),
    })
}
