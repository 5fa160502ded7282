//! The file that describes a study: whose histories, which configurations, what is compared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::arms::{ARMS, Arm, WhichAdapter};

/// A study as its TOML file says it. Every key that does not exist is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    pub title: String,
    /// What is studied and why these numbers, for the report.
    #[serde(default)]
    pub about: String,
    /// As `--model` takes it.
    pub model: String,
    /// Seed of the bootstrap; training has its own in each configuration.
    #[serde(default = "defaults::seed")]
    pub seed: u64,
    pub histories: Vec<StudyHistory>,
    #[serde(default)]
    pub evaluation: EvaluationSettings,
    pub configurations: Vec<Configuration>,
    /// Pairs of configurations whose predictions are compared one by one.
    #[serde(default)]
    pub agreements: Vec<Agreement>,
    /// Bounds of the groups by length of the history that was trained on, rising.
    #[serde(default = "defaults::length_groups")]
    pub length_groups: Vec<usize>,
}

/// The records of one kind, of one or many people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyHistory {
    /// Its row in the tables; letters, digits, `-` and `_`.
    pub name: String,
    /// A history file or a folder of them; relative to the folder of histories that is given, else to the study's file.
    pub path: PathBuf,
    /// Reads every record as this task instead of recognising it.
    #[serde(default)]
    pub task: Option<String>,
    /// Frozen adapters under every arm, bottom first: a task adapter of the first stage. Relative to the study's file.
    #[serde(default, deserialize_with = "each_once")]
    pub on: Vec<PathBuf>,
    /// Only these people; all if it is left out.
    #[serde(default, deserialize_with = "each_once")]
    pub users: Vec<String>,
    /// Only the first so many people, in the order of the file.
    #[serde(default)]
    pub users_max: Option<usize>,
    /// Only the so many people with the longest histories; of equally long ones the first in the file.
    #[serde(default)]
    pub users_longest: Option<usize>,
    /// Only the newest so many records of each person.
    #[serde(default)]
    pub newest: Option<usize>,
    /// Newest records of each person that are asked about and never trained on.
    pub queries: usize,
    /// People with fewer records than this are reported and left out.
    #[serde(default = "defaults::records_min")]
    pub records_min: usize,
    /// Names of [`crate::METRICS`]; the task's own if it is left out.
    #[serde(default, deserialize_with = "each_once")]
    pub metrics: Vec<String>,
}

/// How every arm of the study is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSettings {
    /// Earlier records in the prompt of the arms with retrieval.
    pub retrieve: usize,
    /// Tokens of each of them. Training uses the same unless a configuration says otherwise.
    pub retrieved_tokens_max: usize,
    /// Tokens of prompt and answer together; also in training.
    pub tokens_max: usize,
    /// Tokens of a written answer; 0 measures losses (and scored choices) only.
    pub answer_tokens_max: usize,
    /// Whether the labels of a task with labels are scored too, beside the written answer.
    pub score_choices: bool,
}

impl Default for EvaluationSettings {
    fn default() -> Self {
        Self { retrieve: 4, retrieved_tokens_max: 96, tokens_max: 1024, answer_tokens_max: 32, score_choices: true }
    }
}

/// One way to train and to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Its name in tables and folders; letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Only for these histories; all if it is left out.
    #[serde(default, deserialize_with = "each_once")]
    pub histories: Vec<String>,
    /// A preset of `train`.
    #[serde(default)]
    pub preset: Option<String>,
    /// Settings of `train` over the preset.
    #[serde(default)]
    pub train: toml::Table,
    /// The arms; all five if it is left out. Arms without an adapter are measured once for all configurations.
    #[serde(default, deserialize_with = "each_once")]
    pub arms: Vec<String>,
    /// Serves the adapters of this configuration instead of training its own.
    #[serde(default)]
    pub adapters_of: Option<String>,
    /// Precision of the products while answering: `a16`, `exact` or `a8`.
    #[serde(default = "defaults::precision")]
    pub precision: String,
    /// Instruction set while answering; the best of the machine if none.
    #[serde(default)]
    pub isa: Option<String>,
    /// Makes one configuration for each number: adapters on the last so many blocks. The first is listed first.
    #[serde(default, deserialize_with = "each_once")]
    pub depths: Vec<usize>,
    /// How many blocks have adapters, where the configuration came from `depths`. Not for the file.
    #[serde(default, skip_deserializing)]
    pub depth: Option<usize>,
}

