//! What one person's evaluation under one configuration found, as it lies on disk.

use serde::{Deserialize, Serialize};

use crate::arms::Arm;
use crate::evaluation::{QueryRow, SkippedQuery};

/// The measured rows of some arms of one person, or why there are none. One file; the unit of resuming.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitResult {
    /// Everything that the rows depend on, hashed: a file made from anything else is not used.
    pub fingerprint: String,
    pub history: String,
    pub user: String,
    /// The configuration, or what arms without an adapter share (its precision and instruction set).
    pub configuration: String,
    pub arms: Vec<UnitArm>,
    pub skipped: Vec<SkippedQuery>,
    /// Why nothing could be measured.
    pub failure: Option<String>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Whose adapter stood in for another person's.
    pub other_user: Option<String>,
    pub training: Option<UnitTraining>,
    /// Time that this took on the machine it ran on, with whatever else ran there.
    pub wall_s: f64,
}

/// One arm's answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitArm {
    pub name: String,
    pub rows: Vec<QueryRow>,
}

/// How the adapter came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitTraining {
    pub examples: usize,
    pub updates: u64,
    pub tokens: u64,
    /// Time in training, all sessions together.
    pub seconds: f64,
    pub adapted_blocks: usize,
    pub left_out: usize,
}

impl UnitResult {
    pub fn rows(&self, arm: &Arm) -> Option<&[QueryRow]> {
        self.arms.iter().find(|found| found.name == arm.name).map(|found| found.rows.as_slice())
    }
}

/// One person of a history, as the study read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyUser {
    pub name: String,
    pub records: usize,
    /// Records that may be trained on, and the newest ones that are asked about.
    pub seen: usize,
    pub queries: usize,
    /// Why the person is left out; `None` if they are not.
    pub left_out: Option<String>,
    /// Whether all their answers are the same: then any metric is easily perfect.
    pub all_answers_equal: bool,
    /// Newest records without an answer: they are no questions.
    pub queries_without_answer: usize,
    /// Questions whose answer is none of the task's labels: no arm can be right.
    pub answers_outside_labels: usize,
}

/// What was found in a history, before anything was trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryAccount {
    pub name: String,
    pub task: String,
    /// Names of the metrics that are reported, the leading one first.
    pub metrics: Vec<String>,
    pub users: Vec<StudyUser>,
    /// Lines that are no records, duplicated ids among them, with place and reason.
    pub skipped_lines: Vec<String>,
    pub source_hash: String,
}

impl HistoryAccount {
    /// The people who are studied.
    pub fn studied(&self) -> impl Iterator<Item = &StudyUser> {
        self.users.iter().filter(|user| user.left_out.is_none())
    }
}
