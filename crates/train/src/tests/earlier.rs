//! Runs that earlier versions began, which knew fewer settings.

use model::BoundaryType;
use serde_json::json;

use super::*;
use crate::state::file::{self as state_file, lay_out, save};

const NEW_KEYS: [&str; 3] = ["kept_values", "blocks_kept", "checkpoint_blocks"];

/// Begins a run, stops it after five updates, and takes out of it what earlier versions did not write.
fn begun_earlier(setup: &Setup, folder: &Path, memory_choice: &str) {
    let mut stop = |event: &TrainEvent| match event {
        TrainEvent::Step(step) if step.step == 5 => Control::Stop,
        _ => Control::Continue,
    };
    assert_eq!(setup.run(folder, Fake::default(), false, &mut stop).unwrap().end, RunEnd::Interrupted);
    edit(&folder.join("config.json"), |config| NEW_KEYS.iter().for_each(|key| drop(config.remove(*key).unwrap())));
    edit(&folder.join("plan.json"), |plan| plan["memory_choice"] = memory_choice.into());
    let states = folder.join("state");
    let mut state = state_file::load(&states).unwrap().unwrap().state;
    NEW_KEYS.iter().for_each(|key| drop(state.identity.config.remove(*key).unwrap()));
    let mut image = Vec::new();
    let values = [&state.parameters[..], &state.first_moment, &state.second_moment];
    lay_out(&mut image, &state.identity, &state.progress, values);
    save(&Files::default(), &states, &mut image, false).unwrap();
}

fn edit(path: &Path, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(value.as_object_mut().unwrap());
    std::fs::write(path, value.to_string()).unwrap();
}

/// As a command goes on with a run: with the configuration in its folder.
fn go_on(folder: &Path) -> Result<TrainOutcome, TrainError> {
    let config = RunFolder::open(folder).unwrap().config().unwrap().unwrap();
    Setup { config, ..Setup::new() }.run(folder, Fake::default(), true, &mut |_| Control::Continue)
}

#[test]
fn they_go_on_with_what_they_did() {
    let mut setup = Setup::new();
    setup.config.kept_values = Some(model::KeptType::Float32);
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    let expected = ending(&path);
    for boundaries in [BoundaryType::Float32, BoundaryType::Bfloat16] {
        setup.config.boundaries = Some(boundaries);
        let (_parent, path) = folder();
        begun_earlier(
            &setup,
            &path,
            "keeps each block's input (bfloat16), all values of the last 12 blocks; weights stay in memory",
        );
        go_on(&path).unwrap();
        assert_equal(&ending(&path), &expected, &format!("{boundaries:?}"));
        let identity = RunFolder::open(&path).unwrap().state().unwrap().unwrap().0.identity;
        let blocks = if boundaries == BoundaryType::Bfloat16 { [12, 1] } else { [0, 0] };
        assert_eq!(
            NEW_KEYS.map(|key| identity.config[key].clone()),
            [json!("float32"), json!(blocks[0]), json!(blocks[1])]
        );
    }
}

#[test]
fn what_they_did_not_do_is_refused() {
    let mut setup = Setup::new();
    setup.config.boundaries = Some(BoundaryType::Float32);
    let (_parent, path) = folder();
    begun_earlier(&setup, &path, "");
    edit(&path.join("config.json"), |config| drop(config.insert("kept_values".into(), "int16".into())));
    let message = go_on(&path).unwrap_err().to_string();
    assert!(message.contains("`kept_values` changed: \"float32\" in the saved run, \"int16\" now"), "{message}");

    // Nobody can tell which blocks were kept.
    setup.config.boundaries = Some(BoundaryType::Bfloat16);
    for plan in ["words of nobody", "gone"] {
        let (_parent, path) = folder();
        begun_earlier(&setup, &path, plan);
        if plan == "gone" {
            std::fs::remove_file(path.join("plan.json")).unwrap();
        }
        let error = go_on(&path).unwrap_err();
        assert!(matches!(error, TrainError::Run(RunFolderError::PlanGone { .. })), "{error}");
        assert!(error.to_string().contains("selftune train --from"), "{error}");
    }
}

#[test]
fn a_plan_that_was_removed_is_written_anew() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    setup.run(&path, Fake::default(), false, &mut |_| Control::Stop).unwrap();
    std::fs::remove_file(path.join("plan.json")).unwrap();
    setup.resume(&path);
    assert_eq!(RunFolder::open(&path).unwrap().plan().unwrap().unwrap().updates, 12);
}

#[test]
fn a_configuration_that_was_edited_names_its_file_and_a_way() {
    let setup = Setup::new();
    let (_parent, path) = folder();
    setup.run_to_end(&path);
    for (key, value, words) in [
        ("rank", json!(0), "`rank = 0` is not possible: expected 1 to 1024"),
        ("memory", json!(-5), "expected auto, or bytes such as"),
        ("blocks_kept", json!(1.5), "expected a whole number, 0 or more"),
        ("colour", json!("red"), "unknown field `colour`"),
    ] {
        let file = path.join("config.json");
        let before = std::fs::read(&file).unwrap();
        edit(&file, |config| drop(config.insert(key.into(), value)));
        let error = RunFolder::open(&path).unwrap().config().unwrap_err().to_string();
        let begin = format!("{}: ", file.display());
        assert!(error.starts_with(&begin) && error.contains(words) && error.contains("train --from"), "{error}");
        std::fs::write(&file, before).unwrap();
    }
}