/// Two configurations whose answers to the same queries are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    pub left: String,
    pub right: String,
}

/// Why a file is no study.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct StudyError {
    pub path: PathBuf,
    pub reason: String,
}

pub(super) mod defaults {
    pub fn seed() -> u64 {
        1
    }
    pub fn length_groups() -> Vec<usize> {
        vec![50, 100, 200]
    }
    pub fn records_min() -> usize {
        12
    }
    pub fn precision() -> String {
        "a16".into()
    }
}

impl Study {
    /// Reads a study's file, writes `depths` out as configurations, and makes paths absolute: they start at `histories`,
    /// else at the file's own folder.
    pub fn read(path: &Path, histories: Option<&Path>) -> Result<Study, StudyError> {
        let error = |reason: String| StudyError { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|source| error(format!("cannot read it: {source}")))?;
        let folder = histories.or_else(|| path.parent()).unwrap_or(Path::new(""));
        Study::parse(&text, folder).map_err(error)
    }

    /// The same from text; relative paths start at `folder`.
    pub fn parse(text: &str, folder: &Path) -> Result<Study, String> {
        let mut study: Study = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        for history in &mut study.histories {
            let path = folder.join(&history.path);
            history.path = std::path::absolute(&path).unwrap_or(path);
            history.on.iter_mut().for_each(|on| *on = folder.join(&*on));
        }
        study.configurations = study.configurations.into_iter().flat_map(written_out).collect();
        study.check()?;
        Ok(study)
    }

    pub fn configuration(&self, name: &str) -> Option<&Configuration> {
        self.configurations.iter().find(|configuration| configuration.name == name)
    }

    /// Configurations that are studied on this history.
    pub fn configurations_of<'a>(&'a self, history: &'a str) -> impl Iterator<Item = &'a Configuration> {
        self.configurations.iter().filter(move |configuration| configuration.is_for(history))
    }

    fn check(&self) -> Result<(), String> {
        if self.histories.is_empty() || self.configurations.is_empty() {
            return Err("a study needs [[histories]] and [[configurations]], at least one of each".into());
        }
        check_names("history", self.histories.iter().map(|history| history.name.as_str()))?;
        check_names("configuration", self.configurations.iter().map(|configuration| configuration.name.as_str()))?;
        for history in &self.histories {
            history.check()?;
        }
        for configuration in &self.configurations {
            self.check_configuration(configuration)?;
        }
        for Agreement { left, right } in &self.agreements {
            for name in [left, right] {
                if self.configuration(name).is_none() {
                    return Err(format!("agreements: there is no configuration {name:?}"));
                }
            }
            if left == right {
                return Err(format!("agreements: {left:?} is compared with itself"));
            }
        }
        if self.length_groups.windows(2).any(|pair| pair[0] >= pair[1]) || self.length_groups.first() == Some(&0) {
            return Err(format!("length_groups {:?}: expected rising numbers from 1", self.length_groups));
        }
        let settings = &self.evaluation;
        if settings.retrieve == 0 || settings.retrieve > data::RETRIEVED_RECORDS_MAX {
            return Err(format!(
                "evaluation.retrieve is {}, expected 1 to {}",
                settings.retrieve,
                data::RETRIEVED_RECORDS_MAX
            ));
        }
        if settings.tokens_max < 16 || settings.answer_tokens_max >= settings.tokens_max {
            return Err("evaluation.tokens_max must be at least 16 and larger than answer_tokens_max".into());
        }
        Ok(())
    }

