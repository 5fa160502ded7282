//! From a preset, a file and overrides to a configuration.

use serde_json::{Map, Value};

use super::presets::PRESETS;
use super::{Preset, TrainConfig};

/// Other tools' names for keys of ours, accepted because the meaning is the same: ours on the right.
pub const ALIASES: [(&str, &str); 17] = [
    ("adam_beta1", "beta1"),
    ("adam_beta2", "beta2"),
    ("adam_epsilon", "epsilon"),
    ("alpha", "lora_alpha"),
    ("epochs", "passes"),
    ("grad_accumulation_steps", "accumulation"),
    ("gradient_accumulation_steps", "accumulation"),
    ("lora_dropout", "dropout"),
    ("lora_rank", "rank"),
    ("lr", "learning_rate"),
    ("lr_scheduler_type", "schedule"),
    ("max_grad_norm", "clip_norm"),
    ("max_seq_length", "tokens_max"),
    ("num_layers", "adapted_blocks"),
    ("num_train_epochs", "passes"),
    ("r", "rank"),
    ("target_modules", "targets"),
];

/// Other tools' keys that have no equal here, and what to use instead.
const FOREIGN: [(&str, &str); 10] = [
    ("batch_size", "a step sees one example; `accumulation` sets the examples per update"),
    ("fine_tune_type", "selftune trains LoRA adapters only"),
    ("grad_checkpoint", "use `memory`: what is kept and what is run again follows from it"),
    ("iters", "use `steps`, which counts updates of `accumulation` examples, or `passes`"),
    ("keys", "use `targets`"),
    ("lr_schedule", "use `schedule`, `warmup_steps` or `warmup_ratio`, and `final_learning_rate_ratio`"),
    ("mask_prompt", "use `supervise = \"answers\"`, `\"last_answer\"` or `\"all\"`"),
    ("scale", "use `lora_alpha`, which is scale times rank"),
    ("steps_per_eval", "use `evaluate_every`, which counts updates"),
    ("val_batches", "use `validation_records_max`"),
];

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: {message}")]
    Syntax { origin: String, message: String },
    #[error("{origin}: unknown key `{key}`{help}")]
    UnknownKey { origin: String, key: String, help: String },
    #[error("{origin}: `{key}` is given twice, also under another tool's name")]
    Twice { origin: String, key: &'static str },
    #[error("{origin}: `{key} = {value}` is not usable: {message}")]
    Type { origin: String, key: String, value: String, message: String },
    #[error("`{key} = {value}` is not possible: expected {expected}")]
    Range { key: &'static str, value: String, expected: String },
    #[error("there is no preset `{name}`; the presets are {known}")]
    UnknownPreset { name: String, known: String },
}

impl ConfigError {
    pub(crate) fn range(key: &'static str, value: impl std::fmt::Display, expected: impl Into<String>) -> Self {
        Self::Range { key, value: value.to_string(), expected: expected.into() }
    }
}

impl TrainConfig {
    /// The preset called `name`.
    pub fn preset(name: &str) -> Result<TrainConfig, ConfigError> {
        let known = || PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ");
        let preset: Option<&Preset> = PRESETS.iter().find(|preset| preset.name == name);
        preset
            .map(|preset| (preset.config)())
            .ok_or_else(|| ConfigError::UnknownPreset { name: name.to_owned(), known: known() })
    }

    /// Puts a configuration together: the preset, then the keys of a TOML file (its text and its name for messages),
    /// then overrides of the form `key=value`. A file may name its preset with the key `preset`; an argument wins.
    pub fn load(
        preset: Option<&str>,
        file: Option<(&str, &str)>,
        overrides: &[String],
    ) -> Result<TrainConfig, ConfigError> {
        let mut file_keys = toml::Table::new();
        if let Some((text, origin)) = file {
            file_keys = text.parse().map_err(|error: toml::de::Error| syntax(origin, &error))?;
        }
        let file_preset = match file_keys.remove("preset") {
            None => None,
            Some(toml::Value::String(name)) => Some(name),
            Some(other) => return Err(ConfigError::range("preset", other, "the name of a preset")),
        };
        let mut config = Self::preset(preset.or(file_preset.as_deref()).unwrap_or(PRESETS[0].name))?;
        if let Some((_, origin)) = file {
            config = config.overlay(file_keys, origin)?;
        }
        for text in overrides {
            config = config.overlay(parse_override(text)?, OVERRIDE)?;
        }
        config.validate()?;
        Ok(config)
    }

    /// Reads a configuration that was written out in full, as a run folder keeps it.
    pub fn from_json(text: &str, origin: &str) -> Result<TrainConfig, ConfigError> {
        let config: TrainConfig = serde_json::from_str(text)
            .map_err(|error| ConfigError::Syntax { origin: origin.to_owned(), message: in_plain_words(error) })?;
        config.validate()?;
        Ok(config)
    }

    /// All keys in order with their values.
    pub fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            other => unreachable!("a configuration is a map of plain values: {other:?}"),
        }
    }

    /// The configuration as a TOML file that gives it back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration is a table of plain values")
    }

    fn overlay(&self, keys: toml::Table, origin: &str) -> Result<TrainConfig, ConfigError> {
        let mut config = self.clone();
        let mut given: Vec<&'static str> = Vec::new();
        for (name, value) in keys {
            // No key is a time, but `quiet_hours = 22:00` reads as one: the check of its values says what is missing.
            let value = match value {
                toml::Value::Datetime(time) => toml::Value::String(time.to_string()),
                value => value,
            };
            let map = config.to_map();
            let key = known_key(&map, &name, origin)?;
            if given.contains(&key) {
                return Err(ConfigError::Twice { origin: origin.to_owned(), key });
            }
            given.push(key);
            config = set(map, key, &name, &value, origin)?;
        }
        Ok(config)
    }
}

