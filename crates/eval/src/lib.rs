//! Does the adapter help? Metrics, the arms that are compared, intervals, the verdict, and the report.
//!
//! `history + adapter -> arms (base, retrieval, adapter, both, another person's) -> Evaluation -> Verdict -> report`
//!
//! - [`metrics`]: one file a metric, [`metrics::METRICS`] lists them.
//! - [`bootstrap`]: seeded 95 % intervals of means and of paired differences, over queries.
//! - [`arms`]: [`ARMS`] lists what is compared, [`COMPARISONS`] which differences are reported.
//! - [`evaluate`]: runs the arms over the person's held-out records.
//! - [`evaluation`]: rows per query, summaries, the JSON form.
//! - [`acceptance`]: whether an adapter takes the place of the one in use; [`general`]: what it may cost elsewhere.
//! - [`verdict`]: what may honestly be said, and whether the adapter is kept.
//! - [`study`]: the same for many people and configurations, in one report.
//! - [`report`]: one self-contained page (HTML with inline SVG), and the same in Markdown and JSON.
//!
//! The crate prints nothing and never writes a file by itself, except [`report::write_report`].

pub mod acceptance;
pub mod arms;
pub mod bootstrap;
mod error;
mod evaluate;
pub mod evaluation;
pub mod general;
pub mod metrics;
pub mod report;
pub mod study;
pub mod table;
pub mod verdict;

pub use acceptance::{Acceptance, TRAINED_RECORDS_MIN, accept, shortfall};
pub use arms::{ARMS, Arm, COMPARISONS, Comparison, WhichAdapter};
pub use bootstrap::{Bootstrap, Interval};
pub use error::EvalError;
pub use evaluate::{EvalInputs, EvalProgress, evaluate, metrics_of};
pub use evaluation::{ArmResult, Choice, Difference, Estimate, Evaluation, QueryRow};
pub use general::{GeneralAbility, general_ability};
pub use metrics::{Better, METRICS, Metric, metric_by_name};
pub use verdict::{Decision, Finding, Outcome, Verdict};
