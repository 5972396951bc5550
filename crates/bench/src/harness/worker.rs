//! A worker process, from the side that asks and from the side that answers.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MeasureRequest, MeasureResult, WorkerError, WorkerGreeting};

/// The side that asks. The process ends when this is dropped.
#[derive(Debug)]
pub struct Worker {
    name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this executable again with `args`. It fills its table in the background;
    /// [`Worker::greeting`] waits for it.
    pub fn start(args: &[&str]) -> Result<Self, WorkerError> {
        let name = args.join(" ");
        let failed = |source| WorkerError::Start { worker: name.clone(), source };
        let executable = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(executable)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both pipes were asked for just above");
        };
        Ok(Self { name, child, requests, answers: BufReader::new(answers) })
    }

    /// Waits until the worker's table is filled.
    pub fn greeting(&mut self) -> Result<WorkerGreeting, WorkerError> {
        self.receive()
    }

    /// Has one measurement made; nanoseconds per check.
    pub fn measure(&mut self, request: &MeasureRequest) -> Result<f64, WorkerError> {
        send(&mut self.requests, request).map_err(|source| WorkerError::Ended {
            worker: self.name.clone(),
            source: Some(source),
        })?;
        let answer: MeasureResult = self.receive()?;
        answer.map_err(|reason| WorkerError::Refused { worker: self.name.clone(), reason })
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T, WorkerError> {
        let ended = |source| WorkerError::Ended { worker: self.name.clone(), source };
        let mut line = String::new();
        let bytes = self.answers.read_line(&mut line).map_err(|source| ended(Some(source)))?;
        if bytes == 0 {
            return Err(ended(None));
        }
        serde_json::from_str(&line)
            .map_err(|source| WorkerError::Garbled { worker: self.name.clone(), source })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nothing it still does is of use. Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The side that answers: sends `greeting`, then answers each request until there are no more.
pub fn serve(
    greeting: &WorkerGreeting,
    mut measure: impl FnMut(&MeasureRequest) -> MeasureResult,
) -> io::Result<()> {
    let mut answers = io::stdout().lock();
    send(&mut answers, greeting)?;
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(request) => measure(&request),
            Err(error) => Err(format!("unreadable request: {error}")),
        };
        send(&mut answers, &answer)?;
    }
    Ok(())
}

fn send(pipe: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    pipe.write_all(&line)?;
    pipe.flush()
}
