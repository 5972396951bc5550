//! The table, asked of the real daemon over the Redis protocol.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Field, WITHOUT_STORE, go_through};
use crate::common::Scratch;

#[test]
fn resp_answers_as_the_tables_say() {
    for table in [&COUNTED, &WITHOUT_STORE] {
        let scratch = Scratch::new("conformance-resp");
        let daemon = table.serve(&scratch, &[]);
        let mut stream = BufReader::new(TcpStream::connect(daemon.address("resp")).unwrap());
        go_through(table, |step| ask(&mut stream, step));
        drop(stream);
        assert_eq!(daemon.stop(), 0);
    }
}

fn ask(stream: &mut BufReader<TcpStream>, step: &Step) -> Answer {
    let cost = step.cost.to_string();
    let mut words = vec!["TB.CHECK", step.method, step.path, "COST", &cost, "WITH"];
    words.extend(step.attributes.iter().flat_map(|(name, value)| [*name, *value]));
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in &words {
        frame.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    stream.get_mut().write_all(&frame).unwrap();
    let answer = match read_map(stream) {
        Ok(answer) => answer,
        // What the request has to be changed for is an error, in one word and a sentence.
        Err(error) => {
            return Answer::only(match error.split(' ').next() {
                Some("MISSING_ATTRIBUTE") => Expect::Lacks,
                Some("TOO_MANY_LIMITS") => Expect::TooMany,
                _ => panic!("{step:?} gave {error}"),
            });
        }
    };
    let said = |name: &str| answer[name].clone();
    let outcome = match said("outcome").as_deref() {
        Some("allow") => Expect::Allow,
        Some("deny") => Expect::Deny,
        Some("never") => Expect::Never,
        Some("busy") => Expect::Busy,
        _ => panic!("{step:?} gave {answer:?}"),
    };
    let is_allowed = said("allowed").as_deref() == Some("1");
    assert_eq!(is_allowed, outcome == Expect::Allow, "{step:?} gave {answer:?}");
    let has_wait = said("retry_after_ms").is_some_and(|wait_ms| wait_ms != "0");
    assert_eq!(has_wait, outcome == Expect::Deny, "{step:?} gave {answer:?}");
    let number = |name: &str| said(name).map(|value| value.parse().unwrap());
    Answer {
        outcome,
        rule: Field::Is(said("rule")),
        limit: Field::Is(number("limit")),
        remaining: Field::Is(number("remaining")),
        has_reset: Field::Is(Some(number("reset_at_ms").is_some())),
        is_degraded: Field::Is(Some(number("degraded") == Some(1))),
    }
}

/// Names and values: an array of bulk strings, numbers and nulls. Or an error.
fn read_map(stream: &mut BufReader<TcpStream>) -> Result<HashMap<String, Option<String>>, String> {
    let head = read_line(stream);
    if let Some(error) = head.strip_prefix('-') {
        return Err(error.to_owned());
    }
    let count: usize = head.strip_prefix('*').unwrap_or_else(|| panic!("{head}")).parse().unwrap();
    let mut value = || {
        let line = read_line(stream);
        match line.split_at(1) {
            (":", number) => Some(number.to_owned()),
            ("$", "-1") => None,
            ("$", bytes) => {
                let mut text = vec![0; bytes.parse::<usize>().unwrap() + 2];
                stream.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                Some(String::from_utf8(text).unwrap())
            }
            _ => panic!("{line}"),
        }
    };
    Ok((0..count / 2).map(|_| (value().unwrap(), value())).collect())
}

fn read_line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}
