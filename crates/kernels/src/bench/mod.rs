//! Benchmarks of the products with packed weights. Each checks the very output that it timed against float64,
//! and measures its ceiling between the timed runs, so that both see the same machine.

mod stream;

pub use stream::{StreamCase, StreamRow, bench_stream};

use crate::arena::{ArenaPlan, Tensor};
use crate::ceiling::{Instruction, median, probe, thread_seconds, wall_seconds};
use crate::isa::Isa;
use crate::ops::{Ops, OpsOptions, Precision};
use crate::qlinear::cases::{Random, random_matrix};
use crate::qlinear::{Direction, PackedMatrix, ScaleType, kernel_name};

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchCase {
    /// `[n_out, k_in]` of matrices that share their input, as one call multiplies them; equal `k_in`.
    pub matrices: Vec<(usize, usize)>,
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
    pub matrices: Vec<(usize, usize)>,
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
    /// With several threads: time of one thread over theirs, both on the wall's clock and in turns.
    pub speedup: Option<f64>,
    /// Norm of the error over norm of the output, against float64, on sampled rows of the timed output.
    pub relative_error: f64,
}

/// The ops and tensors of one case.
struct Setup<'a> {
    ops: Ops,
    packed: &'a [PackedMatrix],
    /// x, or the gradient of each matrix.
    inputs: Vec<Tensor>,
    /// The output of each matrix, or dx.
    outputs: Vec<Tensor>,
    direction: Direction,
}

impl<'a> Setup<'a> {
    fn new(case: &BenchCase, packed: &'a [PackedMatrix], threads: usize, random: &mut Random) -> Self {
        let mut plan = ArenaPlan::new();
        let narrow = vec![plan.tensor(case.tokens, packed[0].k_in())];
        let wide: Vec<Tensor> = packed.iter().map(|matrix| plan.tensor(case.tokens, matrix.n_out())).collect();
        let (inputs, outputs) = match case.direction {
            Direction::Forward => (narrow, wide),
            Direction::InputGrad => (wide, narrow),
        };
        let options = OpsOptions { threads, isa: case.isa, precision: case.precision };
        let mut setup = Setup { ops: Ops::planner(options), packed, inputs, outputs, direction: case.direction };
        setup.step();
        setup.ops = Ops::new(options, &plan, setup.ops.counters().scratch_bytes);
        for input in setup.inputs.clone() {
            setup.ops.write(input, &random.normals(input.len()));
        }
        setup
    }

    fn step(&mut self) {
        let pairs = |tensors: &[Tensor]| self.packed.iter().zip(tensors.iter().copied()).collect::<Vec<_>>();
        match self.direction {
            Direction::Forward => self.ops.qlinear_forward(self.inputs[0], &pairs(&self.outputs)),
            Direction::InputGrad => self.ops.qlinear_input_grad(&pairs(&self.inputs), self.outputs[0], false),
        }
    }
}

