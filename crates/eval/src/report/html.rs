//! The page. Sections stand in the order in which a reader asks: does it help, how do we know, what does it write,
//! how did training go, what did it cost, on what data.

use std::fmt::Write;

use super::charts::{IntervalRow, LineChart, Series, Stroke, interval_chart, line_chart, smoothed};
use super::escape::{html as escaped, shortened};
use super::{Cost, Fact, ReportInputs, TrainingCurves, samples};
use crate::arms::{ARMS, Arm};
use crate::evaluation::{ArmResult, Evaluation};
use crate::metrics::{Better, Metric};
use crate::table::estimate_text;
use crate::verdict::{Finding, Verdict};

/// Longer answers are cut on the page; the JSON form has them whole.
const ANSWER_CHARACTERS_MAX: usize = 1200;
/// The metrics that are drawn; the table has all.
const DRAWN: [&str; 2] = ["loss_per_answer_token", "rouge_1"];

/// The whole page as text.
pub fn render_html(inputs: &ReportInputs) -> String {
    let mut body = header(inputs);
    if let Some(verdict) = inputs.verdict {
        body += &verdict_section(verdict);
    }
    if let Some(evaluation) = inputs.evaluation {
        body += &arms_section(evaluation);
        body += &differences_section(evaluation);
        body += &samples_section(evaluation, inputs.samples_max);
    }
    if let Some(curves) = &inputs.training {
        body += &training_section(curves);
    }
    body += &costs_section(&inputs.costs);
    body += &data_section(&inputs.data);
    body += &configuration_section(&inputs.configuration);
    page(&inputs.title, &body)
}

/// A page of its own around a body.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    let style = include_str!("style.css");
    // The policy forbids everything but the page's own style: even a mistake in escaping could load or run nothing.
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn header(inputs: &ReportInputs) -> String {
    let facts: String = inputs
        .facts
        .iter()
        .map(|fact| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(&fact.name), escaped(&fact.value)))
        .collect();
    let facts = if facts.is_empty() { facts } else { format!("<dl class=\"inline-facts\">\n{facts}</dl>\n") };
    format!("<header>\n<h1>{}</h1>\n{facts}</header>\n", escaped(&inputs.title))
}

fn verdict_section(verdict: &Verdict) -> String {
    let cautions: String =
        verdict.cautions.iter().map(|caution| format!("<p class=\"caution\">{}</p>\n", escaped(caution))).collect();
    let finding = |finding: &Finding| {
        let outcome = finding.outcome.name();
        let badge = finding.outcome.answer();
        let (question, sentence) = (escaped(finding.question), escaped(&finding.sentence));
        format!(
            "<li><span class=\"badge {outcome}\">{badge}</span><span><strong>{question}</strong> {sentence}</span></li>\n"
        )
    };
    let findings: String = verdict.findings.iter().map(finding).collect();
    format!(
        "<section class=\"card verdict {}\">\n<h2>{}</h2>\n<p>{}</p>\n{cautions}<ul class=\"findings\">\n{findings}</ul>\n\
         </section>\n",
        verdict.decision.name(),
        escaped(&verdict.headline),
        escaped(&verdict.reason),
    )
}

fn arms_section(evaluation: &Evaluation) -> String {
    let charts: String = drawn_metrics(evaluation).filter_map(|metric| arms_chart(evaluation, metric)).collect();
    let queries = evaluation.query_count();
    let held_out = if queries == 1 { "1 held-out record".into() } else { format!("{queries} held-out records") };
    format!(
        "<section>\n<h2>The arms</h2>\n<p class=\"quiet\">The same {held_out}, the person's newest, under every arm. \
         Dots are means, bars are 95 % intervals.</p>\n<div class=\"grid\">\n{charts}</div>\n{}{}</section>\n",
        arms_table(evaluation),
        method(evaluation)
    )
}

