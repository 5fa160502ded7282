//! Rows that go through the model together.

/// Some rows, and which of them leave the last block. Room is kept between uses.
#[derive(Default)]
pub(super) struct Batch {
    /// Of each row.
    pub(super) tokens: Vec<u32>,
    /// Place of each row in its text.
    pub(super) positions: Vec<u32>,
    /// Text of each row.
    pub(super) texts: Vec<u32>,
    /// The rows that leave, rising.
    pub(super) selected_rows: Vec<u32>,
    pub(super) selected_positions: Vec<u32>,
    pub(super) selected_texts: Vec<u32>,
    /// What each row that leaves has to predict, when losses are wanted.
    pub(super) targets: Vec<u32>,
    pub(super) losses: Vec<f32>,
}

impl Batch {
    pub(super) fn new(rows_max: usize) -> Self {
        let room = || Vec::with_capacity(rows_max);
        Self {
            tokens: room(),
            positions: room(),
            texts: room(),
            selected_rows: room(),
            selected_positions: room(),
            selected_texts: room(),
            targets: room(),
            losses: Vec::with_capacity(rows_max),
        }
    }

    /// `tokens` of text 0 behind its first `past`; the rows at the positions `selected` leave, with nothing to predict.
    pub(super) fn chunk(&mut self, tokens: &[u32], past: usize, selected: impl Iterator<Item = usize> + Clone) {
        let end = past + tokens.len();
        replace(&mut self.tokens, tokens.iter().copied());
        replace(&mut self.positions, past as u32..end as u32);
        replace(&mut self.texts, tokens.iter().map(|_| 0));
        replace(&mut self.selected_rows, selected.clone().map(|position| (position - past) as u32));
        replace(&mut self.selected_positions, selected.clone().map(|position| position as u32));
        replace(&mut self.selected_texts, selected.map(|_| 0));
        self.targets.clear();
    }

    /// One token of each of several texts, (token, text), all at `position`; all leave.
    pub(super) fn step(&mut self, rows: impl Iterator<Item = (u32, u32)> + Clone, position: usize) {
        replace(&mut self.tokens, rows.clone().map(|(token, _)| token));
        replace(&mut self.texts, rows.clone().map(|(_, text)| text));
        replace(&mut self.positions, rows.clone().map(|_| position as u32));
        replace(&mut self.selected_rows, 0..self.tokens.len() as u32);
        replace(&mut self.selected_positions, rows.clone().map(|_| position as u32));
        replace(&mut self.selected_texts, rows.map(|(_, text)| text));
        self.targets.clear();
    }
}

fn replace(values: &mut Vec<u32>, by: impl Iterator<Item = u32>) {
    values.clear();
    values.extend(by);
}