    fn check_configuration(&self, configuration: &Configuration) -> Result<(), String> {
        let Configuration { name, arms, histories, .. } = configuration;
        let wrong = |reason: String| Err(format!("configuration {name:?}: {reason}"));
        for arm in arms {
            if let Err(error) = Arm::by_name(arm) {
                return wrong(error.to_string());
            }
        }
        for history in histories {
            if !self.histories.iter().any(|known| known.name == *history) {
                return wrong(format!("there is no history {history:?}"));
            }
        }
        if kernels::Precision::by_name(&configuration.precision).is_none() {
            return wrong(format!("precision {:?}, expected a16, exact or a8", configuration.precision));
        }
        let Some(other) = &configuration.adapters_of else { return Ok(()) };
        if !configuration.train.is_empty() || configuration.preset.is_some() {
            return wrong("it has adapters_of, so it trains nothing: leave out preset and train".into());
        }
        match self.configuration(other) {
            None => wrong(format!("adapters_of names {other:?}, which is no configuration")),
            Some(other) if other.adapters_of.is_some() => {
                wrong(format!("adapters_of names {:?}, which trains nothing itself", other.name))
            }
            Some(other)
                if self
                    .histories
                    .iter()
                    .any(|history| configuration.is_for(&history.name) && !other.is_for(&history.name)) =>
            {
                wrong(format!("adapters_of names {:?}, which is not for the same histories", other.name))
            }
            Some(_) => Ok(()),
        }
    }
}

impl StudyHistory {
    fn check(&self) -> Result<(), String> {
        let wrong = |reason: String| Err(format!("history {:?}: {reason}", self.name));
        if self.queries == 0 {
            return wrong("queries is 0, expected at least 1".into());
        }
        if self.records_min <= self.queries {
            return wrong(format!(
                "records_min is {}, expected more than its {} queries, or nothing is left to train on",
                self.records_min, self.queries
            ));
        }
        if self.users_max == Some(0) || self.users_longest == Some(0) {
            return wrong("users_max or users_longest is 0, expected at least 1".into());
        }
        if self.newest.is_some_and(|newest| newest < self.records_min) {
            return wrong(format!("newest is below records_min ({})", self.records_min));
        }
        if let Some(task) = &self.task
            && data::task_by_name(task).is_none()
        {
            let names: Vec<&str> = data::TASKS.iter().map(|task| task.name()).collect();
            return wrong(format!("task {task:?}, expected one of {}", names.join(", ")));
        }
        for metric in &self.metrics {
            if !crate::METRICS.iter().any(|known| known.name == metric) {
                let names: Vec<&str> = crate::METRICS.iter().map(|metric| metric.name).collect();
                return wrong(format!("metric {metric:?}, expected some of {}", names.join(", ")));
            }
        }
        Ok(())
    }
}

impl Configuration {
    pub fn is_for(&self, history: &str) -> bool {
        self.histories.is_empty() || self.histories.iter().any(|name| name == history)
    }

    /// The arms in the order of [`ARMS`].
    pub fn arms(&self) -> Vec<&'static Arm> {
        let wanted = |arm: &&Arm| match self.arms.is_empty() {
            true => STUDY_ARMS.contains(&arm.name),
            false => self.arms.iter().any(|name| name == arm.name),
        };
        ARMS.iter().filter(wanted).collect()
    }

    /// Arms that an adapter of this configuration serves.
    pub fn adapter_arms(&self) -> Vec<&'static Arm> {
        self.arms().into_iter().filter(|arm| arm.adapter != WhichAdapter::None).collect()
    }

    /// Whose adapters are served: this configuration's, or another's.
    pub fn trained_as(&self) -> &str {
        self.adapters_of.as_deref().unwrap_or(&self.name)
    }

    /// What arms without an adapter depend on: configurations that agree in it share them.
    pub fn compute_name(&self) -> String {
        match &self.isa {
            None => self.precision.clone(),
            Some(isa) => format!("{}-{isa}", self.precision),
        }
    }
}

/// What a study asks unless a configuration chooses.
const STUDY_ARMS: [&str; 5] = ["base", "retrieval", "adapter", "adapter_retrieval", "other_adapter"];

/// A configuration with `depths` stands for one a depth.
fn written_out(configuration: Configuration) -> Vec<Configuration> {
    let Configuration { name, depths, .. } = configuration.clone();
    if depths.is_empty() {
        return vec![configuration];
    }
    let at = |depth: usize| {
        let mut train = configuration.train.clone();
        train.insert("adapted_blocks".into(), toml::Value::Integer(depth as i64));
        let name = format!("{name}-{depth}");
        Configuration { name, train, depth: Some(depth), depths: Vec::new(), ..configuration.clone() }
    };
    depths.into_iter().map(at).collect()
}

