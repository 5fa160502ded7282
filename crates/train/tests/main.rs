//! Whole runs on a random model.

mod runs;
mod tiny;
