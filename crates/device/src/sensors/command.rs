//! Values that only a program of the system tells. It runs in the background, so that no reading waits for it.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::files::Found;

/// Only the very first reading waits, so that there is something to show at the start.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// An output older than so many intervals is no longer true.
const INTERVALS_MAX: u32 = 5;

/// A program that is asked again after an interval.
#[derive(Debug)]
pub(super) struct CommandReader {
    program: &'static str,
    arguments: Vec<String>,
    every: Duration,
    latest: Option<(Instant, Found<String>)>,
    pending: Option<(Instant, Receiver<Found<String>>)>,
}

impl CommandReader {
    pub fn new(program: &'static str, arguments: &[&str], every: Duration) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { program, arguments, every, latest: None, pending: None }
    }

    /// What the program printed last.
    pub fn latest(&mut self) -> Found<&str> {
        let is_due = self.latest.as_ref().is_none_or(|(at, _)| at.elapsed() >= self.every);
        if self.pending.is_none() && is_due {
            self.pending = Some((Instant::now(), self.start()));
        }
        let wait = if self.latest.is_none() { FIRST_WAIT } else { Duration::ZERO };
        if let Some((started, receiver)) = &self.pending {
            let wait = wait.saturating_sub(started.elapsed());
            let answer = match receiver.recv_timeout(wait) {
                Ok(output) => Some(output),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Err(self.failure("ended"))),
            };
            if let Some(output) = answer {
                self.latest = Some((Instant::now(), output));
                self.pending = None;
            }
        }
        match &self.latest {
            Some((at, _)) if at.elapsed() > self.every * INTERVALS_MAX => Err(self.failure("does not answer")),
            Some((_, output)) => output.as_deref().map_err(Clone::clone),
            None => Err(self.failure("does not answer")),
        }
    }

    fn failure(&self, what: &str) -> String {
        format!("`{}` {what}", self.program)
    }

    fn start(&self) -> Receiver<Found<String>> {
        let (sender, receiver) = channel();
        let mut command = Command::new(self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        let program = self.program;
        std::thread::spawn(move || {
            let output = match command.output() {
                Err(error) => Err(format!("`{program}` cannot be run: {error}")),
                Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                Ok(output) => Err(format!("`{program}` failed with {}", output.status)),
            };
            // Nobody may be waiting any more.
            let _ = sender.send(output);
        });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn output_comes_and_is_asked_for_again() {
        let mut reader = CommandReader::new("sh", &["-c", "echo answer"], Duration::from_millis(10));
        assert_eq!(reader.latest(), Ok("answer\n"));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(11));
            // The second answer may still be on its way; the first is then still the latest.
            let _ = reader.latest();
        }
        let mut slow = CommandReader::new("sh", &["-c", "echo now"], Duration::from_secs(3600));
        assert_eq!(slow.latest(), Ok("now\n"));
        assert!(slow.pending.is_none());
        assert_eq!(slow.latest(), Ok("now\n"));
        assert!(slow.pending.is_none(), "it is not due");
    }

    #[cfg(unix)]
    #[test]
    fn failures_are_named() {
        let reason = |program, arguments: &[&str]| {
            CommandReader::new(program, arguments, Duration::from_secs(1)).latest().unwrap_err()
        };
        assert!(reason("selftune-no-such-program", &[]).contains("`selftune-no-such-program` cannot be run"));
        assert!(reason("sh", &["-c", "exit 3"]).contains("`sh` failed with"));
    }
}
