//! What the tests of all ops share: random values, runs on every instruction set and several thread counts with
//! guard regions round every tensor, and tolerances.

use crate::arena::{ArenaPlan, Tensor};
use crate::isa::Isa;
use crate::ops::{Ops, OpsOptions, Precision};
use crate::simd::record;

/// Reproducible values (a 64-bit linear congruential generator, high bits).
pub(crate) struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
    /// Uniform in [-1, 1).
    pub fn value(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }
    pub fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
    /// A whole number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.bits() as usize % end
    }
}

pub(crate) fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

/// A tensor of a test: its shape and what it holds before the op.
pub(crate) struct Given {
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f32>,
}

/// A tensor of given values.
pub(crate) fn given(rows: usize, columns: usize, values: &[f32]) -> Given {
    assert_eq!(values.len(), rows * columns);
    Given { rows, columns, values: values.to_vec() }
}

/// A tensor to be overwritten: NaN before the op.
pub(crate) fn output(rows: usize, columns: usize) -> Given {
    Given { rows, columns, values: vec![f32::NAN; rows * columns] }
}

/// Every instruction set that has kernels.
const ISA_NAMES: [&str; 7] = ["avx512vnni", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "portable"];

const GUARD: f32 = -1.234_567e30;
/// Not a multiple of 16, so that no tensor of a test is aligned: kernels must not rely on it.
const GUARD_FLOATS: usize = 21;

/// Runs `op` on tensors that hold `given`, on every instruction set with 1, 2 and 3 threads. Checks that guard
/// regions stay untouched, that kernels ran on the instruction set asked for, and that all runs give the same
/// bits. Returns all tensors after the op.
pub(crate) fn run_everywhere(name: &str, given: &[Given], op: impl Fn(&mut Ops, &[Tensor])) -> Vec<Vec<f32>> {
    run_with(name, Precision::Exact, given, op)
}

pub(crate) fn run_with(
    name: &str,
    precision: Precision,
    given: &[Given],
    op: impl Fn(&mut Ops, &[Tensor]),
) -> Vec<Vec<f32>> {
    let mut expected: Option<Vec<Vec<f32>>> = None;
    // Shown with --nocapture, and when the test fails.
    let ran: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    let missing: Vec<&str> = ISA_NAMES.into_iter().filter(|name| !ran.contains(name)).collect();
    println!("{name}: ran on {ran:?}, this machine lacks {missing:?}");
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let run = format!("{name} on {} with {threads} threads", isa.name());
            let found = run_once(&run, OpsOptions { threads, isa, precision }, given, &op);
            let Some(expected) = &expected else {
                expected = Some(found);
                continue;
            };
            for (tensor, (expected, found)) in expected.iter().zip(&found).enumerate() {
                for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
                    let same = expected.to_bits() == found.to_bits() || (expected.is_nan() && found.is_nan());
                    assert!(same, "{run}: tensor {tensor}, element {i}: {found:e}, first run {expected:e}");
                }
            }
        }
    }
    expected.expect("portable is always available")
}

fn run_once(run: &str, options: OpsOptions, given: &[Given], op: &impl Fn(&mut Ops, &[Tensor])) -> Vec<Vec<f32>> {
    let mut plan = ArenaPlan::new();
    let (mut guards, mut tensors) = (Vec::new(), Vec::new());
    for given in given {
        let len = given.values.len();
        let whole = plan.tensor(1, len + 2 * GUARD_FLOATS);
        guards.push(whole.flat_range(0..GUARD_FLOATS));
        tensors.push(whole.flat_range(GUARD_FLOATS..GUARD_FLOATS + len).reshaped(given.rows, given.columns));
        guards.push(whole.flat_range(GUARD_FLOATS + len..whole.len()));
    }
    let mut planner = Ops::planner(options);
    op(&mut planner, &tensors);
    let mut ops = Ops::new(options, &plan, planner.counters().scratch_bytes);
    for guard in &guards {
        ops.write(*guard, &vec![GUARD; guard.len()]);
    }
    for (tensor, given) in tensors.iter().zip(given) {
        ops.write(*tensor, &given.values);
    }
    record::take();
    op(&mut ops, &tensors);
    assert_eq!(ops.counters(), planner.counters(), "{run}: planned and real counts differ");
    let names = record::take();
    let expected = [options.isa.name(), options.isa.float_name()];
    assert!(names.iter().all(|name| expected.contains(name)), "{run}: kernels ran on {names:?}");
    if options.threads == 1 && given.iter().all(|given| !given.values.is_empty()) {
        assert!(!names.is_empty(), "{run}: no kernel ran");
    }
    for guard in &guards {
        let touched = ops.read(*guard).iter().position(|x| *x != GUARD);
        assert!(touched.is_none(), "{run}: a guard was overwritten at {touched:?}");
    }
    tensors.iter().map(|tensor| ops.read(*tensor).to_vec()).collect()
}

/// Asserts `|found - expected| <= bound[i]` for each element; NaN never passes. `bound` is per element because it
/// comes from the norms of what was summed there.
pub(crate) fn assert_close(name: &str, found: &[f32], expected: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(found.len(), expected.len(), "{name}: length");
    let mut worst: Option<(f64, usize)> = None;
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let excess = (f64::from(*found) - expected).abs() / bound(i);
        let excess = if excess.is_nan() { f64::INFINITY } else { excess };
        if worst.is_none_or(|(worst, _)| excess > worst) {
            worst = Some((excess, i));
        }
    }
    if let Some((excess, i)) = worst {
        assert!(
            excess <= 1.0,
            "{name}: element {i} of {} is {:e}, expected {:e}, bound {:e}",
            found.len(),
            found[i],
            expected[i],
            bound(i)
        );
    }
}

/// Euclidean norm.
pub(crate) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Checks `gradient` = d(loss)/d(input) by central differences of `loss` in float64 at every element.
pub(crate) fn assert_gradient(name: &str, input: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    let scale = gradient.iter().fold(1e-3f64, |max, g| max.max(g.abs()));
    let step = 1e-5;
    let mut moved = input.to_vec();
    for i in 0..input.len() {
        moved[i] = input[i] + step;
        let above = loss(&moved);
        moved[i] = input[i] - step;
        let below = loss(&moved);
        moved[i] = input[i];
        let difference = (above - below) / (2.0 * step);
        // Central differences are off by step^2 times the third derivative.
        assert!(
            (difference - gradient[i]).abs() <= 1e-6 * scale,
            "{name}: element {i}: gradient {:e}, difference {difference:e}",
            gradient[i]
        );
    }
}

/// Sum of products: the loss whose gradient with respect to `values` is `weights`.
pub(crate) fn weighted_sum(values: &[f64], weights: &[f64]) -> f64 {
    values.iter().zip(weights).map(|(a, b)| a * b).sum()
}
