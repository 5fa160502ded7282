//! Checks that are too long or too rough for a test: `cargo xtask crash`, `cargo xtask soak`.

mod crash;
mod soak;
#[path = "../../train/tests/tiny.rs"]
mod tiny;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    Crash(crash::Arguments),
    Soak(soak::Arguments),
    #[command(hide = true)]
    CrashChild(crash::child::Arguments),
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Crash(arguments) => crash::run(&arguments),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::CrashChild(arguments) => crash::child::run(&arguments).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