/// How the numbers came about, for whoever doubts them.
fn method(evaluation: &Evaluation) -> String {
    let metrics: String = evaluation.arms.first().map_or(String::new(), |first| {
        let line = |result: &crate::evaluation::MetricResult| {
            format!("<dt>{}</dt><dd>{}</dd>\n", escaped(result.metric.label), escaped(result.metric.meaning))
        };
        first.metrics.iter().map(line).collect()
    });
    let skipped = match evaluation.skipped.len() {
        0 => "none".to_string(),
        count => format!("{count}, from every arm; the first because {}", evaluation.skipped[0].reason),
    };
    format!(
        "<details class=\"card method\"><summary>How this was measured</summary>\n<dl class=\"facts\">\n{metrics}\
         <dt>Retrieval</dt><dd>Shows the most similar of the person's records that are older than the query: those \
         trained on, and older held-out ones. Never newer ones, never another person's.</dd>\n\
         <dt>Intervals</dt><dd>95 %, from {} bootstrap resamples of the queries (seed {}). Differences resample the \
         same queries in both arms.</dd>\n<dt>Left out</dt><dd>{}</dd>\n</dl>\n</details>\n",
        evaluation.bootstrap.resamples,
        evaluation.bootstrap.seed,
        escaped(&skipped)
    )
}

fn drawn_metrics(evaluation: &Evaluation) -> impl Iterator<Item = &'static Metric> {
    let measured: Vec<&'static Metric> =
        evaluation.arms.first().map(|arm| arm.metrics.iter().map(|result| result.metric).collect()).unwrap_or_default();
    DRAWN.into_iter().filter_map(move |name| measured.iter().copied().find(|metric| metric.name == name))
}

fn arms_chart(evaluation: &Evaluation, metric: &'static Metric) -> Option<String> {
    let rows: Vec<IntervalRow> = evaluation
        .arms
        .iter()
        .map(|result| {
            let estimate = result.estimate(metric.name);
            IntervalRow {
                label: result.arm.label.into(),
                below: String::new(),
                estimate,
                value: estimate.map_or("not measured".into(), |estimate| estimate_text(metric, estimate)),
                colour: arm_colour(result.arm),
            }
        })
        .collect();
    let direction = match metric.better {
        Better::Lower => "lower is better",
        Better::Higher => "higher is better",
    };
    let description = rows.iter().fold(format!("{} of each arm, {direction}.", metric.label), |text, row| {
        format!("{text} {}: {}.", row.label, row.value)
    });
    let drawing = interval_chart(&description, &rows, direction, None)?;
    Some(figure(metric.label, metric.meaning, &drawing))
}

fn arms_table(evaluation: &Evaluation) -> String {
    let Some(first) = evaluation.arms.first() else { return String::new() };
    let headings: String =
        first.metrics.iter().map(|result| format!("<th scope=\"col\">{}</th>", escaped(result.metric.label))).collect();
    let rows: String = evaluation
        .arms
        .iter()
        .map(|result| {
            let cells: String = (0..result.metrics.len()).map(|index| arm_cell(evaluation, result, index)).collect();
            let (colour, label) = (arm_colour(result.arm), escaped(result.arm.label));
            format!(
                "<tr><th scope=\"row\"><span class=\"key {colour}\"></span>{label}</th>{cells}<td>{}</td></tr>\n",
                result.rows.len()
            )
        })
        .collect();
    table("Metrics of each arm", &format!("<th scope=\"col\">Arm</th>{headings}<th scope=\"col\">Queries</th>"), &rows)
}

/// A value with its interval below, marked if it is the best of its column.
fn arm_cell(evaluation: &Evaluation, result: &ArmResult, index: usize) -> String {
    let measured = &result.metrics[index];
    let Some(estimate) = measured.estimate else { return "<td>–</td>".into() };
    let others = evaluation.arms.iter().filter_map(|arm| arm.metrics[index].estimate).map(|estimate| estimate.value);
    let (lowest, highest) =
        others.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    let best = match measured.metric.better {
        Better::Lower => estimate.value == lowest,
        Better::Higher => estimate.value == highest,
    };
    let class = if best && lowest < highest { " class=\"best\"" } else { "" };
    let digits = measured.metric.digits;
    let interval = estimate
        .interval
        .map(|interval| format!("<small>{:.digits$} – {:.digits$}</small>", interval.low, interval.high))
        .unwrap_or_default();
    format!("<td{class}>{:.digits$}{interval}</td>", estimate.value)
}

