//! What is written to the file and read from it, and what is not.

use std::os::unix::fs::PermissionsExt;

use tollbar_rules::admin::SubjectType;

use super::*;

struct ScratchFile(PathBuf);

impl ScratchFile {
    fn new(name: &str) -> (Self, Cache) {
        let path =
            std::env::temp_dir().join(format!("tollbar-cache-{}-{name}", std::process::id()));
        let cache = Cache::new(&path, &"rules.sqlite".parse().unwrap());
        (Self(path), cache)
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn contents() -> DatabaseContents {
    let rule =
        json!({ "name": "a", "maxRequests": 5, "windowSeconds": 60, "description": "é\n\"" });
    let key = |id, effect, expires_at| KeyRow {
        id,
        record: KeyRecord {
            rule: None,
            subject: "user:1".into(),
            effect,
            reason: None,
            expires_at,
        },
        created_by: String::new(),
        created_at: Timestamp::ZERO,
    };
    let exemption = ExemptionRow {
        id: 2,
        rule: RuleId::of_u128(1),
        form: ExemptionForm::new(SubjectType::User, "7"),
        created_by: String::new(),
        created_at: Timestamp::ZERO,
    };
    DatabaseContents {
        revisions: Revisions { rules: 7, tokens: 3 },
        rules: vec![Arc::new(RuleRow {
            id: RuleId::random(),
            rule: from_json(rule).unwrap(),
            version: 4,
            owner: Owner::default(),
            created_at: Timestamp::ZERO,
            updated_at: Timestamp::ZERO,
            deleted_at: None,
            row: 9,
        })],
        exemptions: [(RuleId::of_u128(1), [exemption].into())].into(),
        keys: vec![
            key(1, KeyEffect::Ban, Some(Timestamp::from_micros(1_900_000_000_000_001))).into(),
            key(2, KeyEffect::Boost { factor_percent: 150 }, None).into(),
        ],
        ..DatabaseContents::default()
    }
}

#[test]
fn what_is_written_is_read() {
    let (_scratch, cache) = ScratchFile::new("read");
    assert_eq!(cache.read().unwrap(), None);
    cache.write(&contents()).unwrap();
    let mode = fs::metadata(&cache.path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "it names clients");
    let written = contents();
    let read = cache.read().unwrap().unwrap();
    assert_eq!((read.revisions, &read.keys), (written.revisions, &written.keys));
    assert_eq!(
        (&read.exemptions, &read.rules[0].rule),
        (&written.exemptions, &written.rules[0].rule)
    );
    cache.write(&DatabaseContents::default()).unwrap();
    assert_eq!(cache.read().unwrap(), Some(DatabaseContents::default()));
}

#[test]
fn a_row_that_changes_is_written_anew_and_one_that_is_gone_is_not() {
    let (_scratch, cache) = ScratchFile::new("anew");
    let mut rows = contents();
    rows.rules.push(Arc::new(RuleRow { row: 10, ..RuleRow::clone(&rows.rules[0]) }));
    cache.write(&rows).unwrap();
    Arc::make_mut(&mut rows.rules[1]).version = 5;
    rows.exemptions.clear();
    rows.keys.remove(0);
    // Once more, so that what is known is what was written last.
    for _ in 0..2 {
        cache.write(&rows).unwrap();
        let read = cache.read().unwrap().unwrap();
        let versions: Vec<u64> = read.rules.iter().map(|rule| rule.version).collect();
        assert_eq!((versions, read.exemptions.len()), (vec![4, 5], 0));
        assert_eq!(read.keys, rows.keys);
    }
    rows.rules.remove(0);
    cache.write(&rows).unwrap();
    assert_eq!(cache.read().unwrap().unwrap().rules.len(), 1);
}

#[test]
fn a_file_that_is_torn_or_changed_anywhere_is_refused() {
    let (scratch, cache) = ScratchFile::new("torn");
    cache.write(&contents()).unwrap();
    let whole = fs::read(&scratch.0).unwrap();
    for length in 0..whole.len() {
        fs::write(&scratch.0, &whole[..length]).unwrap();
        let told = cache.read().unwrap_err().to_string();
        assert!(told.contains("is torn") || told.contains("is no cache of rules"), "{told}");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&scratch.0, &changed).unwrap();
        assert!(cache.read().is_err(), "{at}");
    }
    let longer = [&whole[..], b" "].concat();
    fs::write(&scratch.0, longer).unwrap();
    assert!(cache.read().unwrap_err().to_string().contains("its length is another"));
}

#[test]
fn a_newer_form_and_another_databases_rules_are_told_as_such() {
    let (scratch, cache) = ScratchFile::new("newer");
    cache.write(&contents()).unwrap();
    let text = fs::read_to_string(&scratch.0).unwrap();
    fs::write(&scratch.0, text.replacen(" 1 ", " 2 ", 1)).unwrap();
    let told = cache.read().unwrap_err().to_string();
    assert!(told.contains("has form 2, and this version knows form 1"), "{told}");
    fs::write(&scratch.0, text).unwrap();
    let other = Cache::new(&scratch.0, &"postgres://a:secret@db/limits".parse().unwrap());
    let told = other.read().unwrap_err().to_string();
    assert!(
        told.contains("the rules of rules.sqlite, and not of postgres://..@db/limits"),
        "{told}"
    );
}
