//! The products over plain memory: quantize the activations, cut the work into tasks, run them on the pool.
//!
//! The common dimension and the rows are cut into parts whose integers stay in the second-level cache: a part is
//! quantized, goes through all column tiles, and makes place for the next, so that integers never stream from
//! farther away however wide the matrix and long the example.
//!
//! Neither the number of threads nor the cut changes a result: every output element is computed in one order,
//! that of k (forward) or n (input gradient).

use std::ops::Range;

use super::activations::{
    BLOCK, ForwardInput, GRADIENT_A8_MAX, GRADIENT_A16_MAX, GradientInput, PANEL_TILES, QuantizeForward,
    QuantizeGradient, ROWS, RowScale, row_tile_count, row_tile_height, row_tile_start,
};
use super::forward::{self, ForwardTask};
use super::input_grad::{self, InputGradTask, Summand};
use super::layout::TILE;
use super::offsets::{GatherOffsets, OffsetSums};
use super::packed::{PackedHeader, PackedMatrix};
use super::tasks::Tasks;
use crate::isa::Isa;
use crate::ops::{Carver, OpsOptions, Precision, scratch_size};
use crate::pool::Pool;
use crate::simd::integer::dispatch;

/// Most summands of one input gradient: the projections that read one input.
pub(crate) const SUMMANDS_MAX: usize = 8;

/// Row tiles whose gradients are prepared by one task: they share the offsets in the cache.
const ROW_TILES_PER_TASK: usize = 7;

/// Integers of a worker's share of a part at most: with 16 bits each, half of a 2 MiB cache; a whole block of rows of the
/// widest part.
const SHARE_INTEGERS: usize = forward::BLOCK_ROWS * PART_TILES * TILE;
/// Tiles of a part of the common dimension at most. For the input gradient this is part of the numerical contract:
/// the offsets of a part are summed and added before its products.
const PART_TILES: usize = 32;

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

/// Tiles of each part when `tiles` are cut into as few parts of [`PART_TILES`] as possible.
fn part_tiles(tiles: usize, multiple: usize) -> usize {
    tiles.div_ceil(tiles.div_ceil(PART_TILES)).next_multiple_of(multiple)
}

/// Integers of a part at most.
fn part_integers(options: &OpsOptions) -> usize {
    SHARE_INTEGERS * options.threads.max(1)
}

/// Rows of a part at most whose rows have `tiles` tiles.
fn part_rows_max(options: &OpsOptions, tiles: usize) -> usize {
    (part_integers(options) / (tiles * TILE) / ROWS * ROWS).max(ROWS)
}

/// Rows of each part when `rows` are cut into as few equal parts as possible.
fn part_rows(options: &OpsOptions, rows: usize, tiles: usize) -> usize {
    rows.div_ceil(rows.div_ceil(part_rows_max(options, tiles))).next_multiple_of(ROWS)
}

/// Rows of a block: half of `most` for floats, which are twice as long as integers.
fn block_rows(most: usize, precision: Precision) -> usize {
    if precision == Precision::Exact { most / 2 } else { most }
}

/// `Y = X·Wᵀ` for matrices that read the same X and have the same scale groups and bits: some rows and one part of k.
#[derive(Clone, Copy)]
pub(crate) struct ForwardProduct {
    options: OpsOptions,
    k: usize,
    first_tile: usize,
    x: *const f32,
    input: ForwardInput,
    workers: *mut u8,
}

impl ForwardProduct {
    /// Scratch for `rows` rows of input to matrices such as `header`, all of k at once.
    pub(crate) fn scratch_bytes(options: &OpsOptions, rows: usize, header: &PackedHeader) -> usize {
        Self::scratch_for(options, rows * header.column_tiles(), header)
    }

    fn scratch_for(options: &OpsOptions, cells: usize, header: &PackedHeader) -> usize {
        let input = match options.precision {
            Precision::Exact => 0,
            _ => {
                scratch_size::<u8>(cells * cell_bytes(options.precision))
                    + scratch_size::<RowScale>(cells * header.groups_per_tile())
            }
        };
        input + options.threads.max(1) * forward::worker_bytes()
    }

