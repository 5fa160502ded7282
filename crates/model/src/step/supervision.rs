//! Which rows of a text the head sees, and what they have to predict.

use crate::error::ModelError;
use crate::step::{SelectRows, StepOptions};

/// Which rows predict a supervised token, and how well. Room for the longest example is taken once.
pub(crate) struct Supervision {
    /// Rows that predict a supervised token, rising.
    pub(super) rows: Vec<u32>,
    /// What each row of the head has to predict.
    pub(super) targets: Vec<u32>,
    /// The loss of each row of the head.
    pub(super) losses: Vec<f32>,
}

impl Supervision {
    pub(crate) fn new(rows_max: usize) -> Self {
        Self {
            rows: Vec::with_capacity(rows_max),
            targets: Vec::with_capacity(rows_max),
            losses: Vec::with_capacity(rows_max),
        }
    }
    pub(crate) fn bytes(&self) -> usize {
        (self.rows.capacity() + self.targets.capacity() + self.losses.capacity()) * size_of::<u32>()
    }

    pub(super) fn set(
        &mut self,
        tokens: &[u32],
        loss_mask: &[bool],
        head_sees_all_rows: bool,
    ) -> Result<(), ModelError> {
        let supervised = || (1..tokens.len()).filter(|index| loss_mask[*index]);
        self.rows.clear();
        self.rows.extend(supervised().map(|index| index as u32 - 1));
        let Some(last) = self.rows.last() else {
            return Err(ModelError::NothingSupervised { tokens: tokens.len() });
        };
        self.targets.clear();
        match head_sees_all_rows {
            true => self.targets.extend_from_slice(&tokens[1..*last as usize + 2]),
            false => self.targets.extend(supervised().map(|index| tokens[index])),
        }
        self.losses.clear();
        self.losses.resize(self.targets.len(), 0.0);
        Ok(())
    }

    pub(super) fn supervised_losses(&self, options: &StepOptions) -> impl Iterator<Item = f32> + '_ {
        let head_sees_all_rows = options.necessary_work.select_rows == SelectRows::Never;
        let loss =
            move |(index, row): (usize, &u32)| self.losses[if head_sees_all_rows { *row as usize } else { index }];
        self.rows.iter().enumerate().map(loss)
    }
}
