//! How a product is cut into tasks.

use super::activations::ROWS;

/// How the rows of a part are shared out: blocks of equal size, the last one with up to three half row tiles more.
#[derive(Clone, Copy)]
struct RowBlocks {
    rows: usize,
    block: usize,
    count: usize,
}

impl RowBlocks {
    fn new(rows: usize, count: usize) -> Self {
        let block = rows.div_ceil(count).next_multiple_of(ROWS);
        // Where a block ends, so does a row tile: nine rows and fewer are cut otherwise.
        Self { rows, block, count: rows.saturating_sub(9).div_ceil(block).max(1) }
    }

    /// First row and rows of block `index`.
    fn block(&self, index: usize) -> (usize, usize) {
        let first = index * self.block;
        (first, if index + 1 == self.count { self.rows - first } else { self.block })
    }
}

/// How a product is cut into tasks: one column tile for a block of rows each, block after block, so that the rows stay in
/// the cache of the worker whose share they are. The last tiles of a block are cut finer than the others, so that workers
/// that are through with those have something left to share, and end together.
#[derive(Clone, Copy)]
pub(super) struct Tasks {
    coarse_tiles: usize,
    fine_tiles: usize,
    blocks: RowBlocks,
    /// Rows of a fine task at least.
    fine_rows: usize,
}

impl Tasks {
    /// Tasks of at most `rows_max` rows, as large as `threads` workers allow: each unpacks its tile for itself.
    pub(super) fn new(rows: usize, tiles: usize, threads: usize, rows_max: usize) -> Self {
        const COARSE_PER_THREAD: usize = 4;
        // Below this the unpacking of a panel costs more than idle workers.
        const ROWS_MIN: usize = 8 * ROWS;
        let mut count = rows.div_ceil(rows_max);
        while threads > 1 && count * tiles < COARSE_PER_THREAD * threads && rows.div_ceil(count + 1) >= ROWS_MIN {
            count += 1;
        }
        // Shares of whole blocks, unless those become short.
        let even = count.next_multiple_of(threads.max(1));
        if rows.div_ceil(even) >= rows_max / 2 {
            count = even;
        }
        let blocks = RowBlocks::new(rows, count);
        // What the workers may be apart after the coarse tasks: one of them each.
        let fine_tiles = if threads > 1 && blocks.block >= 2 * ROWS_MIN { threads.div_ceil(blocks.count) } else { 0 };
        let fine_tiles = fine_tiles.min(tiles);
        Self { coarse_tiles: tiles - fine_tiles, fine_tiles, blocks, fine_rows: ROWS_MIN }
    }

    /// How the rows of a block are cut for its last tiles.
    fn fine(&self, rows: usize) -> RowBlocks {
        RowBlocks::new(rows, (rows / self.fine_rows).max(1))
    }

    /// Tasks of a block with so many rows.
    fn in_block(&self, rows: usize) -> usize {
        self.coarse_tiles + self.fine_tiles * self.fine(rows).count
    }

    pub(super) fn count(&self) -> usize {
        let last = self.blocks.count - 1;
        last * self.in_block(self.blocks.block) + self.in_block(self.blocks.block(last).1)
    }

    /// Column tile, first row, and rows of task `index`.
    pub(super) fn task(&self, index: usize) -> (usize, usize, usize) {
        let in_block = self.in_block(self.blocks.block);
        let block = (index / in_block).min(self.blocks.count - 1);
        let (index, (first_row, rows)) = (index - block * in_block, self.blocks.block(block));
        if index < self.coarse_tiles {
            return (index, first_row, rows);
        }
        let (index, fine) = (index - self.coarse_tiles, self.fine(rows));
        let (first_fine_row, rows) = fine.block(index % fine.count);
        (self.coarse_tiles + index / fine.count, first_row + first_fine_row, rows)
    }
}
