//! A study as one page, as Markdown and as JSON: the layouts of the paper's Tables 7 and 8 first, then who gains,
//! the swap control, the depth of the adapter, the length of the history, agreement, costs, and what was left out.

mod account;

use std::path::Path;

use serde_json::json;

use self::account::{cost_part, data_part, failures_part};
use super::definition::Study;
use super::findings::{Findings, MetricFinding, Section, StudyDifference};
use crate::error::EvalError;
use crate::evaluation::Estimate;
use crate::metrics::{Better, Metric};
use crate::report::charts::{IntervalRow, interval_chart};
use crate::report::escape::{html, markdown};
use crate::report::html::{arm_colour, figure, page, table};
use crate::report::markdown::push_table;
use crate::report::{Fact, ReportFiles, write_whole};
use crate::table::estimate_text;

/// A heading with a table, and drawings on the page.
struct Part {
    heading: String,
    text: String,
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Whole figures, already HTML.
    figures: Vec<String>,
}

/// Writes `study.html`, `study.md` and `study.json` into an existing folder, each whole or not at all.
pub fn write_study(
    folder: &Path,
    study: &Study,
    facts: &[Fact],
    findings: &Findings,
) -> Result<ReportFiles, EvalError> {
    let parts = parts(findings);
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        write_whole(folder, &path, text).map_err(|source| EvalError::Write { path: path.clone(), source })?;
        Ok(path)
    };
    let facts_json: serde_json::Map<String, serde_json::Value> =
        facts.iter().map(|fact| (fact.name.clone(), json!(fact.value))).collect();
    let mut whole = json!({"title": study.title, "about": study.about, "facts": facts_json, "study": study});
    if let (Some(whole), serde_json::Value::Object(found)) = (whole.as_object_mut(), findings.to_json()) {
        whole.extend(found);
    }
    Ok(ReportFiles {
        html: write("study.html", &render_html(study, facts, findings, &parts))?,
        markdown: write("study.md", &render_markdown(study, facts, findings, &parts))?,
        json: write("study.json", &format!("{whole:#}\n"))?,
    })
}

fn render_markdown(study: &Study, facts: &[Fact], findings: &Findings, parts: &[Part]) -> String {
    let mut text = format!("# {}\n", markdown(&study.title));
    if !study.about.is_empty() {
        text += &format!("\n{}\n", study.about.trim());
    }
    text.push('\n');
    facts.iter().for_each(|fact| text += &format!("- {}: {}\n", markdown(&fact.name), markdown(&fact.value)));
    if let Some(warning) = unfinished(findings) {
        text += &format!("\n**{warning}**\n");
    }
    for part in parts {
        text += &format!("\n## {}\n\n{}\n", markdown(&part.heading), part.text);
        if part.rows.is_empty() {
            continue;
        }
        text.push('\n');
        let escaped = |row: &Vec<String>| row.iter().map(|cell| markdown(cell)).collect();
        push_table(&mut text, &part.headings, part.rows.iter().map(escaped));
    }
    text
}

fn render_html(study: &Study, facts: &[Fact], findings: &Findings, parts: &[Part]) -> String {
    let line = |fact: &Fact| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", html(&fact.name), html(&fact.value));
    let facts: String = facts.iter().map(line).collect();
    let mut body = format!("<header>\n<h1>{}</h1>\n<dl class=\"inline-facts\">\n{facts}</dl>\n", html(&study.title));
    for paragraph in study.about.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        body += &format!("<p>{}</p>\n", html(paragraph.trim()));
    }
    if let Some(warning) = unfinished(findings) {
        body += &format!("<p class=\"caution\">{}</p>\n", html(&warning));
    }
    body += "</header>\n";
    for part in parts {
        body += &format!("<section>\n<h2>{}</h2>\n<p class=\"quiet\">{}</p>\n", html(&part.heading), html(&part.text));
        if !part.figures.is_empty() {
            body += &format!("<div class=\"grid\">\n{}</div>\n", part.figures.concat());
        }
        if !part.rows.is_empty() {
            let headings: String =
                part.headings.iter().map(|name| format!("<th scope=\"col\">{}</th>", html(name))).collect();
            let row = |row: &Vec<String>| {
                let cells: String = row.iter().map(|cell| format!("<td>{}</td>", html(cell))).collect();
                format!("<tr>{cells}</tr>\n")
            };
            let rows: String = part.rows.iter().map(row).collect();
            body += &table(&part.heading, &headings, &rows);
        }
        body += "</section>\n";
    }
    page(&study.title, &body)
}

