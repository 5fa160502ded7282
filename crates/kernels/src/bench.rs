//! Benchmarks of the products with packed weights. Each checks the very output that it timed against float64,
//! and measures the ceiling of its instruction between the timed runs, so that both see the same machine.

use crate::arena::ArenaPlan;
use crate::ceiling::{Instruction, median, probe, thread_seconds, wall_seconds};
use crate::isa::Isa;
use crate::ops::{Ops, OpsOptions, Precision};
use crate::qlinear::cases::{Random, random_matrix};
use crate::qlinear::{Direction, PackedMatrix, ScaleType, kernel_name};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct BenchCase {
    pub n_out: usize,
    pub k_in: usize,
    pub tokens: usize,
    /// Bits of a code, 2 to 8.
    pub bits: u32,
    pub group_size: usize,
    pub precision: Precision,
    pub direction: Direction,
    pub threads: usize,
    pub isa: Isa,
    /// Time to spend on timed runs at least.
    pub seconds_min: f64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchRow {
    pub op: &'static str,
    pub direction: &'static str,
    pub precision: &'static str,
    pub kernel: String,
    pub n_out: usize,
    pub k_in: usize,
    pub tokens: usize,
    pub threads: usize,
    /// Median over the runs, quantization of the activations included.
    pub gmac_per_s: f64,
    /// The fastest run: what the machine gives when nobody disturbs it.
    pub gmac_per_s_best: f64,
    /// Median of the instruction's rate between the runs, times the threads.
    pub ceiling_gmac_per_s: f64,
    /// `gmac_per_s / ceiling_gmac_per_s`
    pub fraction: f64,
    /// Norm of the error over norm of the output, against float64, on sampled rows of the timed output.
    pub relative_error: f64,
}

/// Times one product.
pub fn bench_qlinear(case: &BenchCase) -> BenchRow {
    let mut random = Random(0x5eed);
    let shape = (case.n_out, case.k_in);
    let matrix = random_matrix(shape, case.bits, case.group_size, ScaleType::BFloat16, &mut random);
    let packed = PackedMatrix::pack(&matrix).expect("a random matrix is valid");
    drop(matrix);
    let (columns_in, columns_out) = match case.direction {
        Direction::Forward => (case.k_in, case.n_out),
        Direction::InputGrad => (case.n_out, case.k_in),
    };
    let mut plan = ArenaPlan::new();
    let input = plan.tensor(case.tokens, columns_in);
    let output = plan.tensor(case.tokens, columns_out);
    let options = OpsOptions { threads: case.threads, isa: case.isa, precision: case.precision };
    let step = |ops: &mut Ops| match case.direction {
        Direction::Forward => ops.qlinear_forward(input, &[(&packed, output)]),
        Direction::InputGrad => ops.qlinear_input_grad(&[(&packed, input)], output, false),
    };
    let mut planner = Ops::planner(options);
    step(&mut planner);
    let mut ops = Ops::new(options, &plan, planner.counters().scratch_bytes);
    ops.write(input, &random.normals(case.tokens * columns_in));

    let gmac = (case.tokens * case.n_out * case.k_in) as f64 / 1e9;
    // One thread is timed by its own clock, several by the wall.
    let clock = if case.threads == 1 { thread_seconds } else { wall_seconds };
    let instruction = match case.precision {
        Precision::A16 => Instruction::DotI16,
        Precision::A8 => Instruction::DotI8,
        Precision::Exact => Instruction::FmaF32,
    };
    step(&mut ops);
    let (mut rates, mut ceilings) = (Vec::new(), Vec::new());
    let mut spent = 0.0;
    while rates.len() < 5 || spent < case.seconds_min {
        ceilings.push(probe(case.isa, instruction) * case.threads as f64);
        let start = clock();
        step(&mut ops);
        let seconds = clock() - start;
        rates.push(gmac / seconds);
        spent += seconds;
    }
    let (gmac_per_s, ceiling_gmac_per_s) = (median(&mut rates), median(&mut ceilings));
    let name = kernel_name(case.direction, case.precision, case.isa);
    BenchRow {
        op: name.op,
        direction: name.direction,
        precision: name.precision,
        kernel: name.kernel,
        n_out: case.n_out,
        k_in: case.k_in,
        tokens: case.tokens,
        threads: case.threads,
        gmac_per_s,
        // `median` has sorted them.
        gmac_per_s_best: rates[rates.len() - 1],
        ceiling_gmac_per_s,
        fraction: gmac_per_s / ceiling_gmac_per_s,
        relative_error: relative_error(case, &packed, ops.read(input), ops.read(output)),
    }
}

/// Error of up to three rows of `output`.
fn relative_error(case: &BenchCase, packed: &PackedMatrix, input: &[f32], output: &[f32]) -> f64 {
    let (columns_in, columns_out) = (input.len() / case.tokens, output.len() / case.tokens);
    let rows = [0, case.tokens / 2, case.tokens - 1];
    let mut expected = vec![vec![0f64; columns_out]; rows.len()];
    let mut weights = vec![0f32; case.k_in];
    for n in 0..case.n_out {
        packed.dequantize_row(n, &mut weights);
        for (expected, row) in expected.iter_mut().zip(rows) {
            let input = &input[row * columns_in..(row + 1) * columns_in];
            match case.direction {
                Direction::Forward => {
                    expected[n] = input.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                }
                Direction::InputGrad => {
                    for (sum, w) in expected.iter_mut().zip(&weights) {
                        *sum += f64::from(input[n]) * f64::from(*w);
                    }
                }
            }
        }
    }
    let (mut error, mut size) = (0f64, 0f64);
    for (expected, row) in expected.iter().zip(rows) {
        for (expected, found) in expected.iter().zip(&output[row * columns_out..]) {
            error += (f64::from(*found) - expected).powi(2);
            size += expected.powi(2);
        }
    }
    (error / size).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_complete_and_its_error_is_that_of_the_precision() {
        for (precision, error_max) in [(Precision::A16, 2e-4), (Precision::Exact, 1e-6), (Precision::A8, 2e-2)] {
            for direction in Direction::ALL {
                let (isa, bits, group_size, threads, seconds_min) = (Isa::best(), 4, 32, 2, 0.0);
                let (n_out, k_in, tokens) = (192, 160, 40);
                let case = BenchCase {
                    n_out,
                    k_in,
                    tokens,
                    bits,
                    group_size,
                    precision,
                    direction,
                    threads,
                    isa,
                    seconds_min,
                };
                let row = bench_qlinear(&case);
                assert!(row.gmac_per_s > 0.0 && row.ceiling_gmac_per_s > 0.0);
                assert!(row.relative_error > 0.0 && row.relative_error < error_max, "{row:?}");
                assert!(row.kernel.starts_with(isa.name()), "{row:?}");
            }
        }
    }
}
