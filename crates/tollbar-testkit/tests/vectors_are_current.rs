//! The committed vectors are what the generator writes. `TOLLBAR_BLESS=1` writes them anew.

use std::{env, fs};

use tollbar_testkit::suite;
use tollbar_testkit::vector::{self, generator, settlements};

/// Small enough to read in a review and to load in a script.
const FILE_BYTES_MAX: usize = 200_000;

#[test]
fn committed_vectors_are_what_the_generator_writes() {
    for (name, vectors) in generator::all() {
        is_committed(name, &vector::render(&vectors));
        assert_eq!(vector::load(name), vectors, "{name} reads back as it was written");
    }
    let vectors = settlements::generate();
    is_committed(settlements::FILE, &settlements::render(&vectors));
    assert_eq!(settlements::load(), vectors, "settlements read back as they were written");
    let files = fs::read_dir(vector::path("any").with_file_name("")).expect("vectors/ is there");
    assert_eq!(
        files.count(),
        suite::VECTOR_FILES.len() + 1,
        "a file in vectors/ that no test runs"
    );
}

#[track_caller]
fn is_committed(name: &str, text: &str) {
    assert!(text.len() < FILE_BYTES_MAX, "{name} has {} bytes", text.len());
    if env::var_os("TOLLBAR_BLESS").is_some_and(|value| value == "1") {
        fs::write(vector::path(name), text).expect("the vectors can be written");
    }
    assert!(
        fs::read_to_string(vector::path(name)).is_ok_and(|committed| committed == text),
        "vectors/{name}.json is not what the generator writes; if that is meant, run the tests of \
         tollbar-testkit once with TOLLBAR_BLESS=1 and review the difference",
    );
}

#[test]
fn the_suite_runs_every_vector_file_the_generator_writes() {
    let generated: Vec<_> = generator::all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(generated, suite::VECTOR_FILES);
}

#[test]
fn no_number_but_the_largest_cost_is_beyond_a_double() {
    let texts =
        generator::all().into_iter().map(|(name, vectors)| (name, vector::render(&vectors)));
    let settled = (settlements::FILE, settlements::render(&settlements::generate()));
    for (name, text) in texts.chain([settled]) {
        let digits = text.split(|c: char| !c.is_ascii_digit());
        let beyond =
            digits.filter(|number| number.parse::<u64>().is_ok_and(|value| value >= 1 << 53));
        for number in beyond {
            assert_eq!(number, "18446744073709551615", "in {name}");
        }
    }
}