fn unfinished(findings: &Findings) -> Option<String> {
    match findings.missing_units {
        0 => None,
        count => {
            Some(format!("Not finished: {count} parts are still to be measured. Numbers are of those that are there."))
        }
    }
}

fn parts(findings: &Findings) -> Vec<Part> {
    let all = [
        arms_part(findings),
        gains_part(findings),
        questions_part(findings),
        swap_part(findings),
        depth_part(findings),
        length_part(findings),
        agreement_part(findings),
        cost_part(findings),
        data_part(findings),
        failures_part(findings),
    ];
    all.into_iter().flatten().collect()
}

fn measured(findings: &Findings) -> impl Iterator<Item = (&Section, &MetricFinding)> {
    findings.sections.iter().flat_map(|section| section.metrics.iter().map(move |metric| (section, metric)))
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// `loss ↓` or `accuracy ↑`.
fn metric_name(metric: &Metric) -> String {
    let arrow = match metric.better {
        Better::Higher => "↑",
        Better::Lower => "↓",
    };
    format!("{} {arrow}", metric.label)
}

fn signed(metric: &Metric, estimate: Estimate) -> String {
    let digits = metric.digits;
    match estimate.interval {
        Some(interval) => {
            format!("{:+.digits$} [{:+.digits$}, {:+.digits$}]", estimate.value, interval.low, interval.high)
        }
        None => format!("{:+.digits$}", estimate.value),
    }
}

fn optional(metric: &Metric, estimate: Option<Estimate>) -> String {
    estimate.map_or("–".into(), |estimate| estimate_text(metric, estimate))
}

/// The layout of the paper's Table 7, with intervals, over queries; differences are to base with retrieval.
fn arms_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (section, metric) in measured(findings) {
        let mean = |name: &str| metric.arms.iter().find(|arm| arm.arm.name == name).and_then(|arm| arm.over_queries);
        let difference = |of: &str| {
            let found = metric.differences.iter().find(|one| one.of.name == of && one.minus.name == "retrieval");
            found.map_or("–".into(), |found| signed(metric.metric, found.over_queries))
        };
        let cell = |name: &str| optional(metric.metric, mean(name));
        rows.push(vec![
            section.history.clone(),
            section.configuration.clone(),
            metric_name(metric.metric),
            section.queries.to_string(),
            cell("base"),
            cell("retrieval"),
            cell("adapter"),
            difference("adapter"),
            cell("adapter_retrieval"),
            difference("adapter_retrieval"),
            cell("other_adapter"),
        ]);
        figures.extend(arms_figure(section, metric).filter(|_| is_leading(section, metric)));
    }
    let text = "The layout of the paper's Table 7: every arm over all queries. Δ is the difference to base with \
                retrieval over the same queries. In brackets, 95 % intervals from drawing queries."
        .to_owned();
    let headings = [
        "History",
        "Configuration",
        "Metric",
        "n",
        "Base",
        "Base+Retr.",
        "Adapter",
        "Δ",
        "Adapter+Retr.",
        "Δ",
        "Other's",
    ];
    (!rows.is_empty()).then(|| Part {
        heading: "The arms, over queries".into(),
        text,
        headings: strings(headings),
        rows,
        figures,
    })
}