/// Times one product.
pub fn bench_qlinear(case: &BenchCase) -> BenchRow {
    let mut random = Random(0x5eed);
    let pack = |(n, k): &(usize, usize)| {
        let matrix = random_matrix((*n, *k), case.bits, case.group_size, ScaleType::BFloat16, &mut random);
        PackedMatrix::pack(&matrix).expect("a random matrix is valid")
    };
    let packed: Vec<PackedMatrix> = case.matrices.iter().map(pack).collect();
    let mut setup = Setup::new(case, &packed, case.threads, &mut Random(0xdada));
    let mut alone = (case.threads > 1).then(|| Setup::new(case, &packed, 1, &mut Random(0xdada)));

    let gmac = case.matrices.iter().map(|(n, k)| case.tokens * n * k).sum::<usize>() as f64 / 1e9;
    // One thread is timed by its own clock, several by the wall.
    let clock = if case.threads == 1 { thread_seconds } else { wall_seconds };
    let instruction = match case.precision {
        Precision::A16 => Instruction::DotI16,
        Precision::A8 => Instruction::DotI8,
        Precision::Exact => Instruction::FmaF32,
    };
    let timed = |setup: &mut Setup| {
        let start = clock();
        setup.step();
        clock() - start
    };
    setup.step();
    let (mut seconds, mut seconds_alone, mut ceilings) = (Vec::new(), Vec::new(), Vec::new());
    let mut spent = 0.0;
    while seconds.len() < 5 || spent < case.seconds_min {
        ceilings.push(probe(case.isa, instruction) * case.threads as f64);
        if let Some(alone) = &mut alone {
            seconds_alone.push(timed(alone));
        }
        if case.threads > 1 {
            // Workers that slept through the probe are awake for the next, as they are inside a training step.
            setup.step();
        }
        let took = timed(&mut setup);
        seconds.push(took);
        spent += took;
    }
    let (middle, ceiling_gmac_per_s) = (median(&mut seconds), median(&mut ceilings));
    let gmac_per_s = gmac / middle;
    let name = kernel_name(case.direction, case.precision, case.isa);
    BenchRow {
        op: name.op,
        direction: name.direction,
        precision: name.precision,
        kernel: name.kernel,
        matrices: case.matrices.clone(),
        tokens: case.tokens,
        threads: case.threads,
        gmac_per_s,
        // `median` has sorted them.
        gmac_per_s_best: gmac / seconds[0],
        ceiling_gmac_per_s,
        fraction: gmac_per_s / ceiling_gmac_per_s,
        speedup: alone.is_some().then(|| median(&mut seconds_alone) / middle),
        relative_error: relative_error(case, &setup),
    }
}

/// Error of up to three rows of the outputs.
fn relative_error(case: &BenchCase, setup: &Setup) -> f64 {
    let mut rows = vec![0, case.tokens / 2, case.tokens - 1];
    rows.dedup();
    let k = setup.packed[0].k_in();
    let mut weights = vec![0f32; k];
    // dX of the sampled rows, a sum over all matrices.
    let mut gradients = vec![vec![0f64; k]; rows.len()];
    let (mut error, mut size) = (0f64, 0f64);
    let mut add = |found: f32, expected: f64| {
        error += (f64::from(found) - expected).powi(2);
        size += expected.powi(2);
    };
    for (index, packed) in setup.packed.iter().enumerate() {
        for n in 0..packed.n_out() {
            packed.dequantize_row(n, &mut weights);
            for (row, gradient) in rows.iter().zip(&mut gradients) {
                match case.direction {
                    Direction::Forward => {
                        let x = &setup.ops.read(setup.inputs[0])[row * k..(row + 1) * k];
                        let expected = x.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                        add(setup.ops.read(setup.outputs[index])[row * packed.n_out() + n], expected);
                    }
                    Direction::InputGrad => {
                        let dy = f64::from(setup.ops.read(setup.inputs[index])[row * packed.n_out() + n]);
                        gradient.iter_mut().zip(&weights).for_each(|(sum, w)| *sum += dy * f64::from(*w));
                    }
                }
            }
        }
    }
    if case.direction == Direction::InputGrad {
        for (row, expected) in rows.iter().zip(&gradients) {
            let found = &setup.ops.read(setup.outputs[0])[row * k..(row + 1) * k];
            found.iter().zip(expected).for_each(|(found, expected)| add(*found, *expected));
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
                for threads in [1, 2] {
                    let case = BenchCase {
                        matrices: vec![(192, 160), (70, 160)],
                        tokens: 40,
                        bits: 4,
                        group_size: 32,
                        precision,
                        direction,
                        threads,
                        isa: Isa::best(),
                        seconds_min: 0.0,
                    };
                    let row = bench_qlinear(&case);
                    assert!(row.gmac_per_s > 0.0 && row.ceiling_gmac_per_s > 0.0);
                    assert!(row.relative_error > 0.0 && row.relative_error < error_max, "{row:?}");
                    assert!(row.kernel.starts_with(case.isa.name()), "{row:?}");
                    assert_eq!(row.speedup.is_some(), threads == 2);
                }
            }
        }
    }
}
