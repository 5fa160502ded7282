//! The products on every instruction set of this machine against float64 and against each other.

use super::cases::{Random, random_matrix};
use super::*;
use crate::arena::ArenaPlan;
use crate::ops::OpsOptions;

/// One product and its inputs.
struct Case {
    matrix: AffineMatrix,
    packed: PackedMatrix,
    rows: usize,
    /// x [rows, k] or dY [rows, n].
    input: Vec<f32>,
    direction: Direction,
}

impl Case {
    fn new(matrix: AffineMatrix, rows: usize, direction: Direction, random: &mut Random) -> Self {
        let packed = PackedMatrix::pack(&matrix).expect("valid matrix");
        let columns = if direction == Direction::Forward { matrix.k_in } else { matrix.n_out };
        Self { input: random.normals(rows * columns), matrix, packed, rows, direction }
    }

    fn describe(&self) -> String {
        let m = &self.matrix;
        format!(
            "{} [{}, {}] bits {} group {} {} rows {}",
            self.direction.name(),
            m.n_out,
            m.k_in,
            m.bits,
            m.group_size,
            m.scale_type.name(),
            self.rows
        )
    }

    fn columns_out(&self) -> usize {
        if self.direction == Direction::Forward { self.matrix.n_out } else { self.matrix.k_in }
    }

    /// Runs the product between guard regions and gives its output.
    fn run(&self, isa: Isa, threads: usize, precision: Precision) -> Vec<f32> {
        let options = OpsOptions { threads, isa, precision };
        let mut plan = ArenaPlan::new();
        let input = plan.tensor(self.rows, self.input.len() / self.rows);
        let guard_before = plan.tensor(1, 64);
        let output = plan.tensor(self.rows, self.columns_out());
        let guard_after = plan.tensor(1, 64);
        let step = |ops: &mut Ops| match self.direction {
            Direction::Forward => ops.qlinear_forward(input, &[(&self.packed, output)]),
            Direction::InputGrad => ops.qlinear_input_grad(&[(&self.packed, input)], output, false),
        };
        let mut planner = Ops::planner(options);
        step(&mut planner);
        let mut ops = Ops::new(options, &plan, planner.counters().scratch_bytes);
        ops.write(input, &self.input);
        ops.write(output, &vec![f32::NAN; output.len()]);
        let guard: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
        ops.write(guard_before, &guard);
        ops.write(guard_after, &guard);
        crate::simd::record::take();
        step(&mut ops);
        assert_eq!(crate::simd::record::take(), [isa.name()], "{}", self.describe());
        assert_eq!(ops.counters().frozen_macs, (self.rows * self.matrix.n_out * self.matrix.k_in) as u64);
        assert_eq!(ops.read(input), self.input, "the input changed: {}", self.describe());
        assert_eq!(ops.read(guard_before), guard, "written before the output: {}", self.describe());
        assert_eq!(ops.read(guard_after), guard, "written after the output: {}", self.describe());
        ops.read(output).to_vec()
    }

    /// Checks one output against float64: every element within `bound` of the norms that meet in it.
    fn check(&self, output: &[f32], precision: Precision) {
        let (expected, bounds) = self.expected(precision);
        let worst = output
            .iter()
            .zip(expected.iter().zip(&bounds))
            .map(|(found, (expected, bound))| (f64::from(*found) - expected).abs() / bound.max(1e-300))
            .enumerate()
            .fold((0, 0.0), |worst, (at, ratio)| if ratio > worst.1 || ratio.is_nan() { (at, ratio) } else { worst });
        assert!(
            worst.1 <= 1.0,
            "{} {}: [{}, {}] is {}, expected {} within {}",
            self.describe(),
            precision.name(),
            worst.0 / self.columns_out(),
            worst.0 % self.columns_out(),
            output[worst.0],
            expected[worst.0],
            bounds[worst.0]
        );
    }

