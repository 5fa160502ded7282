//! The command line of selftune. One file a command under `commands/`, one line a command in its list.

mod acceptance;
mod accepted;
mod commands;
mod evaluation;
mod failure;
mod governing;
mod merging;
mod model_store;
mod preparation;
mod recipe;
mod run_report;
mod serving;
mod simulation;
mod study;
mod tensorboard;
mod terminal;
mod traces;
mod training;
mod units;
mod workbench;

use clap::{CommandFactory, FromArgMatches, Parser};
use failure::ExitStatus;
use std::process::ExitCode;

/// Fine-tunes a language model on one person's own history, on that person's own machine, and shows whether it helped.
///
/// The base model stays frozen in 4-bit form; a small LoRA adapter learns the person. Nothing leaves the machine:
/// the only commands that use the network are `pull` and the first run of `demo`, and they say so.
#[derive(Parser)]
#[command(name = "selftune", version, propagate_version = true, max_term_width = 100, after_help = AFTER_HELP)]
struct CommandLine {
    #[command(flatten)]
    output: terminal::OutputArguments,
    #[command(subcommand)]
    command: commands::Command,
}

const AFTER_HELP: &str = "\
First steps:
  selftune demo                                            everything on a real model and a real history
  selftune pull smollm2-135m-instruct                      get a small model
  selftune import git --repo . --author you -o me.jsonl    make a history from your commits
  selftune plan --model smollm2-135m-instruct --data me.jsonl     what a run would take
  selftune train --model smollm2-135m-instruct --data me.jsonl
  selftune eval --run runs/me                              compare: base, retrieval, adapter, both

Exit codes: 0 done; 1 failed; 2 wrong usage, or an output that is there already; 3 a model, history, adapter, run or
configuration is missing or cannot be used; 130 interrupted, with everything saved (also out of a hold).";

fn main() -> ExitCode {
    kernels::return_freed_memory();
    let matches = flowing(CommandLine::command()).get_matches();
    let command_line = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let terminal = terminal::Terminal::new(&command_line.output);
    let outcome = command_line.command.run(&terminal);
    let outcome = outcome.and_then(|status| terminal.output_failure().map_or(Ok(status), Err));
    let status = match outcome {
        Ok(status) => status,
        Err(failure) => {
            terminal.failure(&failure);
            failure.exit
        }
    };
    ExitCode::from(match status {
        ExitStatus::Done => 0,
        ExitStatus::Failed => 1,
        ExitStatus::WrongUsage => 2,
        ExitStatus::BadInput => 3,
        ExitStatus::Interrupted => 130,
    })
}

/// The command with help that fills the terminal: the lines of a doc comment are as long as those of its source.
fn flowing(command: clap::Command) -> clap::Command {
    let command = match command.get_long_about().map(|text| paragraphs(&text.to_string())) {
        Some(text) => command.long_about(text),
        None => command,
    };
    command.mut_subcommands(flowing)
}

/// Joins the lines of each paragraph. Indented lines are examples, which stay as they are.
fn paragraphs(text: &str) -> String {
    let mut joined = String::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_text = !line.is_empty() && !line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if is_open && is_text { ' ' } else { '\n' });
        }
        joined.push_str(line);
        is_open = is_text;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_flow_and_examples_stay() {
        let text = "One.\n\nLong lines\nof a paragraph, e.g.\n  first\n  second\n  third\n\nLast\none.";
        assert_eq!(
            paragraphs(text),
            "One.\n\nLong lines of a paragraph, e.g.\n  first\n  second\n  third\n\nLast one."
        );
    }
}