/// Where an override came from, in messages.
const OVERRIDE: &str = "override";

fn syntax(origin: &str, error: &toml::de::Error) -> ConfigError {
    ConfigError::Syntax { origin: origin.to_owned(), message: error.to_string().trim_end().to_owned() }
}

/// `key=value`, where a value that is no TOML is a plain word: `schedule=cosine`, `rank=16`, `targets=["q","v"]`.
fn parse_override(text: &str) -> Result<toml::Table, ConfigError> {
    let Some((key, value)) = text.split_once('=') else {
        let message = format!("`{text}` is not of the form key=value");
        return Err(ConfigError::Syntax { origin: OVERRIDE.to_owned(), message });
    };
    let (key, value) = (key.trim(), value.trim());
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().filter(|table| table.len() == 1);
    let value = parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| value.into());
    Ok(toml::Table::from_iter([(key.to_owned(), value)]))
}

/// Our own spelling of `name`, or an error with the nearest key.
fn known_key(map: &Map<String, Value>, name: &str, origin: &str) -> Result<&'static str, ConfigError> {
    // Dashes are how the command line spells the same keys.
    let spelled = name.replace('-', "_");
    let spelled = ALIASES.iter().find(|(alias, _)| *alias == spelled).map_or(spelled.as_str(), |(_, key)| key);
    if let Some(key) = TrainConfig::keys().iter().find(|key| **key == spelled) {
        debug_assert!(map.contains_key(*key));
        return Ok(key);
    }
    let help = match FOREIGN.iter().find(|(foreign, _)| *foreign == spelled) {
        Some((_, instead)) => format!("; {instead}"),
        None => nearest(spelled).map_or_else(String::new, |key| format!("; did you mean `{key}`?")),
    };
    Err(ConfigError::UnknownKey { origin: origin.to_owned(), key: name.to_owned(), help })
}

impl TrainConfig {
    /// The names of all keys, taken from the structure itself.
    pub fn keys() -> &'static [&'static str] {
        serde_keys::<TrainConfig>()
    }
}

/// The field names that serde knows of a structure: it tells them to whoever deserializes it.
fn serde_keys<'de, T: serde::Deserialize<'de>>() -> &'static [&'static str] {
    struct Asker<'a>(&'a mut &'static [&'static str]);
    impl<'de> serde::Deserializer<'de> for Asker<'_> {
        type Error = serde::de::value::Error;
        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            _visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            Err(serde::de::Error::custom("only the names were asked for"))
        }
        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("not a structure"))
        }
        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut keys: &'static [&'static str] = &[];
    let _ = T::deserialize(Asker(&mut keys));
    keys
}

fn nearest(name: &str) -> Option<&'static str> {
    let aliases = ALIASES.iter().map(|&(alias, key)| (alias, key));
    let keys = TrainConfig::keys().iter().map(|&key| (key, key));
    keys.chain(aliases)
        .map(|(spelling, key)| (strsim::jaro_winkler(name, spelling), key))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}

fn set(
    mut map: Map<String, Value>,
    key: &'static str,
    name: &str,
    value: &toml::Value,
    origin: &str,
) -> Result<TrainConfig, ConfigError> {
    let type_error = |message: String| ConfigError::Type {
        origin: origin.to_owned(),
        key: name.to_owned(),
        value: value.to_string(),
        message: in_plain_words(message),
    };
    // JSON has no infinities: it would turn them into null and confuse the message.
    if value.as_float().is_some_and(|number| !number.is_finite()) {
        return Err(type_error("expected a finite number".to_owned()));
    }
    let json = serde_json::to_value(value).map_err(|error| type_error(error.to_string()))?;
    map.insert(key.to_owned(), json);
    serde_json::from_value(Value::Object(map)).map_err(|error| type_error(error.to_string()))
}

