//! Which pages of the cache belong to which text: text 0 has pages for the whole context, each other text shares its
//! beginning with it and has a few of its own.

use kernels::{PAGE_POSITIONS, PageTables};

/// The pages of all texts.
pub(super) struct Pages {
    /// [texts, pages of a context].
    table: Vec<u32>,
    per_text: usize,
    /// Pages that belong to each text but text 0.
    own: usize,
}

impl Pages {
    /// For `texts` texts of `context` tokens, of which all but one have at most `own_tokens` of their own.
    pub(super) fn new(context: usize, texts: usize, own_tokens: usize) -> Self {
        let per_text = context.div_ceil(PAGE_POSITIONS);
        // The first of them may begin anywhere in a page.
        let own = if texts > 1 { per_text.min(own_tokens.min(context).div_ceil(PAGE_POSITIONS) + 1) } else { 0 };
        let mut table = vec![0; texts * per_text];
        table.iter_mut().zip(0..per_text as u32).for_each(|(entry, page)| *entry = page);
        Self { table, per_text, own }
    }
    /// Pages of all texts together.
    pub(super) fn count(&self) -> usize {
        self.per_text + (self.table.len() / self.per_text - 1) * self.own
    }
    pub(super) fn tables(&self) -> PageTables<'_> {
        PageTables { pages: &self.table, pages_per_text: self.per_text }
    }
    pub(super) fn byte_len(&self) -> usize {
        size_of_val(&self.table[..])
    }

    /// Text `text` (not 0) gets the pages that the first `shared` tokens of text 0 fill, and its own behind them.
    /// Returns the page in which the two part and its copy, (from, to), which is to be made.
    pub(super) fn branch(&mut self, text: usize, shared: usize) -> Option<(u32, u32)> {
        let full = shared / PAGE_POSITIONS;
        let first_own = (self.per_text + (text - 1) * self.own) as u32;
        for index in 0..self.per_text {
            self.table[text * self.per_text + index] = match index.checked_sub(full) {
                None => self.table[index],
                Some(behind) if behind < self.own => first_own + behind as u32,
                // Further than this text may go: no page.
                Some(_) => u32::MAX,
            };
        }
        (!shared.is_multiple_of(PAGE_POSITIONS)).then(|| (self.table[full], first_own))
    }
}
