//! Runs an evaluation with progress on the terminal; used by `eval` and `demo`.

use crate::failure::{Failure, InputError};
use crate::terminal::{BAD, GOOD, QUIET, Terminal};
use crate::workbench::Workbench;
use data::{ExampleOptions, Record};
use eval::{ARMS, Arm, Decision, EvalError, EvalInputs, Evaluation, Verdict, WhichAdapter};
use kernels::OpsOptions;
use model::AdapterWeights;
use std::ops::ControlFlow;

/// What to ask, and of whom.
pub struct Question<'a> {
    /// Records that retrieval may show.
    pub earlier: &'a [Record],
    /// The person's newest records, which training never saw.
    pub queries: &'a [Record],
    /// Frozen adapters under every arm, bottom first: a task adapter, say.
    pub on: Vec<&'a AdapterWeights>,
    pub adapter: Option<&'a AdapterWeights>,
    pub other_adapter: Option<&'a AdapterWeights>,
    pub arms: Vec<&'static Arm>,
    /// For the arms with retrieval; those without show no earlier record.
    pub options: ExampleOptions,
    /// `None`: measure losses only.
    pub answer_tokens_max: Option<usize>,
    pub ops: OpsOptions,
}

/// The arms of these names, or all that can be run with the adapters at hand.
pub fn arms(names: Option<&[String]>, adapter: bool, other_adapter: bool) -> Result<Vec<&'static Arm>, Failure> {
    let possible = |arm: &Arm| match arm.adapter {
        WhichAdapter::None => true,
        WhichAdapter::Own => adapter,
        WhichAdapter::Other => other_adapter,
    };
    let Some(names) = names else { return Ok(ARMS.iter().filter(|arm| possible(arm)).collect()) };
    let mut arms = Vec::new();
    for name in names {
        let arm = Arm::by_name(name).map_err(|error| Failure::usage(error.to_string()))?;
        if !possible(arm) {
            return Err(Failure::usage(format!(
                "arm {name} needs an adapter that was not given (--adapter, --other-run)"
            )));
        }
        if !arms.contains(&arm) {
            arms.push(arm);
        }
    }
    Ok(arms)
}

pub fn ask(bench: &Workbench, question: &Question, terminal: &Terminal) -> Result<Evaluation, Failure> {
    let bar = terminal.bar((question.queries.len() * question.arms.len()) as u64, "evaluate", "answers");
    let inputs = EvalInputs {
        model: bench.model.clone(),
        text: &bench.text,
        earlier: question.earlier,
        queries: question.queries,
        on: &question.on,
        adapter: question.adapter,
        other_adapter: question.other_adapter,
        arms: &question.arms,
        options: question.options.clone(),
        answer_tokens_max: question.answer_tokens_max,
        score_choices: true,
        ops: question.ops,
    };
    let evaluation = eval::evaluate(&inputs, &mut |progress| {
        bar.set_position(progress.done as u64);
        bar.set_message(progress.arm.label);
        if crate::training::stop_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    match evaluation {
        Err(EvalError::Stopped) => Err(Failure::interrupted("stopped before every record was asked about")),
        evaluation => evaluation.bad_input("cannot evaluate"),
    }
}

/// Prints the table and the verdict, which `cautions` become part of. An adapter that was trained with earlier records
/// in its prompts (`with_retrieval`) is judged with them.
pub fn show(
    evaluation: &Evaluation,
    with_retrieval: bool,
    cautions: Vec<String>,
    terminal: &Terminal,
) -> Option<Verdict> {
    terminal.heading(format!("{} held-out records", evaluation.query_count()));
    for line in eval::table::arms_table(evaluation, terminal.columns()) {
        terminal.line(format!("  {line}"));
    }
    let judge = if with_retrieval { eval::verdict::judge_with_retrieval } else { eval::verdict::judge };
    let mut verdict = judge(evaluation)?;
    verdict.cautions.extend(cautions);
    let style = if verdict.decision == Decision::Kept { GOOD } else { BAD };
    terminal.line(format!("\n{style}{}{style:#}", verdict.headline));
    for finding in &verdict.findings {
        terminal.line(format!("  {} {}", finding.question, finding.sentence));
    }
    for caution in &verdict.cautions {
        terminal.line(format!("  {QUIET}{caution}{QUIET:#}"));
    }
    Some(verdict)
}
