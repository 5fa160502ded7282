//! The products on every instruction set of this machine against float64 and against each other.

use super::cases::{Random, random_matrix};
use super::*;
use crate::arena::ArenaPlan;
use crate::ops::OpsOptions;

/// Inputs below 1e-30 may count as zero: with weights of this size no output is off by more.
const FLUSHED: f64 = 1e-27;

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
        // Workers other than this thread keep their own record.
        let ran = crate::simd::record::take();
        let expected = [isa.name(), isa.float_name()];
        let as_asked = ran.contains(&isa.name()) && ran.iter().all(|name| expected.contains(name));
        assert!(as_asked || threads > 1 && ran.is_empty(), "{} ran on {ran:?}", self.describe());
        assert_eq!(ops.counters().frozen_macs, (self.rows * self.matrix.n_out * self.matrix.k_in) as u64);
        assert_same_bits(ops.read(input), &self.input, "the input");
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
            .map(|(found, (expected, bound))| (f64::from(*found) - expected).abs() / bound.max(FLUSHED))
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
    /// An integer input is off by half a step: (largest of its group) / integer_max, or, if that is more, what keeps
    /// the sum of a group's integers under 524200, so never more than the largest / 8190. The bound multiplies the
    /// largest such step over the whole row with the sum of |w|, for the input gradient with a second such term for the
    /// rounded scale and one for the rounding of their product; float32 steps add 2^-23 times a small depth.
    fn expected(&self, precision: Precision) -> (Vec<f64>, Vec<f64>) {
        let (expected, sizes) = match self.direction {
            Direction::Forward => reference::forward(&self.matrix, &self.input),
            Direction::InputGrad => reference::input_grad(&self.matrix, &self.input),
        };
        let step = match (precision, self.direction) {
            (Precision::Exact, _) => 0.0,
            (Precision::A16, Direction::Forward) => 0.5,
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
                let mut largest = row.iter().fold(0f64, |max, x| max.max(f64::from(x.abs())));
                if (precision, self.direction) == (Precision::A16, Direction::Forward) {
                    // What one integer stands for.
                    let sums = row.chunks(self.matrix.group_size.min(64));
                    let sums = sums.map(|group| group.iter().map(|x| f64::from(x.abs())).sum::<f64>());
                    largest = sums.fold(largest / 32639.0, |max, sum| max.max(sum / 524_200.0));
                }
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
                        if !(n_out + groups + bits as usize + group_size / 16).is_multiple_of(3) {
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

/// A case with the matrix of a real layer in small: group 32, two groups a tile.
fn usual(shape: (usize, usize), rows: usize, direction: Direction, seed: u64) -> Case {
    let mut random = Random(seed);
    let matrix = random_matrix(shape, 4, 32, ScaleType::Float16, &mut random);
    Case::new(matrix, rows, direction, &mut random)
}

/// How rows and the common dimension are cut into parts depends on the number of threads, the bits do not.
#[test]
fn parts_larger_than_the_caches_of_the_threads_do_not_change_a_bit() {
    for (shape, direction) in [((70, 2112), Direction::Forward), ((2112, 96), Direction::InputGrad)] {
        let case = usual(shape, 560, direction, 29);
        for precision in [Precision::A16, Precision::A8] {
            let output = case.run(Isa::best(), 1, precision);
            for threads in [2, 3] {
                let what = format!("{} {} with {threads} threads", case.describe(), precision.name());
                assert_same_bits(&output, &case.run(Isa::best(), threads, precision), &what);
            }
        }
    }
}

#[test]
fn row_blocks_and_threads_do_not_change_a_bit() {
    for direction in Direction::ALL {
        for rows in [251, 252, 253, 503, 504, 505, 510] {
            let case = usual((80, 96), rows, direction, 13);
            for precision in Precision::ALL {
                let output = case.run(Isa::best(), 1, precision);
                if rows == 253 {
                    case.check(&output, precision);
                }
                for threads in [2, 3] {
                    let what = format!("{} {} with {threads} threads", case.describe(), precision.name());
                    assert_same_bits(&output, &case.run(Isa::best(), threads, precision), &what);
                }
                // The same rows alone, one and a few at a time.
                for (first, count) in [(0, 1), (rows - 1, 1), (rows / 2, 7)] {
                    let columns = case.input.len() / rows;
                    let alone = Case {
                        matrix: case.matrix.clone(),
                        packed: case.packed.clone(),
                        rows: count,
                        input: case.input[first * columns..(first + count) * columns].to_vec(),
                        direction,
                    };
                    let part = &output[first * case.columns_out()..(first + count) * case.columns_out()];
                    let what = format!("{} {} rows {first}..+{count}", case.describe(), precision.name());
                    assert_same_bits(part, &alone.run(Isa::best(), 1, precision), &what);
                }
            }
        }
    }
}

/// Integers at the ends of their ranges: every code 0 or the largest, every input the same size, scales of both
/// signs. A sum that left 32 bits, or 16 inside an instruction, would be off by far more than the bound.
#[test]
fn extreme_codes_and_inputs_do_not_overflow() {
    for direction in Direction::ALL {
        for bits in [4, 8] {
            for group_size in [16, 64, 128] {
                for pattern in 0..4 {
                    let mut case = usual((130, 256), 7, direction, 14);
                    let largest = ((1u16 << bits) - 1) as u8;
                    let m = &mut case.matrix;
                    (m.bits, m.group_size) = (bits, group_size);
                    let groups = m.n_out * m.k_in / group_size;
                    let sign = |i: usize, bit: usize| if i >> bit & 1 == 0 { 1.0f32 } else { -1.0 };
                    m.codes.iter_mut().enumerate().for_each(|(i, code)| {
                        *code = if pattern == 0 || pattern == 1 && i % 2 == 0 || pattern == 2 && i / 3 % 2 == 0 {
                            largest
                        } else {
                            0
                        };
                    });
                    m.scales = (0..groups).map(|i| if pattern < 2 { 0.5 } else { 0.5 * sign(i, 0) }).collect();
                    m.biases = (0..groups).map(|i| if pattern == 0 { 0.0 } else { -2.0 * sign(i, 1) }).collect();
                    for (i, x) in case.input.iter_mut().enumerate() {
                        *x = if pattern == 0 { 3.0 } else { 3.0 * sign(i, pattern - 1) };
                    }
                    case.packed = PackedMatrix::pack(&case.matrix).expect("valid");
                    sweep(&case);
                }
            }
        }
    }
}

#[test]
fn zero_tiny_huge_and_poisoned_rows() {
    let special = [0.0, 1e-38, 1e-25, 1e25, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for direction in Direction::ALL {
        for (bits, group_size) in [(4, 32), (8, 64)] {
            for symmetric in [false, true] {
                let mut case = usual((70, 192), special.len() + 2, direction, 15);
                (case.matrix.bits, case.matrix.group_size) = (bits, group_size);
                let groups = case.matrix.n_out * case.matrix.k_in / group_size;
                case.matrix.scales = vec![0.125; groups];
                let centre = (1 << (bits - 1)) as f32;
                case.matrix.biases = vec![if symmetric { -0.125 * centre } else { 0.25 }; groups];
                case.packed = PackedMatrix::pack(&case.matrix).expect("valid");
                assert_eq!(case.packed.symmetric(), symmetric);
                let columns = case.input.len() / case.rows;
                for (row, value) in special.iter().enumerate() {
                    let row = &mut case.input[(row + 1) * columns..(row + 2) * columns];
                    if value.is_finite() {
                        row.iter_mut().for_each(|x| *x *= value);
                    } else {
                        row[columns / 3] = *value;
                    }
                }
                for precision in Precision::ALL {
                    let outputs: Vec<_> = Isa::available().iter().map(|isa| case.run(*isa, 1, precision)).collect();
                    for output in &outputs {
                        assert_same_bits(&outputs[0], output, &case.describe());
                        let columns = case.columns_out();
                        for (row, value) in special.iter().enumerate() {
                            let row = &output[(row + 1) * columns..(row + 2) * columns];
                            let what = format!("{} {} row of {value}", case.describe(), precision.name());
                            match (value.is_finite(), precision) {
                                (true, _) => assert!(row.iter().all(|y| y.is_finite()), "{what}"),
                                (false, Precision::Exact) => assert!(row.iter().all(|y| !y.is_finite()), "{what}"),
                                (false, _) => assert!(row.iter().all(|y| y.is_nan()), "{what}"),
                            }
                            if *value == 0.0 {
                                assert!(row.iter().all(|y| *y == 0.0), "{what}");
                            }
                        }
                        let clean = [&output[..columns], &output[output.len() - columns..]].concat();
                        assert!(clean.iter().all(|y| y.is_finite() && *y != 0.0), "{}", case.describe());
                    }
                    // The finite rows are right, not only finite.
                    let finite_rows = special.iter().take_while(|value| value.is_finite()).count() + 1;
                    let mut finite = usual((70, 192), finite_rows, direction, 15);
                    (finite.matrix, finite.packed) = (case.matrix.clone(), case.packed.clone());
                    finite.input = case.input[..finite_rows * columns].to_vec();
                    finite.check(&outputs[0][..finite_rows * finite.columns_out()], precision);
                }
            }
        }
    }
}

#[test]
fn several_outputs_and_summands_equal_single_ones() {
    let mut random = Random(16);
    let shapes = [(70, 4, 32), (64, 8, 32), (130, 4, 32), (1, 3, 64), (192, 5, 16), (64, 4, 128)];
    let (rows, k) = (19, 128);
    let matrices: Vec<PackedMatrix> = shapes
        .iter()
        .map(|(n, bits, group)| random_matrix((*n, k), *bits, *group, ScaleType::BFloat16, &mut random))
        .map(|matrix| PackedMatrix::pack(&matrix).expect("valid"))
        .collect();
    for precision in Precision::ALL {
        for threads in [1, 2] {
            let options = OpsOptions { threads, isa: Isa::best(), precision };
            let mut plan = ArenaPlan::new();
            let x = plan.tensor(rows, k);
            let y: Vec<Tensor> = matrices.iter().map(|matrix| plan.tensor(rows, matrix.n_out())).collect();
            let single: Vec<Tensor> = matrices.iter().map(|matrix| plan.tensor(rows, matrix.n_out())).collect();
            let dx = plan.tensor(rows, k);
            let part = plan.tensor(rows, k);
            let pairs = |tensors: &[Tensor]| matrices.iter().zip(tensors.iter().copied()).collect::<Vec<_>>();
            let mut ops = Ops::new(options, &plan, 16 << 20);
            ops.write(x, &random.normals(rows * k));
            ops.qlinear_forward(x, &pairs(&y));
            for pair in pairs(&single) {
                ops.qlinear_forward(x, &[pair]);
            }
            for (together, alone) in y.iter().zip(&single) {
                assert_same_bits(ops.read(*together), ops.read(*alone), "outputs together and alone");
            }
            // dX of all at once is close to the sum of single ones, and accumulating adds as much.
            ops.qlinear_input_grad(&pairs(&y), dx, false);
            let mut sum = vec![0f64; rows * k];
            for pair in pairs(&y) {
                ops.qlinear_input_grad(&[pair], part, false);
                sum.iter_mut().zip(ops.read(part)).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let size = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
            let error = sum.iter().zip(ops.read(dx)).map(|(sum, x)| (sum - f64::from(*x)).powi(2)).sum::<f64>();
            assert!(size > 0.0 && error.sqrt() < 1e-6 * size, "{} error {} of {size}", precision.name(), error.sqrt());
            let before = ops.read(dx).to_vec();
            let start = random.normals(rows * k);
            ops.write(dx, &start);
            ops.qlinear_input_grad(&pairs(&y), dx, true);
            let added = start.iter().zip(&before).map(|(start, added)| f64::from(*start) + f64::from(*added));
            let error = added.zip(ops.read(dx)).map(|(sum, x)| (sum - f64::from(*x)).powi(2)).sum::<f64>();
            let size = size + (rows as f64 * k as f64).sqrt();
            assert!(error.sqrt() < 1e-6 * size, "{} accumulated: error {} of {size}", precision.name(), error.sqrt());
        }
    }
}

/// Common dimensions and rows beyond one part: sums go on in the output, which was NaN before.
#[test]
fn several_parts_equal_the_reference_and_other_instruction_sets() {
    let mut random = Random(19);
    for direction in Direction::ALL {
        for (common, other, rows) in [(2048 + 64, 70, 260), (4096 + 128, 48, 8), (2112, 80, 130)] {
            let shape = if direction == Direction::Forward { (other, common) } else { (common, other / 16 * 16) };
            let matrix = random_matrix(shape, 4, 16, ScaleType::BFloat16, &mut random);
            let case = Case::new(matrix, rows, direction, &mut random);
            for precision in [Precision::A16, Precision::A8] {
                let output = case.run(Isa::best(), 1, precision);
                case.check(&output, precision);
                let isas = Isa::available();
                for (isa, threads) in [(Isa::best(), 3), (isas[1.min(isas.len() - 1)], 1)] {
                    let what = format!("{} {} on {}", case.describe(), precision.name(), isa.name());
                    assert_same_bits(&output, &case.run(isa, threads, precision), &what);
                }
            }
        }
    }
}

#[test]
fn magnitudes_that_a_scale_cannot_hold_poison_their_row() {
    for direction in Direction::ALL {
        let mut case = usual((70, 96), 3, direction, 20);
        let columns = case.input.len() / case.rows;
        case.input[columns + 5] = 3e38;
        let output = case.run(Isa::best(), 1, Precision::A16);
        let width = case.columns_out();
        for (row, values) in output.chunks(width).enumerate() {
            assert!(values.iter().all(|y| y.is_nan() == (row == 1)), "row {row}");
        }
    }
}

/// The tails of row tiles are cut as the documentation says: nothing lost, nothing twice.
#[test]
fn row_tiles_cover_every_row_once() {
    use super::activations::{row_tile_count, row_tile_height, row_tile_start};
    for rows in 1..200 {
        let mut next = 0;
        for index in 0..row_tile_count(rows) {
            assert_eq!(row_tile_start(rows, index), next, "tile {index} of {rows} rows");
            next += row_tile_height(rows, next);
        }
        assert_eq!(next, rows);
    }
}

#[test]
fn the_reference_input_grad_is_the_transpose_of_the_reference_forward() {
    // Σ dy·(x Wᵀ) = Σ (dy W)·x for any x and dy.
    let mut random = Random(17);
    let matrix = random_matrix((37, 96), 5, 32, ScaleType::Float32, &mut random);
    let (x, dy) = (random.normals(3 * 96), random.normals(3 * 37));
    let (y, _) = reference::forward(&matrix, &x);
    let (dx, _) = reference::input_grad(&matrix, &dy);
    let left: f64 = y.iter().zip(&dy).map(|(a, b)| a * f64::from(*b)).sum();
    let right: f64 = dx.iter().zip(&x).map(|(a, b)| a * f64::from(*b)).sum();
    assert!((left - right).abs() < 1e-12 * left.abs().max(1.0), "{left} and {right}");
}

#[test]
fn kernel_names_say_what_runs() {
    for isa in Isa::available() {
        for precision in Precision::ALL {
            for direction in Direction::ALL {
                let name = kernel_name(direction, precision, isa);
                assert_eq!((name.op, name.direction, name.precision), ("qlinear", direction.name(), precision.name()));
                let expected = match (isa.name(), precision) {
                    ("avx512vnni", Precision::A16) => "avx512vnni/vpdpwssd/6x64",
                    ("avx512vnni", Precision::A8) => "avx512vnni/vpdpbusd/6x64",
                    ("avx512vnni", Precision::Exact) => "avx512vnni/fma/6x64",
                    ("avxvnni", Precision::A16) => "avxvnni/vpdpwssd/3x16",
                    ("avxvnni", Precision::A8) => "avxvnni/vpdpbusd/3x16",
                    ("avxvnni", Precision::Exact) => "avxvnni/fma/3x16",
                    ("neon-i8mm", Precision::A16) => "neon-i8mm/sdot/3x16",
                    ("neon-i8mm", Precision::A8) => "neon-i8mm/usdot/3x16",
                    ("neon-i8mm", Precision::Exact) => "neon-i8mm/fma/3x16",
                    ("neon-dotprod", Precision::A16) => "neon-dotprod/sdot/3x16",
                    ("neon-dotprod", Precision::A8) => "neon-dotprod/sdot/3x16",
                    ("neon-dotprod", Precision::Exact) => "neon-dotprod/fma/3x16",
                    ("neon", Precision::A16) => "neon/smull/3x16",
                    ("neon", Precision::A8) => "neon/mul/3x16",
                    ("neon", Precision::Exact) => "neon/fma/3x16",
                    ("avx2", Precision::A16) => "avx2/vpmaddwd/3x16",
                    ("avx2", Precision::A8) => "avx2/vpmaddubsw/3x16",
                    ("avx2", Precision::Exact) => "avx2/fma/3x16",
                    ("portable", Precision::A16) => "portable/i16/3x16",
                    ("portable", Precision::A8) => "portable/i8/3x16",
                    ("portable", Precision::Exact) => "portable/fma/3x16",
                    other => panic!("no expectation for {other:?}"),
                };
                assert_eq!(name.kernel, expected);
            }
        }
    }
    println!("ran: {:?}", Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>());
}

#[test]
#[should_panic(expected = "columns of x")]
fn a_wrong_shape_is_caught() {
    let case = usual((64, 64), 1, Direction::Forward, 18);
    let mut plan = ArenaPlan::new();
    let (x, y) = (plan.tensor(2, 32), plan.tensor(2, 64));
    let options = OpsOptions { threads: 1, isa: Isa::portable(), precision: Precision::A16 };
    Ops::planner(options).qlinear_forward(x, &[(&case.packed, y)]);
}
