//! Those who ask: one thread that goes round its connections without ever waiting for one of them.
//!
//! It keeps a core of its own busy whether or not answers come, unless it is told to rest; only what the
//! server uses is measured.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollbar_bench::timer::{Stopwatch, pause, pause_precisely};

use super::request_template::RequestTemplate;

/// How many connections there are.
pub(super) const CONNECTIONS: usize = 50;

/// For the last answers to come.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// Short beside what anybody would notice, and long enough that the sleeper is not what keeps a core busy.
const REST: Duration = Duration::from_micros(100);

/// What was asked and answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadResult {
    pub(super) answers: f64,
    pub(super) elapsed_s: f64,
}

/// Which keys are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyChoice {
    /// Any of so many.
    Random(u64),
    /// So many in turn, each once, and then no more.
    EachOnce(u64),
}

/// Connections to one server.
pub(super) struct Load<'w> {
    template: &'w RequestTemplate,
    connections: Vec<LoadConnection>,
    random: u64,
    /// How long it sleeps where nothing is due; never if `None`.
    rest: Option<Duration>,
}

struct LoadConnection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// When each request that has no answer yet was due.
    due: VecDeque<Duration>,
}

impl<'w> Load<'w> {
    pub(super) fn connect(port: u16, template: &'w RequestTemplate) -> io::Result<Self> {
        let connection = |_| {
            let stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let (input, output, due) = (Vec::new(), Vec::new(), VecDeque::new());
            Ok(LoadConnection { stream, input, output, due })
        };
        let connections = (0..CONNECTIONS).map(connection).collect::<io::Result<_>>()?;
        Ok(Self { template, connections, random: 0x9e37_79b9_7f4a_7c15, rest: None })
    }

    /// The same, asleep where nothing is due: for servers that have no core of their own, and would wait for
    /// whoever never sleeps.
    pub(super) fn resting(self) -> io::Result<Self> {
        pause_precisely()?;
        Ok(Self { rest: Some(REST), ..self })
    }

    /// Each connection asks `pipeline` times at once, and again when all are answered.
    pub(super) fn closed(
        &mut self,
        pipeline: usize,
        keys: KeyChoice,
        duration: Duration,
    ) -> io::Result<LoadResult> {
        let watch = Stopwatch::start();
        let mut answers = 0_u64;
        let mut sent_count = 0_u64;
        let mut is_over = false;
        loop {
            let mut is_open = false;
            for at in 0..CONNECTIONS {
                if self.connections[at].due.is_empty() && !is_over {
                    for _ in 0..pipeline {
                        let key = match keys {
                            KeyChoice::Random(count) => self.random_below(count),
                            KeyChoice::EachOnce(count) if sent_count < count => sent_count,
                            KeyChoice::EachOnce(_) => break,
                        };
                        sent_count += 1;
                        self.connections[at].ask(self.template, key, Duration::ZERO);
                    }
                }
                self.connections[at].turn(self.template, |_| answers += 1)?;
                is_open |= !self.connections[at].due.is_empty();
            }
            // All may happen to be answered at once: that is no end.
            if is_over && !is_open {
                break;
            }
            let is_exhausted = matches!(keys, KeyChoice::EachOnce(count) if sent_count == count);
            is_over = is_exhausted || watch.elapsed() >= duration;
            if watch.elapsed() > duration + DRAIN_TIME_MAX {
                return Err(io::Error::other("the last answers do not come"));
            }
        }
        Ok(LoadResult { answers: answers as f64, elapsed_s: watch.elapsed().as_secs_f64() })
    }

    /// Asks `per_s` times a second whether or not answers come, and returns how long each took, in
    /// microseconds from when it was due.
    pub(super) fn open(
        &mut self,
        per_s: u64,
        key_count: u64,
        duration: Duration,
    ) -> io::Result<Vec<f64>> {
        let watch = Stopwatch::start();
        let mut latencies_us = Vec::new();
        let mut sent_count = 0_u64;
        let mut next_connection = 0;
        loop {
            let now = watch.elapsed();
            let is_over = now >= duration;
            if !is_over {
                // All that is due goes out over one connection, the next time over another.
                let connection = next_connection;
                next_connection = (next_connection + 1) % CONNECTIONS;
                loop {
                    let due = Duration::from_secs_f64(sent_count as f64 / per_s as f64);
                    if due > now {
                        break;
                    }
                    let key = self.random_below(key_count);
                    self.connections[connection].ask(self.template, key, due);
                    sent_count += 1;
                }
            }
            let mut is_open = false;
            for connection in &mut self.connections {
                if !connection.due.is_empty() {
                    connection.turn(self.template, |due| {
                        latencies_us
                            .push((watch.elapsed().saturating_sub(due)).as_secs_f64() * 1e6);
                    })?;
                    is_open |= !connection.due.is_empty();
                }
            }
            if is_over && !is_open {
                return Ok(latencies_us);
            }
            if now > duration + DRAIN_TIME_MAX {
                return Err(io::Error::other("the last answers do not come"));
            }
            if let Some(rest) = self.rest {
                pause(rest);
            }
        }
    }

    fn random_below(&mut self, count: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % count
    }
}

impl LoadConnection {
    fn ask(&mut self, template: &RequestTemplate, key: u64, due: Duration) {
        template.write(key, &mut self.output);
        self.due.push_back(due);
    }

    /// Sends what there is to send, takes in what has come, and tells for each answer when it was due.
    fn turn(
        &mut self,
        template: &RequestTemplate,
        mut answered: impl FnMut(Duration),
    ) -> io::Result<()> {
        if !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(bytes) => drop(self.output.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the server has closed a connection")),
            Ok(bytes) => self.input.extend_from_slice(&buffer[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut start = 0;
        while let Some(bytes) = template.answer(&self.input[start..]).map_err(io::Error::other)? {
            start += bytes;
            let due = self.due.pop_front();
            answered(due.ok_or_else(|| io::Error::other("an answer that nobody asked for"))?);
        }
        self.input.drain(..start);
        Ok(())
    }
}
