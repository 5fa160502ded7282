//! The file of what runs on this machine have cost: `costs.json` in the user's home folder of selftune.
//!
//! It is private to its owner, replaced at once, bounded in size, and nothing depends on it but predictions: what cannot
//! be believed is left out, and a file that cannot be read is put aside, never a reason to stop a run.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{FileError, Files};

/// Measurements kept; the oldest go.
const MEASUREMENTS_MAX: usize = 256;
/// Far above what so many measurements take; a longer file is not ours.
const BYTES_MAX: u64 = 4 << 20;
/// Points of a run's curve.
pub(crate) const PACE_POINTS_MAX: usize = 32;
/// Names longer than this are no names.
const NAME_BYTES_MAX: usize = 512;
/// A run of more than a century is no run.
const SECONDS_MAX: f64 = 3.2e9;
/// How long another process may keep the file before a measurement is given up.
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT_MS: u64 = 50;

/// Runs of less than this together say less than a probe.
const ENOUGH_S: f64 = 10.0;

const FORMAT: &str = "selftune-costs";
const VERSION: u32 = 1;

/// What a measurement holds for. Runs of the same setting and model predict each other; the adapter's shape and the
/// lengths of the examples are in the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The machine in one line.
    pub machine: String,
    pub isa: String,
    pub precision: String,
    pub threads: usize,
    /// Other versions have other kernels.
    pub selftune_version: String,
    /// Content hash of the base model.
    pub model: String,
}

impl Setting {
    /// Whether only the model differs, if anything.
    pub fn is_same_but_model(&self, other: &Setting) -> bool {
        let without_model = |setting: &Setting| Setting { model: String::new(), ..setting.clone() };
        without_model(self) == without_model(other)
    }
}

/// What one session of training did and took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    #[serde(flatten)]
    pub setting: Setting,
    pub model_name: String,
    pub ended_unix_seconds: f64,
    pub updates: u64,
    pub tokens: u64,
    /// See [`crate::cost::RunWork`]; validations included.
    pub work: f64,
    /// Time spent in updates, validations and saves: no waiting.
    pub seconds: f64,
    /// Processor time of all threads.
    #[serde(default)]
    pub processor_seconds: Option<f64>,
    /// Energy that the machine took, where it tells.
    #[serde(default)]
    pub energy_j: Option<f64>,
    /// (seconds, work done until then) at some moments of the session, rising.
    #[serde(default)]
    pub pace: Vec<[f64; 2]>,
}

impl Measurement {
    /// Whether the numbers can be those of a session.
    pub fn is_plausible(&self) -> bool {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let duration = |value: f64| positive(value) && value < SECONDS_MAX;
        let Setting { machine, isa, precision, selftune_version, model, .. } = &self.setting;
        let names = [machine, isa, precision, selftune_version, model, &self.model_name];
        names.iter().all(|name| name.len() <= NAME_BYTES_MAX)
            && duration(self.seconds)
            && positive(self.work)
            && self.work < 1e30
            && self.ended_unix_seconds.is_finite()
            && self.processor_seconds.is_none_or(|seconds| seconds.is_finite() && seconds >= 0.0)
            && self.energy_j.is_none_or(|energy| energy.is_finite() && energy >= 0.0)
            && self.pace.len() <= PACE_POINTS_MAX
            && self.pace.iter().flatten().all(|value| value.is_finite() && *value >= 0.0)
            && self.pace.is_sorted_by(|a, b| a[0] < b[0] && a[1] <= b[1])
    }
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CostFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {what}; it is not used", path.display())]
    Unreadable { path: PathBuf, what: String },
    #[error("{}: another process has kept it locked for {} ms", path.display(), u64::from(LOCK_TRIES) * LOCK_WAIT_MS)]
    Locked { path: PathBuf },
}

/// The measurements of this machine, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostHistory {
    pub measurements: Vec<Measurement>,
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'a str,
    version: u32,
    measurements: &'a [Measurement],
}

