//! A scrape, read strictly: what is no line of the format is a failure.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::collections::BTreeMap;

use crate::common::{Daemon, status};

pub(crate) const OPEN_METRICS: &str = "accept: application/openmetrics-text\r\n";

/// The samples of a scrape, by name and labels as they are written.
pub(crate) struct Scrape {
    pub(crate) head: String,
    pub(crate) text: String,
    pub(crate) samples: BTreeMap<String, String>,
    /// Exemplars, by the same.
    pub(crate) exemplars: BTreeMap<String, String>,
}

impl Scrape {
    pub(crate) fn fetch(daemon: &Daemon, headers: &str) -> Self {
        let response = daemon.get_with("/metrics", headers);
        assert_eq!(status(&response), 200, "{response}");
        let (head, text) = response.split_once("\r\n\r\n").unwrap();
        let mut scrape = Self {
            head: head.to_owned(),
            text: text.to_owned(),
            samples: BTreeMap::new(),
            exemplars: BTreeMap::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            scrape.read(line);
        }
        scrape
    }

    fn read(&mut self, line: &str) {
        // Behind the last bracket of the labels, which no quote can hide: `}` in a value is inside one.
        let end = match line.find('{') {
            None => line.find(' ').unwrap(),
            Some(start) => start + end_of_labels(&line[start..]),
        };
        let (series, rest) = line.split_at(end);
        let (value, exemplar) = match rest.split_once(" # ") {
            Some((value, exemplar)) => (value, Some(exemplar)),
            None => (rest, None),
        };
        let value = value.trim();
        assert!(value.parse::<f64>().is_ok(), "no value in {line}");
        assert!(
            self.samples.insert(series.to_owned(), value.to_owned()).is_none(),
            "twice: {line}"
        );
        if let Some(exemplar) = exemplar {
            self.exemplars.insert(series.to_owned(), exemplar.to_owned());
        }
    }

    /// The value of a series, which must be there and whole.
    pub(crate) fn get(&self, series: &str) -> u64 {
        self.value(series).parse().unwrap_or_else(|_| panic!("{series} is not whole"))
    }

    /// The value of a series, which must be there, as it is written.
    pub(crate) fn value(&self, series: &str) -> &str {
        self.samples.get(series).unwrap_or_else(|| panic!("no {series} in\n{}", self.text))
    }

    /// The names of all samples.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.samples.keys().map(|series| series.split('{').next().unwrap_or_default())
    }

    /// The metrics that are declared, with their kinds.
    pub(crate) fn families(&self) -> BTreeMap<&str, &str> {
        let types = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|declaration| declaration.split_once(' ')).collect()
    }
}

/// How long the labels are, brackets included.
fn end_of_labels(text: &str) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return at + 1,
            _ => {}
        }
    }
    panic!("labels without an end in {text}")
}
