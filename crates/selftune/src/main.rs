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

use clap::Parser;
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
    let command_line = CommandLine::parse();
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
