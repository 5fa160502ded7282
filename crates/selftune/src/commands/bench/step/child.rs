//! Another build of this program that runs steps of the same shape in turns with this one: one line in, one step, one
//! JSON object out.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What the other side tells of a step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ServedStep {
    pub step_s: f64,
    pub processor_s: Option<f64>,
    pub loss: f64,
}

pub struct OtherBuild {
    program: String,
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl OtherBuild {
    pub fn start(program: &Path, arguments: &[String]) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(["bench", "step", "--json", "--quiet", "--serve"]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = program.display().to_string();
        let mut child = command.spawn().map_err(|error| Failure::input(format!("cannot start {name}: {error}")))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.expect("standard output is piped"));
        Ok(Self { program: name, child, requests, answers })
    }

    /// Has it run one step.
    pub fn step(&mut self) -> Result<ServedStep, Failure> {
        let failed = |what: String| {
            Failure::input(format!("{}: {what}; is it a build with `bench step --serve`?", self.program))
        };
        let requests = self.requests.as_mut().expect("open until it is dropped");
        writeln!(requests, "step").map_err(|error| failed(format!("takes no request ({error})")))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| failed(format!("gives no answer ({error})")))?;
        serde_json::from_str(&line).map_err(|_| failed(format!("expected one step as JSON, found {line:?}")))
    }
}

impl Drop for OtherBuild {
    fn drop(&mut self) {
        // The end of its requests ends it.
        self.requests = None;
        let _ = self.child.wait();
    }
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
