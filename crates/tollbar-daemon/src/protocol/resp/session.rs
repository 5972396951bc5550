//! One connection's conversation, apart from its bytes: who has shown the token, in which version it
//! is answered, and which command does what.

use std::fmt::Display;
use std::sync::Arc;

use super::command;
use super::command::{Command, CommandSpec};
use super::frame;
use super::frame::Arguments;
use super::reply::{Excerpt, Replies, RespVersion};
use super::throttle;
use super::throttle::{Throttle, ThrottleLimits, Throttles};
use super::{REPLIES_BYTES_MAX, RespState, check};
use crate::auth_failures::WrongToken;
use crate::net::Peer;
use crate::problem::Problem;

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
        Self { shared, id, name, is_authorized, peer, limits }
    }

    /// True where the token was shown, or none is asked for.
    pub(super) fn is_authorized(&self) -> bool {
        self.is_authorized
    }

    /// Answers the whole frames of `input`, in their order.
    pub(super) async fn answer(&mut self, input: &[u8], replies: &mut Replies) -> Progress {
        let mut throttles = Throttles::default();
        let mut arguments = Arguments::new();
        let mut bytes = 0;
        let mut next = NextStep::Write;
        while replies.bytes().len() < REPLIES_BYTES_MAX {
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
            if self.is_authorized && name.eq_ignore_ascii_case(throttle::NAME) {
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
            if self.run(&arguments, replies).await == NextStep::End {
                return Progress { bytes, next: NextStep::End };
            }
        }
        throttles.decide(&self.shared, &mut self.limits, replies).await;
        Progress { bytes, next }
    }

    /// Runs any command but a `CL.THROTTLE` that may be decided.
    async fn run(&mut self, arguments: &Arguments<'_>, replies: &mut Replies) -> NextStep {
        let Some(spec) = command::find(arguments[0]) else {
            let name = Excerpt(arguments[0]);
            replies.error(format_args!(
                "ERR unknown command '{name}': COMMAND LIST tells which there are"
            ));
            return NextStep::Read;
        };
        if !self.is_authorized && !spec.is_open {
            replies.error("NOAUTH Authentication required.");
            return NextStep::Read;
        }
        if !spec.takes(arguments.len()) {
            refuse_count(spec, replies);
            return NextStep::Read;
        }
        let words = &arguments[1..];
        match spec.command {
            // Whoever may be answered was, before it came here.
            Command::Throttle => {}
            Command::Check => {
                let checked = check::check(arguments, &self.shared.daemon, replies).await;
                write_error(self.count_rejected(checked), replies);
            }
            Command::Explain => {
                let explained = check::explain(arguments, &self.shared.daemon, replies).await;
                write_error(explained, replies);
            }
            Command::Peek => {
                let checked = check::peek(arguments, &self.shared.daemon, replies).await;
                write_error(checked, replies);
            }
            Command::Subject => {
                let checked = check::subject(arguments, &self.shared.daemon, replies).await;
                write_error(self.count_rejected(checked), replies);
            }
            Command::Renew => {
                let renewed = check::renew(arguments, &self.shared.daemon, replies).await;
                write_error(renewed, replies);
            }
            Command::Release => {
                let released = check::release(arguments, &self.shared.daemon, replies).await;
                write_error(released, replies);
            }
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