    /// float64 outputs and how far each may be off.
    ///
    /// An integer input is off by half a step, (largest of its group) / (2·integer_max). The bound multiplies the
    /// largest over the whole row with the sum of |w|, for the input gradient with a second such term for the
    /// rounded scale and one for the rounding of their product; float32 steps add 2^-23 times a small depth.
    fn expected(&self, precision: Precision) -> (Vec<f64>, Vec<f64>) {
        let (expected, sizes) = match self.direction {
            Direction::Forward => reference::forward(&self.matrix, &self.input),
            Direction::InputGrad => reference::input_grad(&self.matrix, &self.input),
        };
        let step = match (precision, self.direction) {
            (Precision::Exact, _) => 0.0,
            (Precision::A16, Direction::Forward) => 0.5 / 32639.0,
            (Precision::A8, Direction::Forward) => 0.5 / 127.0,
            (Precision::A16, Direction::InputGrad) => 1.5 / 32767.0,
            (Precision::A8, Direction::InputGrad) => 1.5 / 127.0,
        };
        let (columns_in, columns_out) = (self.input.len() / self.rows, self.columns_out());
        // Sum over the summation index of the largest |scale·code range| that meets an output.
        let weight_size = self.weight_sizes();
        let bounds = (0..expected.len())
            .map(|at| {
                let row = &self.input[at / columns_out * columns_in..][..columns_in];
                let largest = row.iter().fold(0f64, |max, x| max.max(f64::from(x.abs())));
                let roundings = 4.0 + (self.input.len() / self.rows) as f64 / 16.0;
                step * largest * weight_size[at % columns_out] + f64::from(f32::EPSILON) * roundings * sizes[at] * 4.0
            })
            .collect();
        (expected, bounds)
    }

    /// For each output column, the sum of what one step of each input element can change it by.
    fn weight_sizes(&self) -> Vec<f64> {
        let m = &self.matrix;
        let row_max: Vec<f64> = m
            .scales
            .chunks(m.groups_per_row())
            .map(|row| row.iter().fold(0f64, |max, scale| max.max(f64::from(scale.abs()))))
            .collect();
        let centre = f64::from(1 << (m.bits - 1));
        match self.direction {
            Direction::Forward => (0..m.n_out).map(|n| (0..m.k_in).map(|k| m.weight(n, k).abs()).sum()).collect(),
            Direction::InputGrad => {
                let largest = row_max.iter().cloned().fold(0.0, f64::max);
                (0..m.k_in)
                    .map(|k| {
                        (0..m.n_out)
                            .map(|n| largest * (f64::from(m.codes[n * m.k_in + k]) - centre).abs().max(1.0))
                            .sum()
                    })
                    .collect()
            }
        }
    }
}

fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    let differs = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()));
    assert_eq!(a.len(), b.len(), "{what}");
    if let Some(at) = differs {
        panic!("{what}: element {at} is {} on one and {} on the other", a[at], b[at]);
    }
}

/// Runs a case on everything: against float64, and all variants against each other.
fn sweep(case: &Case) {
    for precision in Precision::ALL {
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let output = case.run(isa, 1, precision);
            match &first {
                None => {
                    case.check(&output, precision);
                    first = Some(output);
                }
                Some(first) => {
                    let what = format!("{} {} on {}", case.describe(), precision.name(), isa.name());
                    assert_same_bits(first, &output, &what);
                }
            }
        }
    }
}

#[test]
fn row_counts_around_every_tile_edge() {
    let mut random = Random(11);
    for direction in Direction::ALL {
        for rows in (1..=13).chain([17, 18, 19]) {
            let matrix = random_matrix((70, 96), 4, 32, ScaleType::Float16, &mut random);
            sweep(&Case::new(matrix, rows, direction, &mut random));
        }
    }
}

#[test]
fn shapes_groups_bits_and_scale_types() {
    let mut random = Random(12);
    for direction in Direction::ALL {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group_size in GROUP_SIZES {
                for scale_type in ScaleType::ALL {
                    for (n_out, groups) in [(1, 1), (48, 3), (65, 2), (129, 5), (192, 1)] {
                        if (n_out + groups + bits as usize + group_size / 16) % 3 != 0 {
                            continue;
                        }
                        let shape = (n_out, groups * group_size);
                        let matrix = random_matrix(shape, bits, group_size, scale_type, &mut random);
                        sweep(&Case::new(matrix, 1 + random.bits() as usize % 8, direction, &mut random));
                    }
                }
            }
        }
    }
}
