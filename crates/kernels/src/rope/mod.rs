//! Rotary position embedding (Su et al., "RoFormer") in the half-split form: elements i and i + d/2 of a head are
//! the two coordinates that position p turns by the angle `p * inverse_frequency[i]`.

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::arena::{AlignedBuffer, Tensor};
use crate::ops::{Ops, Work};
use crate::place::Place;
use crate::simd::{self, Kernel, LANES, Simd};

/// Cosines and sines of every position and frequency.
pub struct RopeTable {
    /// [max_positions, half]
    cosines: AlignedBuffer<f32>,
    /// [max_positions, half]
    sines: AlignedBuffer<f32>,
    half: usize,
    max_positions: usize,
}

impl RopeTable {
    /// The table for `inverse_frequencies` (head_dim / 2 of them, radians per position) and positions below
    /// `max_positions`. Both factors are multiplied by `attention_scaling` (1 for plain rope; yarn uses another).
    ///
    /// The angle is rounded to float32 as in the implementation that models were trained with; its cosine and
    /// sine are then exact to float32.
    pub fn new(inverse_frequencies: &[f32], max_positions: usize, attention_scaling: f32) -> Self {
        let half = inverse_frequencies.len();
        let mut cosines = AlignedBuffer::zeroed(max_positions * half);
        let mut sines = AlignedBuffer::zeroed(max_positions * half);
        for position in 0..max_positions {
            for (i, inverse_frequency) in inverse_frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * inverse_frequency);
                cosines[position * half + i] = (angle.cos() * f64::from(attention_scaling)) as f32;
                sines[position * half + i] = (angle.sin() * f64::from(attention_scaling)) as f32;
            }
        }
        Self { cosines, sines, half, max_positions }
    }

    pub fn head_dim(&self) -> usize {
        2 * self.half
    }
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }
    /// Memory of the table in bytes.
    pub fn byte_len(&self) -> usize {
        2 * self.cosines.len() * size_of::<f32>()
    }
}

/// One token: turns `heads` heads by one position's angles, or back.
struct Turn {
    x: *mut f32,
    heads: usize,
    half: usize,
    cosines: *const f32,
    sines: *const f32,
    /// 1 forward, -1 backward (the transposed rotation).
    direction: f32,
}
impl Kernel for Turn {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (half, direction) = (self.half, S::splat(self.direction));
        for i in (0..half).step_by(LANES) {
            let rest = half - i;
            // SAFETY: the table row has `half` floats, x has `heads` heads of `2 half`.
            unsafe {
                let cosine = S::load_up_to(self.cosines.add(i), rest);
                let sine = S::load_up_to(self.sines.add(i), rest) * direction;
                for head in 0..self.heads {
                    let first = self.x.add(2 * head * half + i);
                    let second = first.add(half);
                    let (a, b) = (S::load_up_to(first, rest), S::load_up_to(second, rest));
                    (a * cosine - b * sine).store_up_to(first, rest);
                    (b * cosine + a * sine).store_up_to(second, rest);
                }
            }
        }
    }
}

impl Ops {
    /// Turns x [T, heads * head_dim] in place: row t to `positions[t]`.
    pub fn rope_forward(&mut self, x: Tensor, table: &RopeTable, positions: &[u32]) {
        self.rope_turn(x, table, positions, 1.0);
    }

    /// The gradient of the input from that of the output, in place: the turn by the opposite angles, scaled as the
    /// forward is.
    pub fn rope_backward(&mut self, dx: Tensor, table: &RopeTable, positions: &[u32]) {
        self.rope_turn(dx, table, positions, -1.0);
    }

    fn rope_turn(&mut self, x: Tensor, table: &RopeTable, positions: &[u32], direction: f32) {
        let (rows, columns, half) = (x.rows(), x.columns(), table.half);
        assert_eq!(rows, positions.len(), "rows of x and number of positions");
        assert!(half > 0 && columns % (2 * half) == 0, "{columns} columns are not heads of {}", 2 * half);
        let below = positions.iter().all(|position| (*position as usize) < table.max_positions);
        assert!(below, "a position is not below the table's {}", table.max_positions);
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let isa = self.options.isa;
        let x = self.place(x);
        let cosines = Place::new(table.cosines.as_ptr().cast_mut());
        let sines = Place::new(table.sines.as_ptr().cast_mut());
        self.pool.run(rows, &|row, _| {
            let at = positions[row] as usize * half;
            // SAFETY: each task has its own row; the position was checked against the table.
            unsafe {
                let (cosines, sines) = (cosines.at(at), sines.at(at));
                let heads = columns / (2 * half);
                simd::dispatch(isa, Turn { x: x.at(row * columns), heads, half, cosines, sines, direction });
            }
        });
    }
}
