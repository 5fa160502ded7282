//! One self-contained report of a run: what was decided, why, how training went, what it cost, on which data.
//!
//! The page needs no script and no network, follows the reader's light or dark theme, and can be read on a phone.
//! Everything that a model, a person or a file wrote is escaped: it is shown, never interpreted.

pub(crate) mod charts;
pub(crate) mod escape;
pub(crate) mod html;
mod json;
pub(crate) mod markdown;
mod samples;
mod svg;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use html::render_html;
pub use json::render_json;
pub use markdown::render_markdown;
pub use samples::{Sample, samples};

use crate::error::EvalError;
use crate::evaluation::Evaluation;
use crate::verdict::Verdict;

/// What a report shows. Every part may be missing: its section is then left out.
#[derive(Clone, Debug, Default)]
pub struct ReportInputs<'a> {
    /// Such as `author-08 on SmolLM2-135M-Instruct`.
    pub title: String,
    /// Short facts under the title: model, history, date, machine.
    pub facts: Vec<Fact>,
    pub verdict: Option<&'a Verdict>,
    pub evaluation: Option<&'a Evaluation>,
    pub training: Option<TrainingCurves>,
    /// Plan beside what was measured.
    pub costs: Vec<Cost>,
    /// Records read, kept, skipped, truncated; tokens.
    pub data: Vec<Fact>,
    /// The resolved configuration; [`configuration_facts`] makes it from JSON.
    pub configuration: Vec<Fact>,
    /// Generated answers to show beside the real ones.
    pub samples_max: usize,
}

/// A name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

impl Fact {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// One line of plan against measurement, with units in the text ("312 s", "1.21 GB").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    pub name: String,
    pub planned: Option<String>,
    pub measured: Option<String>,
}

/// What training recorded, as (optimizer step, value). Values that are not finite leave a gap in the curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingCurves {
    /// Loss per supervised token in nats, a point a step.
    pub loss: Vec<(f64, f64)>,
    /// The same over the validation records.
    pub validation_loss: Vec<(f64, f64)>,
    pub learning_rate: Vec<(f64, f64)>,
    /// The step whose adapter was kept as the best.
    pub best_step: Option<u64>,
}

/// The files that [`write_report`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFiles {
    pub html: PathBuf,
    pub markdown: PathBuf,
    pub json: PathBuf,
}

/// Writes `report.html`, `report.md` and `report.json` into an existing folder. Each appears whole or not at all.
pub fn write_report(folder: &Path, inputs: &ReportInputs) -> Result<ReportFiles, EvalError> {
    let json = format!("{:#}\n", render_json(inputs));
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        write_whole(folder, &path, text).map_err(|source| EvalError::Write { path: path.clone(), source })?;
        Ok(path)
    };
    Ok(ReportFiles {
        html: write("report.html", &render_html(inputs))?,
        markdown: write("report.md", &render_markdown(inputs))?,
        json: write("report.json", &json)?,
    })
}

/// A curve of a drawing of its own.
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// A drawing of curves as a file of its own, with the report's colours. Its upright axis begins at zero. None if there is
/// nothing to draw.
pub fn curves_svg(description: &str, across: &'static str, curves: &[Curve]) -> Option<String> {
    const COLOURS: [&str; 5] = ["c2", "c4", "c1", "c3", "c0"];
    let series = curves.iter().zip(COLOURS.into_iter().cycle()).map(|(curve, colour)| charts::Series {
        label: curve.label.clone(),
        colour,
        stroke: charts::Stroke::Line,
        points: &curve.points,
    });
    let chart = charts::LineChart {
        description: description.to_owned(),
        across,
        series: series.collect(),
        marked: None,
        from_zero: true,
    };
    let (opening, rest) = charts::line_chart(&chart)?.split_once('>').map(|(a, b)| (a.to_owned(), b.to_owned()))?;
    let style = include_str!("style.css");
    Some(format!("{opening} xmlns=\"http://www.w3.org/2000/svg\">\n<style>\n{style}</style>{rest}\n"))
}

pub(crate) fn write_whole(folder: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// A configuration as facts: nested keys joined by points, lists in one line.
pub fn configuration_facts(configuration: &Value) -> Vec<Fact> {
    fn collect(prefix: &str, value: &Value, facts: &mut Vec<Fact>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                    collect(&name, value, facts);
                }
            }
            Value::String(text) => facts.push(Fact::new(prefix, text)),
            other => facts.push(Fact::new(prefix, other.to_string())),
        }
    }
    let mut facts = Vec::new();
    collect("", configuration, &mut facts);
    facts
}
