//! One connection's conversation, apart from its bytes: who has shown the token, in which version it
//! is answered, which commands wait for `EXEC`, and which command does what.

use std::fmt::Display;
use std::sync::Arc;

use super::command;
use super::command::{Command, CommandSpec};
use super::frame;
use super::frame::Arguments;
use super::reply::{Excerpt, Replies, RespVersion};
use super::throttle;
use super::throttle::{Throttle, ThrottleLimits, Throttles};
use super::transaction::{QueuedCommands, Transaction, TransactionFull};
use super::{REPLIES_BYTES_MAX, RespState, check};
use crate::auth_failures::WrongToken;
use crate::net::Peer;
use crate::problem::Problem;

/// First words that end a connection in any form, as in Redis.
const HTTP_ALWAYS: [&str; 2] = ["POST", "Host:"];

/// First words that end a connection if they stand in a plain line: how requests of HTTP begin.
const HTTP_METHODS: [&str; 9] =
    ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "PRI"];

/// The longest name of a connection.
const NAME_BYTES_MAX: usize = 128;

/// What is remembered of a connection.
pub(super) struct Session {
    shared: Arc<RespState>,
    id: u64,
    name: Box<[u8]>,
    is_authorized: bool,
    peer: Peer,
    limits: ThrottleLimits,
    /// What follows a `MULTI`.
    transaction: Option<Transaction>,
    /// What an `EXEC` has still to run.
    executing: Option<QueuedCommands>,
}

/// How far an input has been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// So many bytes are done with.
    pub(super) bytes: usize,
    pub(super) next: NextStep,
}

/// What has to happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    /// The rest of the input is no whole frame.
    Read,
    /// The replies are as many as may wait.
    Write,
    /// The connection is done with once the replies are written.
    End,
}

impl Session {
    pub(super) fn new(shared: Arc<RespState>, id: u64, peer: Peer) -> Self {
        let is_authorized = shared.daemon.tokens.is_none();
        let (name, limits) = (Box::default(), ThrottleLimits::default());
        let (transaction, executing) = (None, None);
        Self { shared, id, name, is_authorized, peer, limits, transaction, executing }
    }

    /// True where the token was shown, or none is asked for.
    pub(super) fn is_authorized(&self) -> bool {
        self.is_authorized
    }

    /// Answers the whole frames of `input`, in their order. What an `EXEC` among them runs is answered before what
    /// follows it, in several steps where the replies are too many for one.
    pub(super) async fn answer(&mut self, input: &[u8], replies: &mut Replies) -> Progress {
        let mut bytes = 0;
        loop {
            let executing = self.executing.take();
            let is_input = executing.is_none();
            let source = executing.as_ref().map_or(&input[bytes..], QueuedCommands::rest);
            let progress = self.answer_frames(source, replies).await;
            match executing {
                None => bytes += progress.bytes,
                Some(mut queued) => {
                    queued.advance(progress.bytes);
                    self.executing = (progress.next == NextStep::Write).then_some(queued);
                }
            }
            let is_full = replies.bytes().len() >= REPLIES_BYTES_MAX;
            let is_done = is_input && self.executing.is_none();
            if is_done || is_full {
                let next = if is_done { progress.next } else { NextStep::Write };
                return Progress { bytes, next };
            }
        }
    }

