//! Dates of a whole history: what a person's dates together tell of each, and the order of the records.

use crate::record::{History, Record};
use crate::time::{ShortDate, settle_short_dates};
use std::collections::HashMap;

/// Of each user, the records whose date does not tell day from month, by their place in the history.
#[derive(Default)]
pub(crate) struct ShortDates(HashMap<String, Vec<(usize, ShortDate)>>);

impl ShortDates {
    pub fn add(&mut self, user: String, place: usize, date: ShortDate) {
        self.0.entry(user).or_default().push((place, date));
    }

    /// Gives the records with short dates their times, person by person.
    pub fn settle(self, history: &mut History) {
        let mut unclear = 0;
        for dated in self.0.into_values() {
            let dates: Vec<ShortDate> = dated.iter().map(|(_, date)| *date).collect();
            for ((place, _), time) in dated.into_iter().zip(settle_short_dates(&dates)) {
                history.records[place].time = time;
                unclear += usize::from(time.is_none());
            }
        }
        history.notice("records keep the file's order: their date does not tell day from month", unclear);
    }
}

/// Sorts by time. A record without a time takes that of the record before it of the same user, so that a file without
/// times, or with some missing, stays in its order.
pub(crate) fn put_oldest_first(records: &mut [Record]) {
    let mut last_time: HashMap<String, i64> = HashMap::new();
    let mut keyed: Vec<i64> = Vec::with_capacity(records.len());
    for record in records.iter() {
        let time = record.time.or_else(|| last_time.get(&record.user).copied()).unwrap_or(i64::MIN);
        last_time.insert(record.user.clone(), time);
        keyed.push(time);
    }
    // `sequence` is the file order until here: the key keeps the sort stable, and finds each record's time.
    records.sort_by_key(|record| (keyed[record.sequence], record.sequence));
    for (sequence, record) in records.iter_mut().enumerate() {
        record.sequence = sequence;
    }
}
