//! Curves over training steps, or over time.

use super::WIDTH;
use crate::report::svg::{Anchor, Axis, Svg, drawable};

const HEIGHT: f64 = 260.0;
/// Room for marks on the left, for the legend above, for marks and the axis' name below.
const LEFT: f64 = 46.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// More points than this are drawn as the lowest and the highest of each stretch: no screen shows more.
const STRETCHES_MAX: usize = 300;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// Thin and pale: every value as it was.
    Raw,
    Line,
    /// A line with a dot at every value, for few values.
    Dotted,
}

pub struct Series<'a> {
    pub label: String,
    /// Colour class of the style sheet, `c0` and up.
    pub colour: &'static str,
    pub stroke: Stroke,
    pub points: &'a [(f64, f64)],
}

pub struct LineChart<'a> {
    pub description: String,
    /// What the level axis counts.
    pub across: &'static str,
    pub series: Vec<Series<'a>>,
    /// A vertical mark with its label.
    pub marked: Option<(f64, String)>,
    /// Whether the upright axis begins at zero, for values whose size matters more than their change.
    pub from_zero: bool,
}

/// The drawing, `None` if there is not one point that can be drawn.
pub fn line_chart(chart: &LineChart) -> Option<String> {
    let points =
        || chart.series.iter().flat_map(|series| series.points.iter()).filter(|(x, y)| drawable(*x) && drawable(*y));
    let steps = Axis::spanning(points().map(|point| point.0), LEFT, RIGHT, 5)?;
    let zero = chart.from_zero.then_some(0.0);
    let values = Axis::covering(points().map(|point| point.1).chain(zero), BOTTOM, TOP, 4)?;
    let mut svg = Svg::new(WIDTH, HEIGHT, chart.description.clone());
    for (mark, text) in &values.marks {
        let y = values.scale.at(*mark);
        svg.line("guide", (LEFT, y), (RIGHT, y));
        svg.text("mark", (LEFT - 8.0, y + 4.0), Anchor::End, text);
    }
    for (mark, text) in &steps.marks {
        svg.text("mark", (steps.scale.at(*mark), BOTTOM + 18.0), Anchor::Middle, text);
    }
    svg.text("name", ((LEFT + RIGHT) / 2.0, HEIGHT - 5.0), Anchor::Middle, chart.across);
    if let Some((step, label)) = chart.marked.as_ref().filter(|(step, _)| drawable(*step)) {
        let x = steps.scale.at(*step);
        svg.line("best", (x, TOP), (x, BOTTOM));
        let (anchor, shift) = if x > WIDTH / 2.0 { (Anchor::End, -5.0) } else { (Anchor::Start, 5.0) };
        svg.text("name", (x + shift, TOP + 12.0), anchor, label);
    }
    for series in &chart.series {
        let place = |(x, y): (f64, f64)| (drawable(x) && drawable(y)).then(|| (steps.scale.at(x), values.scale.at(y)));
        let kind = if series.stroke == Stroke::Raw { "raw" } else { "curve" };
        svg.curve(&format!("{kind} {}", series.colour), thinned(series.points).into_iter().map(place));
        if series.stroke == Stroke::Dotted && series.points.len() <= STRETCHES_MAX {
            for &(step, value) in series.points {
                if let Some(at) = place((step, value)) {
                    svg.dot(
                        &format!("dot {}", series.colour),
                        at,
                        3.5,
                        &format!("{}: {value:.3} at {} {step}", series.label, chart.across),
                    );
                }
            }
        }
    }
    legend(&mut svg, &chart.series);
    Some(svg.finish())
}

fn legend(svg: &mut Svg, series: &[Series]) {
    let mut x = LEFT;
    for series in series {
        let kind = if series.stroke == Stroke::Raw { "raw" } else { "curve" };
        let class = format!("{kind} {}", series.colour);
        svg.curve(&class, [(x, 14.0), (x + 16.0, 14.0)].into_iter().map(Some));
        svg.text("legend", (x + 21.0, 18.0), Anchor::Start, &series.label);
        x += 21.0 + 6.6 * series.label.chars().count() as f64 + 14.0;
    }
}