fn differences_section(evaluation: &Evaluation) -> String {
    let charts: String = drawn_metrics(evaluation).filter_map(|metric| differences_chart(evaluation, metric)).collect();
    if charts.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>Differences, query by query</h2>\n<p class=\"quiet\">The difference of two arms over the same \
         records answers a question. An interval that touches the line at zero shows nothing either way.</p>\n\
         <div class=\"grid\">\n{charts}</div>\n</section>\n"
    )
}

fn differences_chart(evaluation: &Evaluation, metric: &'static Metric) -> Option<String> {
    let rows: Vec<IntervalRow> = evaluation
        .differences
        .iter()
        .filter(|difference| difference.metric.name == metric.name)
        .map(|difference| {
            let digits = metric.digits;
            let value = difference.estimate.value;
            IntervalRow {
                label: difference.comparison.question.into(),
                below: format!("{} − {}", difference.comparison.of, difference.comparison.minus).replace('_', " "),
                estimate: Some(difference.estimate),
                value: match difference.estimate.interval {
                    Some(interval) => {
                        format!("{value:+.digits$} [{:+.digits$}, {:+.digits$}]", interval.low, interval.high)
                    }
                    None => format!("{value:+.digits$}"),
                },
                colour: difference.outcome.name(),
            }
        })
        .collect();
    let sides = match metric.better {
        Better::Lower => ("yes", "no"),
        Better::Higher => ("no", "yes"),
    };
    let description = rows
        .iter()
        .fold(format!("Differences in {}.", metric.label), |text, row| format!("{text} {} {}.", row.label, row.value));
    let drawing = interval_chart(&description, &rows, "difference", Some(sides))?;
    Some(figure(metric.label, metric.meaning, &drawing))
}

fn samples_section(evaluation: &Evaluation, count: usize) -> String {
    let samples = samples(evaluation, count);
    if samples.is_empty() {
        return String::new();
    }
    let answer = |class: &str, text: &str| match text.trim() {
        "" => "<dd class=\"empty\">nothing</dd>".to_string(),
        text => format!("<dd{class} dir=\"auto\">{}</dd>", escaped(&shortened(text, ANSWER_CHARACTERS_MAX))),
    };
    let cards: String = samples
        .iter()
        .map(|sample| {
            let mut rows =
                format!("<dt class=\"gold\">The person wrote</dt>{}\n", answer(" class=\"gold\"", sample.gold));
            for (arm, prediction) in &sample.predictions {
                let _ = writeln!(rows, "<dt>{}</dt>{}", escaped(arm.label), answer("", prediction));
            }
            let id = escaped(&shortened(sample.id, 120));
            format!("<article class=\"card sample\">\n<p class=\"quiet\">{id}</p>\n<dl>\n{rows}</dl>\n</article>\n")
        })
        .collect();
    format!(
        "<section>\n<h2>What it writes</h2>\n<p class=\"quiet\">Held-out records spread evenly over time, not chosen by \
         how well they turned out. Each arm writes its most likely answer.</p>\n<div class=\"samples\">\n{cards}</div>\n\
         </section>\n"
    )
}

