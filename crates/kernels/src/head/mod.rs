//! The output head and the cross-entropy in one op, so that logits of a whole example never exist.
//!
//! With `P = softmax(H W^T)` the gradient of the summed losses is `P W - W[targets]`: attention with the weight as
//! keys and values. So one pass over chunks of the vocabulary does it, with a running maximum and sum for each row
//! (Milakov and Gimelshein, "Online normalizer calculation for softmax"):
//!
//! ```text
//! for each chunk C of W:  L = H C^T;  grow the maximum m (scale dH and the sum s by exp(m_old - m));
//!                         L = exp(L - m);  s += rowsum L;  dH += L C
//! loss = ln s + m - L[target];  dH = factor * (dH / s - W[target])
//! ```

#[cfg(test)]
mod reference;
mod softmax;
#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::ops::{Carver, Ops, OpsOptions, Work, scratch_size};
use crate::place::{Place, assert_apart, assert_same_shape};
use crate::qlinear::{ForwardOutput, ForwardProduct, PackedMatrix, TILE, input_grad, input_grad_scratch_bytes};
use crate::simd;
use softmax::{Finish, Softmax};

/// Rows of the vocabulary whose logits exist at a time, in tiles of 64. The products run at full rate on it, and the
/// logits of a block of rows (4 MB) stay near the processor.
const CHUNK_TILES: usize = 32;
/// Hidden rows at a time at most: bounds the scratch; unpacking the weight again for each costs under 1 %.
const BLOCK_ROWS: usize = 504;

/// What is known of a row after some chunks.
struct RowStates {
    /// [rows]
    maxima: Place,
    /// [rows], sums of exponentials under the maximum
    sums: Place<f64>,
    /// [rows]
    target_logits: Place,
}

fn block_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(BLOCK_ROWS).max(1))
}

/// Bytes of scratch for blocks of `rows` rows.
fn scratch_bytes(options: &OpsOptions, weight: &PackedMatrix, rows: usize, with_gradient: bool) -> usize {
    let chunk = weight.row_window(0..weight.row_tiles().min(CHUNK_TILES));
    let states = 2 * scratch_size::<f32>(rows) + scratch_size::<f64>(rows);
    let logits = scratch_size::<f32>(rows * chunk.n_out());
    let forward = ForwardProduct::scratch_bytes(options, rows, &weight.header()).next_multiple_of(64);
    let (products, target_rows) = if with_gradient {
        let backward = input_grad_scratch_bytes(options, rows, [&chunk]).next_multiple_of(64);
        (forward + backward, options.threads.max(1) * scratch_size::<f32>(weight.k_in()))
    } else {
        (forward, 0)
    };
    states + logits + products + target_rows
}

impl Ops {
    /// `losses[m] = -log softmax(weight hidden[m])[targets[m]]` (overwritten) and, with `gradient = (dh, factor)`,
    /// `dh = factor * d(sum of losses)/d(hidden)` (overwritten), for weight [V, D], hidden, dh [M, D].
    ///
    /// Both products run at the precision of the options. A row with a NaN has a NaN loss and gradient, others not.
    pub fn head_cross_entropy(
        &mut self,
        weight: &PackedMatrix,
        hidden: Tensor,
        targets: &[u32],
        losses: &mut [f32],
        gradient: Option<(Tensor, f32)>,
    ) {
        assert_eq!((hidden.rows(), hidden.columns()), (targets.len(), weight.k_in()), "shape of the hidden rows");
        assert_eq!(losses.len(), targets.len(), "number of losses");
        let known = targets.iter().all(|target| (*target as usize) < weight.n_out());
        assert!(known, "a target is not below the vocabulary size {}", weight.n_out());
        if let Some((dh, _)) = gradient {
            assert_same_shape(("hidden", hidden), ("dh", dh));
            assert_apart(("dh", dh), &[("hidden", hidden)]);
        }
        let products = 1 + u64::from(gradient.is_some());
        let macs = products * hidden.len() as u64 * weight.n_out() as u64;
        let rows = block_rows(targets.len());
        let scratch = scratch_bytes(&self.options, weight, rows, gradient.is_some());
        if !self.begin(Work::Head, macs, scratch) {
            return;
        }
        for start in (0..targets.len()).step_by(rows.max(1)) {
            let end = targets.len().min(start + rows);
            let gradient = gradient.map(|(dh, factor)| (dh.row_range(start..end), factor));
            let (hidden, losses) = (hidden.row_range(start..end), &mut losses[start..end]);
            self.head_block(weight, hidden, &targets[start..end], losses, gradient);
        }
    }