#[derive(Deserialize)]
struct Read1 {
    format: String,
    version: u32,
    // Each by itself: one that cannot be read takes none of the others with it.
    measurements: Vec<serde_json::Value>,
}

impl CostHistory {
    /// Reads the file; none is an empty history. Measurements that cannot be are left out.
    pub fn read(path: &Path) -> Result<CostHistory, CostFileError> {
        let unreadable = |what: String| CostFileError::Unreadable { path: path.to_owned(), what };
        match std::fs::metadata(path) {
            Ok(file) if file.is_file() => {}
            // A pipe would wait for a writer for ever.
            Ok(_) => return Err(unreadable("no ordinary file".into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(CostHistory::default()),
            Err(error) => return Err(FileError::new("read", path)(error).into()),
        }
        let file = File::open(path).map_err(FileError::new("open", path))?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(FileError::new("read", path))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(unreadable(format!("more than {BYTES_MAX} bytes")));
        }
        let read: Read1 = serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
        if (read.format.as_str(), read.version) != (FORMAT, VERSION) {
            let Read1 { format, version, .. } = read;
            let format: String = format.chars().take(40).collect();
            return Err(unreadable(format!("`{format}` version {version}, expected `{FORMAT}` {VERSION}")));
        }
        let measurements = read.measurements.into_iter().filter_map(|value| serde_json::from_value(value).ok());
        let mut measurements: Vec<Measurement> = measurements.filter(Measurement::is_plausible).collect();
        measurements.drain(..measurements.len().saturating_sub(MEASUREMENTS_MAX));
        Ok(CostHistory { measurements })
    }

    /// Adds a measurement to the file. What is there and cannot be read is moved aside under a name of its own.
    pub fn add(path: &Path, measurement: Measurement) -> Result<(), CostFileError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Files::default().create_folder(folder)?;
        }
        let _lock = lock(path)?;
        let mut history = match CostHistory::read(path) {
            Err(CostFileError::Unreadable { .. }) => {
                move_aside(path)?;
                CostHistory::default()
            }
            history => history?,
        };
        history.measurements.push(measurement);
        let excess = history.measurements.len().saturating_sub(MEASUREMENTS_MAX);
        history.measurements.drain(..excess);
        let written = Written { format: FORMAT, version: VERSION, measurements: &history.measurements };
        Ok(Files::default().replace_json(path, &written)?)
    }

    /// Whether the runs of this setting and model say more than a few steps would.
    pub fn is_enough(&self, setting: &Setting) -> bool {
        self.of(setting, false).map(|measurement| measurement.seconds).sum::<f64>() >= ENOUGH_S
    }

    /// The measurements of a setting, whatever the model where `any_model`.
    pub fn of<'a>(&'a self, setting: &'a Setting, any_model: bool) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |measurement| match any_model {
            true => measurement.setting.is_same_but_model(setting),
            false => measurement.setting == *setting,
        })
    }
}

/// Two runs that end at once must both find their place.
fn lock(path: &Path) -> Result<File, CostFileError> {
    let file = Files::default().append_file(&path.with_extension("lock"))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => {
                std::thread::sleep(std::time::Duration::from_millis(LOCK_WAIT_MS));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(FileError::new("lock", path)(error).into()),
        }
    }
    Err(CostFileError::Locked { path: path.to_owned() })
}

