//! One row through packed weights, as in generation: how much of the machine's rate of reading it reaches.

use crate::arena::ArenaPlan;
use crate::ceiling::{median, read_bytes, wall_seconds};
use crate::isa::Isa;
use crate::ops::{Ops, OpsOptions, Precision};
use crate::pool::Pool;
use crate::qlinear::cases::Random;
use crate::qlinear::{PackedError, PackedHeader, PackedMatrix, ScaleType};

/// What to measure: `count` matrices of `[n_out, k_in]`, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct StreamCase {
    pub n_out: usize,
    pub k_in: usize,
    pub count: usize,
    pub bits: u32,
    pub group_size: usize,
    pub threads: usize,
    pub isa: Isa,
    /// Time by the wall's clock after which no further turn begins. There are three at least, after one that fills caches.
    pub seconds: f64,
}

/// Turns at least, the first included.
const TURNS_MIN: usize = 4;

impl StreamCase {
    fn header(&self) -> PackedHeader {
        let StreamCase { n_out, k_in, bits, group_size, .. } = *self;
        PackedHeader { n_out, k_in, bits, group_size, scale_type: ScaleType::BFloat16 }
    }

    /// Bytes of all matrices, next to which the rest is nothing; `None` where that is beyond all addresses.
    ///
    /// # Errors
    /// Those of matrices that cannot be packed.
    pub fn memory_bytes(&self) -> Result<Option<u64>, PackedError> {
        let matrix_bytes = self.header().byte_len()? as u64;
        Ok(matrix_bytes.checked_mul(self.count as u64).filter(|bytes| *bytes <= isize::MAX as u64))
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamRow {
    /// Bytes of all matrices.
    pub bytes: usize,
    pub threads: usize,
    /// Packed bytes that the products went through, 10^9 a second, median over the runs.
    pub gbyte_per_s: f64,
    /// The same bytes only read, in turns with the products, by as many threads.
    pub read_gbyte_per_s: f64,
    /// Of the two in each turn, the median.
    pub fraction: f64,
    /// Against float64, on the last matrix.
    pub relative_error: f64,
}

/// Times the products of one row with every matrix in turn.
pub fn bench_stream(case: &StreamCase) -> StreamRow {
    let StreamCase { n_out, k_in, .. } = *case;
    let matrices: Vec<PackedMatrix> = (0..case.count)
        .map(|index| PackedMatrix::random(case.header(), 0x5eed + index as u64).expect("a random matrix is valid"))
        .collect();
    let mut plan = ArenaPlan::new();
    let (x, y) = (plan.tensor(1, k_in), plan.tensor(1, n_out));
    let options = OpsOptions { threads: case.threads, isa: case.isa, precision: Precision::A16 };
    let mut planner = Ops::planner(options);
    planner.qlinear_forward(x, &[(&matrices[0], y)]);
    let mut ops = Ops::new(options, &plan, planner.counters().scratch_bytes);
    ops.write(x, &Random(0xdada).normals(k_in));
    let pool = Pool::new(case.threads);

    let bytes: usize = matrices.iter().map(|matrix| matrix.bytes().len()).sum();
    // Small matrices go round often enough for the clock.
    const BYTES_MIN: usize = 32 << 20;
    let rounds = BYTES_MIN.div_ceil(bytes);
    let gbyte = (bytes * rounds) as f64 / 1e9;
    let (mut rates, mut reads, mut fractions) = (Vec::new(), Vec::new(), Vec::new());
    let begin = wall_seconds();
    while rates.len() < TURNS_MIN || wall_seconds() - begin < case.seconds {
        let start = wall_seconds();
        for matrix in std::iter::repeat_n(&matrices, rounds).flatten() {
            ops.qlinear_forward(x, &[(matrix, y)]);
        }
        let middle = wall_seconds();
        for matrix in std::iter::repeat_n(&matrices, rounds).flatten() {
            read_bytes(case.isa, &pool, matrix.bytes());
        }
        let end = wall_seconds();
        rates.push(gbyte / (middle - start));
        reads.push(gbyte / (end - middle));
        fractions.push((end - middle) / (middle - start));
    }
    // The first turn filled the caches.
    for values in [&mut rates, &mut reads, &mut fractions] {
        values.remove(0);
    }
    StreamRow {
        bytes,
        threads: case.threads,
        gbyte_per_s: median(&mut rates),
        read_gbyte_per_s: median(&mut reads),
        fraction: median(&mut fractions),
        relative_error: relative_error(&matrices[case.count - 1], ops.read(x), ops.read(y)),
    }
}

fn relative_error(matrix: &PackedMatrix, x: &[f32], y: &[f32]) -> f64 {
    let mut weights = vec![0f32; matrix.k_in()];
    let (mut error, mut size) = (0f64, 0f64);
    for (n, found) in y.iter().enumerate() {
        matrix.dequantize_row(n, &mut weights);
        let expected: f64 = x.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        error += (f64::from(*found) - expected).powi(2);
        size += expected.powi(2);
    }
    (error / size).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_measured_and_right() {
        let (bits, group_size, isa) = (4, 32, Isa::best());
        let case = StreamCase { n_out: 200, k_in: 256, count: 3, bits, group_size, threads: 2, isa, seconds: 0.0 };
        let row = bench_stream(&case);
        assert!(row.gbyte_per_s > 0.0 && row.read_gbyte_per_s > 0.0 && row.fraction > 0.0);
        assert!(row.relative_error > 0.0 && row.relative_error < 2e-4, "{row:?}");
    }
}