    async fn answer_frames(&mut self, input: &[u8], replies: &mut Replies) -> Progress {
        let mut throttles = Throttles::default();
        let mut arguments = Arguments::new();
        let mut bytes = 0;
        let mut next = NextStep::Write;
        while replies.bytes().len() < REPLIES_BYTES_MAX {
            let start = bytes;
            match frame::parse(&input[bytes..], &mut arguments) {
                Ok(Some(taken)) => bytes += taken,
                Ok(None) => {
                    next = NextStep::Read;
                    break;
                }
                Err(error) => {
                    throttles.decide(&self.shared, &mut self.limits, replies).await;
                    replies.error(format_args!("ERR {error}"));
                    return Progress { bytes, next: NextStep::End };
                }
            }
            let Some(name) = arguments.first() else {
                continue;
            };
            let mut wrong = None;
            let is_run_now = self.is_authorized && self.transaction.is_none();
            if is_run_now && name.eq_ignore_ascii_case(throttle::NAME) {
                let throttle = Throttle::parse(&arguments);
                let (shared, limits) = (&self.shared, &mut self.limits);
                match throttle.and_then(|throttle| throttles.push(throttle, shared, limits)) {
                    Ok(()) if !throttles.is_full() => continue,
                    Ok(()) => {}
                    Err(error) => wrong = Some(error),
                }
                throttles.decide(&self.shared, &mut self.limits, replies).await;
                if let Err(error) = self.count_rejected(wrong.map_or(Ok(()), Err)) {
                    replies.error(format_args!("Cell error: {error}"));
                }
                continue;
            }
            throttles.decide(&self.shared, &mut self.limits, replies).await;
            let step = self.run_or_queue(&input[start..bytes], &arguments, replies).await;
            if step != NextStep::Read {
                return Progress { bytes, next: step };
            }
        }
        throttles.decide(&self.shared, &mut self.limits, replies).await;
        Progress { bytes, next }
    }

