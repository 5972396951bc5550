//! Any path has a normal form that is normal, and any pattern says of it what it says of its own
//! printed form.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollbar_rules::{PathPattern, Request};

fuzz_target!(|input: (&str, &str)| {
    let (path, pattern) = input;
    let Ok(request) = Request::new("GET", path) else {
        return;
    };
    for reading in [Some(request.path()), request.path_with_slashes_kept()].into_iter().flatten() {
        assert!(reading.starts_with('/') && !reading.contains("//"), "{reading}");
        assert!(reading == "/" || !reading.ends_with('/'), "{reading}");
        let mut segments = reading.split('/').skip(1);
        assert!(segments.all(|segment| segment != "." && segment != ".."), "{reading}");
    }
    match pattern.parse::<PathPattern>() {
        Ok(pattern) => {
            let printed: PathPattern = pattern.to_string().parse().expect("it was printed so");
            assert_eq!(printed, pattern);
            assert_eq!(printed.matches(request.path()), pattern.matches(request.path()));
        }
        Err(error) => assert!(error.to_string().len() < 400, "{error}"),
    }
});
