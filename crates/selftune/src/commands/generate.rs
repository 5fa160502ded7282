//! `selftune generate`: one answer.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::serving::{self, Serving, ServingArguments};
use crate::terminal::Terminal;
use data::{Record, RecordBody};
use std::path::PathBuf;
use std::time::Instant;

/// Write one answer.
///
/// The prompt is what a person would ask; `--record` takes a record of the history's own kind instead (a commit
/// without its subject, say), shown to the model exactly as in training.
///   selftune generate --run runs/me "Write to Ann that the meeting moves to Friday."
///   selftune generate --run runs/me --record change.json --retrieve 4
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// The prompt; `-` reads standard input
    #[arg(required_unless_present = "record", conflicts_with = "record")]
    prompt: Option<String>,
    /// A JSON record in this file (`-`: standard input), with or without its answer
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Go on with the prompt as plain text, without the model's chat template
    #[arg(long, conflicts_with = "record")]
    raw: bool,
    #[command(flatten)]
    serving: ServingArguments,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let record = match (&arguments.record, &arguments.prompt) {
        (Some(path), _) => {
            let text = serving::read_text(path)?;
            data::read_question(&text, &data::ColumnNames::default())
                .map_err(|reason| Failure::input(format!("{} is no record: {reason}", path.display())))?
        }
        (None, Some(prompt)) => {
            let prompt = if prompt == "-" { serving::read_text("-".as_ref())? } else { prompt.clone() };
            if prompt.trim().is_empty() {
                return Err(Failure::usage("the prompt is empty"));
            }
            RecordBody::Completion { prompt, completion: String::new() }
        }
        (None, None) => return Err(Failure::usage("a prompt or --record is needed")),
    };
    let mut serving = Serving::open(&arguments.serving, terminal)?;
    let (prompt, retrieved, tokens_cut) = match &record {
        RecordBody::Completion { prompt, .. } if arguments.raw => {
            (serving.bench.text.encode_text_prompt(prompt).bad_input("the prompt")?, Vec::new(), 0)
        }
        _ => {
            let record = Record::ad_hoc(&serving.user, record);
            let prompt = data::build_prompt(&serving.bench.text, &record, &serving.retriever, &serving.options, serving.answer_tokens_max())
                .bad_input("the prompt")?;
            (prompt.tokens, prompt.retrieved_ids, prompt.truncation.context_tokens_cut)
        }
    };
    if tokens_cut > 0 {
        terminal.warning(format!("the prompt is too long for the context: {tokens_cut} tokens in its middle were left out"));
    }
    let start = Instant::now();
    let (answer, tokens) = serving.answer(&prompt, &mut |piece| terminal.piece(piece))?;
    terminal.line("");
    let wall_s = start.elapsed().as_secs_f64();
    terminal.remark(format!("{} prompt tokens, {tokens} tokens in {wall_s:.2} s", prompt.len()));
    terminal.json(&serde_json::json!({
        "text": answer,
        "prompt_tokens": prompt.len(),
        "answer_tokens": tokens,
        "context_tokens_cut": tokens_cut,
        "retrieved_ids": retrieved,
        "adapter": serving.adapters.last(),
        "adapters": serving.adapters,
        "wall_s": wall_s,
    }));
    Ok(if crate::training::stop_asked() { ExitStatus::Interrupted } else { ExitStatus::Done })
}
