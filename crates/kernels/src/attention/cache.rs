//! Keys and values of generated text, kept between calls: pages of [`PAGE_POSITIONS`] positions in the form in which
//! attention multiplies them, so that a step packs nothing.
//!
//! A page holds, for each key/value head, keys `[head_dim, 64]` (one position a lane), values `[64, head_dim padded to
//! 16]` and, with 8 bits, the scales of both, `[64]` each. A text is a list of pages, and texts with a common beginning
//! have pages in common. Pages begin where attention's tiles of keys do, so sharing changes no bit.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::AttentionShape;
use super::forward::{KeyTile, Source};
use super::tile::TILE_KEYS;
use crate::arena::{ALIGNMENT_BYTES, ArenaPlan, Tensor};
use crate::ops::{Ops, Work};
use crate::place::{Place, assert_same_shape};
use crate::simd::{Element, Simd, TINY};

/// Positions of a page.
pub const PAGE_POSITIONS: usize = TILE_KEYS;

/// How a cache stores its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheFormat {
    /// float32: attention gives the bits that it gives without a cache.
    Float32,
    /// float16, rounded to nearest: relative error at most 2^-11. Magnitudes beyond 65504 become 65504.
    Float16,
    /// Signed bytes with one float32 scale a position and head, the largest magnitude / 127: error at most 1/254 of
    /// that magnitude.
    Bits8,
}

impl CacheFormat {
    pub const ALL: [CacheFormat; 3] = [CacheFormat::Float32, CacheFormat::Float16, CacheFormat::Bits8];

    pub fn name(self) -> &'static str {
        match self {
            CacheFormat::Float32 => "f32",
            CacheFormat::Float16 => "f16",
            CacheFormat::Bits8 => "8bit",
        }
    }
    pub fn by_name(name: &str) -> Option<CacheFormat> {
        CacheFormat::ALL.into_iter().find(|format| format.name() == name)
    }
    fn value_bytes(self) -> usize {
        match self {
            CacheFormat::Float32 => size_of::<f32>(),
            CacheFormat::Float16 => size_of::<f16>(),
            CacheFormat::Bits8 => size_of::<i8>(),
        }
    }
}

/// Handle of the keys and values of one block in the arena.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyValueCache {
    format: CacheFormat,
    kv_heads: usize,
    head_dim: usize,
    /// [pages, floats of a page], opaque.
    pages: Tensor,
}

/// Where the parts of a head lie in a page, in bytes from the head's start.
#[derive(Clone, Copy)]
struct HeadLayout {
    values: usize,
    key_scales: usize,
    value_scales: usize,
    bytes: usize,
}

impl HeadLayout {
    fn new(format: CacheFormat, head_dim: usize) -> Self {
        let value_bytes = format.value_bytes();
        let scale_bytes = if format == CacheFormat::Bits8 { PAGE_POSITIONS * size_of::<f32>() } else { 0 };
        let values = PAGE_POSITIONS * head_dim * value_bytes;
        let key_scales = values + PAGE_POSITIONS * padded(head_dim) * value_bytes;
        let value_scales = key_scales + scale_bytes;
        Self { values, key_scales, value_scales, bytes: value_scales + scale_bytes }
    }
}

/// Values of a stored row.
fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(crate::simd::LANES)
}

impl KeyValueCache {
    /// A place for `pages` pages of the keys and values of `kv_heads` heads.
    pub fn new(
        arena: &mut ArenaPlan,
        format: CacheFormat,
        pages: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> KeyValueCache {
        let floats = Self::page_bytes(format, kv_heads, head_dim) / size_of::<f32>();
        Self::of(arena.tensor(pages, floats), format, kv_heads, head_dim)
    }
    /// In a tensor of [pages, floats of a page].
    pub(super) fn of(pages: Tensor, format: CacheFormat, kv_heads: usize, head_dim: usize) -> KeyValueCache {
        assert!((1..=HEAD_DIM_MAX).contains(&head_dim), "head_dim {head_dim}");
        Self { format, kv_heads, head_dim, pages }
    }
    /// Bytes of a page.
    pub fn page_bytes(format: CacheFormat, kv_heads: usize, head_dim: usize) -> usize {
        let bytes = kv_heads * HeadLayout::new(format, head_dim).bytes;
        debug_assert!(bytes.is_multiple_of(ALIGNMENT_BYTES));
        bytes
    }
    pub fn format(&self) -> CacheFormat {
        self.format
    }
    pub fn pages(&self) -> usize {
        self.pages.rows()
    }

    pub(super) fn tensor(&self) -> Tensor {
        self.pages
    }
}

/// The pages of several texts.
#[derive(Clone, Copy, Debug)]
pub struct PageTables<'a> {
    /// Page of each [`PAGE_POSITIONS`] positions, [texts, pages a text]. Entries behind the end of a text may be
    /// anything.
    pub pages: &'a [u32],
    pub pages_per_text: usize,
}

