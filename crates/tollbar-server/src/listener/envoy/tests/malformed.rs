//! Calls that cannot be answered, and what each is told.

use super::*;

#[test]
fn every_malformed_call_is_told_what_is_wrong_with_it() {
    let many = |count| vec![[("k", "v")]; count];
    let descriptors = many(65);
    let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(|it| &it[..]).collect();
    let entries = vec![("k", "v"); 65];
    for (request, message) in [
        (
            call("", &[&[("k", "v")]]),
            "the domain is empty: set `domain` in Envoy's rate limit filter",
        ),
        (call("d", &[]), "there is no descriptor: send at least one"),
        (call("d", &descriptors), "65 descriptors are too many: send at most 64"),
        (call("d", &[&[("k", "v")], &[]]), "descriptors[1]: it has no entries: send at least one"),
        (
            call("d", &[&[("k", "v"), ("", "v")]]),
            "descriptors[0]: it has an entry without a key: name all of them",
        ),
        (call("d", &[&entries]), "descriptors[0]: 65 entries are too many: send at most 64"),
    ] {
        let file = "{ domain: d, descriptors: [{ key: k }] }";
        for service in [Service::of(file), Service::of_rules("rules: []")] {
            let status = service.ask(&request).unwrap_err();
            assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, message));
        }
    }
    let descriptors = many(64);
    let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(|it| &it[..]).collect();
    assert!(Service::of_rules("rules: []").ask(&call("d", &descriptors)).is_ok());
}
