//! The products over plain memory: quantize the activations, cut the work into tasks, run them on the pool.
//!
//! Neither the number of threads nor the cut changes a result: every output element is computed by one task, in
//! an order that depends only on k (forward) or n (input gradient).

use super::activations::{
    BLOCK, ForwardInput, GRADIENT_A8_MAX, GRADIENT_A16_MAX, GradientInput, QuantizeForward, QuantizeGradient, ROWS,
};
use super::forward::{self, ForwardTask};
use super::input_grad::{self, InputGradTask, Summand};
use super::layout::TILE;
use super::offsets::{GatherOffsets, OffsetSums};
use super::packed::{PackedHeader, PackedMatrix};
use crate::ops::{Carver, OpsOptions, Precision, scratch_size};
use crate::pool::Pool;
use crate::simd::integer::dispatch;

/// Most summands of one input gradient: the projections that read one input.
pub(crate) const SUMMANDS_MAX: usize = 8;

/// Row tiles whose gradients are prepared by one task: they share the offsets in the cache.
const ROW_TILES_PER_TASK: usize = 7;

/// A raw pointer that tasks on other threads may use: they write disjoint parts.
#[derive(Clone, Copy)]
struct Shared<T>(T);
// SAFETY: `run` functions hand out tasks whose writes do not overlap, and return after all are done.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

/// Rows of a task's block: at most `rows_max`, whole row tiles, of equal size, and few enough that `threads`
/// workers get several tasks each.
fn block_rows(rows: usize, tiles: usize, threads: usize, rows_max: usize) -> usize {
    const TASKS_PER_THREAD: usize = 8;
    // Below this the unpacking of a panel costs more than idle workers.
    const ROWS_MIN: usize = 8 * ROWS;
    let mut blocks = rows.div_ceil(rows_max);
    while threads > 1 && blocks * tiles < TASKS_PER_THREAD * threads && rows.div_ceil(blocks + 1) >= ROWS_MIN {
        blocks += 1;
    }
    rows.div_ceil(blocks).next_multiple_of(ROWS)
}

/// `Y = X·Wᵀ` for matrices that read the same X and have the same scale groups.
#[derive(Clone, Copy)]
pub(crate) struct ForwardProduct {
    options: OpsOptions,
    k: usize,
    x: *const f32,
    input: ForwardInput,
    workers: *mut u8,
}

impl ForwardProduct {
    /// Scratch for `rows` rows of input to matrices such as `header`.
    pub(crate) fn scratch_bytes(options: &OpsOptions, rows: usize, header: &PackedHeader) -> usize {
        let cells = rows * header.column_tiles();
        let scales = cells * header.groups_per_tile();
        let input = match options.precision {
            Precision::Exact => 0,
            _ => {
                scratch_size::<u8>(cells * cell_bytes(options.precision))
                    + 2 * scratch_size::<f32>(scales)
                    + scratch_size::<i32>(scales)
            }
        };
        input + options.threads.max(1) * forward::worker_bytes()
    }

    /// Quantizes `x` [rows, k_in].
    ///
    /// # Safety
    /// `x` is readable and unchanged while the product is used; `scratch` has [`ForwardProduct::scratch_bytes`]
    /// bytes, aligned to 64, for this product alone; `pool` has `options.threads` threads at most.
    pub(crate) unsafe fn prepare(
        options: &OpsOptions,
        pool: &Pool,
        rows: usize,
        x: *const f32,
        header: &PackedHeader,
        scratch: *mut u8,
    ) -> Self {
        let (tiles, groups) = (header.column_tiles(), header.groups_per_tile());
        let mut carver = Carver::new(scratch);
        let mut input = ForwardInput {
            rows,
            tiles,
            groups,
            cell_bytes: cell_bytes(options.precision),
            integers: std::ptr::null_mut(),
            scales: std::ptr::null_mut(),
            sums: std::ptr::null_mut(),
            centres: std::ptr::null_mut(),
        };
        let k = header.k_in;
        if options.precision != Precision::Exact {
            let cells = rows * tiles;
            input.integers = carver.take(cells * input.cell_bytes);
            input.scales = carver.take(cells * groups);
            input.sums = carver.take(cells * groups);
            input.centres = carver.take(cells * groups);
            let shared = Shared((x, input));
            let isa = options.isa;
            pool.run(rows.div_ceil(ROWS), &|row_tile, _| {
                let (x, input) = shared.get();
                // SAFETY: each task writes the cells of its own row tile.
                unsafe { dispatch(isa, QuantizeForward { x, k, input, row_tile }) }
            });
        }
        Self { options: *options, k, x, input, workers: carver.take(0) }
    }