/// Plots show the loss and the leading other metric; tables have all.
fn is_leading(section: &Section, metric: &MetricFinding) -> bool {
    let other = section.metrics.iter().find(|other| other.metric.name != "loss_per_answer_token");
    metric.metric.name == "loss_per_answer_token" || other.is_some_and(|other| std::ptr::eq(other, metric))
}

fn arms_figure(section: &Section, metric: &MetricFinding) -> Option<String> {
    let rows: Vec<IntervalRow> = metric
        .arms
        .iter()
        .map(|arm| IntervalRow {
            label: arm.arm.label.into(),
            below: String::new(),
            estimate: arm.over_users,
            value: optional(metric.metric, arm.over_users),
            colour: arm_colour(arm.arm),
        })
        .collect();
    let heading = format!("{}, {}: {}", section.history, section.configuration, metric_name(metric.metric));
    let text = format!("Mean over {} people; bars are 95 % intervals from drawing people.", section.users.len());
    let drawing = interval_chart(&described(&heading, &rows), &rows, "", None)?;
    Some(figure(&heading, &text, &drawing))
}

/// What a drawing shows, for whoever cannot see it.
fn described(heading: &str, rows: &[IntervalRow]) -> String {
    rows.iter().fold(format!("{heading}."), |text, row| format!("{text} {}: {}.", row.label, row.value))
}

/// The layout of the paper's Table 8: what the person's own adapter adds, over queries and over people.
fn gains_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    for (section, metric) in measured(findings) {
        for (of, minus) in [("adapter", "base"), ("adapter_retrieval", "retrieval")] {
            let Some(found) = metric.differences.iter().find(|one| one.of.name == of && one.minus.name == minus) else {
                continue;
            };
            let mean = |name: &str| {
                let arm = metric.arms.iter().find(|arm| arm.arm.name == name);
                arm.and_then(|arm| arm.over_queries)
                    .map_or("–".into(), |mean| format!("{:.*}", metric.metric.digits, mean.value))
            };
            rows.push(vec![
                section.history.clone(),
                section.configuration.clone(),
                metric_name(metric.metric),
                section.users.len().to_string(),
                format!("{:.1}", section.queries as f64 / section.users.len().max(1) as f64),
                found.minus.label.to_owned(),
                mean(minus),
                mean(of),
                signed(metric.metric, found.over_queries),
                signed(metric.metric, found.over_users),
            ]);
        }
    }
    let text = "The layout of the paper's Table 8: Δ is the gain over all queries, which weighs people by their \
                queries; Δu is the mean of each person's gain. The same queries in both arms. Intervals draw queries \
                for Δ, people for Δu."
        .to_owned();
    let headings =
        ["History", "Configuration", "Metric", "Users", "Test q/user", "Without", "Score", "+User", "Δ", "Δu"];
    (!rows.is_empty()).then(|| Part {
        heading: "What a person's own adapter adds".into(),
        text,
        headings: strings(headings),
        rows,
        figures: Vec::new(),
    })
}

/// Every paired difference, and the best arm.
fn questions_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    for (section, metric) in measured(findings) {
        for found in &metric.differences {
            rows.push(vec![
                section.history.clone(),
                section.configuration.clone(),
                metric_name(metric.metric),
                found.question.to_owned(),
                format!("{} − {}", found.of.label, found.minus.label),
                signed(metric.metric, found.over_users),
                format!("{} / {}", found.users_better, found.users_worse),
                found.outcome.answer().to_owned(),
            ]);
        }
        if let Some(best) = &metric.best {
            rows.push(vec![
                section.history.clone(),
                section.configuration.clone(),
                metric_name(metric.metric),
                "Is the best arm better than the next?".to_owned(),
                format!("{} − {}", best.arm.label, best.next.label),
                signed(metric.metric, best.difference),
                String::new(),
                best.outcome.answer().to_owned(),
            ]);
        }
    }
    let text = "Means of each person's difference with 95 % intervals from drawing people, and for how many people \
                the first is better or worse. \"cannot tell\": the interval includes zero."
        .to_owned();
    let headings =
        ["History", "Configuration", "Metric", "Question", "Difference", "Over people", "Better / worse", "Answer"];
    (!rows.is_empty()).then(|| Part {
        heading: "Differences".into(),
        text,
        headings: strings(headings),
        rows,
        figures: Vec::new(),
    })
}

