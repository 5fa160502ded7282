//! The drawings of the report: one file a kind. All have the width of a phone and stand side by side on a screen.

mod interval_chart;
mod line_chart;

pub use interval_chart::{IntervalRow, interval_chart};
pub use line_chart::{LineChart, Series, Stroke, line_chart, smoothed};

/// Width of every drawing in its own units.
const WIDTH: f64 = 440.0;