impl PageTables<'_> {
    #[inline(always)]
    fn page(&self, text: u32, position: usize) -> u32 {
        self.pages[text as usize * self.pages_per_text + position / PAGE_POSITIONS]
    }
}

/// Which rows of a matrix belong where in a cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedRows<'a> {
    /// Place of each row in its text, non-decreasing.
    pub positions: &'a [u32],
    /// Text of each row.
    pub texts: &'a [u32],
    pub tables: PageTables<'a>,
}

impl CachedRows<'_> {
    /// Asserts that all positions up to those of the rows have pages of `cache`.
    pub(super) fn check(&self, cache: &KeyValueCache) {
        assert_eq!(self.positions.len(), self.texts.len(), "texts of the rows");
        assert!(self.positions.is_sorted(), "positions decrease");
        let PageTables { pages, pages_per_text } = self.tables;
        for (row, (&position, &text)) in self.positions.iter().zip(self.texts).enumerate() {
            // Of neighbouring rows of one text the last has the most pages.
            if self.texts.get(row + 1) == Some(&text) {
                continue;
            }
            let used = position as usize / PAGE_POSITIONS + 1;
            let start = text as usize * pages_per_text;
            assert!(used <= pages_per_text && start + used <= pages.len(), "position {position} of text {text}");
            let exist = |page: &u32| (*page as usize) < cache.pages();
            assert!(pages[start..start + used].iter().all(exist), "a page of text {text} does not exist");
        }
    }
}

impl Ops {
    /// Puts rows of keys and values [T, KV·d] in their places in `cache`: at each row's position in its text. What
    /// those pages hold at other positions stays.
    pub fn cache_keys_values(&mut self, cache: &KeyValueCache, rows: CachedRows, k: Tensor, v: Tensor) {
        assert_same_shape(("k", k), ("v", v));
        let columns = cache.kv_heads * cache.head_dim;
        assert_eq!((k.rows(), k.columns()), (rows.positions.len(), columns), "shape of k");
        assert!(!cache.pages.overlaps(&k) && !cache.pages.overlaps(&v), "the cache overlaps its input");
        rows.check(cache);
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        match cache.format {
            CacheFormat::Float32 => self.cache_rows::<f32>(cache, rows, k, v),
            CacheFormat::Float16 => self.cache_rows::<f16>(cache, rows, k, v),
            CacheFormat::Bits8 => self.cache_rows::<i8>(cache, rows, k, v),
        }
    }

    fn cache_rows<E: Stored>(&mut self, cache: &KeyValueCache, rows: CachedRows, k: Tensor, v: Tensor) {
        // Enough rows for a task to be worth handing out; those of one page lie in the same lines of the cache.
        const TASK_ROWS: usize = 32;
        let KeyValueCache { kv_heads, head_dim, .. } = *cache;
        let layout = HeadLayout::new(cache.format, head_dim);
        let (k, v) = (self.place(k), self.place(v));
        let pages = Place::new(self.place(cache.pages).start().cast::<u8>());
        let page_bytes = kv_heads * layout.bytes;
        let count = rows.positions.len();
        self.pool.run(count.div_ceil(TASK_ROWS), &|task, _| {
            for row in task * TASK_ROWS..count.min((task + 1) * TASK_ROWS) {
                let position = rows.positions[row] as usize;
                let page = rows.tables.page(rows.texts[row], position) as usize;
                let slot = position % PAGE_POSITIONS;
                for head in 0..kv_heads {
                    let from = (row * kv_heads + head) * head_dim;
                    // SAFETY: rows are inside k and v, the page inside the cache, as was checked; each row writes
                    // only its own slot of its page.
                    unsafe {
                        let start = pages.at(page * page_bytes + head * layout.bytes);
                        let keys = start.cast::<E>().add(slot);
                        let values = start.add(layout.values).cast::<E>().add(slot * padded(head_dim));
                        let key = std::slice::from_raw_parts(k.at(from), head_dim);
                        let value = std::slice::from_raw_parts(v.at(from), head_dim);
                        let key_scale = E::store(key, keys, PAGE_POSITIONS);
                        let value_scale = E::store(value, values, 1);
                        if E::SCALED {
                            *start.add(layout.key_scales).cast::<f32>().add(slot) = key_scale;
                            *start.add(layout.value_scales).cast::<f32>().add(slot) = value_scale;
                        }
                    }
                }
            }
        });
    }

    /// Page `to` becomes a copy of page `from`: a text goes its own way in the middle of a page.
    pub fn copy_cache_page(&mut self, cache: &KeyValueCache, from: u32, to: u32) {
        let page = |index: u32| cache.pages.row_range(index as usize..index as usize + 1);
        let (from, to) = (page(from), page(to));
        assert!(!from.overlaps(&to), "a page is copied to itself");
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let (from_place, to_place) = (self.place(from), self.place(to));
        // SAFETY: two different pages of the arena.
        unsafe { std::ptr::copy_nonoverlapping(from_place.start(), to_place.start(), from.len()) }
    }
}

