//! In which order pairs (block of queries, block of keys) add to what they share.
//!
//! Round r holds the pairs whose block numbers differ by r (modulo the number of blocks): no two pairs of a round share
//! a block, and every block meets its partners in the order of the rounds. Workers do not wait for the end of a round,
//! though: a pair starts when the last pair before it with the same queries and the last with the same keys have ended.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many blocks there are.
#[derive(Clone, Copy)]
pub(super) struct TurnsShape {
    /// Pairs of different heads share nothing.
    pub heads: usize,
    pub key_blocks: usize,
    pub query_blocks: usize,
}

impl TurnsShape {
    fn rounds(&self) -> usize {
        self.key_blocks.max(self.query_blocks)
    }
    /// One counter for each block.
    pub fn counters(&self) -> usize {
        self.heads * (self.key_blocks + self.query_blocks)
    }
}

/// All pairs of a backward. Tasks must be started in the order of their numbers, as [`crate::pool::Pool::run_in_order`] does: a
/// task waits for earlier ones only, so the first of those that run never waits.
pub(super) struct Turns<'a> {
    shape: TurnsShape,
    /// One past the round of the last pair that has ended, for each head and block of keys, then of queries.
    ended: &'a [AtomicU32],
}

/// A pair whose turn it is. The blocks' next pairs wait until it is dropped, even by a panic.
pub(super) struct Turn<'a> {
    pub head: usize,
    pub key_block: usize,
    pub query_block: usize,
    round: usize,
    ended: [&'a AtomicU32; 2],
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        for ended in self.ended {
            ended.store(self.round as u32 + 1, Ordering::Release);
        }
    }
}

impl<'a> Turns<'a> {
    /// # Safety
    /// `counters` points to memory for `shape.counters()` counters that nothing else touches during `'a`.
    pub unsafe fn new(shape: TurnsShape, counters: *mut AtomicU32) -> Self {
        // SAFETY: as the caller promises; each is written before the slice exists.
        unsafe {
            (0..shape.counters()).for_each(|i| counters.add(i).write(AtomicU32::new(0)));
            Self { shape, ended: std::slice::from_raw_parts(counters, shape.counters()) }
        }
    }

    pub fn tasks(&self) -> usize {
        self.shape.rounds() * self.shape.key_blocks * self.shape.heads
    }

    /// The pair of a task once its turn has come; `None` for tasks whose blocks of queries and keys do not `meet`.
    pub fn take(&self, task: usize, meet: &impl Fn(usize, usize) -> bool) -> Option<Turn<'a>> {
        let TurnsShape { heads, key_blocks, query_blocks } = self.shape;
        let (round, pair) = (task / (key_blocks * heads), task % (key_blocks * heads));
        let (key_block, head) = (pair / heads, pair % heads);
        let rounds = self.shape.rounds();
        let query_block = (key_block + round) % rounds;
        let meet = |query_block: usize, key_block: usize| {
            query_block < query_blocks && key_block < key_blocks && meet(query_block, key_block)
        };
        if !meet(query_block, key_block) {
            return None;
        }
        let last = |mut earlier: Range<usize>, met: &dyn Fn(usize) -> bool| {
            earlier.rfind(|round| met(*round)).map_or(0, |round| round as u32 + 1)
        };
        let (of_keys, of_queries) = (&self.ended[..heads * key_blocks], &self.ended[heads * key_blocks..]);
        let ended = [&of_keys[pair], &of_queries[query_block * heads + head]];
        wait(ended[0], last(0..round, &|round| meet((key_block + round) % rounds, key_block)));
        wait(ended[1], last(0..round, &|round| meet(query_block, (query_block + rounds - round) % rounds)));
        Some(Turn { head, key_block, query_block, round, ended })
    }
}

/// Until the counter has the value.
fn wait(ended: &AtomicU32, value: u32) {
    let mut spins = 0u32;
    while ended.load(Ordering::Acquire) != value {
        spins += 1;
        if spins < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use std::sync::Mutex;

    /// Blocks meet their partners in the same order on any number of threads, each pair once.
    #[test]
    fn every_pair_has_one_turn_in_one_order() {
        for (heads, key_blocks, query_blocks) in [(1, 1, 1), (3, 4, 8), (2, 5, 3), (1, 7, 7)] {
            let shape = TurnsShape { heads, key_blocks, query_blocks };
            let meet = |query_block: usize, key_block: usize| query_block * 2 + 1 >= key_block;
            let mut orders = [1, 2, 4].map(|threads| {
                let mut counters: Vec<AtomicU32> = (0..shape.counters()).map(|_| AtomicU32::new(9)).collect();
                // SAFETY: the vector has so many and is not touched otherwise.
                let turns = unsafe { Turns::new(shape, counters.as_mut_ptr()) };
                let partners: Vec<Mutex<Vec<usize>>> = (0..shape.counters()).map(|_| Mutex::default()).collect();
                Pool::new(threads).run_in_order(turns.tasks(), &|task, _| {
                    let Some(turn) = turns.take(task, &meet) else { return };
                    let keys = turn.key_block * heads + turn.head;
                    let queries = heads * key_blocks + turn.query_block * heads + turn.head;
                    // No other pair holds either block now.
                    let mut of_keys = partners[keys].try_lock().expect("keys of one pair");
                    let mut of_queries = partners[queries].try_lock().expect("queries of one pair");
                    of_keys.push(turn.query_block);
                    of_queries.push(turn.key_block);
                    std::thread::yield_now();
                });
                partners.into_iter().map(|partners| partners.into_inner().expect("unlocked")).collect::<Vec<_>>()
            });
            let met: usize = orders[0].iter().map(Vec::len).sum();
            let pairs = (0..query_blocks).flat_map(|q| (0..key_blocks).map(move |k| (q, k)));
            assert_eq!(met, 2 * heads * pairs.filter(|(q, k)| meet(*q, *k)).count());
            orders.sort();
            assert_eq!(orders[0], orders[2], "{heads} heads, {key_blocks} by {query_blocks} blocks");
        }
    }
}
