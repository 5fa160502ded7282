//! The process that is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use train::{Fault, FileFaults, FileOperation, Files};

use super::session::Setup;

/// Trains until it is killed (internal).
#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long)]
    folder: PathBuf,
    /// Say so and stand still before this file operation
    #[arg(long)]
    stop_before: Option<u64>,
}

/// Says when its operation has come, and never lets it begin.
struct StandStill {
    before: u64,
    operations: AtomicU64,
}

impl FileFaults for StandStill {
    fn before(&self, _: FileOperation) -> Result<(), Fault> {
        if self.operations.fetch_add(1, Ordering::SeqCst) >= self.before {
            println!("here");
            let _ = std::io::stdout().flush();
            loop {
                std::thread::park();
            }
        }
        Ok(())
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let before = arguments.stop_before.unwrap_or(u64::MAX);
    let files = Files::with_faults(Arc::new(StandStill { before, operations: AtomicU64::new(0) }));
    Setup::new().train(&arguments.folder, files)?;
    Ok(())
}

/// When a process is killed.
pub enum When {
    /// Inside the file operation of this number.
    Operation(u64),
    /// After so many microseconds.
    Time(u64),
}

/// Trains in a process of its own and kills it. Returns whether it was still running.
pub fn train_and_kill(folder: &Path, when: &When) -> Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("crash-child").arg("--folder").arg(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let When::Operation(number) = when {
        command.arg("--stop-before").arg(number.to_string());
    }
    let mut child = command.spawn().context("the process to be killed does not start")?;
    match when {
        When::Operation(_) => {
            // Ends with the line, or with the process.
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line)?;
        }
        When::Time(microseconds) => std::thread::sleep(std::time::Duration::from_micros(*microseconds)),
    }
    let ended = child.try_wait()?;
    // SIGKILL: no chance to clean up.
    child.kill()?;
    let output = child.wait_with_output()?;
    if ended.is_some() || output.status.code().is_some() {
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        return Ok(false);
    }
    Ok(true)
}
