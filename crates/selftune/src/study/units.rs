//! The work of a study, divided into units that wait for each other, and where each lies on disk.

use super::Scene;
use super::people::{Person, StudiedHistory};
use crate::failure::{Failure, InputError};
use anyhow::Context;
use eval::study::{Configuration, EvaluationSettings, Study, UnitResult};
use eval::{Arm, WhichAdapter};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use train::TrainConfig;

/// What a unit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Trains a person's adapter.
    Train,
    /// Asks the arms without an adapter, once for all configurations that compute alike.
    AskShared,
    /// Asks the arms with an adapter.
    AskAdapter,
}

/// One person under one configuration.
#[derive(Clone, Debug)]
pub struct Unit {
    pub kind: Kind,
    /// Places in the scene.
    pub history: usize,
    pub person: usize,
    /// The configuration; for [`Kind::AskShared`] what the arms depend on.
    pub configuration: String,
    pub arms: Vec<&'static Arm>,
    /// Work in examples or queries, for the time that is left.
    pub weight: f64,
    /// The training whose adapter is asked.
    pub training: Option<usize>,
    /// Trainings that may serve as another person's, the nearest first.
    pub others: Vec<usize>,
}

/// All units, in the order in which they are best done: results come person by person.
pub struct Units {
    pub all: Vec<Unit>,
    /// The resolved settings of every configuration that trains.
    pub configs: BTreeMap<String, TrainConfig>,
}

impl Units {
    pub fn of(study: &Study, histories: &[StudiedHistory]) -> Result<Units, Failure> {
        let mut configs = BTreeMap::new();
        for configuration in &study.configurations {
            if configuration.adapters_of.is_none() {
                configs.insert(configuration.name.clone(), train_config(configuration, &study.evaluation)?);
            }
        }
        let mut units = Units { all: Vec::new(), configs };
        for (history, studied) in histories.iter().enumerate() {
            let of_history: Vec<&Configuration> = study.configurations_of(&studied.account.name).collect();
            let shared = shared_arms(&of_history);
            // Configurations that serve others' adapters come after those that train them.
            let (serving, training): (Vec<_>, Vec<_>) =
                of_history.into_iter().partition(|configuration| configuration.adapters_of.is_some());
            let mut trainings: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for (place, configuration) in training.into_iter().chain(serving).enumerate() {
                units.add_configuration(
                    history,
                    studied,
                    configuration,
                    &mut trainings,
                    if place == 0 { &shared } else { &[] },
                );
            }
        }
        Ok(units)
    }

    pub fn trainings(&self) -> usize {
        self.all.iter().filter(|unit| unit.kind == Kind::Train).count()
    }
    pub fn evaluations(&self) -> usize {
        self.all.len() - self.trainings()
    }

