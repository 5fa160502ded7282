//! A small writer of SVG, and the arithmetic of axes.
//!
//! Our charts are lines, dots and text, which is less code than fitting a plotting crate to the page's colours: the
//! drawing only names classes, the page's style sheet gives them a light and a dark colour.

use std::fmt::Write;

use super::escape;

/// A drawing that scales with the page; sizes are in its own units (about a pixel on a phone).
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
    description: String,
}

/// Which end of a text its position names.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// `description` is read out in place of the drawing.
    pub fn new(width: f64, height: f64, description: impl Into<String>) -> Self {
        Self { body: String::new(), width, height, description: description.into() }
    }

    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(coordinate);
        self.push(format_args!(r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#));
    }

    pub fn rectangle(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let [x, y, width, height] = [corner.0, corner.1, size.0.max(0.0), size.1.max(0.0)].map(coordinate);
        self.push(format_args!(r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#));
    }

    /// A dot that tells `tooltip` when pointed at.
    pub fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, tooltip: &str) {
        let [x, y, radius] = [at.0, at.1, radius].map(coordinate);
        let tooltip = escape::html(tooltip);
        self.push(format_args!(
            r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}"><title>{tooltip}</title></circle>"#
        ));
    }

    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let [x, y] = [at.0, at.1].map(coordinate);
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape::html(text);
        self.push(format_args!(r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#));
    }

    /// A line through the points; `None` leaves a gap.
    pub fn curve(&mut self, class: &str, points: impl Iterator<Item = Option<(f64, f64)>>) {
        let mut path = String::new();
        let mut pen_down = false;
        for point in points {
            if let Some((x, y)) = point {
                let [x, y] = [x, y].map(coordinate);
                let _ = write!(path, "{}{x} {y}", if pen_down { 'L' } else { 'M' });
            }
            pen_down = point.is_some();
        }
        if !path.is_empty() {
            self.push(format_args!(r#"<path class="{class}" d="{path}"/>"#));
        }
    }

    pub fn finish(self) -> String {
        let (width, height) = (coordinate(self.width), coordinate(self.height));
        let description = escape::html(&self.description);
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{description}\">\n{}</svg>", self.body)
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        let _ = writeln!(self.body, "{element}");
    }
}

/// A tenth of a unit is finer than a screen; whole numbers are written without a point.
fn coordinate(value: f64) -> String {
    assert!(value.is_finite(), "a coordinate must be finite, charts leave out what is not");
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_string).unwrap_or(text)
}

/// Maps values onto a stretch of the drawing.
#[derive(Clone, Copy)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    pub fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }
}

/// An axis that covers its values, with round marks.
pub struct Axis {
    pub scale: Scale,
    /// Where marks stand, and what is written at them.
    pub marks: Vec<(f64, String)>,
}

/// Values beyond this are not drawn: their differences could overflow, and nothing real is so large.
pub const DRAWABLE_MAX: f64 = 1e30;

/// Whether a value can be drawn at all.
pub fn drawable(value: f64) -> bool {
    value.is_finite() && value.abs() <= DRAWABLE_MAX
}

impl Axis {
    /// Covers all drawable `values` and begins and ends at a mark, drawn from `from` to `to`. `None` if there are none.
    pub fn covering(values: impl Iterator<Item = f64>, from: f64, to: f64, marks: usize) -> Option<Self> {
        let (low, high) = stretch_of(values)?;
        let step = round_step((high - low) / marks as f64);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        Some(Self {
            scale: Scale { low: first * step, high: last * step, from, to },
            marks: marks_between(first, last, step),
        })
    }

    /// Covers all drawable `values` and nothing more; marks stand inside.
    pub fn spanning(values: impl Iterator<Item = f64>, from: f64, to: f64, marks: usize) -> Option<Self> {
        let (low, high) = stretch_of(values)?;
        let step = round_step((high - low) / marks as f64);
        let marks = marks_between((low / step).ceil(), (high / step).floor(), step);
        Some(Self { scale: Scale { low, high, from, to }, marks })
    }
}

/// Lowest and highest drawable value, apart enough to be told apart.
fn stretch_of(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values
        .filter(|value| drawable(*value))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return None;
    }
    // One value, or values equal to rounding, still need a stretch to stand in.
    let least = (low.abs().max(high.abs()) * 1e-6).max(1e-12);
    if high - low > least {
        return Some((low, high));
    }
    let margin = if low == 0.0 { 1.0 } else { low.abs() * 0.5 };
    Some((low - margin, high + margin))
}

/// Marks at whole multiples of `step`.
fn marks_between(first: f64, last: f64, step: f64) -> Vec<(f64, String)> {
    let count = (last - first + 1.0).max(0.0) as usize;
    (0..count).map(|index| (first + index as f64) * step).map(|mark| (mark, mark_text(mark, step))).collect()
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|round| *round >= step * 0.999).unwrap_or(power)
}

fn mark_text(mark: f64, step: f64) -> String {
    if mark.abs() < step / 2.0 {
        return "0".into();
    }
    if !(1e-3..1e6).contains(&step) {
        let power = mark.abs().log10().floor();
        return format!("{}e{power}", trimmed(mark / 10f64.powf(power)));
    }
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{mark:.digits$}")
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(values: &[f64]) -> Vec<String> {
        let axis = Axis::covering(values.iter().copied(), 0.0, 100.0, 4).unwrap();
        axis.marks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn marks_are_round_and_cover_the_values() {
        assert_eq!(marks(&[1.9, 5.5]), ["1", "2", "3", "4", "5", "6"]);
        assert_eq!(marks(&[0.0, 5e-4]), ["0", "2e-4", "4e-4", "6e-4"]);
        assert_eq!(
            marks(&[-0.31, 0.12]),
            ["-0.4", "-0.2", "0.0", "0.2"].map(|mark| if mark == "0.0" { "0" } else { mark })
        );
        assert_eq!(marks(&[0.0, 0.0]), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
    }

    #[test]
    fn any_values_give_a_finite_axis_or_none() {
        for values in [[1e300, -1e300], [f64::NAN, f64::INFINITY]] {
            assert!(Axis::covering(values.into_iter(), 0.0, 1.0, 4).is_none());
        }
        assert!(Axis::covering(std::iter::empty(), 0.0, 1.0, 4).is_none());
        for values in [[5.0, f64::NAN], [1e30, -1e30], [1e-300, 2e-300], [1.0, 1.0 + 1e-15], [-3.0, -3.0]] {
            let axis = Axis::covering(values.into_iter(), 10.0, 90.0, 4).unwrap();
            assert!((2..=8).contains(&axis.marks.len()), "{values:?} gave {} marks", axis.marks.len());
            for value in values.into_iter().filter(|value| value.is_finite()) {
                assert!((10.0..=90.0).contains(&axis.scale.at(value)), "{value}");
            }
        }
    }

    #[test]
    fn text_in_a_drawing_is_escaped() {
        let mut svg = Svg::new(10.0, 10.0, "a \"b\"");
        svg.text("label", (1.0, 2.25), Anchor::Start, "</text><script>");
        assert_eq!(
            svg.finish(),
            "<svg viewBox=\"0 0 10 10\" role=\"img\" aria-label=\"a &quot;b&quot;\">\n\
             <text class=\"label\" x=\"1\" y=\"2.2\" text-anchor=\"start\">&lt;/text&gt;&lt;script&gt;</text>\n</svg>"
        );
    }
}
