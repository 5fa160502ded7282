//! How to train: every choice of a run in one flat structure, which a run folder keeps written out in full.
//!
//! A configuration starts from a preset, then takes a file's keys, then single overrides; the last word wins. A key
//! that does not exist, or a value that makes no sense, is an error that names the key and what was expected.

mod described;
mod earlier;
mod memory_limit;
mod parse;
mod presets;
mod validate;

use data::Supervise;
use kernels::Precision;
use model::{AdapterSpec, BoundaryType, KeptBlocks, KeptType, ModelConfig, Projection};
use serde::{Deserialize, Serialize};

pub use described::SETTINGS;
pub use memory_limit::MemoryLimit;
pub use parse::{ALIASES, ConfigError};
pub use presets::{PRESETS, Preset};

use crate::governor::{Limits, QuietHours};
use crate::schedule::ScheduleKind;

/// The configuration of a training run. `TrainConfig::default()` is the preset `default`.
///
/// An *update* is one step of the optimizer and the unit of `steps`, `warmup_steps`, `evaluate_every` and
/// `save_every_steps`; it sees `accumulation` examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Whose records: `user`, one person's, or `task`, many people's, to teach a task before any person.
    #[serde(default)]
    pub stage: Stage,

    // --- The adapter ---
    /// Inner dimension of the two thin matrices of an adapter.
    pub rank: usize,
    /// The adapter's product is multiplied by `lora_alpha / rank` (or by `lora_alpha / sqrt(rank)`, see `use_rslora`).
    pub lora_alpha: f64,
    pub use_rslora: bool,
    /// Probability with which an input element of an adapter is dropped while training.
    pub dropout: f64,
    /// The projections that get an adapter.
    #[serde(with = "names::targets")]
    pub targets: Vec<Projection>,
    /// Adapt the last so many blocks; -1 means all.
    pub adapted_blocks: i64,

    // --- The optimizer: AdamW ---
    /// The full learning rate, reached at the end of warm-up.
    pub learning_rate: f64,
    pub schedule: ScheduleKind,
    /// Warm-up in updates; 0 means that `warmup_ratio` decides.
    pub warmup_steps: u64,
    /// Warm-up as a fraction of all updates.
    pub warmup_ratio: f64,
    /// What a decaying schedule heads for, as a fraction of `learning_rate`.
    pub final_learning_rate_ratio: f64,
    pub weight_decay: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    /// Gradients with a larger norm are scaled down to it; 0 means no clipping.
    pub clip_norm: f64,

    // --- How long and in which portions ---
    /// Passes over the training examples.
    pub passes: u64,
    /// Number of updates; 0 means that `passes` decides.
    pub steps: u64,
    /// Examples per update. The gradient is the mean over all their supervised tokens.
    pub accumulation: usize,
    /// Seed of everything random: first adapter values, order of examples, dropout.
    pub seed: u64,

    // --- The examples ---
    /// The most tokens in an example; never more than the model's context.
    pub tokens_max: usize,
    /// The most earlier records of the person that a prompt carries.
    pub retrieved_records: usize,
    /// The most tokens that one earlier record takes.
    pub retrieved_tokens_max: usize,
    /// How earlier records are chosen: `bm25`, or as controls `recency` or `random` (by `seed`).
    #[serde(default)]
    pub retriever: data::RetrievalMethod,
    /// Which tokens are targets: `answers`, `last_answer` or `all`.
    pub supervise: Supervise,

    // --- Validation ---
    /// Fraction of the records, the newest, that is held out to choose the best adapter.
    pub validation_fraction: f64,
    /// Bounds of the number held out. Never more than a quarter of the records.
    pub validation_records_min: usize,
    pub validation_records_max: usize,
    /// Validate after every so many updates; 0 means after every pass. The last update is always validated.
    pub evaluate_every: u64,
    /// Stop after so many validations in a row without a better one; 0 means never.
    pub early_stop_patience: u64,

    // --- The machine ---
    #[serde(with = "names::precision")]
    pub precision: Precision,
    /// The most memory that the process may take: `auto` leaves half of what is free, or bytes such as `1.5GB`.
    pub memory: MemoryLimit,
    /// How the inputs of blocks are kept for backward: `auto` takes bfloat16 only where float32 does not fit. A run
    /// folder keeps what was chosen, since gradients differ a little.
    #[serde(with = "names::boundaries")]
    pub boundaries: Option<BoundaryType>,
    /// How backward finds gate and up, the largest values of a block: `auto` takes 16-bit integers (`int16`) where more
    /// blocks can be kept that way. Kept by a run folder too.
    #[serde(with = "names::kept_values", default = "float32_kept")]
    pub kept_values: Option<KeptType>,
    /// How many of the last blocks keep all values and do not run again; 0: as memory allows. With bfloat16 boundaries
    /// gradients depend a little on it, so a run folder keeps what was chosen.
    #[serde(default)]
    pub blocks_kept: usize,
    /// How many blocks share one kept input; 0: as memory allows. Kept by a run folder as `blocks_kept` is.
    #[serde(default)]
    pub checkpoint_blocks: usize,
    /// With adapters on the last blocks only, keep what the blocks below made of each example on the disk of the run
    /// folder, for the next pass. Changes no result.
    pub kept_prefix: bool,
    /// Threads of the kernels; 0 means all physical cores. Changes no result.
    pub threads: usize,
    /// Save the state after every so many updates; 0 means that `save_every_seconds` decides.
    pub save_every_steps: u64,
    /// Save the state when so many seconds have passed since the last save and it held up the training for less than a
    /// hundredth of them.
    pub save_every_seconds: f64,
    /// Saves write at most so many bytes an hour, the first hour's from the start; 0 means no bound. Flash wears out.
    #[serde(default)]
    pub save_bytes_per_hour: u64,
    /// Wait until a saved state has reached the disk, so that it survives a power cut too.
    pub save_sync: bool,

    // --- When to train: see `governor` ---
    /// Only while a charger or the mains feed the machine. A machine without a battery always is.
    #[serde(default)]
    pub only_charging: bool,
    /// While the battery drains, only down to this part of a full charge, such as 0.3; 0 means no floor.
    #[serde(default)]
    pub battery_floor: f64,
    /// Only within these hours of local time, such as `22:00-07:00`; empty means at any time.
    #[serde(default)]
    pub quiet_hours: String,
    /// Only up to this temperature of the processor, in degrees Celsius; 0 means no limit.
    #[serde(default)]
    pub temperature_max_c: f64,
    /// Only while something waits for memory less than this part of the time, such as 0.2; 0 means no limit.
    #[serde(default)]
    pub memory_pressure_max: f64,
    /// Only when nobody has touched the machine for so many seconds; 0 means always.
    #[serde(default)]
    pub idle_seconds_min: f64,
}

