//! JSON files of models: read whole, with a size limit, and errors that say where.

use crate::FormatError;
use serde_json::{Map, Value};
use std::io::Read;
use std::path::Path;

/// No configuration is larger (a tokenizer file of 33 MB is the largest JSON seen; it is not read through here whole).
const BYTES_MAX: u64 = 256 << 20;

/// The file's bytes. Refuses what is no regular file or larger than [`BYTES_MAX`].
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, FormatError> {
    let file = crate::open_ordinary(path).map_err(|source| FormatError::read(path, source))?;
    let len = file.metadata().map_err(|source| FormatError::read(path, source))?.len();
    if len > BYTES_MAX {
        return Err(FormatError::malformed(path, 0, format!("{len} bytes of JSON, at most {BYTES_MAX} are read")));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(|source| FormatError::read(path, source))?;
    Ok(bytes)
}

/// Parses `bytes` of the file `path`. serde_json refuses nesting deeper than 128 levels by itself.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, FormatError> {
    serde_json::from_slice(bytes).map_err(|error| FormatError::Json {
        path: path.to_owned(),
        line: error.line(),
        column: error.column(),
        problem: error.to_string(),
    })
}

/// A JSON file whose top level must be an object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, FormatError> {
    match parse(path, &read_bytes(path)?)? {
        Value::Object(object) => Ok(object),
        other => Err(FormatError::malformed(path, 0, format!("expected a JSON object, found {}", kind_name(&other)))),
    }
}

/// As [`read_object`]; `None` when there is no such file.
pub(crate) fn read_object_if_there(path: &Path) -> Result<Option<Map<String, Value>>, FormatError> {
    if path.is_file() { read_object(path).map(Some) } else { Ok(None) }
}

/// What `value` is, for messages.
pub(crate) fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Keys sorted at every level, so that equal configurations give equal bytes.
pub(crate) fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|key| (key.clone(), canonical(&object[key]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_json_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, "{\n  \"a\": 1,\n  \"b\" 2\n}").unwrap();
        let FormatError::Json { line, column, .. } = read_object(&path).unwrap_err() else { panic!("another error") };
        assert_eq!((line, column), (3, 7));
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, "[".repeat(1_000_000)).unwrap();
        assert!(matches!(read_object(&path), Err(FormatError::Json { .. })));
        std::fs::write(&path, "[1]").unwrap();
        assert!(read_object(&path).unwrap_err().to_string().contains("expected a JSON object, found a list"));
    }

    #[test]
    fn canonical_form_ignores_the_order_of_keys() {
        let one: Value = serde_json::from_str(r#"{"b": {"y": 1, "x": [1, {"d": 0, "c": 0}]}, "a": 2}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"a": 2, "b": {"x": [1, {"c": 0, "d": 0}], "y": 1}}"#).unwrap();
        assert_eq!(canonical(&one).to_string(), canonical(&two).to_string());
    }
}