    fn add_configuration<'a>(
        &mut self,
        history: usize,
        studied: &StudiedHistory,
        configuration: &'a Configuration,
        trainings: &mut BTreeMap<&'a str, Vec<usize>>,
        shared: &[(String, Vec<&'static Arm>)],
    ) {
        let arms = configuration.adapter_arms();
        let trains = configuration.adapters_of.is_none() && !arms.is_empty();
        let unit = |kind: Kind, person: usize, weight: f64| Unit {
            kind,
            history,
            person,
            configuration: configuration.name.clone(),
            arms: Vec::new(),
            weight,
            training: None,
            others: Vec::new(),
        };
        for (place, person) in studied.people.iter().enumerate() {
            if trains {
                let config = &self.configs[&configuration.name];
                let weight = person.seen.len() as f64 * config.passes as f64;
                trainings.entry(&configuration.name).or_default().push(self.all.len());
                self.all.push(unit(Kind::Train, place, weight));
            }
            for (name, arms) in shared {
                let weight = (person.queries.len() * arms.len()) as f64;
                let shared = unit(Kind::AskShared, place, weight);
                self.all.push(Unit { configuration: name.clone(), arms: arms.clone(), ..shared });
            }
            // The person before is asked now: by then the control, this person's adapter, has been trained.
            if let Some(before) = place.checked_sub(1).filter(|_| trains) {
                self.add_asking(unit(Kind::AskAdapter, before, 0.0), studied, &arms);
            }
        }
        if arms.is_empty() {
            return;
        }
        let last = studied.people.len() - 1;
        for place in if trains { last..=last } else { 0..=last } {
            self.add_asking(unit(Kind::AskAdapter, place, 0.0), studied, &arms);
        }
        let Some(of) = trainings.get(configuration.trained_as()).cloned() else { return };
        for unit in self.all.iter_mut() {
            let is_ours =
                unit.kind == Kind::AskAdapter && unit.history == history && unit.configuration == configuration.name;
            if is_ours {
                unit.training = Some(of[unit.person]);
                unit.others = (1..of.len()).map(|step| of[(unit.person + step) % of.len()]).collect();
            }
        }
    }

    fn add_asking(&mut self, unit: Unit, studied: &StudiedHistory, arms: &[&'static Arm]) {
        let mut arms = arms.to_vec();
        if studied.people.len() < 2 {
            arms.retain(|arm| arm.adapter != WhichAdapter::Other);
        }
        let weight = (studied.people[unit.person].queries.len() * arms.len()) as f64;
        self.all.push(Unit { weight, arms, ..unit });
    }
}

/// Arms without an adapter that some configuration wants, by what they depend on.
fn shared_arms(configurations: &[&Configuration]) -> Vec<(String, Vec<&'static Arm>)> {
    let mut shared: BTreeMap<String, Vec<&'static Arm>> = BTreeMap::new();
    for configuration in configurations {
        for arm in configuration.arms().into_iter().filter(|arm| arm.adapter == WhichAdapter::None) {
            let arms = shared.entry(configuration.compute_name()).or_default();
            if !arms.contains(&arm) {
                arms.push(arm);
            }
        }
    }
    shared.into_iter().collect()
}

/// Preset, then the study's prompts, then the configuration's own settings.
fn train_config(configuration: &Configuration, evaluation: &EvaluationSettings) -> Result<TrainConfig, Failure> {
    let prompts =
        format!("tokens_max = {}\nretrieved_tokens_max = {}\n", evaluation.tokens_max, evaluation.retrieved_tokens_max);
    let settings: Vec<String> = configuration.train.iter().map(|(key, value)| format!("{key}={value}")).collect();
    TrainConfig::load(configuration.preset.as_deref(), Some((&prompts, "evaluation")), &settings)
        .bad_input(format!("configuration {}", configuration.name))
}

impl Scene {
    pub fn person(&self, unit: &Unit) -> &Person {
        &self.histories[unit.history].people[unit.person]
    }
    pub fn history_name(&self, unit: &Unit) -> &str {
        &self.histories[unit.history].account.name
    }

    /// `kind/HISTORY/CONFIGURATION/PERSON` below the study's folder.
    fn place(&self, kind: &str, unit: &Unit) -> PathBuf {
        let person = safe_name(&self.person(unit).name);
        self.folder.join(kind).join(self.history_name(unit)).join(&unit.configuration).join(person)
    }

    /// The run folder of a training.
    pub fn run_path(&self, unit: &Unit) -> PathBuf {
        self.place("runs", unit)
    }

    /// The result of an evaluation, or the failure of a training.
    pub fn result_path(&self, unit: &Unit) -> PathBuf {
        let mut path = self.place(if unit.kind == Kind::Train { "failed" } else { "units" }, unit).into_os_string();
        path.push(".json");
        path.into()
    }

    /// Everything that a unit's numbers depend on, hashed.
    pub fn fingerprint(&self, unit: &Unit, configs: &BTreeMap<String, TrainConfig>) -> String {
        let person = self.person(unit);
        let configuration = self.study.configuration(&unit.configuration);
        let trained_as = configuration.map(Configuration::trained_as);
        let settings = serde_json::json!({
            "selftune": env!("CARGO_PKG_VERSION"),
            "model": self.bench.model.content_hash(),
            "date": self.model.date,
            "kind": format!("{:?}", unit.kind),
            "on": self.on[unit.history].entries(),
            "person": person.hash,
            "queries": person.queries.len(),
            "training": trained_as.and_then(|name| configs.get(name)).map(TrainConfig::results_map),
            "arms": unit.arms.iter().map(|arm| arm.name).collect::<Vec<_>>(),
            "evaluation": (unit.kind != Kind::Train).then_some(&self.study.evaluation),
            "computed": match unit.kind {
                Kind::Train => None,
                Kind::AskShared => Some(unit.configuration.clone()),
                Kind::AskAdapter => configuration.map(Configuration::compute_name),
            },
        });
        Sha256::digest(settings.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A result from disk, if it is there. One that was made from anything else is refused, never overwritten.
    pub fn read_result(&self, unit: &Unit, fingerprint: &str) -> Result<Option<UnitResult>, Failure> {
        let path = self.result_path(unit);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display()))?,
        };
        let result: UnitResult = serde_json::from_str(&text).bad_input(format!("cannot use {}", path.display()))?;
        if result.fingerprint != fingerprint {
            return Err(other_settings(&path));
        }
        Ok(Some(result))
    }

    pub fn write_result(&self, unit: &Unit, result: &UnitResult) -> Result<(), Failure> {
        let path = self.result_path(unit);
        make_private_folder(path.parent().unwrap_or(&self.folder))?;
        write_whole(&path, &format!("{}\n", serde_json::to_string(result)?))
    }
}

pub fn other_settings(path: &Path) -> Failure {
    Failure::input(format!(
        "{} was made from other settings, records or another model than the study has now; it is kept: choose another \
         --out, or remove it",
        path.display()
    ))
}

/// A person's name as the name of a file: what may not stand in one is replaced, and a hash keeps names apart.
pub fn safe_name(name: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let is_safe = !name.is_empty() && name.len() <= 80 && !name.starts_with('.') && name.chars().all(plain);
    // Upper and lower case are the same file on some systems.
    if is_safe && !name.chars().any(|character| character.is_ascii_uppercase()) {
        return name.to_owned();
    }
    let kept: String = name.chars().take(40).map(|character| if plain(character) { character } else { '_' }).collect();
    let hash: String = Sha256::digest(name).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", kept.trim_start_matches('.'))
}

/// Results hold what people wrote: nobody else may read them.
pub fn make_private_folder(path: &Path) -> Result<(), Failure> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(())
}

/// The file appears whole or not at all, and survives a power cut.
pub fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_people_are_names_of_files() {
        assert_eq!(safe_name("author-01"), "author-01");
        let odd = ["../../etc", ".hidden", "", "Ann", "ann b", "ann/b", "ännchen", "a\u{0}b"];
        let names: Vec<String> = odd.iter().map(|name| safe_name(name)).collect();
        for (name, odd) in names.iter().zip(odd) {
            assert!(!name.contains('/') && !name.starts_with('.') && !name.contains('\u{0}'), "{odd:?} gave {name:?}");
        }
        let mut apart = names.clone();
        apart.sort();
        apart.dedup();
        assert_eq!(apart.len(), names.len(), "{names:?}");
    }
}
