//! The table, asked of the real daemon over the Redis protocol.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::common::{Daemon, Scratch};
use crate::rules::RULES;
use crate::step::{Expect, Step};
use crate::{Said, Told, go_through};

#[test]
fn resp_answers_as_the_table_says() {
    let scratch = Scratch::new("conformance-resp");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
    let mut stream = BufReader::new(TcpStream::connect(daemon.address("resp")).unwrap());
    go_through(|step| ask(&mut stream, step));
    drop(stream);
    assert_eq!(daemon.stop(), 0);
}

fn ask(stream: &mut BufReader<TcpStream>, step: &Step) -> Told {
    let cost = step.cost.to_string();
    let mut words = vec!["TB.CHECK", step.method, step.path, "COST", &cost, "WITH"];
    words.extend(step.attributes.iter().flat_map(|(name, value)| [*name, *value]));
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in &words {
        frame.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    stream.get_mut().write_all(&frame).unwrap();
    let answer = read_map(stream);
    let said = |name: &str| answer[name].clone();
    let outcome = match (said("reason").as_deref(), said("outcome").as_deref()) {
        (Some("missing_attribute"), _) => Expect::Lacks,
        (_, Some("allow")) => Expect::Allow,
        (_, Some("deny")) => Expect::Deny,
        (_, Some("never")) => Expect::Never,
        _ => panic!("{step:?} gave {answer:?}"),
    };
    let is_allowed = said("allowed").as_deref() == Some("1");
    assert_eq!(is_allowed, outcome == Expect::Allow, "{step:?} gave {answer:?}");
    let has_wait = said("retry_after_ms").is_some_and(|it| it != "0");
    assert_eq!(has_wait, outcome == Expect::Deny, "{step:?} gave {answer:?}");
    let number = |name: &str| said(name).map(|it| it.parse().unwrap());
    Told {
        outcome,
        rule: Said::This(said("rule")),
        limit: Said::This(number("limit")),
        remaining: Said::This(number("remaining")),
    }
}

/// Names and values: an array of bulk strings, numbers and nulls.
fn read_map(stream: &mut BufReader<TcpStream>) -> HashMap<String, Option<String>> {
    let head = read_line(stream);
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
    (0..count / 2).map(|_| (value().unwrap(), value())).collect()
}

fn read_line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}
