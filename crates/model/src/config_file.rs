//! Typed reading of a model's `config.json`, so that every complaint names its key.

use serde_json::Value;

use crate::error::ModelError;

/// No size in a model reaches this; larger ones are corrupt files and would overflow products of sizes.
const SIZE_MAX: u64 = 1 << 28;

/// A `config.json` object. A key that is absent and a key that is null mean the same.
#[derive(Clone, Copy)]
pub(crate) struct ConfigFile<'a> {
    object: &'a Value,
    /// Where the object sits in the file, for messages: empty or `rope_parameters.`.
    prefix: &'a str,
}

impl<'a> ConfigFile<'a> {
    pub(crate) fn new(object: &'a Value) -> Result<Self, ModelError> {
        Self::nested(object, "")
    }
    pub(crate) fn nested(object: &'a Value, prefix: &'a str) -> Result<Self, ModelError> {
        match object {
            Value::Object(_) => Ok(Self { object, prefix }),
            other => Err(ModelError::ConfigInvalid {
                key: if prefix.is_empty() { "the file".into() } else { prefix.trim_end_matches('.').into() },
                found: shown(other),
                expected: "a JSON object".into(),
            }),
        }
    }

    pub(crate) fn value(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }
    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
    pub(crate) fn invalid(&self, key: &str, expected: impl Into<String>) -> ModelError {
        let found = self.value(key).map_or("absent".into(), shown);
        ModelError::ConfigInvalid { key: self.name(key), found, expected: expected.into() }
    }
    fn require<T>(&self, key: &str, value: Option<T>, expected: &'static str) -> Result<T, ModelError> {
        value.ok_or_else(|| ModelError::ConfigMissing { key: self.name(key), expected })
    }

    /// A size of at least one.
    pub(crate) fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.require(key, self.optional_size(key)?, "a positive whole number")
    }
    pub(crate) fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(size) if (1..=SIZE_MAX).contains(&size) => Ok(Some(size as usize)),
            _ => Err(self.invalid(key, format!("a whole number from 1 to {SIZE_MAX}"))),
        }
    }
    pub(crate) fn positive(&self, key: &str) -> Result<f64, ModelError> {
        self.require(key, self.optional_positive(key)?, "a positive number")
    }
    pub(crate) fn optional_positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.invalid(key, "a positive number")),
        }
    }
    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(key, "true or false"))
    }
    pub(crate) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self.optional_bool(key)?.unwrap_or(false))
    }
    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.invalid(key, "a text"))
    }
    /// A list of `len` entries, each turned into a `T` or refused.
    pub(crate) fn optional_list<T>(
        &self,
        key: &str,
        len: usize,
        expected: &str,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let entries = value.as_array().filter(|entries| entries.len() == len);
        entries
            .and_then(|entries| entries.iter().map(parse).collect::<Option<Vec<T>>>())
            .map(Some)
            .ok_or_else(|| self.invalid(key, format!("a list of {len} entries, each {expected}")))
    }
    /// Refuses a model that uses a feature which changes its mathematics in a way that is not built.
    pub(crate) fn refuse(&self, key: &str, expected: &'static str) -> Result<(), ModelError> {
        match self.value(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(_) => Err(self.invalid(key, expected)),
        }
    }
}

/// `value` as JSON, cut to a length that suits a message.
fn shown(value: &Value) -> String {
    const SHOWN_CHARACTERS: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= SHOWN_CHARACTERS {
        return text;
    }
    text.chars().take(SHOWN_CHARACTERS).chain("...".chars()).collect()
}
