//! `selftune chat`: a conversation on the terminal.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::serving::{Serving, ServingArguments};
use crate::terminal::{MARK, Terminal};
use data::{Message, Record, RecordBody};
use std::io::{BufRead, IsTerminal};

/// Talk to the model.
///
/// One line is one turn; `/reset` begins anew, `/quit` or the end of input leaves. The conversation stays in memory
/// and is written nowhere. With `--json` every answer is one JSON object on a line of its own.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// What the model is told before the first turn
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    serving: ServingArguments,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let mut serving = Serving::open(&arguments.serving, 1, terminal)?;
    if !serving.bench.text.has_template() {
        return Err(Failure::input(format!(
            "{} has no chat template: it continues text, try selftune generate --raw",
            serving.bench.model_name
        )));
    }
    if arguments.system.is_some() && !serving.bench.text.takes_system_turn() {
        terminal.warning("this model's template takes no system text; it goes in front of your first turn");
    }
    let opening: Vec<Message> = arguments.system.iter().map(|text| Message::new("system", text)).collect();
    let mut messages = opening.clone();
    let interactive = std::io::stdin().is_terminal() && !terminal.is_json();
    if interactive {
        let adapter = serving.adapters.last().map_or("no adapter".into(), |path| path.display().to_string());
        terminal.line(format!("{} with {adapter}; /reset begins anew, /quit leaves", serving.bench.model_name));
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if interactive {
            terminal.piece(&format!("{MARK}>{MARK:#} "));
        }
        let Some(line) = lines.next() else { break };
        let line = line.bad_input("standard input is no UTF-8 text")?;
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" => break,
            "/reset" => {
                messages.clone_from(&opening);
                continue;
            }
            _ => {}
        }
        messages.push(Message::new("user", line));
        let prompt = prompt_of(&serving, &messages, terminal)?;
        let (answer, tokens) = serving.answer(&prompt, &mut |piece| terminal.piece(piece))?;
        terminal.line("");
        terminal.json(&serde_json::json!({"text": answer, "prompt_tokens": prompt.len(), "answer_tokens": tokens}));
        messages.push(Message::new("assistant", answer));
        if crate::training::stop_asked() {
            return Ok(ExitStatus::Interrupted);
        }
    }
    Ok(ExitStatus::Done)
}

/// The conversation up to the next answer, cut from its oldest turns when it is too long.
fn prompt_of(serving: &Serving, messages: &[Message], terminal: &Terminal) -> Result<Vec<u32>, Failure> {
    let mut turns = messages.to_vec();
    turns.push(Message::new("assistant", ""));
    let record = Record::ad_hoc(&serving.user, RecordBody::Chat { messages: turns, tools: None });
    let prompt = data::build_prompt(&serving.bench.text, &record, &serving.retriever, &serving.options, serving.answer_tokens_max())
        .bad_input("the conversation")?;
    let cut = prompt.truncation;
    if cut.context_tokens_cut > 0 || cut.turns_dropped > 0 {
        terminal.warning(format!(
            "the conversation is too long for the context: {} turns and {} tokens were left out",
            cut.turns_dropped, cut.context_tokens_cut
        ));
    }
    Ok(prompt.tokens)
}