    /// Runs any command but a `CL.THROTTLE` that may be decided, or queues it in a transaction. `frame` is the command
    /// as it was sent.
    async fn run_or_queue(
        &mut self,
        frame: &[u8],
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> NextStep {
        let Some(spec) = command::find(arguments[0]) else {
            return self.refuse_unknown(frame, arguments[0], replies);
        };
        if !self.is_authorized && !spec.is_open {
            replies.error("NOAUTH Authentication required.");
            return NextStep::Read;
        }
        if !spec.takes(arguments.len()) {
            self.refuse_arguments(spec, replies);
            return NextStep::Read;
        }
        match &mut self.transaction {
            Some(transaction) if spec.is_queued() => {
                if transaction.push(frame).is_ok() {
                    replies.simple("QUEUED");
                } else {
                    transaction.abort();
                    replies.error(format_args!("ERR {TransactionFull}"));
                }
                NextStep::Read
            }
            _ => self.run(spec, arguments, replies).await,
        }
    }

    /// Answers a command that has too few or too many arguments, and aborts the transaction that it is part of.
    fn refuse_arguments(&mut self, spec: &CommandSpec, replies: &mut Replies) {
        if spec.command == Command::Exec {
            self.transaction = None;
            return replies.error(
                "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
            );
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.abort();
        }
        refuse_count(spec, replies);
    }

    /// Answers a command that does not exist. A request of HTTP ends the connection without a reply, so that no web
    /// page can make a browser send commands in its body.
    fn refuse_unknown(&mut self, frame: &[u8], name: &[u8], replies: &mut Replies) -> NextStep {
        let is =
            |words: &[&str]| words.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
        // Clients of Redis send arrays, in which GET is a command that is not served.
        let is_line = frame.first() != Some(&b'*');
        if is(&HTTP_ALWAYS) || is_line && is(&HTTP_METHODS) {
            self.shared.daemon.reject("a request of HTTP came to --resp: send it to --listen");
            return NextStep::End;
        }
        match &mut self.transaction {
            // As in Redis, it does not abort the transaction.
            Some(_) if is(&["WATCH"]) => {
                replies.error("ERR WATCH inside MULTI is not allowed");
                return NextStep::Read;
            }
            Some(transaction) => transaction.abort(),
            None if is(&["WATCH"]) => {
                replies.error(
                    "ERR WATCH is not served, because there are no keys to watch: send MULTI alone, which does not \
                     keep other connections out",
                );
                return NextStep::Read;
            }
            None => {}
        }
        let name = Excerpt(name);
        replies.error(format_args!(
            "ERR unknown command '{name}': COMMAND LIST tells which there are"
        ));
        NextStep::Read
    }

    async fn run(
        &mut self,
        spec: &CommandSpec,
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> NextStep {
        let words = &arguments[1..];
        let daemon = &self.shared.daemon;
        match spec.command {
            // Whoever may be answered was, before it came here.
            Command::Throttle => {}
            Command::Check => {
                let checked = check::check(arguments, daemon, replies).await;
                write_error(self.count_rejected(checked), replies);
            }
            Command::Reserve => {
                let reserved = check::reserve(arguments, daemon, replies).await;
                write_error(self.count_rejected(reserved), replies);
            }
            Command::Commit => {
                write_error(check::commit(arguments, daemon, replies).await, replies);
            }
            Command::Cancel => {
                write_error(check::cancel(arguments, daemon, replies).await, replies);
            }
            Command::Explain => {
                write_error(check::explain(arguments, daemon, replies).await, replies);
            }
            Command::Peek => write_error(check::peek(arguments, daemon, replies).await, replies),
            Command::Subject => {
                let checked = check::subject(arguments, daemon, replies).await;
                write_error(self.count_rejected(checked), replies);
            }
            Command::Renew => write_error(check::renew(arguments, daemon, replies).await, replies),
            Command::Release => {
                write_error(check::release(arguments, daemon, replies).await, replies);
            }
            Command::Multi if self.transaction.is_some() => {
                replies.error("ERR MULTI calls can not be nested");
            }
            Command::Multi => {
                self.transaction = Some(Transaction::default());
                replies.simple("OK");
            }
            Command::Exec => return self.execute(replies),
            Command::Discard => match self.transaction.take() {
                Some(_) => replies.simple("OK"),
                None => replies.error("ERR DISCARD without MULTI"),
            },
            Command::Ping => match words {
                [] => replies.simple("PONG"),
                [text] => replies.bulk(text),
                _ => refuse_count(spec, replies),
            },
            Command::Echo => replies.bulk(words[0]),
            Command::Auth => self.auth(spec, words, replies),
            Command::Hello => self.hello(words, replies),
            Command::Client => self.client(words, replies),
            Command::Describe => command::describe(words, replies),
            Command::Info => replies.bulk(INFO.as_bytes()),
            Command::Select if words[0] == b"0" => replies.simple("OK"),
            Command::Select => {
                replies.error("ERR DB index is out of range: there is database 0 alone");
            }
            Command::Reset => {
                *self = Self::new(Arc::clone(&self.shared), self.id, self.peer);
                replies.version = RespVersion::Two;
                replies.simple("RESET");
            }
            Command::Quit => {
                replies.simple("OK");
                return NextStep::End;
            }
        }
        NextStep::Read
    }

    /// `EXEC`: announces the replies of the queued commands, which are run next.
    fn execute(&mut self, replies: &mut Replies) -> NextStep {
        let Some(transaction) = self.transaction.take() else {
            replies.error("ERR EXEC without MULTI");
            return NextStep::Read;
        };
        let Some(queued) = transaction.into_commands() else {
            replies.error("EXECABORT Transaction discarded because of previous errors.");
            return NextStep::Read;
        };
        replies.array(queued.count);
        self.executing = Some(queued);
        NextStep::Write
    }

    /// Counts a check that cannot be decided.
    fn count_rejected<E: Display>(&self, checked: Result<(), E>) -> Result<(), E> {
        checked.inspect_err(|error| self.shared.daemon.reject(&error.to_string()))
    }

    /// `AUTH [user] token`: there is one token, whoever shows it.
    fn auth(&mut self, spec: &CommandSpec, words: &[&[u8]], replies: &mut Replies) {
        let ([token] | [_, token]) = words else {
            return refuse_count(spec, replies);
        };
        if self.authenticate(token, replies) {
            replies.simple("OK");
        }
    }

    /// Writes an error where the token is not the right one.
    fn authenticate(&mut self, token: &[u8], replies: &mut Replies) -> bool {
        if self.shared.daemon.tokens.is_none() {
            replies.error(
                "ERR Client sent AUTH, but no password is set: this daemon has no token, so leave \
                 AUTH out",
            );
            return false;
        }
        let authorized = self.shared.daemon.authorize(Some(token), self.peer);
        match authorized {
            Ok(()) => self.is_authorized = true,
            Err(WrongToken { retry_after_s: None }) => {
                replies.error("WRONGPASS invalid username-password pair or user is disabled.");
            }
            Err(WrongToken { retry_after_s: Some(seconds) }) => replies
                .error(format_args!("WRONGPASS {}", Problem::too_many_failures(seconds).detail)),
        }
        authorized.is_ok()
    }

    /// `HELLO [2|3 [AUTH user token] [SETNAME name]]`
    fn hello(&mut self, words: &[&[u8]], replies: &mut Replies) {
        let mut version = replies.version;
        let mut words = words.iter();
        match words.next() {
            None => {}
            Some(&b"2") => version = RespVersion::Two,
            Some(&b"3") => version = RespVersion::Three,
            Some(_) => {
                return replies.error("NOPROTO unsupported protocol version: ask for 2 or 3");
            }
        }
        while let Some(option) = words.next() {
            if option.eq_ignore_ascii_case(b"AUTH")
                && let (Some(_), Some(token)) = (words.next(), words.next())
            {
                if !self.authenticate(token, replies) {
                    return;
                }
            } else if option.eq_ignore_ascii_case(b"SETNAME")
                && let Some(name) = words.next()
            {
                if !self.set_name(name, replies) {
                    return;
                }
            } else {
                let option = Excerpt(option);
                return replies.error(format_args!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
        if !self.is_authorized {
            return replies.error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                 select the RESP protocol version at the same time",
            );
        }
        replies.version = version;
        replies.map(7);
        for (name, value) in [("server", "tollbar"), ("version", env!("CARGO_PKG_VERSION"))] {
            replies.bulk(name.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"proto");
        replies.integer(if version == RespVersion::Two { 2 } else { 3 });
        replies.bulk(b"id");
        replies.integer(self.id);
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            replies.bulk(name.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(&mut self, words: &[&[u8]], replies: &mut Replies) {
        let is = |name: &[u8]| words[0].eq_ignore_ascii_case(name);
        match words {
            [_] if is(b"ID") => replies.integer(self.id),
            [_] if is(b"GETNAME") => {
                replies.bulk_or_null(Some(&*self.name).filter(|name| !name.is_empty()));
            }
            [_, name] if is(b"SETNAME") => {
                if self.set_name(name, replies) {
                    replies.simple("OK");
                }
            }
            // What a library calls itself is not kept.
            [_, _, _] if is(b"SETINFO") => replies.simple("OK"),
            _ => replies.error(format_args!(
                "ERR unknown subcommand or wrong number of arguments for '{}': there is CLIENT \
                 GETNAME, ID, SETINFO name value and SETNAME name",
                Excerpt(words[0])
            )),
        }
    }

    /// Writes an error where it cannot be a name.
    fn set_name(&mut self, name: &[u8], replies: &mut Replies) -> bool {
        let is_name = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
        if is_name {
            self.name = name.into();
        } else {
            replies.error(format_args!(
                "ERR Client names cannot contain spaces, newlines or special characters, nor more \
                 than {NAME_BYTES_MAX} bytes"
            ));
        }
        is_name
    }
}

const INFO: &str = concat!(
    "# Server\r\n",
    "server_name:tollbar\r\n",
    "tollbar_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\nredis_mode:standalone\r\n",
);

fn write_error(checked: Result<(), check::CheckError>, replies: &mut Replies) {
    if let Err(error) = checked {
        replies.error(format_args!("ERR {error}"));
    }
}

fn refuse_count(spec: &CommandSpec, replies: &mut Replies) {
    replies.error(format_args!("ERR wrong number of arguments for '{}' command", spec.name()));
}