fn move_aside(path: &Path) -> Result<(), FileError> {
    let free = |number: &u32| std::fs::symlink_metadata(path.with_extension(format!("unreadable-{number}"))).is_err();
    let number = (1..1000).find(free).unwrap_or(1000);
    Files::default().rename(path, &path.with_extension(format!("unreadable-{number}")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn setting(model: &str) -> Setting {
        Setting {
            machine: "a machine".into(),
            isa: "portable".into(),
            precision: "a16".into(),
            threads: 2,
            selftune_version: "1".into(),
            model: model.into(),
        }
    }

    pub(crate) fn measurement(model: &str, work: f64, seconds: f64) -> Measurement {
        Measurement {
            setting: setting(model),
            model_name: model.into(),
            ended_unix_seconds: 1.8e9,
            updates: 10,
            tokens: 1000,
            work,
            seconds,
            processor_seconds: Some(2.0 * seconds),
            energy_j: None,
            pace: vec![[0.0, 0.0], [seconds, work]],
        }
    }

    #[test]
    fn measurements_come_back_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home/costs.json");
        assert_eq!(CostHistory::read(&path).unwrap(), CostHistory::default());
        for index in 0..MEASUREMENTS_MAX + 5 {
            CostHistory::add(&path, measurement("m", 1e9, 1.0 + index as f64)).unwrap();
        }
        let history = CostHistory::read(&path).unwrap();
        assert_eq!(history.measurements.len(), MEASUREMENTS_MAX);
        assert_eq!(history.measurements[0], measurement("m", 1e9, 6.0));
        assert_eq!(history.of(&setting("m"), false).count(), MEASUREMENTS_MAX);
        assert_eq!(history.of(&setting("n"), false).count(), 0);
        assert_eq!(history.of(&setting("n"), true).count(), MEASUREMENTS_MAX);
        assert!(std::fs::metadata(&path).unwrap().len() < BYTES_MAX / 4);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        }
    }

    #[test]
    fn runs_that_end_at_once_are_all_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.json");
        std::thread::scope(|scope| {
            for index in 0..6 {
                let path = &path;
                scope.spawn(move || CostHistory::add(path, measurement("m", 1e9, 1.0 + f64::from(index))).unwrap());
            }
        });
        assert_eq!(CostHistory::read(&path).unwrap().measurements.len(), 6);
    }

    #[test]
    fn foreign_content_is_kept_aside_and_never_stops_a_run() {
        let deep = "[".repeat(100_000);
        let contents: [&[u8]; 8] = [
            b"",
            b"not json",
            b"{}",
            b"[1, 2]",
            b"{\"format\": \"selftune-costs\", \"version\": 9, \"measurements\": []}",
            b"{\"format\": \"other\", \"version\": 1, \"measurements\": []}",
            b"\xff\xfe\x00",
            deep.as_bytes(),
        ];
        for (index, content) in contents.into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("costs.json");
            std::fs::write(&path, content).unwrap();
            let error = CostHistory::read(&path).unwrap_err();
            assert!(error.to_string().contains("costs.json"), "{index}: {error}");
            CostHistory::add(&path, measurement("m", 1e9, 1.0)).unwrap();
            assert_eq!(CostHistory::read(&path).unwrap().measurements.len(), 1, "{index}");
            assert_eq!(std::fs::read(folder.path().join("costs.unreadable-1")).unwrap(), content, "{index}");
        }
        // A folder in its place cannot be read either.
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("costs.json")).unwrap();
        assert!(CostHistory::read(&folder.path().join("costs.json")).is_err());
    }

    #[test]
    fn measurements_that_cannot_be_are_left_out() {
        let good = serde_json::to_value(measurement("m", 1e9, 1.0)).unwrap();
        let changed = |key: &str, value: serde_json::Value| {
            let mut bad = good.clone();
            bad[key] = value;
            bad
        };
        let list = [
            good.clone(),
            changed("seconds", (-1.0).into()),
            changed("seconds", 1e300.into()),
            changed("work", 0.0.into()),
            changed("work", "many".into()),
            changed("threads", (-2).into()),
            changed("machine", "x".repeat(10_000).into()),
            changed("pace", serde_json::json!([[0.0, 5.0], [1.0, 4.0]])),
            changed("pace", vec![serde_json::json!([0, 0]); 500].into()),
            changed("energy_j", (-3).into()),
            serde_json::json!(null),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.json");
        let file = serde_json::json!({"format": FORMAT, "version": VERSION, "measurements": list});
        std::fs::write(&path, file.to_string()).unwrap();
        assert_eq!(CostHistory::read(&path).unwrap().measurements, [measurement("m", 1e9, 1.0)]);
    }
}