/// A type that a cache stores.
pub(super) trait Stored: Element {
    /// Whether values are multiplied by a scale.
    const SCALED: bool;
    /// Stores `x`, values `step` apart, and gives their scale.
    ///
    /// # Safety
    /// `to` has room for the values.
    unsafe fn store(x: &[f32], to: *mut Self, step: usize) -> f32;
}

impl Stored for f32 {
    const SCALED: bool = false;
    #[inline(always)]
    unsafe fn store(x: &[f32], to: *mut f32, step: usize) -> f32 {
        for (i, x) in x.iter().enumerate() {
            // SAFETY: the caller's room.
            unsafe { *to.add(i * step) = *x }
        }
        1.0
    }
}

impl Stored for f16 {
    const SCALED: bool = false;
    #[inline(always)]
    unsafe fn store(x: &[f32], to: *mut f16, step: usize) -> f32 {
        const LARGEST: f32 = 65504.0;
        let mut limited = [0f32; HEAD_DIM_MAX];
        let mut halves = [f16::ZERO; HEAD_DIM_MAX];
        let (limited, halves) = (&mut limited[..x.len()], &mut halves[..x.len()]);
        limited.iter_mut().zip(x).for_each(|(limited, x)| *limited = x.clamp(-LARGEST, LARGEST));
        halves.convert_from_f32_slice(limited);
        for (i, half) in halves.iter().enumerate() {
            // SAFETY: the caller's room.
            unsafe { *to.add(i * step) = *half }
        }
        1.0
    }
}

impl Stored for i8 {
    const SCALED: bool = true;
    #[inline(always)]
    unsafe fn store(x: &[f32], to: *mut i8, step: usize) -> f32 {
        let largest = x.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let finite = x.iter().all(|x| x.is_finite());
        let inverse = if finite && largest >= TINY { 127.0 / largest } else { 0.0 };
        for (i, x) in x.iter().enumerate() {
            // SAFETY: the caller's room.
            unsafe { *to.add(i * step) = (x * inverse).round_ties_even() as i8 }
        }
        match finite {
            // What was no number must not become one.
            false => f32::NAN,
            true if largest < TINY => 0.0,
            true => largest / 127.0,
        }
    }
}

/// As [`AttentionShape`] limits it.
const HEAD_DIM_MAX: usize = 256;

/// One head of the pages that a block of queries sees.
#[derive(Clone, Copy)]
pub(super) struct Paged<'a, E> {
    /// The head in page 0.
    head: *const E,
    page_bytes: usize,
    layout: HeadLayout,
    /// Text of each query of the block.
    texts: &'a [u32],
    tables: PageTables<'a>,
}

impl<'a, E: Stored> Paged<'a, E> {
    /// Head `kv_head` for queries of `texts`.
    ///
    /// # Safety
    /// `pages` is the start of the cache, in which the head exists.
    pub(super) unsafe fn new(
        cache: &KeyValueCache,
        pages: *const f32,
        kv_head: usize,
        texts: &'a [u32],
        tables: PageTables<'a>,
    ) -> Self {
        let layout = HeadLayout::new(cache.format, cache.head_dim);
        // SAFETY: as the caller promises.
        let head = unsafe { pages.cast::<u8>().add(kv_head * layout.bytes).cast() };
        Self { head, page_bytes: cache.kv_heads * layout.bytes, layout, texts, tables }
    }
}

impl<E: Stored> Source for Paged<'_, E> {
    type Element = E;
    const SCALED: bool = E::SCALED;

    #[inline(always)]
    fn same_tile(&self, query: usize, other: usize, start: usize) -> bool {
        self.tables.page(self.texts[query], start) == self.tables.page(self.texts[other], start)
    }

    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, query: usize, start: usize, _keys: usize) -> KeyTile<E> {
        let page = self.tables.page(self.texts[query], start) as usize;
        // SAFETY: the caller names a tile that the query sees: its page was checked to exist.
        unsafe {
            let head = self.head.cast::<u8>().add(page * self.page_bytes);
            KeyTile {
                keys: head.cast(),
                values: head.add(self.layout.values).cast(),
                key_scales: head.add(self.layout.key_scales).cast(),
                value_scales: head.add(self.layout.value_scales).cast(),
            }
        }
    }
}

/// Asserts that a cache is made for `shape`.
pub(super) fn check_shape(cache: &KeyValueCache, shape: &AttentionShape) {
    assert_eq!((cache.kv_heads, cache.head_dim), (shape.kv_heads, shape.head_dim), "heads of the cache");
}