/// A list that says something: an empty one would mean everything, which leaving its key out says better, and what is
/// listed twice is a slip.
fn each_once<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    let list: Vec<T> = Vec::deserialize(deserializer)?;
    let is_repeated = |place: &usize| list[..*place].contains(&list[*place]);
    match (0..list.len()).find(is_repeated) {
        Some(place) => Err(serde::de::Error::custom(format!("{:?} is listed twice", list[place]))),
        None if list.is_empty() => Err(serde::de::Error::custom("the list is empty; leave its key out")),
        None => Ok(list),
    }
}

/// Names become folders: no path, nothing hidden, each once.
fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        if name.is_empty() || name.len() > 80 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(format!("{what} name {name:?}: expected letters, digits, '-', '_' and '.', at most 80"));
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(format!("two are called {what} {name:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        title = "t"
        model = "m"
        [[histories]]
        name = "commits"
        path = "data"
        queries = 4
        [[configurations]]
        name = "plain"
    "#;

    fn refused(extra: &str) -> String {
        Study::parse(&format!("{SMALL}\n{extra}"), Path::new("/studies")).unwrap_err()
    }

    #[test]
    fn a_small_study_has_all_arms_and_absolute_paths() {
        let study = Study::parse(SMALL, Path::new("/studies")).unwrap();
        assert_eq!(study.histories[0].path, Path::new("/studies/data"));
        let names: Vec<&str> = study.configurations[0].arms().iter().map(|arm| arm.name).collect();
        assert_eq!(names, STUDY_ARMS);
        assert_eq!(study.configurations[0].adapter_arms().len(), 3);
    }

    #[test]
    fn depths_become_configurations() {
        let study = Study::parse(&format!("{SMALL}depths = [30, 6]\n"), Path::new("")).unwrap();
        let found: Vec<_> = study
            .configurations
            .iter()
            .map(|one| (one.name.as_str(), one.depth, &one.train["adapted_blocks"]))
            .collect();
        let (all, few) = (toml::Value::Integer(30), toml::Value::Integer(6));
        assert_eq!(found, [("plain-30", Some(30), &all), ("plain-6", Some(6), &few)]);
    }

    #[test]
    fn what_contradicts_itself_is_named() {
        for (extra, words) in [
            ("adapters = 1", "adapters"),
            ("adapters_of = \"x\"", "no configuration"),
            ("arms = [\"bass\"]", "bass"),
            ("precision = \"a7\"", "a7"),
            ("[[configurations]]\nname = \"Plain\"", "two are called"),
            ("[[configurations]]\nname = \"../x\"", "letters"),
            ("[[agreements]]\nleft = \"plain\"\nright = \"p\"", "\"p\""),
            ("[[histories]]\nname = \"h\"\npath = \"p\"\nqueries = 20", "records_min"),
            ("[[histories]]\nname = \"h\"\npath = \"p\"\nqueries = 2\nmetrics = [\"bleu\"]", "bleu"),
            ("[[histories]]\nname = \"h\"\npath = \"p\"\nqueries = 2\ntask = \"essay\"", "essay"),
            ("histories = [\"h\"]", "no history"),
            ("[evaluation]\nretrieve = 0", "retrieve"),
        ] {
            let message = refused(extra);
            assert!(message.contains(words), "{extra}: {message}");
        }
        for (extra, line, words) in [
            ("arms = []", 11, "the list is empty; leave its key out"),
            ("arms = [\"base\", \"adapter\", \"base\"]", 11, "\"base\" is listed twice"),
            ("histories = [\"commits\", \"commits\"]", 11, "\"commits\" is listed twice"),
            ("depths = [2, 2]", 11, "2 is listed twice"),
            ("depths = []", 11, "the list is empty"),
            (
                "[[histories]]\nname = \"h\"\npath = \"p\"\nqueries = 2\nusers = [\"a\", \"a\"]",
                15,
                "\"a\" is listed twice",
            ),
            ("[[histories]]\nname = \"h\"\npath = \"p\"\nqueries = 2\nmetrics = []", 15, "the list is empty"),
        ] {
            let (key, message) = (extra.lines().last().unwrap().split(' ').next().unwrap(), refused(extra));
            assert!(message.contains(words) && message.contains(&format!("line {line}")), "{extra}: {message}");
            assert!(message.contains(&format!("{key} = ")), "{extra}: {message}");
        }
        let message = Study::parse("title = 1", Path::new("")).unwrap_err();
        assert!(message.contains("line 1"), "{message}");
    }
}
