//! Values with their intervals, one below the other.

use super::WIDTH;
use crate::evaluation::Estimate;
use crate::report::svg::{Anchor, Axis, Svg, drawable};

const LEFT: f64 = 12.0;
const RIGHT: f64 = WIDTH - 12.0;
/// Label and value stand above the interval, so that long labels fit on a phone.
const LABEL_BASELINE: f64 = 16.0;
const LINE_HEIGHT: f64 = 15.0;
const AXIS_HEIGHT: f64 = 40.0;

pub struct IntervalRow {
    pub label: String,
    /// A second line in small print; empty for none.
    pub below: String,
    /// `None`: not measured.
    pub estimate: Option<Estimate>,
    /// The estimate as text.
    pub value: String,
    /// Colour class of the style sheet.
    pub colour: &'static str,
}

/// The drawing, `None` if no row has a value that can be drawn.
///
/// With `zero`, a line stands at zero and the names of its two sides below the axis.
pub fn interval_chart(
    description: &str,
    rows: &[IntervalRow],
    axis_name: &str,
    zero: Option<(&str, &str)>,
) -> Option<String> {
    let ends = |estimate: Estimate| {
        let interval = estimate.interval.map_or([estimate.value; 2], |interval| [interval.low, interval.high]);
        [interval[0], estimate.value, interval[1]]
    };
    let estimates =
        || rows.iter().filter_map(|row| row.estimate).filter(|estimate| ends(*estimate).into_iter().all(drawable));
    estimates().next()?;
    let values = estimates().flat_map(ends).chain(zero.map(|_| 0.0));
    let axis = Axis::covering(values, LEFT, RIGHT, 5)?;
    let second_line = if rows.iter().any(|row| !row.below.is_empty()) { LINE_HEIGHT } else { 0.0 };
    let text_height = LABEL_BASELINE + 6.0 + second_line;
    let row_height = text_height + 24.0;
    let bottom = row_height * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + AXIS_HEIGHT, description);
    for (mark, text) in &axis.marks {
        let x = axis.scale.at(*mark);
        svg.line("guide", (x, text_height), (x, bottom));
        let anchor = match x {
            x if x < LEFT + 8.0 => Anchor::Start,
            x if x > RIGHT - 8.0 => Anchor::End,
            _ => Anchor::Middle,
        };
        svg.text("mark", (x, bottom + 15.0), anchor, text);
    }
    let name_height = bottom + 33.0;
    match zero {
        Some((below, above)) => {
            let x = axis.scale.at(0.0);
            svg.line("zero", (x, text_height), (x, bottom));
            svg.text("name", (LEFT, name_height), Anchor::Start, &format!("← {below}"));
            svg.text("name", (WIDTH / 2.0, name_height), Anchor::Middle, axis_name);
            svg.text("name", (RIGHT, name_height), Anchor::End, &format!("{above} →"));
        }
        None => svg.text("name", (WIDTH / 2.0, name_height), Anchor::Middle, axis_name),
    }
    for (index, row) in rows.iter().enumerate() {
        let top = row_height * index as f64;
        // Labels cover the grid behind them, or the lines would run through the words.
        svg.rectangle("cover", (0.0, top), (WIDTH, text_height));
        svg.text("row", (LEFT, top + LABEL_BASELINE), Anchor::Start, &row.label);
        if !row.below.is_empty() {
            svg.text("name", (LEFT, top + LABEL_BASELINE + LINE_HEIGHT), Anchor::Start, &row.below);
        }
        svg.text("value", (RIGHT, top + LABEL_BASELINE), Anchor::End, &row.value);
        let Some(estimate) = row.estimate.filter(|estimate| ends(*estimate).into_iter().all(drawable)) else {
            continue;
        };
        let [low, value, high] = ends(estimate).map(|value| axis.scale.at(value));
        let y = top + text_height + 9.0;
        if estimate.interval.is_some() {
            svg.line(&format!("interval {}", row.colour), (low, y), (high, y));
        }
        svg.dot(&format!("dot {}", row.colour), (value, y), 5.5, &format!("{}: {}", row.label, row.value));
    }
    Some(svg.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Interval;

    fn row(value: f64, interval: Option<(f64, f64)>) -> IntervalRow {
        let interval = interval.map(|(low, high)| Interval { low, high });
        IntervalRow {
            label: "A & B".into(),
            below: String::new(),
            estimate: Some(Estimate { value, interval }),
            value: "v".into(),
            colour: "c1",
        }
    }

    #[test]
    fn rows_without_a_drawable_value_have_no_dot() {
        assert_eq!(interval_chart("d", &[], "nats", None), None);
        assert_eq!(interval_chart("d", &[row(f64::NAN, None)], "nats", None), None);
        let rows = [row(1.0, Some((0.5, 1.5))), row(f64::INFINITY, None), row(2.0, None)];
        let drawing = interval_chart("d", &rows, "nats", Some(("better", "worse"))).unwrap();
        assert_eq!(drawing.matches("<circle").count(), 2);
        assert_eq!(drawing.matches("class=\"interval").count(), 1);
        assert_eq!(drawing.matches("A &amp; B</text>").count(), 3);
    }
}