    /// Quantizes all columns of `x` [rows, k_in].
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
        // SAFETY: passed on.
        unsafe { Self::prepare_part(options, pool, rows, x, header, 0..header.column_tiles(), scratch) }
    }

    /// Quantizes the columns of `x` [rows, k_in] in `tiles` of k.
    unsafe fn prepare_part(
        options: &OpsOptions,
        pool: &Pool,
        rows: usize,
        x: *const f32,
        header: &PackedHeader,
        tiles: Range<usize>,
        scratch: *mut u8,
    ) -> Self {
        let groups = header.groups_per_tile();
        let mut carver = Carver::new(scratch);
        let mut input = ForwardInput {
            rows,
            tiles: tiles.len(),
            groups,
            cell_bytes: cell_bytes(options.precision),
            wide: header.code_bits() == 8,
            integers: std::ptr::null_mut(),
            scales: std::ptr::null_mut(),
        };
        let k = header.k_in;
        if options.precision != Precision::Exact {
            let cells = rows * tiles.len();
            input.integers = carver.take(cells * input.cell_bytes);
            input.scales = carver.take::<u32>(cells * groups * (size_of::<RowScale>() / size_of::<u32>())).cast();
            let columns = k.min(tiles.end * TILE) - tiles.start * TILE;
            // SAFETY: the part lies inside x.
            let shared = Shared((unsafe { x.add(tiles.start * TILE) }, input));
            let isa = options.isa;
            pool.run(row_tile_count(rows), &|row_tile, _| {
                let (x, input) = shared.get();
                // SAFETY: each task writes the cells of its own row tile.
                unsafe { dispatch(isa, QuantizeForward { x, x_stride: k, columns, input, row_tile }) }
            });
        }
        Self { options: *options, k, first_tile: tiles.start, x, input, workers: carver.take(0) }
    }

    /// Computes every `(W, y)` of `outputs`: y [rows, n_out], rows `y_stride` floats apart, overwritten by the first
    /// part of k and added to by the others.
    ///
    /// # Safety
    /// The promises of [`ForwardProduct::prepare`] still hold; the outputs are writable and overlap nothing.
    pub(crate) unsafe fn run(&self, pool: &Pool, outputs: &[ForwardOutput<'_>]) {
        let tiles = outputs.iter().map(|output| output.matrix.row_tiles()).sum::<usize>();
        let rows_max = block_rows(forward::BLOCK_ROWS, self.options.precision);
        let tasks = Tasks::new(self.input.rows, tiles, self.options.threads, rows_max);
        let shared = Shared((*self, outputs));
        pool.run(tasks.count(), &|task, worker| {
            let (product, outputs) = shared.get();
            let (mut tile, first_row, rows) = tasks.task(task);
            let mut output = 0;
            while tile >= outputs[output].matrix.row_tiles() {
                tile -= outputs[output].matrix.row_tiles();
                output += 1;
            }
            let output = &outputs[output];
            debug_assert!(output.matrix.k_in() == product.k);
            debug_assert!((output.matrix.header().code_bits() == 8) == product.input.wide);
            // SAFETY: each task writes the columns of one tile in its rows, with the scratch of its worker.
            unsafe {
                let task = ForwardTask {
                    matrix: output.matrix,
                    row_tile: tile,
                    precision: product.options.precision,
                    first_tile: product.first_tile,
                    input: product.input,
                    x: product.x,
                    y: output.y,
                    y_stride: output.y_stride,
                    first_row,
                    rows,
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

/// Tiles of k in a part of a forward product: all of them unless the integers would not stay in the cache.
fn forward_part_tiles(options: &OpsOptions, rows: usize, header: &PackedHeader) -> usize {
    let tiles = header.column_tiles();
    let fits = rows * tiles * TILE <= part_integers(options) || options.precision == Precision::Exact;
    if fits { tiles } else { part_tiles(tiles, PANEL_TILES) }
}

/// Scratch of [`forward`] for `rows` rows of input; does not shrink as rows grow.
pub(crate) fn forward_scratch_bytes(options: &OpsOptions, rows: usize, header: &PackedHeader) -> usize {
    let cells = (rows * header.column_tiles()).min(part_integers(options) / TILE);
    ForwardProduct::scratch_for(options, cells, header)
}

/// Computes every `(W, y)` of at most [`OUTPUTS_AT_ONCE`] `outputs` from `x` [rows, k_in], for matrices with the
/// same groups and bits.
///
/// # Safety
/// `x` is readable, the outputs are writable and overlap nothing; `scratch` has [`forward_scratch_bytes`] bytes,
/// aligned to 64; `pool` has `options.threads` threads at most.
pub(crate) unsafe fn forward(
    options: &OpsOptions,
    pool: &Pool,
    rows: usize,
    x: *const f32,
    outputs: &[ForwardOutput<'_>],
    scratch: *mut u8,
) {
    let header = outputs[0].matrix.header();
    let tiles = header.column_tiles();
    let in_part = forward_part_tiles(options, rows, &header);
    let part_rows = if options.precision == Precision::Exact { rows } else { part_rows(options, rows, in_part) };
    for first_row in (0..rows).step_by(part_rows) {
        let count = part_rows.min(rows - first_row);
        for first_tile in (0..tiles).step_by(in_part) {
            let part = first_tile..tiles.min(first_tile + in_part);
            // SAFETY: passed on; the rows are inside x and the outputs.
            unsafe {
                let x = x.add(first_row * header.k_in);
                let product = ForwardProduct::prepare_part(options, pool, count, x, &header, part, scratch);
                let rows_of: [ForwardOutput<'_>; OUTPUTS_AT_ONCE] = std::array::from_fn(|index| {
                    let output = outputs[index.min(outputs.len() - 1)];
                    ForwardOutput { y: output.y.add(first_row * output.y_stride), ..output }
                });
                product.run(pool, &rows_of[..outputs.len()]);
            }
        }
    }
}

/// Outputs of one input at most: their tasks are shared out together.
pub(super) const OUTPUTS_AT_ONCE: usize = 4;

/// Tiles of n in a part of an input gradient.
fn gradient_part_tiles(options: &OpsOptions, header: &PackedHeader) -> usize {
    match options.precision {
        Precision::Exact => header.row_tiles(),
        _ => part_tiles(header.row_tiles(), BLOCK / TILE).min(header.row_tiles()),
    }
}

/// A part of n of one summand.
#[derive(Clone, Copy)]
struct Part<'a> {
    matrix: &'a PackedMatrix,
    /// [rows, n_out]; null while scratch is counted.
    dy: *const f32,
    first_tile: usize,
    tiles: usize,
}

/// Calls `run` with the parts of all summands in order, as many at once as have room in the cache together: they share
/// the parallel loops, and each task adds them up where its tile of dX lies.
fn for_parts<'a>(
    options: &OpsOptions,
    rows: usize,
    summands: impl IntoIterator<Item = (&'a PackedMatrix, *const f32)>,
    mut run: impl FnMut(&[Part<'a>]),
) {
    let columns_max = if options.precision == Precision::Exact { usize::MAX } else { part_integers(options) / rows };
    let mut parts = [None; SUMMANDS_MAX];
    let (mut count, mut columns) = (0, 0);
    let mut flush = |parts: &[Option<Part<'a>>]| {
        let Some(first) = parts.first().copied().flatten() else { return };
        let whole: [Part<'a>; SUMMANDS_MAX] = std::array::from_fn(|i| parts.get(i).copied().flatten().unwrap_or(first));
        run(&whole[..parts.len()]);
    };
    for (matrix, dy) in summands {
        let tiles = matrix.row_tiles();
        let in_part = gradient_part_tiles(options, &matrix.header());
        for first_tile in (0..tiles).step_by(in_part) {
            let tiles = in_part.min(tiles - first_tile);
            if count == SUMMANDS_MAX || columns + tiles * TILE > columns_max {
                flush(&parts[..count]);
                (count, columns) = (0, 0);
            }
            parts[count] = Some(Part { matrix, dy, first_tile, tiles });
            (count, columns) = (count + 1, columns + tiles * TILE);
        }
    }
    flush(&parts[..count]);
}

/// Rows that are computed at once: those whose integers of the widest part stay in the cache.
fn gradient_rows<'a>(options: &OpsOptions, rows: usize, matrices: impl IntoIterator<Item = &'a PackedMatrix>) -> usize {
    let widest = matrices.into_iter().map(|matrix| gradient_part_tiles(options, &matrix.header())).max().unwrap_or(1);
    if options.precision == Precision::Exact || rows == 0 { rows } else { part_rows(options, rows, widest).min(rows) }
}

/// Scratch of [`input_grad`] for `rows` rows of gradient.
pub(crate) fn input_grad_scratch_bytes<'a>(
    options: &OpsOptions,
    rows: usize,
    matrices: impl IntoIterator<Item = &'a PackedMatrix> + Clone,
) -> usize {
    let rows = gradient_rows(options, rows, matrices.clone());
    let mut largest = 0;
    if rows > 0 && options.precision != Precision::Exact {
        let summands = matrices.into_iter().map(|matrix| (matrix, std::ptr::null()));
        for_parts(options, rows, summands, |parts| {
            largest = largest.max(parts.iter().map(|part| part.scratch_bytes(rows)).sum());
        });
    }
    largest + options.threads.max(1) * input_grad::worker_bytes()
}

impl Part<'_> {
    fn columns(&self) -> usize {
        self.tiles * TILE
    }

    /// Scale groups of a row of W.
    fn groups(&self) -> usize {
        let header = self.matrix.header();
        header.column_tiles() * header.groups_per_tile()
    }

    /// Scratch without that of the workers.
    fn scratch_bytes(&self, rows: usize) -> usize {
        let columns = self.columns();
        let mut bytes = scratch_size::<i16>(rows * columns) + scratch_size::<f32>(rows * columns.div_ceil(BLOCK));
        if !self.matrix.symmetric() {
            bytes += scratch_size::<f32>(self.groups() * columns) + scratch_size::<f32>(rows * self.groups());
        }
        bytes
    }
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
    let part_rows = gradient_rows(options, rows, inputs.iter().map(|(matrix, _)| *matrix));
    let k = inputs[0].0.k_in();
    for first_row in (0..rows).step_by(part_rows.max(1)) {
        let count = part_rows.min(rows - first_row);
        let mut accumulate = accumulate;
        // SAFETY: passed on; the rows are inside every dy and dx.
        let summands = inputs.iter().map(|(matrix, dy)| (*matrix, unsafe { dy.add(first_row * matrix.n_out()) }));
        for_parts(options, part_rows, summands, |parts| {
            // SAFETY: as above.
            unsafe { input_grad_parts(options, pool, count, parts, dx.add(first_row * k), accumulate, scratch) };
            accumulate = true;
        });
    }
}

/// Some rows and some parts of n.
unsafe fn input_grad_parts(
    options: &OpsOptions,
    pool: &Pool,
    rows: usize,
    parts: &[Part<'_>],
    dx: *mut f32,
    accumulate: bool,
    scratch: *mut u8,
) {
    let mut carver = Carver::new(scratch);
    // SAFETY: passed on.
    let summands = unsafe { prepare_gradients(options, pool, rows, parts, &mut carver) };
    let workers = carver.take::<u8>(0);
    let column_tiles = parts[0].matrix.header().column_tiles();
    let tasks = Tasks::new(rows, column_tiles, options.threads, block_rows(input_grad::BLOCK_ROWS, options.precision));
    let (precision, isa) = (options.precision, options.isa);
    let shared = Shared((&summands[..parts.len()], dx, workers));
    pool.run(tasks.count(), &|task, worker| {
        let (summands, dx, workers) = shared.get();
        let (tile, first_row, rows) = tasks.task(task);
        for (index, summand) in summands.iter().enumerate() {
            // SAFETY: each task writes the columns of one tile in its rows, with the scratch of its worker.
            unsafe {
                let task = InputGradTask {
                    summand: *summand,
                    precision,
                    tile,
                    dx,
                    accumulate: accumulate || index > 0,
                    first_row,
                    rows,
                    scratch: workers.add(worker * input_grad::worker_bytes()),
                };
                dispatch(isa, task);
            }
        }
    });
}

/// Quantizes the parts of dY and multiplies them with the offsets of the weights.
unsafe fn prepare_gradients<'a>(
    options: &OpsOptions,
    pool: &Pool,
    rows: usize,
    parts: &[Part<'a>],
    carver: &mut Carver,
) -> [Summand<'a>; SUMMANDS_MAX] {
    let exact = options.precision == Precision::Exact;
    let mut offsets = [std::ptr::null_mut::<f32>(); SUMMANDS_MAX];
    let summands: [Summand<'a>; SUMMANDS_MAX] = std::array::from_fn(|index| {
        let part = parts[index.min(parts.len() - 1)];
        let mut input = GradientInput {
            rows,
            n: part.matrix.n_out().min((part.first_tile + part.tiles) * TILE) - part.first_tile * TILE,
            tiles: part.tiles,
            integers: std::ptr::null_mut(),
            scales: std::ptr::null_mut(),
            integer_max: if options.precision == Precision::A8 { GRADIENT_A8_MAX } else { GRADIENT_A16_MAX },
        };
        let mut sums = std::ptr::null_mut();
        if index < parts.len() && !exact {
            input.integers = carver.take(rows * part.columns());
            input.scales = carver.take(rows * input.blocks());
            if !part.matrix.symmetric() {
                offsets[index] = carver.take::<f32>(part.groups() * part.columns());
                sums = carver.take::<f32>(rows * part.groups());
            }
        }
        Summand { matrix: part.matrix, first_tile: part.first_tile, input, dy: part.dy, offsets: sums }
    });
    if exact {
        return summands;
    }
    let isa = options.isa;
    let shared = Shared((parts, summands.as_ptr(), offsets));
    if offsets.iter().any(|offsets| !offsets.is_null()) {
        pool.run(parts.iter().map(|part| part.tiles).sum(), &|mut row_tile, _| {
            let (parts, _, offsets) = shared.get();
            let mut index = 0;
            while row_tile >= parts[index].tiles {
                row_tile -= parts[index].tiles;
                index += 1;
            }
            let (part, out) = (&parts[index], offsets[index]);
            if !out.is_null() {
                let (matrix, first_tile, columns) = (part.matrix, part.first_tile, part.columns());
                // SAFETY: each task writes the offsets of its own rows of W.
                unsafe { dispatch(isa, GatherOffsets { matrix, first_tile, row_tile, out, columns }) }
            }
        });
    }
    let row_tiles = row_tile_count(rows);
    // Few enough that all threads have some.
    let in_task = row_tiles.div_ceil(2 * options.threads.max(1)).clamp(1, ROW_TILES_PER_TASK);
    let tasks = row_tiles.div_ceil(in_task);
    pool.run(parts.len() * tasks, &|task, _| {
        let (parts, summands, offsets) = shared.get();
        let (index, task) = (task % parts.len(), task / parts.len());
        let row_tiles = task * in_task..row_tiles.min((task + 1) * in_task);
        // SAFETY: there is a summand for each part; each task writes the integers and sums of its own row tiles.
        unsafe { prepare_rows(isa, &parts[index], &*summands.add(index), offsets[index], row_tiles) }
    });
    summands
}

/// Quantizes some row tiles of one part and sums their products with the offsets.
unsafe fn prepare_rows(isa: Isa, part: &Part<'_>, summand: &Summand<'_>, offsets: *const f32, row_tiles: Range<usize>) {
    let (input, dy_stride) = (summand.input, part.matrix.n_out());
    let rows = input.rows;
    // SAFETY: the part lies inside dy.
    unsafe {
        let dy = part.dy.add(part.first_tile * TILE);
        let row_maxima = part.matrix.row_maxima()[part.first_tile * TILE..].as_ptr();
        for row_tile in row_tiles.clone() {
            dispatch(isa, QuantizeGradient { dy, dy_stride, row_maxima, input, row_tile });
        }
        if !offsets.is_null() {
            let first_row = row_tile_start(rows, row_tiles.start);
            let last = row_tile_start(rows, row_tiles.end - 1);
            let height = last + row_tile_height(rows, last) - first_row;
            let (padded_n, groups, out) = (part.columns(), part.groups(), summand.offsets.cast_mut());
            dispatch(isa, OffsetSums { dy, dy_stride, n: input.n, offsets, padded_n, groups, first_row, height, out });
        }
    }
}
