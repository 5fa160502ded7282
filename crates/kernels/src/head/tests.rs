use super::{CHUNK_TILES, reference};
use crate::ops::Precision;
use crate::qlinear::cases::{Random as Codes, random_matrix};
use crate::qlinear::{PackedMatrix, ScaleType, TILE};
use crate::testing::*;
use std::cell::RefCell;

struct Case {
    vocabulary: usize,
    width: usize,
    rows: usize,
    bits: u32,
    group_size: usize,
    /// Size of hidden values: with large ones the maximum grows from chunk to chunk and one word takes all.
    size: f32,
}

/// Round the tiles (64 words) and chunks (2048 words), more rows than a block has (504), odd widths of groups.
const CASES: [Case; 9] = [
    Case { vocabulary: 1, width: 16, rows: 2, bits: 4, group_size: 16, size: 1.0 },
    Case { vocabulary: 17, width: 32, rows: 1, bits: 4, group_size: 32, size: 30.0 },
    Case { vocabulary: 64, width: 64, rows: 7, bits: 4, group_size: 64, size: 10.0 },
    Case { vocabulary: 65, width: 48, rows: 6, bits: 8, group_size: 16, size: 100.0 },
    Case { vocabulary: 200, width: 128, rows: 0, bits: 4, group_size: 128, size: 1.0 },
    Case { vocabulary: 2048, width: 64, rows: 3, bits: 4, group_size: 64, size: 20.0 },
    Case { vocabulary: 2049, width: 64, rows: 4, bits: 5, group_size: 32, size: 300.0 },
    Case { vocabulary: 6000, width: 32, rows: 9, bits: 4, group_size: 32, size: 50.0 },
    Case { vocabulary: 70, width: 16, rows: 1010, bits: 4, group_size: 16, size: 20.0 },
];

struct Inputs {
    packed: PackedMatrix,
    dense: Vec<f64>,
    hidden: Vec<f32>,
    targets: Vec<u32>,
}

fn inputs(case: &Case, seed: u64) -> Inputs {
    let shape = (case.vocabulary, case.width);
    let matrix = random_matrix(shape, case.bits, case.group_size, ScaleType::BFloat16, &mut Codes(seed));
    let mut random = Random(seed);
    let dense = (0..case.vocabulary * case.width).map(|i| matrix.weight(i / case.width, i % case.width)).collect();
    Inputs {
        packed: PackedMatrix::pack(&matrix).expect("valid"),
        dense,
        hidden: random.values(case.rows * case.width).into_iter().map(|x| x * case.size).collect(),
        targets: (0..case.rows).map(|_| random.below(case.vocabulary) as u32).collect(),
    }
}

/// (losses, dh if wanted) after a run on everything.
fn run(name: &str, case: &Case, inputs: &Inputs, precision: Precision, factor: Option<f32>) -> (Vec<f32>, Vec<f32>) {
    // Losses go through a tensor too, so that runs are compared bit by bit.
    let tensors = [given(case.rows, case.width, &inputs.hidden), output(case.rows, case.width), output(case.rows, 1)];
    let losses = RefCell::new(vec![f32::NAN; case.rows]);
    let found = run_with(name, precision, &tensors, |ops, t| {
        let losses = &mut *losses.borrow_mut();
        losses.fill(f32::NAN);
        let gradient = factor.map(|factor| (t[1], factor));
        ops.head_cross_entropy(&inputs.packed, t[0], &inputs.targets, losses, gradient);
        ops.write(t[2], losses);
        let products = 1 + u64::from(factor.is_some());
        assert_eq!(ops.counters().frozen_macs, products * (case.rows * case.vocabulary * case.width) as u64);
    });
    let [_, dh, losses] = found.try_into().expect("three tensors");
    (losses, dh)
}

