//! Many people, many configurations, one report.
//!
//! `Study (a TOML file) -> one UnitResult a person and configuration -> Findings -> study.html, study.md, study.json`
//!
//! - [`definition`]: the file.
//! - [`mod@unit`]: what is measured of one person, as it lies on disk; running it is the command line's part.
//! - [`findings`]: means over queries and over people, paired differences, groups, swap control, agreement.
//! - [`gains_by_length`]: the same groups for one evaluation.
//! - [`report`]: the paper's Tables 7 and 8, the depth ablation and the rest as a page, Markdown and JSON.

pub mod definition;
pub mod findings;
mod lengths;
pub mod report;
pub mod unit;

pub use definition::{Agreement, Configuration, EvaluationSettings, Study, StudyError, StudyHistory};
pub use findings::{Findings, GroupGain};
pub use lengths::gains_by_length;
pub use unit::{HistoryAccount, StudyUser, UnitArm, UnitResult, UnitTraining};
