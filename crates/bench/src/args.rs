//! Command lines: flags by hand, because there are few.

use std::process::ExitCode;
use std::str::FromStr;

/// Flags not yet asked for.
pub(crate) struct Args<'a> {
    rest: Vec<&'a str>,
}

impl<'a> Args<'a> {
    pub(crate) fn new(args: &[&'a str]) -> Self {
        Self { rest: args.to_vec() }
    }

    /// Whether `flag` is there.
    pub(crate) fn flag(&mut self, flag: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|arg| *arg != flag);
        self.rest.len() < before
    }

    /// What follows `flag`, if it is there.
    pub(crate) fn value(&mut self, flag: &str) -> Result<Option<&'a str>, String> {
        let Some(at) = self.rest.iter().position(|arg| *arg == flag) else {
            return Ok(None);
        };
        if at + 1 == self.rest.len() {
            return Err(format!("`{flag}` needs a value"));
        }
        let value = self.rest.remove(at + 1);
        self.rest.remove(at);
        Ok(Some(value))
    }

    /// What follows `flag`, read as a `T`.
    pub(crate) fn parsed<T: FromStr>(&mut self, flag: &str) -> Result<Option<T>, String> {
        let Some(value) = self.value(flag)? else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| format!("`{flag} {value}` is not a number"))
    }

    /// Fails if anything was not asked for.
    pub(crate) fn finish(self) -> Result<(), String> {
        match self.rest.first() {
            None => Ok(()),
            Some(arg) => Err(format!("`{arg}` is not understood")),
        }
    }
}

/// Says what is wrong with the command line and what would be right.
pub(crate) fn refuse(reason: &str) -> ExitCode {
    eprintln!("{reason}\n{}", crate::USAGE);
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_taken_in_any_order() {
        let mut args = Args::new(&["--json", "out", "--quick", "--keys", "7"]);
        assert_eq!(args.parsed("--keys"), Ok(Some(7_u64)));
        assert!(args.flag("--quick") && !args.flag("--flood"));
        assert_eq!(args.value("--json"), Ok(Some("out")));
        assert_eq!(args.finish(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(Args::new(&["--json"]).value("--json").unwrap_err().contains("--json"));
        let mut args = Args::new(&["--keys", "many", "--what"]);
        assert!(args.parsed::<u64>("--keys").unwrap_err().contains("many"));
        assert!(args.finish().unwrap_err().contains("--what"));
    }
}
