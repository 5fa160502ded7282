//! Benchmarks of the products with packed weights. Each checks the very output that it timed against float64,
//! and measures its ceiling between the timed runs, so that both see the same machine.

mod stream;

pub use stream::{StreamCase, StreamRow, bench_stream};

use crate::arena::{ArenaPlan, Tensor};
use crate::ceiling::{Instruction, median, probe, thread_seconds, wall_seconds};
use crate::isa::Isa;
use crate::ops::{Ops, OpsOptions, Precision};
use crate::qlinear::cases::{Random, random_matrix};
use crate::qlinear::{Direction, PackedError, PackedHeader, PackedMatrix, ScaleType, kernel_name};

/// Timed runs of a row at least, whatever its time: a median needs a middle.
const RUNS_MIN: usize = 3;

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
    /// Time by the wall's clock after which no further round begins: a run, its ceiling and, with several threads, one
    /// thread's run. There are three rounds at least.
    pub seconds: f64,
}

impl BenchCase {
    fn header(&self, (n_out, k_in): (usize, usize)) -> PackedHeader {
        PackedHeader { n_out, k_in, bits: self.bits, group_size: self.group_size, scale_type: ScaleType::BFloat16 }
    }

    /// The most memory that the case takes at a time; `None` where that is beyond all addresses.
    ///
    /// # Errors
    /// Those of matrices that cannot be packed.
    pub fn memory_bytes(&self) -> Result<Option<u64>, PackedError> {
        let planned = |shape: &(usize, usize)| PackedMatrix::planned(self.header(*shape));
        let packed = match self.matrices.iter().map(planned).collect::<Result<Vec<_>, _>>() {
            Err(PackedError::TooLarge { .. }) => return Ok(None),
            packed => packed?,
        };
        let bytes =
            |floats: u64| floats.checked_mul(size_of::<f32>() as u64).filter(|bytes| *bytes <= isize::MAX as u64);
        let rows = |width: usize| (width as u64).checked_mul(self.tokens as u64);
        let wide = self.matrices.iter().try_fold(0u64, |sum, (n_out, _)| sum.checked_add(rows(*n_out)?));
        let narrow = self.matrices.first().and_then(|(_, k_in)| rows(*k_in));
        let Some(arena_bytes) = wide.zip(narrow).and_then(|(wide, narrow)| bytes(wide.checked_add(narrow)?)) else {
            return Ok(None);
        };
        let (_, setup) = Setup::planned(self, &packed, self.threads);
        let scratch_bytes = setup.ops.counters().scratch_bytes as u64;
        // Random values lie beside the input that they are copied to.
        let values_bytes = setup.inputs.iter().map(|input| (input.len() * size_of::<f32>()) as u64).max().unwrap_or(0);
        // One thread's ops need no more scratch than several's.
        let setups = if self.threads > 1 { 2 } else { 1 };
        // Making a matrix: a byte for a code, scales and biases in float32. They are gone before there are activations.
        let made = |(n_out, k_in): &(usize, usize)| {
            let weights = *n_out as u64 * *k_in as u64;
            weights + weights / self.group_size as u64 * 2 * size_of::<f32>() as u64
        };
        let weights_bytes: u64 =
            packed.iter().filter_map(|matrix| matrix.header().byte_len().ok()).map(|len| len as u64).sum();
        let running =
            (arena_bytes + scratch_bytes).checked_mul(setups).and_then(|bytes| bytes.checked_add(values_bytes));
        let besides = running.map(|running| running.max(self.matrices.iter().map(made).max().unwrap_or(0)));
        Ok(besides.and_then(|bytes| bytes.checked_add(weights_bytes)))
    }
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
    /// Where its tensors lie, and ops that have counted what one step of them needs.
    fn planned(case: &BenchCase, packed: &'a [PackedMatrix], threads: usize) -> (ArenaPlan, Self) {
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
        (plan, setup)
    }

    fn new(case: &BenchCase, packed: &'a [PackedMatrix], threads: usize, random: &mut Random) -> Self {
        let (plan, mut setup) = Self::planned(case, packed, threads);
        setup.ops = Ops::new(*setup.ops.options(), &plan, setup.ops.counters().scratch_bytes);
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

    let gmac = case.matrices.iter().map(|(n, k)| case.tokens as f64 * *n as f64 * *k as f64).sum::<f64>() / 1e9;
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
    let start = wall_seconds();
    while seconds.len() < RUNS_MIN || wall_seconds() - start < case.seconds {
        ceilings.push(probe(case.isa, instruction) * case.threads as f64);
        if let Some(alone) = &mut alone {
            seconds_alone.push(timed(alone));
        }
        if case.threads > 1 {
            // Workers that slept through the probe are awake for the next, as they are inside a training step.
            setup.step();
        }
        seconds.push(timed(&mut setup));
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
                        seconds: 0.0,
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

    #[test]
    fn memory_is_known_before_it_is_taken() {
        let case = |matrices: &[(usize, usize)], tokens, threads| BenchCase {
            matrices: matrices.to_vec(),
            tokens,
            bits: 4,
            group_size: 64,
            precision: Precision::A16,
            direction: Direction::InputGrad,
            threads,
            isa: Isa::best(),
            seconds: 0.0,
        };
        let bytes = |matrices: &[(usize, usize)], tokens, threads| {
            case(matrices, tokens, threads).memory_bytes().expect("can be packed").expect("can be addressed")
        };
        // Weights in 4 bits with 4 bytes a group (9 a row besides), and the matrix they are packed from.
        let weights = 4096 * 4096;
        let expected = weights / 2 + weights / 64 * 4 + weights + weights / 64 * 8;
        let found = bytes(&[(4096, 4096)], 1, 1);
        assert!((expected..expected + expected / 50).contains(&found), "{found}, expected {expected}");
        // Activations of a long text: x and dx, the random values of one of them, and quantized copies.
        let arena = 4096 * 2 * 65536 * 4;
        let found = bytes(&[(4096, 4096)], 65536, 1);
        assert!((arena + arena / 2..2 * arena).contains(&found), "{found}, arena {arena}");
        assert!(bytes(&[(4096, 4096)], 65536, 2) > found + arena);
        assert!(bytes(&[(1 << 20, 1 << 20)], 1, 1) > 3 << 39);
        assert_eq!(case(&[(1 << 40, 1 << 40)], 1, 1).memory_bytes(), Ok(None));
        assert_eq!(case(&[(64, 64)], usize::MAX / 8, 1).memory_bytes(), Ok(None));
        assert!(case(&[(64, 65)], 1, 1).memory_bytes().is_err());
    }
}