fn swap(metric: &MetricFinding) -> Option<&StudyDifference> {
    metric.differences.iter().find(|one| one.of.name == "adapter" && one.minus.name == "other_adapter")
}

/// Own adapter against another person's, person by person.
fn swap_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (section, metric) in measured(findings) {
        let Some(found) = swap(metric) else { continue };
        rows.push(vec![
            section.history.clone(),
            section.configuration.clone(),
            metric_name(metric.metric),
            format!("{} of {}", found.users_better, found.by_user.len()),
            found.users_worse.to_string(),
            signed(metric.metric, found.over_queries),
            signed(metric.metric, found.over_users),
        ]);
        if metric.metric.name == "loss_per_answer_token" {
            figures.extend(swap_figure(section, metric.metric, found));
        }
    }
    let text =
        "Each person's queries are answered once with their own adapter and once with the next person's, trained \
                the same way on the other's history. What remains of the gain is the person's and not the task's."
            .to_owned();
    let headings = ["History", "Configuration", "Metric", "Own is better", "Own is worse", "Δ", "Δu"];
    (!rows.is_empty()).then(|| Part {
        heading: "Swap control: own adapter against another person's".into(),
        text,
        headings: strings(headings),
        rows,
        figures,
    })
}

fn swap_figure(section: &Section, metric: &Metric, found: &StudyDifference) -> Option<String> {
    let row = |(user, gain): &(String, f64)| {
        let is_better = (*gain < 0.0) == (metric.better == Better::Lower);
        IntervalRow {
            label: user.clone(),
            below: String::new(),
            estimate: Some(Estimate { value: *gain, interval: None }),
            value: format!("{gain:+.*}", metric.digits),
            colour: if *gain == 0.0 {
                "not_separable"
            } else if is_better {
                "better"
            } else {
                "worse"
            },
        }
    };
    let rows: Vec<IntervalRow> = found.by_user.iter().map(row).collect();
    let heading = format!("{}, {}: own − other's", section.history, section.configuration);
    let drawing =
        interval_chart(&described(&heading, &rows), &rows, metric.label, Some(("own is better", "other's is better")))?;
    Some(figure(&heading, "One dot a person.", &drawing))
}

/// The paper's ablation of depth: adapters on the last so many blocks.
fn depth_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    let mut histories: Vec<&str> = findings.sections.iter().map(|section| section.history.as_str()).collect();
    histories.dedup();
    for history in histories {
        let mut sections: Vec<&Section> =
            findings.sections.iter().filter(|one| one.history == history && one.depth.is_some()).collect();
        sections.sort_by_key(|section| std::cmp::Reverse(section.depth));
        for section in &sections {
            for metric in &section.metrics {
                for arm in metric.arms.iter().filter(|arm| arm.arm.adapter == crate::WhichAdapter::Own) {
                    let gain = metric.differences.iter().find(|one| {
                        one.of == arm.arm
                            && ["base", "retrieval"].contains(&one.minus.name)
                            && one.minus.retrieval == arm.arm.retrieval
                    });
                    rows.push(vec![
                        history.to_owned(),
                        section.depth.unwrap_or(0).to_string(),
                        arm.arm.label.to_owned(),
                        metric_name(metric.metric),
                        optional(metric.metric, arm.over_queries),
                        optional(metric.metric, arm.over_users),
                        gain.map_or("–".into(), |gain| signed(metric.metric, gain.over_users)),
                        tokens_per_second(section),
                    ]);
                }
            }
        }
        figures.extend(depth_figures(history, &sections));
    }
    let text =
        "Adapters on the last so many blocks, trained on the same records in the same order. The gain is to the \
                same prompt without an adapter, over people. Speed is that of training, on this machine with whatever \
                else ran."
            .to_owned();
    let headings = ["History", "Blocks", "Arm", "Metric", "Over queries", "Over people", "Gain", "Tokens/s"];
    (!rows.is_empty()).then(|| Part {
        heading: "Depth of the adapter".into(),
        text,
        headings: strings(headings),
        rows,
        figures,
    })
}

