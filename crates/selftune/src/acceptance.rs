//! The end of a training: is the new adapter used from now on?

use crate::accepted::{self, AcceptedNote};
use crate::failure::{Failure, InputError};
use crate::preparation::Preparation;
use crate::terminal::{BAD, GOOD, Terminal};
use crate::training::{RunInputs, stop_asked};
use crate::workbench::Workbench;
use eval::{ARMS, Acceptance, Arm, EvalError, EvalInputs, Evaluation, WhichAdapter, accept, general_ability};
use kernels::OpsOptions;
use model::{AdapterStack, AdapterWeights};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use train::{RunFolder, TrainConfig};

/// What is judged.
pub struct Candidate<'a> {
    pub bench: &'a Workbench,
    /// The adapters below, and their folders.
    pub on: &'a AdapterStack,
    pub on_folders: Vec<PathBuf>,
    pub run: &'a RunFolder,
    pub preparation: &'a Preparation,
    pub config: &'a TrainConfig,
    /// The name under which it would be used.
    pub name: String,
    /// Versions of that name that are about to be removed: it need not be as good as they are.
    pub leaving: Vec<u32>,
}

/// The file in the run folder.
const FILE: &str = "acceptance.json";

/// How a run was judged at its end; none if it was not.
pub fn of_run(run: &RunFolder) -> Result<Option<Acceptance>, Failure> {
    let path = run.path().join(FILE);
    let judged = train::read_own_text(&path)
        .map_err(anyhow::Error::new)
        .and_then(|text| text.map(|text| Ok(serde_json::from_str(&text)?)).transpose());
    judged.bad_input(format!("cannot use {}: remove it, and the run is judged anew", path.display()))
}

/// Judges a trained adapter on the held-out records, keeps it if it is accepted, and says which adapter is in use. A run
/// is judged once; `None` if the user stopped it before the end.
pub fn conclude(candidate: &Candidate, terminal: &Terminal) -> Result<Option<Acceptance>, Failure> {
    let path = candidate.run.path().join(FILE);
    if let Some(before) = of_run(candidate.run)? {
        show(&before, "", terminal);
        return Ok(Some(before));
    }
    let folder = crate::serving::adapter_of(candidate.run)?;
    let adapter = on_top(candidate, &folder)?;
    let earlier = accepted::current(&candidate.name)?
        .filter(|earlier| !candidate.leaving.contains(&earlier.number) && is_comparable(candidate, &earlier.note));
    let top = |stack: &AdapterStack| stack.weights().pop().cloned();
    let adapter = top(&adapter).ok_or_else(|| Failure::input("the run has no adapter"))?;
    let earlier = match earlier {
        Some(earlier) => {
            let weights = top(&on_top(candidate, &earlier.folder)?);
            weights.map(|weights| (weights, earlier.note.acceptance.retrieved_records))
        }
        None => None,
    };
    let Some(judged) = judge(candidate, &adapter, earlier.as_ref(), terminal)? else {
        terminal.remark("stopped before the adapter was judged; `selftune train --resume` judges it");
        return Ok(None);
    };
    crate::study::write_whole(&path, &format!("{}\n", serde_json::to_string_pretty(&judged)?))?;
    let in_use = if judged.accepted {
        let note = AcceptedNote {
            run: std::path::absolute(candidate.run.path()).unwrap_or_else(|_| candidate.run.path().to_owned()),
            model_name: candidate.bench.model_name.clone(),
            base: candidate.bench.model.content_hash().to_owned(),
            below: below(candidate),
            accepted_unix_seconds: device::unix_time_seconds(),
            acceptance: judged.clone(),
        };
        let version = accepted::keep(&candidate.name, &folder, &note)?;
        format!("in use as {} (version {})", candidate.name, version.number)
    } else {
        match accepted::current(&candidate.name)? {
            Some(earlier) => format!("{} stays at version {}", candidate.name, earlier.number),
            None => format!("{} has no adapter in use", candidate.name),
        }
    };
    show(&judged, &in_use, terminal);
    Ok(Some(judged))
}

/// An adapter with those below it, which must be the ones that it was trained on.
fn on_top(candidate: &Candidate, folder: &Path) -> Result<AdapterStack, Failure> {
    candidate.bench.adapters(&[&candidate.on_folders[..], &[folder.to_owned()]].concat())
}

