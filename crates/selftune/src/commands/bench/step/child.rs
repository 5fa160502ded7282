//! Another build of this program that runs steps of the same shape in turns with this one: one line in, one step, one
//! JSON object out.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The longest line that is read of another program.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How long a program may take to say what it can do.
const HELP_PATIENCE: Duration = Duration::from_secs(20);
/// What the help of a build that runs steps for another one tells of.
const KNOWN_BY: &[u8] = b"--against-binary";
/// How long a program whose requests have ended may take to end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What the other side tells of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedStep {
    pub step_s: f64,
    pub processor_s: Option<f64>,
    pub loss: f64,
}

pub struct OtherBuild {
    program: String,
    child: Child,
    requests: Option<ChildStdin>,
    /// Lines that another thread reads, so that waiting for one can end.
    answers: Receiver<std::io::Result<Vec<u8>>>,
    patience: Duration,
}

impl OtherBuild {
    /// Has it run steps, each of which may take as long as `patience`.
    pub fn start(program: &Path, arguments: &[String], patience: Duration) -> Result<Self, Failure> {
        let serve = ["--json", "--quiet", "--serve"].into_iter().chain(arguments.iter().map(String::as_str));
        Self::spawn(program, serve, patience)
    }

    /// Refuses what cannot be run or does not know of such requests, in seconds: its weights would take minutes.
    pub fn check(program: &Path) -> Result<(), Failure> {
        Self::spawn(program, ["--help"], HELP_PATIENCE)?.is_a_build()
    }

    fn is_a_build(&self) -> Result<(), Failure> {
        let start = Instant::now();
        // Whatever goes on without an end is none either.
        while let Ok(Ok(line)) = self.answers.recv_timeout(self.patience.saturating_sub(start.elapsed())) {
            if line.windows(KNOWN_BY.len()).any(|part| part == KNOWN_BY) {
                return Ok(());
            }
        }
        Err(anyhow::anyhow!("{}: no build with `bench step --serve`: its `bench step --help` says nothing of it", self.program).into())
    }

    fn spawn<'a>(
        program: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(["bench", "step"]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = program.display().to_string();
        let mut child = command.spawn().map_err(|error| Failure::input(format!("cannot start {name}: {error}")))?;
        let requests = child.stdin.take();
        let answers = lines(child.stdout.take().expect("standard output is piped"));
        Ok(Self { program: name, child, requests, answers, patience })
    }

    /// Has it run one step.
    pub fn step(&mut self) -> Result<ServedStep, Failure> {
        let line = self.ask()?;
        let failed = |what: String| Failure::from(anyhow::anyhow!("{}: {what}", self.program));
        match answer(&line) {
            Ok(step) => Ok(step),
            Err(Refusal::Said(error)) => Err(failed(error)),
            Err(Refusal::Senseless(what)) => Err(failed(format!("{what}; is it a build with `bench step --serve`?"))),
        }
    }

    /// One line out, one line in.
    fn ask(&mut self) -> Result<Vec<u8>, Failure> {
        let failed = |what: String| Err(Failure::from(anyhow::anyhow!("{}: {what}", self.program)));
        // A program that has ended takes no request, but may have said why.
        let asked = writeln!(self.requests.as_mut().expect("open until it is dropped"), "step");
        match (self.answers.recv_timeout(self.patience), asked) {
            (Ok(Ok(line)), _) => Ok(line),
            (Ok(Err(error)), _) | (Err(RecvTimeoutError::Disconnected), Err(error)) => {
                failed(format!("gives no answer ({error}); is it a build with `bench step --serve`?"))
            }
            (Err(RecvTimeoutError::Disconnected), Ok(())) => {
                failed("ended without an answer; is it a build with `bench step --serve`?".into())
            }
            (Err(RecvTimeoutError::Timeout), _) => {
                failed(format!("no answer within {:.0} seconds", self.patience.as_secs_f64().ceil()))
            }
        }
    }
}

impl Drop for OtherBuild {
    fn drop(&mut self) {
        // The end of its requests ends it; what does not end by that is ended.
        self.requests = None;
        let start = Instant::now();
        while start.elapsed() < LAST_WORDS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of `output`, none longer than [`LINE_BYTES_MAX`], until the first error. Reads one ahead at most.
fn lines(output: ChildStdout) -> Receiver<std::io::Result<Vec<u8>>> {
    let (send, answers) = sync_channel(0);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            let read = output.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map(|_| line);
            let is_end = !read.as_ref().is_ok_and(|line| line.ends_with(b"\n"));
            let nothing = read.as_ref().is_ok_and(|line| line.is_empty());
            if nothing || send.send(read).is_err() || is_end {
                return;
            }
        }
    });
    answers
}

