//! What a run will cost, learned from what runs on this machine have cost.
//!
//! The planner counts the multiply-adds of every step exactly ([`model::WorkCounter`]), so a run's *work* is known
//! before it starts, for any length, depth, rank or choice of recomputation: time is `a·work + b` ([`fit`]), with a
//! machine that slows down as it heats up taken into account ([`plateau`]). Finished runs leave their measurements in
//! one file ([`history`]); where there is none yet, a few steps are timed. Devices that others have measured are in one
//! list ([`profiles`]).

pub mod fit;
pub mod history;
pub mod meter;
pub mod plateau;
pub mod prediction;
pub mod profiles;
pub mod search;
pub mod work;

pub use fit::Fit;
pub use history::{CostFileError, CostHistory, Measurement, Setting};
pub use meter::Meter;
pub use plateau::Plateau;
pub use prediction::{Basis, Comparison, Estimate, Prediction, Predictor, ProbeMeasurement, predict};
pub use profiles::{DEVICE_PROFILES, DeviceProfile};
pub use search::{Candidate, Limits, Ranked, rank};
pub use work::RunWork;
