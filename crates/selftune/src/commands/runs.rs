//! `selftune runs`: all runs at a glance.

use crate::commands::status::{standing, verdict};
use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::terminal::{STRONG, Terminal};
use crate::training::RunInputs;
use std::path::{Path, PathBuf};
use train::RunFolder;

/// Where runs are kept unless `--output` says otherwise.
const FOLDER: &str = "runs";

/// List the runs in a folder: state, model, history, updates, loss, verdict.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder that holds the run folders
    #[arg(default_value = FOLDER)]
    folder: PathBuf,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    // Before the first run there is no such folder yet; one that is named has to be there.
    if !arguments.folder.is_dir() && arguments.folder != Path::new(FOLDER) {
        return Err(Failure::input(format!("{}: no such folder", arguments.folder.display())));
    }
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for path in run_folders(&arguments.folder).bad_input(format!("cannot list {}", arguments.folder.display()))? {
        let read = RunFolder::open(&path).and_then(|run| run.watch().map(|watch| (run, watch)));
        let (run, watch) = match read {
            Ok(read) => read,
            Err(error) => {
                terminal.warning(error.to_string());
                continue;
            }
        };
        let inputs = RunInputs::of(&run).ok();
        let verdict = verdict(&run);
        let name = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let number = |loss: Option<f64>| loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.3}"));
        let (before, after) = match (watch.validation_before, &watch.validation_best) {
            (Some(before), Some(best)) => (Some(before), Some(best.loss)),
            _ => (watch.loss_first, watch.loss_recent),
        };
        rows.push([
            name(&path),
            standing(&watch),
            inputs.as_ref().map_or_else(|| "?".to_owned(), |inputs| inputs.model_name.clone()),
            inputs.as_ref().map_or_else(|| "?".to_owned(), |inputs| name(&inputs.history.path)),
            format!("{}/{}", watch.step, watch.steps),
            format!("{} -> {}", number(before), number(after)),
            verdict.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
        values.push(serde_json::json!({
            "run": watch,
            "model": inputs.as_ref().map(|inputs| &inputs.model_name),
            "history": inputs.as_ref().map(|inputs| inputs.history.path.display().to_string()),
            "verdict": verdict,
        }));
    }
    show(&rows, &arguments.folder, terminal);
    terminal.json(&serde_json::json!({"runs": values}));
    Ok(ExitStatus::Done)
}

/// The folders in `folder` that hold a run, by name; none if there is no such folder.
pub fn run_folders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("run.json").is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn show(rows: &[[String; 7]], folder: &Path, terminal: &Terminal) {
    const HEADINGS: [&str; 7] = ["Run", "State", "Model", "History", "Updates", "Loss", "Verdict"];
    if rows.is_empty() {
        terminal.line(format!("no runs in {}", folder.display()));
        return;
    }
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(HEADINGS[column].len()))
        .collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    terminal.line(format!("{STRONG}{}{STRONG:#}", line(&HEADINGS.map(str::to_owned))));
    for row in rows {
        terminal.line(line(row));
    }
}