    /// One block of rows through all chunks.
    fn head_block(
        &mut self,
        weight: &PackedMatrix,
        hidden: Tensor,
        targets: &[u32],
        losses: &mut [f32],
        gradient: Option<(Tensor, f32)>,
    ) {
        let (rows, width) = (targets.len(), weight.k_in());
        let (options, row_tiles) = (self.options, weight.row_tiles());
        let hidden = self.place(hidden);
        let dh = gradient.map(|(dh, _)| self.place(dh));
        let mut carver = Carver::new(self.scratch_start());
        let states = RowStates {
            maxima: Place::new(carver.take(rows)),
            sums: Place::new(carver.take::<u32>(2 * rows).cast()),
            target_logits: Place::new(carver.take(rows)),
        };
        let chunk_columns = weight.row_window(0..row_tiles.min(CHUNK_TILES)).n_out();
        let logits = Place::new(carver.take::<f32>(rows * chunk_columns));
        let target_rows = Place::new(carver.take::<f32>(0));
        if dh.is_some() {
            for _ in 0..options.threads.max(1) {
                carver.take::<f32>(width);
            }
        }
        let forward_scratch = carver.take::<u8>(ForwardProduct::scratch_bytes(&options, rows, &weight.header()));
        let backward_scratch = carver.take::<u8>(0);
        // SAFETY: hidden lies in the arena, the scratch was asked for and its parts are apart.
        let forward = unsafe {
            ForwardProduct::prepare(&options, &self.pool, rows, hidden.at(0), &weight.header(), forward_scratch)
        };
        for first_tile in (0..row_tiles).step_by(CHUNK_TILES) {
            let chunk = weight.row_window(first_tile..row_tiles.min(first_tile + CHUNK_TILES));
            let columns = chunk.n_out();
            // SAFETY: logits have room for `rows` rows of every chunk; each softmax task has its own row.
            unsafe {
                let output = ForwardOutput { matrix: &chunk, y: logits.at(0), y_stride: columns };
                forward.run(&self.pool, &[output]);
                // Products alone have no softmax between them.
                let softmax_rows = if self.is_products_only() { 0 } else { rows };
                self.pool.run(softmax_rows, &|row, _| {
                    let softmax = Softmax {
                        logits: logits.at(row * columns),
                        columns,
                        target: (targets[row] as usize).checked_sub(first_tile * TILE),
                        is_first: first_tile == 0,
                        maximum: states.maxima.at(row),
                        sum: states.sums.at(row),
                        target_logit: states.target_logits.at(row),
                        dh: dh.map(|dh| dh.at(row * width)),
                        width,
                    };
                    simd::dispatch(options.isa, softmax);
                });
                if let Some(dh) = dh {
                    let inputs = [(&chunk, logits.at(0).cast_const())];
                    let accumulate = first_tile > 0;
                    input_grad(&options, &self.pool, rows, &inputs, dh.at(0), accumulate, backward_scratch);
                }
            }
        }
        if self.is_products_only() {
            return;
        }
        let losses = Place::new(losses.as_mut_ptr());
        self.pool.run(rows, &|row, worker| {
            // SAFETY: each task has its own row, each worker its own target row.
            unsafe {
                let (max, sum) = (f64::from(*states.maxima.at(row)), *states.sums.at(row));
                *losses.at(row) = (sum.ln() + max - f64::from(*states.target_logits.at(row))) as f32;
                if let (Some(dh), Some((_, factor))) = (dh, gradient) {
                    let target_row = target_rows.at(worker * width.next_multiple_of(16));
                    weight.dequantize_row(targets[row] as usize, std::slice::from_raw_parts_mut(target_row, width));
                    let share = (f64::from(factor) / sum) as f32;
                    simd::dispatch(options.isa, Finish { dh: dh.at(row * width), target_row, width, share, factor });
                }
            }
        });
    }
}