fn show(judged: &Acceptance, in_use: &str, terminal: &Terminal) {
    let (style, word) = if judged.accepted { (GOOD, "Accepted") } else { (BAD, "Not accepted") };
    terminal.line(format!("\n{style}{word}{style:#}: {}", judged.reason));
    if let Some(ability) = judged.general_ability {
        terminal.line(format!(
            "  general ability: {:.3} nats a token on a page of a book, {:.3} without the adapter",
            ability.loss_with, ability.loss_without
        ));
    }
    if !in_use.is_empty() {
        terminal.line(format!("  {in_use}"));
    }
}

fn below(candidate: &Candidate) -> Vec<String> {
    candidate.on.entries().iter().map(|entry| entry.content_hash.clone()).collect()
}

/// An adapter of another model, or on top of others, answers other questions.
fn is_comparable(candidate: &Candidate, earlier: &AcceptedNote) -> bool {
    earlier.base == candidate.bench.model.content_hash() && earlier.below == below(candidate)
}

/// `earlier` is the adapter in use, and how many earlier records its prompts show. Each adapter is asked in prompts like
/// those that it was trained on.
fn judge(
    candidate: &Candidate,
    adapter: &AdapterWeights,
    earlier: Option<&(AdapterWeights, usize)>,
    terminal: &Terminal,
) -> Result<Option<Acceptance>, Failure> {
    let preparation = candidate.preparation;
    let trained = preparation.training.len();
    let mut ops = OpsOptions { precision: candidate.config.precision, ..OpsOptions::default() };
    if candidate.config.threads > 0 {
        ops.threads = candidate.config.threads;
    }
    let retrieved_records = candidate.config.retrieved_records;
    let asked = || -> Result<(Option<Evaluation>, Option<Evaluation>), EvalError> {
        if preparation.held_out.is_empty() {
            return Ok((None, None));
        }
        let new = ask(candidate, adapter, true, retrieved_records, ops, terminal)?;
        let ask_earlier =
            |(weights, shown): &(AdapterWeights, usize)| ask(candidate, weights, false, *shown, ops, terminal);
        Ok((Some(new), earlier.map(ask_earlier).transpose()?))
    };
    let (new, earlier) = match asked() {
        Err(EvalError::Stopped) => return Ok(None),
        // Nothing that can be asked is a reason not to accept, and it is said.
        Err(EvalError::NoUsableQueries { .. }) => (None, None),
        asked => asked.bad_input("cannot judge the adapter")?,
    };
    let model = &candidate.bench.model;
    let ability = general_ability(model, &candidate.bench.text, &candidate.on.weights(), adapter, ops)
        .bad_input("cannot judge the adapter")?;
    Ok(Some(accept(trained, retrieved_records, new.as_ref(), earlier.as_ref(), Some(ability))))
}

/// Losses with an adapter, and without one too where `with_base` says so. `retrieved_records` above zero puts earlier
/// records into the prompts of both.
fn ask(
    candidate: &Candidate,
    adapter: &AdapterWeights,
    with_base: bool,
    retrieved_records: usize,
    ops: OpsOptions,
    terminal: &Terminal,
) -> Result<Evaluation, EvalError> {
    let preparation = candidate.preparation;
    let is_asked = |arm: &&Arm| match arm.adapter {
        WhichAdapter::None => with_base,
        WhichAdapter::Own => true,
        WhichAdapter::Other => false,
    };
    let mut arms: Vec<&'static Arm> = ARMS.iter().filter(is_asked).collect();
    arms.retain(|arm| arm.retrieval == (retrieved_records > 0 && preparation.has_questions()));
    let bar = terminal.bar((preparation.held_out.len() * arms.len()) as u64, "judge", "losses");
    let inputs = EvalInputs {
        model: candidate.bench.model.clone(),
        text: &candidate.bench.text,
        earlier: &preparation.seen,
        queries: &preparation.held_out,
        on: &candidate.on.weights(),
        adapter: Some(adapter),
        other_adapter: None,
        arms: &arms,
        options: data::ExampleOptions {
            retrieved_records,
            tokens_max: candidate.config.tokens_max.min(candidate.bench.model.config().context_tokens_max),
            ..crate::preparation::example_options(candidate.config)
        },
        answer_tokens_max: None,
        score_choices: false,
        ops,
    };
    let evaluation = eval::evaluate(&inputs, &mut |progress| {
        bar.set_position(progress.done as u64);
        if stop_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    evaluation
}

/// The name of an adapter where none is given: the person, else the history's file.
pub fn default_name(inputs: &RunInputs) -> String {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    accepted::name_for(&inputs.history.user.clone().unwrap_or_else(|| stem(&inputs.history.path)))
}