/// The same without names of types, which `serde` says that it expects.
fn in_plain_words(message: impl ToString) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("expected usize", "expected a whole number, 0 or more"),
        ("expected u64", "expected a whole number, 0 or more"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
    ];
    WORDS.iter().fold(message.to_string(), |message, (name, words)| message.replace(name, words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::ScheduleKind;
    use model::Projection;

    fn load(file: &str) -> Result<TrainConfig, ConfigError> {
        TrainConfig::load(None, Some((file, "run.toml")), &[])
    }
    fn message(file: &str) -> String {
        load(file).unwrap_err().to_string()
    }

    #[test]
    fn keys_are_the_fields() {
        assert_eq!(TrainConfig::keys(), TrainConfig::default().to_map().keys().map(String::as_str).collect::<Vec<_>>());
        for (alias, key) in ALIASES {
            assert!(TrainConfig::keys().contains(&key), "{alias} stands for {key}, which does not exist");
            assert!(!TrainConfig::keys().contains(&alias), "{alias} is a key of its own");
        }
    }

    #[test]
    fn file_and_overrides_win_in_this_order() {
        let overrides = ["rank=4".to_owned(), "schedule=linear".to_owned(), "targets = [\"v\", \"q\"]".to_owned()];
        let file = "preset = \"paper\"\nrank = 32\nlora-alpha = 64\nepochs = 5\n";
        let config = TrainConfig::load(None, Some((file, "run.toml")), &overrides).unwrap();
        assert_eq!((config.rank, config.lora_alpha, config.passes), (4, 64.0, 5));
        assert_eq!(config.schedule, ScheduleKind::Linear);
        assert_eq!(config.targets, [Projection::Query, Projection::Value]);
        assert_eq!(config.learning_rate, 1e-5, "the rest is the file's preset");
        let config = TrainConfig::load(Some("default"), Some((file, "run.toml")), &[]).unwrap();
        assert_eq!(config.learning_rate, TrainConfig::default().learning_rate, "a preset argument wins");
    }

    #[test]
    fn a_written_configuration_reads_back_equal() {
        for preset in &PRESETS {
            let config = TrainConfig::preset(preset.name).unwrap();
            config.validate().unwrap();
            assert_eq!(load(&config.to_toml()).unwrap(), config);
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(TrainConfig::from_json(&json, "config.json").unwrap(), config);
        }
    }

    #[test]
    fn unknown_keys_name_the_nearest_or_the_equivalent() {
        assert_eq!(
            message("learning_rat = 1e-4"),
            "run.toml: unknown key `learning_rat`; did you mean `learning_rate`?"
        );
        assert_eq!(message("rnak = 4"), "run.toml: unknown key `rnak`; did you mean `rank`?");
        assert_eq!(message("max_seq_len = 4"), "run.toml: unknown key `max_seq_len`; did you mean `tokens_max`?");
        assert!(message("iters = 4").contains("`steps`"));
        assert_eq!(message("zzz = 4"), "run.toml: unknown key `zzz`");
        assert!(message("[lora]\nrank = 4").contains("unknown key `lora`"));
        assert!(message("rank = 4\nr = 4").contains("`rank` is given twice"));
    }

    #[test]
    fn values_of_the_wrong_kind_name_key_and_value() {
        for (file, parts) in [
            ("rank = \"eight\"", ["`rank = \"eight\"`", "expected a whole number, 0 or more"]),
            ("rank = -1", ["`rank = -1`", "expected a whole number"]),
            ("rank = 8.5", ["`rank = 8.5`", "expected a whole number"]),
            ("learning_rate = nan", ["`learning_rate = nan`", "finite"]),
            ("schedule = \"cosin\"", ["`schedule = \"cosin\"`", "cosine"]),
            ("precision = \"int3\"", ["`precision = \"int3\"`", "a16, exact, a8"]),
            ("targets = [\"q\", \"w\"]", ["`w` is no projection", "self_attn.q_proj"]),
            ("memory = -5", ["`memory = -5`", "expected auto, or bytes such as 900MB"]),
            ("memory = true", ["`memory = true`", "expected auto, or bytes such as 900MB"]),
            ("targets = 5", ["`targets = 5`", "expected projections such as q,v"]),
            ("save_sync = 5", ["`save_sync = 5`", "expected true or false"]),
            ("rank = ", ["run.toml", "line 1"]),
            ("preset = \"papre\"", ["papre", "default, paper"]),
        ] {
            let message = message(file);
            assert!(parts.iter().all(|part| message.contains(part)), "{file}: {message}");
        }
        let error = TrainConfig::load(None, None, &["rank".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("key=value"));
    }

    #[test]
    fn an_override_cannot_smuggle_in_a_second_key() {
        let error = TrainConfig::load(None, None, &["rank=4\nseed=7".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("rank"), "{error}");
    }
}
