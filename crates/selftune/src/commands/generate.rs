//! `selftune generate`: one answer, or several to choose from.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::serving::{self, Serving, ServingArguments};
use crate::terminal::Terminal;
use data::{Record, RecordBody};
use std::path::PathBuf;
use std::time::Instant;

/// Write one answer, or several to choose from.
///
/// The prompt is what a person would ask; `--record` takes a record of the history's own kind instead (a commit
/// without its subject, say), shown to the model exactly as in training.
///   selftune generate --run runs/me "Write to Ann that the meeting moves to Friday."
///   selftune generate --run runs/me --record change.json --retrieve 4
///   selftune generate --run runs/me --candidates 4 --temperature 0.8 "Write to Ann that the meeting moves to Friday."
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
    /// Write N answers, with the seeds from --seed on, behind one reading of the prompt; needs --temperature
    #[arg(long, value_name = "N", default_value_t = 1)]
    candidates: usize,
    #[command(flatten)]
    serving: ServingArguments,
}

/// More answers than this nobody reads.
const CANDIDATES_MAX: usize = 64;

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
    let count = arguments.candidates;
    if !(1..=CANDIDATES_MAX).contains(&count) {
        return Err(Failure::usage(format!("--candidates {count}: expected 1 to {CANDIDATES_MAX}")));
    }
    if count > 1 && arguments.serving.always_takes_the_likeliest() {
        return Err(Failure::usage(format!("--candidates {count}: without --temperature all answers would be the same")));
    }
    let mut serving = Serving::open(&arguments.serving, count, terminal)?;
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
    let answers = if count == 1 {
        let answer = serving.answer(&prompt, &mut |piece| terminal.piece(piece))?;
        terminal.line("");
        vec![answer]
    } else {
        let answers = serving.candidates(&prompt, count)?;
        for (index, (text, _)) in answers.iter().enumerate() {
            terminal.heading(format!("answer {}", index + 1));
            terminal.line(text);
        }
        answers
    };
    let (answer, tokens) = &answers[0];
    let all_tokens: usize = answers.iter().map(|(_, tokens)| tokens).sum();
    let wall_s = start.elapsed().as_secs_f64();
    terminal.remark(format!("{} prompt tokens, {all_tokens} tokens in {wall_s:.2} s", prompt.len()));
    let candidates: Vec<_> =
        answers.iter().map(|(text, tokens)| serde_json::json!({"text": text, "answer_tokens": tokens})).collect();
    let adapters: Vec<String> = serving.adapters.iter().map(|folder| folder.display().to_string()).collect();
    terminal.json(&serde_json::json!({
        "text": answer,
        "prompt_tokens": prompt.len(),
        "answer_tokens": tokens,
        "candidates": candidates,
        "context_tokens_cut": tokens_cut,
        "retrieved_ids": retrieved,
        "cache": serving.cache.name(),
        "adapter": adapters.last(),
        "adapters": adapters,
        "wall_s": wall_s,
    }));
    Ok(if crate::training::stop_asked() { ExitStatus::Interrupted } else { ExitStatus::Done })
}