/// Which of the two stages a run is (paper, section 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// An adapter for one person, perhaps on top of a task adapter.
    #[default]
    User,
    /// An adapter for what many people's records have in common.
    Task,
}

/// Keys that may change when a run goes on, because no result depends on them.
pub const KEYS_WITHOUT_EFFECT_ON_RESULTS: [&str; 13] = [
    "memory",
    "kept_prefix",
    "threads",
    "save_every_steps",
    "save_every_seconds",
    "save_bytes_per_hour",
    "save_sync",
    "only_charging",
    "battery_floor",
    "quiet_hours",
    "temperature_max_c",
    "memory_pressure_max",
    "idle_seconds_min",
];

impl Default for TrainConfig {
    fn default() -> Self {
        (PRESETS[0].config)()
    }
}

impl TrainConfig {
    /// The keys that results depend on, with their values: what an adapter remembers of its making, so that the same
    /// training gives the same file.
    pub fn results_map(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut map = self.to_map();
        map.retain(|key, _| !KEYS_WITHOUT_EFFECT_ON_RESULTS.contains(&key.as_str()));
        map
    }

    /// What is kept of the blocks, where that is decided.
    pub(crate) fn kept_blocks(&self) -> Option<KeptBlocks> {
        let Self { blocks_kept, checkpoint_blocks, .. } = *self;
        let decided = blocks_kept > 0 || checkpoint_blocks > 0;
        decided.then(|| KeptBlocks { blocks_kept: blocks_kept.max(1), checkpoint_blocks: checkpoint_blocks.max(1) })
    }

    /// When this configuration lets training run.
    pub fn limits(&self) -> Limits {
        let limit = |value: f64| (value > 0.0).then_some(value);
        Limits {
            only_charging: self.only_charging,
            battery_floor: limit(self.battery_floor),
            quiet_hours: QuietHours::parse(&self.quiet_hours),
            temperature_max_c: limit(self.temperature_max_c),
            memory_pressure_max: limit(self.memory_pressure_max),
            idle_seconds_min: limit(self.idle_seconds_min),
        }
    }

    /// The adapter that this configuration asks of `model`, or why that is not possible.
    pub fn adapter_spec(&self, model: &ModelConfig) -> Result<AdapterSpec, ConfigError> {
        let blocks = model.blocks.len();
        let adapted = match self.adapted_blocks {
            -1 => blocks,
            count => usize::try_from(count).ok().filter(|count| (1..=blocks).contains(count)).ok_or_else(|| {
                ConfigError::range("adapted_blocks", count, format!("-1 or 1 to {blocks}, the blocks of this model"))
            })?,
        };
        Ok(AdapterSpec {
            rank: self.rank,
            lora_alpha: self.lora_alpha as f32,
            dropout: self.dropout as f32,
            targets: self.targets.clone(),
            blocks: blocks - adapted..blocks,
            use_rslora: self.use_rslora,
        })
    }