fn training_section(curves: &TrainingCurves) -> String {
    let (smooth, width) = smoothed(&curves.loss);
    let last = |points: &[(f64, f64)]| points.last().map_or("none".into(), |point| format!("{:.3}", point.1));
    let mut series = Vec::new();
    if !curves.loss.is_empty() {
        series.push(Series { label: "each step".into(), colour: "c2", stroke: Stroke::Raw, points: &curves.loss });
    }
    if smooth.len() > 1 {
        series.push(Series { label: format!("mean of {width}"), colour: "c2", stroke: Stroke::Line, points: &smooth });
    }
    if !curves.validation_loss.is_empty() {
        series.push(Series {
            label: "validation".into(),
            colour: "c4",
            stroke: Stroke::Dotted,
            points: &curves.validation_loss,
        });
    }
    let description = format!(
        "Loss over training. Training loss at the end {}, validation loss at the end {}.",
        last(&smooth),
        last(&curves.validation_loss)
    );
    let marked = curves.best_step.map(|step| (step as f64, format!("best: step {step}")));
    let loss = line_chart(&LineChart { description, across: "optimizer step", series, marked, from_zero: false });
    let rate = line_chart(&LineChart {
        description: "Learning rate over training.".into(),
        across: "optimizer step",
        series: vec![Series {
            label: "learning rate".into(),
            colour: "c1",
            stroke: Stroke::Line,
            points: &curves.learning_rate,
        }],
        marked: None,
        from_zero: true,
    });
    let figures = [
        loss.map(|drawing| {
            figure("Loss", "Nats per supervised token; validation records are never trained on.", &drawing)
        }),
        rate.map(|drawing| figure("Learning rate", "Warm-up and decay, by optimizer step.", &drawing)),
    ];
    let figures: String = figures.into_iter().flatten().collect();
    if figures.is_empty() {
        return "<section>\n<h2>Training</h2>\n<p class=\"quiet\">No step was recorded.</p>\n</section>\n".into();
    }
    format!("<section>\n<h2>Training</h2>\n<div class=\"grid\">\n{figures}</div>\n</section>\n")
}

fn costs_section(costs: &[Cost]) -> String {
    if costs.is_empty() {
        return String::new();
    }
    let cell = |value: &Option<String>| value.as_deref().map_or("–".into(), escaped);
    let rows: String = costs
        .iter()
        .map(|cost| {
            let (planned, measured) = (cell(&cost.planned), cell(&cost.measured));
            format!("<tr><th scope=\"row\">{}</th><td>{planned}</td><td>{measured}</td></tr>\n", escaped(&cost.name))
        })
        .collect();
    let heading = "<th scope=\"col\"></th><th scope=\"col\">Planned</th><th scope=\"col\">Measured</th>";
    format!("<section>\n<h2>Cost</h2>\n{}</section>\n", table("Planned and measured cost", heading, &rows))
}

fn data_section(facts: &[Fact]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>Data</h2>\n<div class=\"card\">{}</div>\n</section>\n", fact_list("facts", facts))
}

fn configuration_section(facts: &[Fact]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>Configuration</h2>\n<details class=\"card\"><summary>All {} settings of the run</summary>\n{}\
         </details>\n</section>\n",
        facts.len(),
        fact_list("facts configuration", facts)
    )
}

fn fact_list(class: &str, facts: &[Fact]) -> String {
    let rows: String = facts
        .iter()
        .map(|fact| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(&fact.name), escaped(&fact.value)))
        .collect();
    format!("<dl class=\"{class}\">\n{rows}</dl>\n")
}

pub(crate) fn figure(heading: &str, text: &str, drawing: &str) -> String {
    format!(
        "<figure class=\"card\">\n<figcaption><h3>{}</h3><span class=\"quiet\">{}</span></figcaption>\n{drawing}\n</figure>\n",
        escaped(heading),
        escaped(text)
    )
}

/// Wide tables scroll within their card; the region can be reached and scrolled with the keyboard.
pub(crate) fn table(label: &str, heading: &str, rows: &str) -> String {
    format!(
        "<div class=\"card scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">\n<table>\n<thead><tr>{heading}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        escaped(label)
    )
}

/// Each arm has one colour on all pages.
pub(crate) fn arm_colour(arm: &Arm) -> &'static str {
    let place = ARMS.iter().position(|known| known == arm).unwrap_or(0);
    ["c0", "c1", "c2", "c3", "c4"][place % 5]
}