    /// Computes every `(W, y)` of `outputs`: y [rows, n_out], rows `y_stride` floats apart, overwritten.
    ///
    /// # Safety
    /// The promises of [`ForwardProduct::prepare`] still hold; the outputs are writable and overlap nothing.
    pub(crate) unsafe fn run(&self, pool: &Pool, outputs: &[ForwardOutput<'_>]) {
        let rows = self.input.rows;
        let tiles = outputs.iter().map(|output| output.matrix.row_tiles()).sum::<usize>();
        let block = block_rows(rows, tiles, self.options.threads, forward::BLOCK_ROWS);
        let shared = Shared((*self, outputs));
        pool.run(tiles * rows.div_ceil(block), &|task, worker| {
            let (product, outputs) = shared.get();
            let (mut tile, first_row) = (task % tiles, task / tiles * block);
            let mut output = 0;
            while tile >= outputs[output].matrix.row_tiles() {
                tile -= outputs[output].matrix.row_tiles();
                output += 1;
            }
            let output = &outputs[output];
            debug_assert!(output.matrix.k_in() == product.k);
            // SAFETY: each task writes the columns of one tile in its rows, with the scratch of its worker.
            unsafe {
                let task = ForwardTask {
                    matrix: output.matrix,
                    row_tile: tile,
                    precision: product.options.precision,
                    input: product.input,
                    x: product.x,
                    y: output.y,
                    y_stride: output.y_stride,
                    first_row,
                    rows: block.min(rows - first_row),
                    scratch: product.workers.add(worker * forward::worker_bytes()),
                };
                dispatch(product.options.isa, task);
            }
        });
    }
}

/// One output of a forward product.
#[derive(Clone, Copy)]
pub(crate) struct ForwardOutput<'a> {
    pub matrix: &'a PackedMatrix,
    pub y: *mut f32,
    pub y_stride: usize,
}

fn cell_bytes(precision: Precision) -> usize {
    if precision == Precision::A8 { TILE } else { 2 * TILE }
}

/// Scratch of [`input_grad`] for `rows` rows of gradient.
pub(crate) fn input_grad_scratch_bytes<'a>(
    options: &OpsOptions,
    rows: usize,
    matrices: impl IntoIterator<Item = &'a PackedMatrix>,
) -> usize {
    let mut bytes = options.threads.max(1) * input_grad::worker_bytes();
    if options.precision != Precision::Exact {
        for matrix in matrices {
            let header = matrix.header();
            let padded_n = header.row_tiles() * TILE;
            bytes += scratch_size::<i16>(rows * padded_n) + scratch_size::<f32>(rows * padded_n.div_ceil(BLOCK));
            if !matrix.symmetric() {
                let groups = header.column_tiles() * header.groups_per_tile();
                bytes += scratch_size::<f32>(groups * padded_n) + scratch_size::<f32>(rows * groups);
            }
        }
    }
    bytes
}