#[test]
fn losses_and_gradients_equal_the_reference() {
    const FACTOR: f32 = 0.37;
    let mut growing_rows = 0;
    for (index, case) in CASES.iter().enumerate() {
        let inputs = inputs(case, index as u64 + 1);
        let (v, d) = (case.vocabulary, case.width);
        let hidden = to_f64(&inputs.hidden);
        let (losses, gradient) = reference::losses_and_gradient(&inputs.dense, &hidden, &inputs.targets, v, d);
        let gradient: Vec<f64> = gradient.iter().map(|x| x * f64::from(FACTOR)).collect();
        growing_rows += rows_with_growing_maximum(&inputs.dense, &hidden, d);
        let largest_weight = inputs.dense.iter().fold(0f64, |max, w| max.max(w.abs()));
        // A logit is a sum of d products of this size at most.
        let logit = largest_weight * f64::from(case.size) * d as f64;
        for precision in Precision::ALL {
            let name = format!("head V {v} D {d} M {} {}", case.rows, precision.name());
            let (found, dh) = run(&name, case, &inputs, precision, Some(FACTOR));
            // Integer activations are off by half a step each, in random directions: a root of d instead of d.
            let (step, of_norm) = match precision {
                Precision::Exact => (f64::from(f32::EPSILON), 0.0),
                Precision::A16 => (4.0 / 32639.0 / (d as f64).sqrt(), 3e-4),
                Precision::A8 => (4.0 / 127.0 / (d as f64).sqrt(), 3e-2),
            };
            let logit_error = step * logit + f64::from(f32::EPSILON) * logit;
            assert_close(&format!("{name} losses"), &found, &losses, |i| {
                2.0 * logit_error + 4.0 * f64::from(f32::EPSILON) * (1.0 + losses[i].abs())
            });
            let gradient_error = f64::from(FACTOR) * largest_weight * (2.0 * logit_error + 1e-5);
            if precision == Precision::Exact {
                assert_close(&format!("{name} dh"), &dh, &gradient, |_| gradient_error);
            } else {
                let difference: Vec<f64> = dh.iter().zip(&gradient).map(|(a, b)| f64::from(*a) - b).collect();
                let bound = of_norm * norm(&gradient) + gradient_error * (gradient.len() as f64).sqrt();
                assert!(norm(&difference) <= bound, "{name}: dh is off by {}, bound {bound}", norm(&difference));
            }
            let (alone, untouched) = run(&name, case, &inputs, precision, None);
            assert_eq!(alone, found, "{name}: losses without a gradient");
            assert!(untouched.iter().all(|x| x.is_nan()), "{name}: a gradient was written");
        }
    }
    // Otherwise nothing above tells whether sums follow the maximum.
    assert!(growing_rows >= 3, "the maximum grows after the first chunk in {growing_rows} rows");
}

/// Rows whose largest logit is beyond the first chunk.
fn rows_with_growing_maximum(weight: &[f64], hidden: &[f64], width: usize) -> usize {
    let largest = |hidden: &[f64]| {
        let logit = |row: &[f64]| weighted_sum(row, hidden);
        weight.chunks(width).map(logit).enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(word, _)| word)
    };
    hidden.chunks(width).filter(|hidden| largest(hidden) >= CHUNK_TILES * TILE).count()
}

#[test]
fn the_reference_gradient_is_that_of_the_reference_losses() {
    let (v, d, targets) = (5, 3, [4, 0, 2, 2]);
    let mut random = Random(3);
    let weight = to_f64(&random.values(v * d));
    let hidden = to_f64(&random.values(targets.len() * d));
    let (_, gradient) = reference::losses_and_gradient(&weight, &hidden, &targets, v, d);
    assert_gradient("dh", &hidden, &gradient, |hidden| {
        reference::losses_and_gradient(&weight, hidden, &targets, v, d).0.iter().sum()
    });
}

#[test]
fn a_nan_row_has_a_nan_loss_and_no_other_row_has() {
    let case = Case { vocabulary: 2100, width: 32, rows: 8, bits: 4, group_size: 32, size: 5.0 };
    let mut inputs = inputs(&case, 9);
    inputs.hidden[3 * 32 + 5] = f32::NAN;
    for precision in Precision::ALL {
        let (losses, dh) = run("nan", &case, &inputs, precision, Some(1.0));
        for row in 0..8 {
            assert_eq!(losses[row].is_nan(), row == 3, "{} row {row}", precision.name());
            let nan = dh[row * 32..(row + 1) * 32].iter().filter(|x| x.is_nan()).count();
            assert_eq!(nan, if row == 3 { 32 } else { 0 }, "{} row {row}", precision.name());
        }
    }
}

#[test]
#[should_panic(expected = "a target is not below the vocabulary size 17")]
fn targets_outside_the_vocabulary_are_refused() {
    let case = &CASES[1];
    let mut inputs = inputs(case, 1);
    inputs.targets[0] = 17;
    run("target", case, &inputs, Precision::Exact, None);
}