/// Why an answer is no step.
#[derive(Debug, PartialEq)]
enum Refusal {
    /// The other side's own error.
    Said(String),
    Senseless(String),
}

fn answer(line: &[u8]) -> Result<ServedStep, Refusal> {
    // As every command prints it with `--json`.
    #[derive(Deserialize)]
    struct Failed {
        error: Said,
    }
    #[derive(Deserialize)]
    struct Said {
        message: String,
    }
    if let Ok(Failed { error }) = serde_json::from_slice(line) {
        return Err(Refusal::Said(error.message));
    }
    let shown = || String::from_utf8_lossy(line).trim_end().chars().take(200).collect::<String>();
    let senseless = |expected: &str| Refusal::Senseless(format!("expected {expected}, found {:?}", shown()));
    let step: ServedStep = serde_json::from_slice(line).map_err(|_| senseless("one step as JSON"))?;
    let is_time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
    // Clocks of processor time are coarse on some systems: 0 is a reading there.
    let is_processor_time = step.processor_s.is_none_or(|seconds| seconds == 0.0 || is_time(seconds));
    if !is_time(step.step_s) || !is_processor_time || !step.loss.is_finite() {
        return Err(senseless("times above 0 and a loss"));
    }
    Ok(step)
}

/// The other side: a step for each line that comes.
pub fn serve(
    mut step: impl FnMut() -> Result<ServedStep, Failure>,
    mut answer: impl FnMut(&ServedStep),
) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "step" => answer(&step()?),
            other => return Err(Failure::usage(format!("--serve: expected lines `step`, found {other:?}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_that_can_be_are_taken() {
        let step = ServedStep { step_s: 0.5, processor_s: None, loss: 2.0 };
        assert_eq!(answer(br#"{"step_s": 0.5, "processor_s": null, "loss": 2.0}"#), Ok(step));
        for step_s in ["0", "-1", "1e999", "null"] {
            let line = format!(r#"{{"step_s": {step_s}, "processor_s": 1, "loss": 2}}"#);
            assert!(matches!(answer(line.as_bytes()), Err(Refusal::Senseless(_))), "{line}");
        }
        for line in [r#"{"step_s": 1, "processor_s": -1, "loss": 2}"#, "[]", "", "\u{0}"] {
            assert!(matches!(answer(line.as_bytes()), Err(Refusal::Senseless(_))), "{line}");
        }
        assert_eq!(answer(br#"{"error": {"kind": "input", "message": "no memory"}}"#), Err(Refusal::Said("no memory".into())));
    }

    /// A program that does what `script` says, whatever its arguments.
    #[cfg(unix)]
    fn first_step(script: &str, patience: Duration) -> (Duration, Result<ServedStep, Failure>) {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("other");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("can be run");
        let start = Instant::now();
        let result = OtherBuild::start(&program, &[], patience).and_then(|mut other| other.step());
        (start.elapsed(), result)
    }

    #[cfg(unix)]
    #[test]
    fn programs_that_are_no_build_end_in_time() {
        let long = Duration::from_secs(60);
        let cases = [
            ("exec cat /dev/zero", long, "expected one step"),
            ("exec sleep 1000", Duration::from_millis(100), "no answer within 1 seconds"),
            ("exec >&-; exec sleep 1000", long, "ended without an answer"),
            ("exit 3", long, "other: "),
            ("echo '{\"error\": {\"message\": \"no such plan\"}}'", long, "other: no such plan"),
            ("echo '{\"step_s\": 0, \"processor_s\": null, \"loss\": 1}'; exec sleep 1000", long, "above 0"),
        ];
        for (script, patience, words) in cases {
            let (took, result) = first_step(script, patience);
            let failure = result.expect_err(script);
            assert!(took < Duration::from_secs(30), "{script} took {took:?}");
            assert_eq!(failure.exit, crate::failure::ExitStatus::Failed, "{script}");
            let message = failure.message();
            assert!(message.contains(words) && message.len() < 1000, "{script}: {message}");
            assert_eq!(message.contains("--serve"), !["no such plan", "no answer within"].iter().any(|w| message.contains(w)));
        }
        let (_, good) = first_step("read line; echo '{\"step_s\": 2, \"processor_s\": 0, \"loss\": 1}'", long);
        assert_eq!(good.expect("a step").step_s, 2.0);
    }
}
