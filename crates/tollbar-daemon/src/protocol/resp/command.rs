//! The commands there are, and what clients are told of them by `COMMAND`.

use super::reply::{Excerpt, Replies};

/// One word for each command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Auth,
    Cancel,
    Check,
    Client,
    Commit,
    Describe,
    Discard,
    Echo,
    Exec,
    Explain,
    Hello,
    Info,
    Multi,
    Peek,
    Ping,
    Quit,
    Release,
    Renew,
    Reserve,
    Reset,
    Select,
    Subject,
    Throttle,
}

/// What is known of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommandSpec {
    pub(super) command: Command,
    /// As Redis writes it: in lower case.
    name: &'static str,
    /// As Redis counts them: the name included, and negative where more may follow.
    arity: i8,
    /// Which of its arguments is a key; 0 where none is.
    key: u8,
    flags: &'static [&'static str],
    /// True where it is answered before the token was shown.
    pub(super) is_open: bool,
    summary: &'static str,
}

const fn spec(
    command: Command,
    name: &'static str,
    arity: i8,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec { command, name, arity, key: 0, flags: &["fast"], is_open: false, summary }
}

impl CommandSpec {
    const fn open(self) -> Self {
        Self { is_open: true, flags: &["fast", "no_auth"], ..self }
    }

    const fn counting(self, key: u8) -> Self {
        Self { key, flags: &["write", "fast"], ..self }
    }

    /// True where so many arguments, the name included, are as many as it has.
    pub(super) fn takes(&self, count: usize) -> bool {
        let fixed = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= fixed } else { count == fixed }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if the command is queued between `MULTI` and `EXEC`. The others act at once, as in Redis.
    pub(super) fn is_queued(&self) -> bool {
        !matches!(
            self.command,
            Command::Multi | Command::Exec | Command::Discard | Command::Reset | Command::Quit
        )
    }
}

/// Every command.
const COMMANDS: [CommandSpec; 23] = [
    spec(Command::Auth, "auth", -2, "Shows the daemon's token").open(),
    spec(Command::Throttle, "cl.throttle", -1, "Counts a key under a limit, as redis-cell does")
        .counting(1),
    spec(Command::Client, "client", -2, "Names the connection, or tells its name or number"),
    spec(Command::Describe, "command", -1, "Tells which commands there are"),
    spec(Command::Discard, "discard", 1, "Forgets the commands since MULTI"),
    spec(Command::Echo, "echo", 2, "Repeats its argument"),
    spec(Command::Exec, "exec", 1, "Runs the commands since MULTI"),
    spec(Command::Hello, "hello", -1, "Chooses the version of the protocol").open(),
    spec(Command::Info, "info", -1, "Tells what is at this end"),
    spec(Command::Multi, "multi", 1, "Queues the commands that follow, for EXEC"),
    spec(Command::Ping, "ping", -1, "Answers PONG, or its argument"),
    spec(Command::Quit, "quit", -1, "Ends the connection").open(),
    spec(Command::Reset, "reset", 1, "Makes the connection as new").open(),
    spec(Command::Select, "select", 2, "Takes database 0, which is the only one"),
    spec(Command::Cancel, "tb.cancel", 2, "Gives back what a reservation has charged").counting(0),
    spec(Command::Check, "tb.check", -3, "Checks a request against the rules").counting(0),
    spec(Command::Commit, "tb.commit", -2, "Settles a reservation at its real cost").counting(0),
    spec(Command::Explain, "tb.explain", 2, "Tells why a request was denied, by its decision id"),
    spec(Command::Peek, "tb.peek", -3, "Tells what a request has left, and charges nothing"),
    spec(Command::Release, "tb.release", 2, "Gives the permits of a request back").counting(0),
    spec(Command::Renew, "tb.renew", 2, "Lets the permits of a request last longer").counting(0),
    spec(Command::Reserve, "tb.reserve", -3, "Checks a request whose cost is settled later")
        .counting(0),
    spec(Command::Subject, "tb.subject", -3, "Checks a subject against one rule").counting(0),
];

/// The command of that name, in capitals or not.
pub(super) fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    COMMANDS.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Answers `COMMAND` and what can follow it.
pub(super) fn describe(words: &[&[u8]], replies: &mut Replies) {
    let Some((subcommand, names)) = words.split_first() else {
        replies.array(COMMANDS.len());
        return write_infos(replies);
    };
    let is = |name: &[u8]| subcommand.eq_ignore_ascii_case(name);
    if is(b"COUNT") && names.is_empty() {
        replies.integer(COMMANDS.len());
    } else if is(b"LIST") && names.is_empty() {
        replies.array(COMMANDS.len());
        for spec in &COMMANDS {
            replies.bulk(spec.name.as_bytes());
        }
    } else if is(b"INFO") {
        replies.array(if names.is_empty() { COMMANDS.len() } else { names.len() });
        if names.is_empty() {
            write_infos(replies);
        }
        for name in names {
            match find(name) {
                Some(spec) => write_info(spec, replies),
                None => replies.null(),
            }
        }
    } else if is(b"DOCS") {
        let asked = |spec: &&CommandSpec| {
            let is_name = |name: &&[u8]| spec.name.as_bytes().eq_ignore_ascii_case(name);
            names.is_empty() || names.iter().any(is_name)
        };
        replies.map(COMMANDS.iter().filter(asked).count());
        for spec in COMMANDS.iter().filter(asked) {
            replies.bulk(spec.name.as_bytes());
            replies.map(2);
            replies.bulk(b"summary");
            replies.bulk(spec.summary.as_bytes());
            replies.bulk(b"group");
            replies.bulk(b"generic");
        }
    } else {
        let word = Excerpt(subcommand);
        replies.error(format_args!(
            "ERR unknown subcommand '{word}' of COMMAND: ask COUNT, DOCS, INFO or LIST"
        ));
    }
}

fn write_infos(replies: &mut Replies) {
    for spec in &COMMANDS {
        write_info(spec, replies);
    }
}

fn write_info(spec: &CommandSpec, replies: &mut Replies) {
    replies.array(6);
    replies.bulk(spec.name.as_bytes());
    replies.integer(spec.arity);
    replies.array(spec.flags.len());
    for flag in spec.flags {
        replies.bulk(flag.as_bytes());
    }
    // The first key, the last, and the step from one to the next.
    for _ in 0..3 {
        replies.integer(spec.key);
    }
}
