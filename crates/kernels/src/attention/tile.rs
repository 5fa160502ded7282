//! What both directions share: which keys a row sees.
//!
//! A *row* is one query head at one query position. A task works on the rows of all heads that share a key/value
//! head: row `r` of a block of queries is head `r % group` of query `r / group`, so neighbouring rows see nearly
//! the same keys and the packed keys serve `group` heads.

/// Keys in a tile. Part of the numerical contract: it fixes where the running maximum is renewed.
pub(super) const TILE_KEYS: usize = 64;

/// The rows of a block of queries.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Of each query of the block.
    pub positions: &'a [u32],
    /// Query heads for each key/value head.
    pub group: usize,
    /// `usize::MAX` without a window.
    pub window: usize,
}

impl Rows<'_> {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.positions.len() * self.group
    }
    /// First key that `row` sees.
    #[inline(always)]
    pub fn first_key(&self, row: usize) -> usize {
        self.end_key(row).saturating_sub(self.window)
    }
    /// One past the last key that `row` sees.
    #[inline(always)]
    pub fn end_key(&self, row: usize) -> usize {
        self.positions[row / self.group] as usize + 1
    }
    /// Whether every row of `rows` sees every key of the tile that starts at `start`: most tiles, and those need no mask.
    #[inline(always)]
    pub fn see_all(&self, rows: std::ops::Range<usize>, start: usize) -> bool {
        self.end_key(rows.start) >= start + TILE_KEYS && self.first_key(rows.end - 1) <= start
    }
    /// Keys of the tile that starts at `start` which some row of `rows` sees, relative to `start`. Both ends of a
    /// row's range grow with the row, so the first and the last row tell.
    #[inline(always)]
    pub fn seen(&self, rows: std::ops::Range<usize>, start: usize) -> std::ops::Range<usize> {
        let first = self.first_key(rows.start).saturating_sub(start);
        let end = self.end_key(rows.end - 1).saturating_sub(start).min(TILE_KEYS);
        first..end
    }
}