/// The points themselves if few; else the lowest and the highest of each stretch, in order. Gaps stay gaps.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * STRETCHES_MAX {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(2 * STRETCHES_MAX);
    for stretch in points.chunks(points.len().div_ceil(STRETCHES_MAX)) {
        let extreme = |better: fn(f64, f64) -> bool| {
            let finite = stretch.iter().enumerate().filter(|(_, point)| drawable(point.1));
            finite.reduce(|best, other| if better(other.1.1, best.1.1) { other } else { best })
        };
        match (extreme(|new, old| new < old), extreme(|new, old| new > old)) {
            (Some(lowest), Some(highest)) => {
                let (first, second) = if lowest.0 <= highest.0 { (lowest, highest) } else { (highest, lowest) };
                kept.push(*first.1);
                if second.0 != first.0 {
                    kept.push(*second.1);
                }
            }
            _ => kept.push((stretch[0].0, f64::NAN)),
        }
    }
    kept
}

/// A centred mean over about a fifteenth of the points (at least three), which follows the curve without lagging
/// behind it; it begins and ends where its window is whole. Points that are not finite are left out. Returns the
/// points and the width of the window.
pub fn smoothed(points: &[(f64, f64)]) -> (Vec<(f64, f64)>, usize) {
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(|(x, y)| drawable(*x) && drawable(*y)).collect();
    let half = (finite.len() / 30).max(1);
    let width = 2 * half + 1;
    let mean = |window: &[(f64, f64)]| (window[half].0, window.iter().map(|point| point.1).sum::<f64>() / width as f64);
    (finite.windows(width).map(mean).collect(), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_a_straight_line_and_evens_out_noise() {
        let straight: Vec<(f64, f64)> = (0..100).map(|step| (f64::from(step), 3.0 - 0.01 * f64::from(step))).collect();
        let (curve, width) = smoothed(&straight);
        assert_eq!(width, 7);
        assert_eq!(curve.len(), 94);
        assert!(curve.iter().zip(&straight[3..]).all(|(new, old)| (new.1 - old.1).abs() < 1e-12));
        let noisy: Vec<(f64, f64)> = (0..100).map(|step| (f64::from(step), f64::from(step % 2))).collect();
        assert!(smoothed(&noisy).0.iter().all(|point| (point.1 - 0.5).abs() < 0.1));
        assert_eq!(smoothed(&[(1.0, f64::NAN), (2.0, 1.0), (3.0, 1.0)]).0, []);
    }

    #[test]
    fn long_curves_keep_their_extremes() {
        let mut points: Vec<(f64, f64)> = (0..50_000).map(|step| (f64::from(step), 1.0)).collect();
        points[31_415].1 = 9.0;
        points[27_182].1 = -4.0;
        let kept = thinned(&points);
        assert!(kept.len() <= 2 * STRETCHES_MAX);
        assert!(kept.contains(&(31_415.0, 9.0)) && kept.contains(&(27_182.0, -4.0)));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn nothing_to_draw_is_no_drawing_and_gaps_are_gaps() {
        let draw = |points: &[(f64, f64)]| {
            let series = Series { label: "loss".into(), colour: "c2", stroke: Stroke::Line, points };
            line_chart(&LineChart {
                description: "d".into(),
                across: "step",
                series: vec![series],
                marked: None,
                from_zero: false,
            })
        };
        assert_eq!(draw(&[]), None);
        assert_eq!(draw(&[(0.0, f64::NAN), (1.0, f64::INFINITY)]), None);
        let drawing = draw(&[(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 2.0)]).unwrap();
        let path = drawing.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(path.matches('L').count(), 2, "{path}");
    }
}