fn depth_figures(history: &str, sections: &[&Section]) -> Vec<String> {
    let Some(first) = sections.first() else { return Vec::new() };
    let leading = first.metrics.iter().filter(|metric| is_leading(first, metric));
    leading
        .filter_map(|leading| {
            let rows: Vec<IntervalRow> = sections
                .iter()
                .filter_map(|section| {
                    let metric = section.metrics.iter().find(|one| one.metric.name == leading.metric.name)?;
                    let arm = metric.arms.iter().find(|arm| arm.arm.name == "adapter")?;
                    Some(IntervalRow {
                        label: format!("last {} blocks", section.depth?),
                        below: String::new(),
                        estimate: arm.over_users,
                        value: optional(metric.metric, arm.over_users),
                        colour: "c2",
                    })
                })
                .collect();
            let heading = format!("{history}: {} by depth", metric_name(leading.metric));
            let drawing = interval_chart(&described(&heading, &rows), &rows, "", None)?;
            Some(figure(&heading, "Adapter alone; mean over people.", &drawing))
        })
        .collect()
}

fn tokens_per_second(section: &Section) -> String {
    let training = section.training;
    match training.seconds > 0.0 {
        true => format!("{:.0}", training.tokens as f64 / training.seconds),
        false => "–".into(),
    }
}

/// Gains by the number of records that were trained on.
fn length_part(findings: &Findings) -> Option<Part> {
    let mut rows = Vec::new();
    for (section, metric) in measured(findings) {
        for group in &metric.groups {
            rows.push(vec![
                section.history.clone(),
                section.configuration.clone(),
                metric_name(metric.metric),
                format!("{} − {}", group.of.label, group.minus.label),
                group.records(),
                group.users.to_string(),
                signed(metric.metric, group.gain),
            ]);
        }
    }
    let text = "Mean gain of the people whose history has so many records before the held-out ones.".to_owned();
    let headings = ["History", "Configuration", "Metric", "Gain of", "Records", "Users", "Mean gain"];
    (!rows.is_empty()).then(|| Part {
        heading: "Length of the history".into(),
        text,
        headings: strings(headings),
        rows,
        figures: Vec::new(),
    })
}

fn agreement_part(findings: &Findings) -> Option<Part> {
    let row = |found: &super::findings::AgreementFinding| {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let interval = found
            .differing
            .interval
            .map_or(String::new(), |interval| format!(" [{}, {}]", percent(interval.low), percent(interval.high)));
        let value = |value: Option<f64>| match (value, found.metric) {
            (Some(value), Some(metric)) => format!("{value:.*}", metric.digits),
            _ => "–".into(),
        };
        vec![
            found.history.clone(),
            found.left.clone(),
            found.right.clone(),
            found.arm.label.to_owned(),
            found.queries.to_string(),
            percent(found.differing.value) + &interval,
            found.metric.map_or("–".into(), metric_name),
            value(found.left_value),
            value(found.right_value),
        ]
    };
    let rows: Vec<Vec<String>> = findings.agreements.iter().map(row).collect();
    let text = "Share of predictions that differ between two configurations, such as two precisions or instruction \
                sets (the paper's section 7.4 finds 7.8 % between phone and server on movie tags): labels as they were \
                read, texts character by character."
        .to_owned();
    let headings = ["History", "One", "Other", "Arm", "n", "Differing", "Metric", "One's", "Other's"];
    (!rows.is_empty()).then(|| Part {
        heading: "Agreement".into(),
        text,
        headings: strings(headings),
        rows,
        figures: Vec::new(),
    })
}