/// `dX = Σ dY·W` over the `(W, dY [rows, n_out])` of `inputs`; `dx` [rows, k] is overwritten, or added to.
///
/// # Safety
/// Every dY is readable, `dx` writable and apart from them; `scratch` has [`input_grad_scratch_bytes`] bytes,
/// aligned to 64; `pool` has `options.threads` threads at most.
pub(crate) unsafe fn input_grad(
    options: &OpsOptions,
    pool: &Pool,
    rows: usize,
    inputs: &[(&PackedMatrix, *const f32)],
    dx: *mut f32,
    accumulate: bool,
    scratch: *mut u8,
) {
    assert!((1..=SUMMANDS_MAX).contains(&inputs.len()), "1 to {SUMMANDS_MAX} summands, not {}", inputs.len());
    let mut carver = Carver::new(scratch);
    let mut summands = [None; SUMMANDS_MAX];
    for (summand, (matrix, dy)) in summands.iter_mut().zip(inputs) {
        // SAFETY: passed on.
        *summand = Some(unsafe { prepare_gradient(options, pool, rows, matrix, *dy, &mut carver) });
    }
    let first = summands[0].expect("at least one summand");
    let summands = summands.map(|summand| summand.unwrap_or(first));
    let workers = carver.take::<u8>(0);
    let tiles = first.matrix.header().column_tiles();
    let block = block_rows(rows, tiles, options.threads, input_grad::BLOCK_ROWS);
    let (precision, isa) = (options.precision, options.isa);
    let shared = Shared((&summands[..inputs.len()], dx, workers));
    pool.run(tiles * rows.div_ceil(block), &|task, worker| {
        let (summands, dx, workers) = shared.get();
        let first_row = task / tiles * block;
        // SAFETY: each task writes the columns of one tile in its rows, with the scratch of its worker.
        unsafe {
            let task = InputGradTask {
                summands,
                precision,
                tile: task % tiles,
                dx,
                accumulate,
                first_row,
                rows: block.min(rows - first_row),
                scratch: workers.add(worker * input_grad::worker_bytes()),
            };
            dispatch(isa, task);
        }
    });
}

/// Quantizes dY and multiplies it with the offsets of the weights.
unsafe fn prepare_gradient<'a>(
    options: &OpsOptions,
    pool: &Pool,
    rows: usize,
    matrix: &'a PackedMatrix,
    dy: *const f32,
    carver: &mut Carver,
) -> Summand<'a> {
    let header = matrix.header();
    let integer_max = if options.precision == Precision::A8 { GRADIENT_A8_MAX } else { GRADIENT_A16_MAX };
    let mut input = GradientInput {
        rows,
        n: header.n_out,
        tiles: header.row_tiles(),
        integers: std::ptr::null_mut(),
        scales: std::ptr::null_mut(),
        integer_max,
    };
    if options.precision == Precision::Exact {
        return Summand { matrix, input, dy, offsets: std::ptr::null() };
    }
    let isa = options.isa;
    let padded_n = input.tiles * TILE;
    input.integers = carver.take(rows * padded_n);
    input.scales = carver.take(rows * padded_n.div_ceil(BLOCK));
    let groups = header.column_tiles() * header.groups_per_tile();
    let (mut offsets, mut sums) = (std::ptr::null_mut(), std::ptr::null_mut());
    if !matrix.symmetric() {
        offsets = carver.take::<f32>(groups * padded_n);
        sums = carver.take::<f32>(rows * groups);
        let shared = Shared(offsets);
        pool.run(input.tiles, &|row_tile, _| {
            // SAFETY: each task writes the offsets of its own rows of W.
            unsafe { dispatch(isa, GatherOffsets { matrix, row_tile, out: shared.get() }) }
        });
    }
    let shared = Shared((dy, input, offsets, sums));
    let row_tiles = rows.div_ceil(ROWS);
    pool.run(row_tiles.div_ceil(ROW_TILES_PER_TASK), &|task, _| {
        let (dy, input, offsets, sums) = shared.get();
        let row_tiles = task * ROW_TILES_PER_TASK..row_tiles.min((task + 1) * ROW_TILES_PER_TASK);
        // SAFETY: each task writes the integers and sums of its own row tiles.
        unsafe {
            let row_maxima = matrix.row_maxima().as_ptr();
            for row_tile in row_tiles.clone() {
                dispatch(isa, QuantizeGradient { dy, row_maxima, input, row_tile });
            }
            if !offsets.is_null() {
                let first_row = row_tiles.start * ROWS;
                let height = rows.min(row_tiles.end * ROWS) - first_row;
                let n = input.n;
                dispatch(isa, OffsetSums { dy, n, offsets, padded_n, groups, first_row, height, out: sums });
            }
        }
    });
    Summand { matrix, input, dy, offsets: sums }
}