    /// The same configuration with every "all" and every limit replaced by what it means for `model`, as a run folder
    /// keeps it.
    pub fn resolved(&self, model: &ModelConfig) -> Result<TrainConfig, ConfigError> {
        let adapted_blocks = self.adapter_spec(model)?.blocks.len() as i64;
        let tokens_max = self.tokens_max.min(model.context_tokens_max);
        Ok(TrainConfig { adapted_blocks, tokens_max, ..self.clone() })
    }

    /// How many of `records` records are held out for validation.
    pub fn validation_records(&self, records: usize) -> usize {
        if self.validation_fraction == 0.0 {
            return 0;
        }
        let wanted = (records as f64 * self.validation_fraction).round() as usize;
        wanted.clamp(self.validation_records_min, self.validation_records_max).min(records / 4)
    }

    /// Updates of a run over `examples` examples.
    pub fn updates(&self, examples: usize) -> u64 {
        match self.steps {
            0 => self.passes * examples.div_ceil(self.accumulation) as u64,
            steps => steps,
        }
    }
}

/// What runs of earlier versions did.
fn float32_kept() -> Option<KeptType> {
    Some(KeptType::Float32)
}

/// Names of values that other crates define.
mod names {
    macro_rules! by_name {
        ($module:ident, $type:ty, $name:expr, $find:expr, $expected:expr) => {
            pub mod $module {
                use super::super::*;
                use serde::{Deserializer, Serializer, de::Error};

                pub fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                    let name: fn(&$type) -> &'static str = $name;
                    serializer.serialize_str(name(value))
                }
                pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                    let find: fn(&str) -> Option<$type> = $find;
                    let name = String::deserialize(deserializer)?;
                    find(&name).ok_or_else(|| D::Error::custom(format!("`{name}` is not one of {}", $expected)))
                }
            }
        };
    }

    by_name!(precision, Precision, |value| value.name(), Precision::by_name, "a16, exact, a8");
    by_name!(
        boundaries,
        Option<BoundaryType>,
        |value| match value {
            None => "auto",
            Some(BoundaryType::Float32) => "float32",
            Some(BoundaryType::Bfloat16) => "bfloat16",
        },
        |name| match name {
            "auto" => Some(None),
            "float32" => Some(Some(BoundaryType::Float32)),
            "bfloat16" => Some(Some(BoundaryType::Bfloat16)),
            _ => None,
        },
        "auto, float32, bfloat16"
    );
    by_name!(
        kept_values,
        Option<KeptType>,
        |value| match value {
            None => "auto",
            Some(KeptType::Float32) => "float32",
            Some(KeptType::Int16) => "int16",
        },
        |name| match name {
            "auto" => Some(None),
            "float32" => Some(Some(KeptType::Float32)),
            "int16" => Some(Some(KeptType::Int16)),
            _ => None,
        },
        "auto, float32, int16"
    );
    /// A list of projections, or the word "all". Written out as module names.
    pub mod targets {
        use super::super::*;
        use serde::{Deserializer, Serializer, de::Error, ser::SerializeSeq};

        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected projections such as q,v or [\"q\", \"v\"], or all")]
        enum Names {
            One(String),
            Many(Vec<String>),
        }

        pub fn serialize<S: Serializer>(targets: &[Projection], serializer: S) -> Result<S::Ok, S::Error> {
            let mut list = serializer.serialize_seq(Some(targets.len()))?;
            for target in targets {
                list.serialize_element(target.module_name())?;
            }
            list.end()
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Projection>, D::Error> {
            let names = match Names::deserialize(deserializer)? {
                Names::One(name) if name == "all" => return Ok(Projection::ALL.to_vec()),
                Names::One(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
                Names::Many(names) => names,
            };
            let mut targets = Vec::new();
            for name in names {
                let target = Projection::by_name(&name).ok_or_else(|| {
                    let known: Vec<&str> = Projection::ALL.iter().map(|target| target.module_name()).collect();
                    D::Error::custom(format!("`{name}` is no projection; they are {} or all", known.join(", ")))
                })?;
                if !targets.contains(&target) {
                    targets.push(target);
                }
            }
            // One order, so that the same set is the same configuration.
            targets.sort_by_key(|target| Projection::ALL.iter().position(|known| known == target));
            Ok(targets)
        }
    }
}
