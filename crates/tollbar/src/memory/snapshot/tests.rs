//! What makes room, what moves while a snapshot is taken, and what is in the file.

mod crafted;
mod refused;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::format::Snapshot;
use super::*;
use crate::memory::counter_id::{CounterHash, names_of_tag};
use crate::memory::{MemoryStore, MemoryStoreBuilder};
use crate::{Decision, ManualClock, Policy, PolicyError, WarmUp};

const START_US: u64 = 1_700_000_000_000_000;

fn builder(max_keys: usize) -> (MemoryStoreBuilder, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let builder = MemoryStore::builder().max_keys(max_keys).max_wide_keys(64);
    (builder.clock(clock.clone()), clock)
}

/// With a hash that is the same in every run, so that the same counters meet in a line.
fn store(max_keys: usize) -> MemoryStore {
    builder(max_keys).0.build_with(CounterHash::from_seeds([1, 2]))
}

fn check(store: &MemoryStore, key: &str, policy: &Policy, cost: u64) -> Decision {
    store.check_now(key.as_bytes(), policy, cost)
}

fn restore(max_keys: usize, mut bytes: &[u8]) -> Result<MemoryStore, SnapshotError> {
    builder(max_keys).0.restore(&mut bytes)
}

fn bucket() -> Policy {
    Policy::token_bucket("10/h").unwrap()
}

fn strict() -> Policy {
    Policy::sliding_window_strict("10/h", 2).unwrap()
}

fn log() -> Policy {
    Policy::sliding_window_log("10000/h").unwrap()
}

fn leased() -> Policy {
    Policy::concurrency(10).unwrap().leased(Duration::from_hours(1)).unwrap()
}

/// Of each algorithm a policy, and what its counter in the kept snapshot has been charged.
fn golden_charges() -> [(Policy, u64); 7] {
    [
        (bucket(), 3),
        (Policy::leaky_bucket("600/h").unwrap(), 4),
        (Policy::fixed_window("10/h").unwrap().with_name("named"), 5),
        (Policy::sliding_window("10/h").unwrap(), 6),
        (strict(), 7),
        (log(), 8),
        (leased(), 9),
    ]
}

/// Each snapshot kept below was written when its format was new. If one can no longer be read, what a
/// name, a tag or a state means has changed: raise `VERSION`, and keep a new one.
#[test]
fn a_snapshot_of_each_version_can_be_read_forever() {
    for golden in [GOLDEN_3, GOLDEN_4] {
        let (pairs, _) = golden.as_chunks::<2>();
        let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
        let bytes: Vec<u8> =
            pairs.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)).collect();
        let store = restore(4, &bytes).unwrap();
        for (policy, cost) in golden_charges() {
            let left = check(&store, "user:42", &policy, 0).remaining().unwrap();
            assert_eq!(left, policy.capacity() - cost, "{policy:?}");
        }
        assert_eq!(store.stats().live_keys, 7);
    }
}

const GOLDEN_3: &[u8] = b"\
    746f6c6c6261721a030000000100000000000000020000000000000000401e18240a060002000000000000000000\
    00000000000080ae01afaa993d4c0000f8f6619128180000000000000000808d8e6d424759850000d83166902818\
    00000000000000009cb0242d111d7607000030008096281801000000000000009ca3dd41bf3267a0050000000093\
    28184c969b1e256b00cd00ae4c2a250a06003d690e00000000000000000000000000000000000000000007000000\
    000000005fcea06774f782bf00e4b1ee240a06000100000000000000080000e48141a2602962f62a0dfcd6cc6ba4\
    19928bcd36d40900208f752751300400000000000000010000000000000000000000000000000000000000000000\
    00000000000000000000000000000000010000000000000001000000000000000100000000000000000000000000\
    0000d54b23a5";

const GOLDEN_4: &[u8] = b"\
    746f6c6c6261721a040000000100000000000000020000000000000000401e18240a060002000000000000000000\
    00000000000080ae01afaa993d4c0000f8f6619128180000000000000000808d8e6d424759850000d83166902818\
    00000000000000009cb0242d111d7607000030008096285801000000000000009ca3dd41bf3267a0050000000093\
    28184c969b1e256b00cd00ae4c2a250a46163d690e00000000000000000000000000000000000000000007000000\
    000000005fcea06774f782bf00e4b1ee240a06000100000000000000080000e48141a2602962f62a0dfcd6cc00e4\
    b1ee240aa61cd5e96874440dffdc0900208f75275130040000000000000001000000000000000000000000000000\
    00000000000000000000000000000000000000000000000001000000000000000100000000000000010000000000\
    0000000000000000000093d9b2a6";

/// Leases and stamps are restored, permits without a lease are not, and each key is as warm as it was.
#[test]
fn keys_that_warm_up_are_as_warm_as_before() {
    let warm_up = WarmUp { start: 2, over: Duration::from_hours(2), steps: 2 };
    let warm = |policy: Result<Policy, PolicyError>| policy.unwrap().with_warm_up(warm_up).unwrap();
    let permits = warm(Policy::concurrency(10));
    let queue = warm(Policy::leaky_queue("10/h", 9));
    let lists = [warm(Ok(leased())), warm(Policy::sliding_window_log("10/2h"))];
    // A microsecond before the leases end.
    let almost = Duration::from_micros(3_599_999_999);
    let (builder_at_first, clock) = builder(100);
    let store = builder_at_first.build();
    let policies = || lists.iter().chain([&permits, &queue]);
    for policy in policies() {
        assert!(check(&store, "key", policy, 2).is_allowed());
    }
    clock.advance(almost);
    let mut bytes = Vec::new();
    assert_eq!(store.write_snapshot(&mut bytes).unwrap().counters, 6);
    let (builder, clock) = builder(100);
    clock.advance(almost);
    let store = builder.restore(&mut bytes.as_slice()).unwrap();
    let left = |policy| check(&store, "key", policy, 0).remaining().unwrap();
    assert_eq!(lists.each_ref().map(&left), [0, 0]);
    assert_eq!(left(&permits), 2, "permits end with their process");
    clock.advance(Duration::from_micros(1));
    assert_eq!(lists.each_ref().map(&left), [6, 4], "the second step, and the leases have ended");
    assert_eq!((left(&permits), left(&queue)), (6, 6));
}

/// In a store with room for few, a counter that has no permit in flight goes first.
#[test]
fn permits_in_flight_of_a_key_that_warms_up_are_forgotten_last() {
    let warm_up = WarmUp { start: 50, over: Duration::from_hours(1), steps: 1 };
    let permits = Policy::concurrency(100).unwrap().with_warm_up(warm_up).unwrap();
    let (builder, clock) = builder(64);
    let store = builder.build_with(CounterHash::from_seeds([1, 2]));
    // By now three of a hundred, while half of the permits of a new key cannot be had.
    for _ in 0..3 {
        assert!(check(&store, "held", &permits, 1).is_allowed());
        clock.advance(Duration::from_mins(30));
    }
    for key in 0..10_000 {
        let key = format!("flood {key}");
        assert!(check(&store, &key, &permits, 50).is_allowed());
        assert_eq!(store.refund_now(key.as_bytes(), &permits, 0, 50), 50);
    }
    assert!(store.stats().forced_evictions > 0);
    assert_eq!(check(&store, "held", &permits, 0).remaining(), Some(97));
}

#[test]
fn of_more_counters_than_there_is_room_for_those_nearest_to_fresh_are_forgotten() {
    let store = store(4_000);
    let (long, wide) = (bucket(), strict());
    for key in 0..2_000 {
        check(&store, &key.to_string(), &long, 1);
    }
    for key in 0..400 {
        check(&store, &format!("spent:{key}"), &long, 10);
    }
    for key in 0..500 {
        check(&store, &key.to_string(), &wide, 1);
    }
    let mut bytes = Vec::new();
    let written = store.write_snapshot(&mut bytes).unwrap().counters;

    let new = restore(500, &bytes).unwrap();
    let stats = new.stats();
    let accounted = stats.live_keys as u64 + stats.forced_evictions;
    assert!((written..=written + copies(&bytes, 2_000)).contains(&accounted), "{accounted}");
    let spent = |key| check(&new, &format!("spent:{key}"), &long, 0).remaining().unwrap() == 0;
    let kept = (0..400).filter(|key| spent(*key)).count();
    assert!(kept >= 395, "{kept} of 400");
    // As an insertion would: none is ever unlimited, whether it was kept or not.
    let admitted = (0..100).filter(|_| check(&new, "1", &long, 1).is_allowed()).count();
    assert!(admitted == 9 || admitted == 10);
}

/// How many counters go in under a second name, which nobody has.
fn copies(bytes: &[u8], line_count: usize) -> u64 {
    let snapshot = Snapshot::read(&mut &*bytes, u64::MAX - 1).unwrap();
    let names =
        |entry: format::WordEntry| names_of_tag(entry.tag, entry.line, line_count).count() as u64;
    snapshot.words().map(|entry| names(entry) - 1).sum()
}

#[test]
fn a_very_small_store_is_restored_to_its_own_size_only() {
    let store = store(510);
    check(&store, "a", &bucket(), 3);
    let mut bytes = Vec::new();
    store.write_snapshot(&mut bytes).unwrap();
    let error = restore(511, &bytes).map(|_| ()).and(restore(513, &bytes)).unwrap_err();
    assert!(matches!(error, SnapshotError::OtherSize { keys_max: 510 }), "{error}");
    assert_eq!(check(&restore(510, &bytes).unwrap(), "a", &bucket(), 0).remaining().unwrap(), 7);
}

/// Does something while the snapshot is being written.
struct InterruptedWriter<F> {
    bytes: Vec<u8>,
    act: Option<F>,
}

impl<F: FnOnce()> Write for InterruptedWriter<F> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if let Some(act) = self.act.take() {
            act();
        }
        self.bytes.extend(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn counters_that_move_while_a_snapshot_is_taken_are_in_it_once() {
    let word = Policy::fixed_window("100/s").unwrap();
    let wide = Policy::fixed_window("1000000000/s").unwrap();
    let store = store(50_000);
    // Enough that the first piece is written when half of the table is still to be read.
    for key in 0..6_000 {
        check(&store, &format!("filler:{key}"), &word, 1);
    }
    for key in 0..50 {
        check(&store, &format!("grows:{key}"), &word, 1);
        check(&store, &format!("shrinks:{key}"), &wide, 1);
    }
    let act = || {
        for key in 0..50 {
            check(&store, &format!("grows:{key}"), &wide, 1);
            check(&store, &format!("shrinks:{key}"), &word, 1);
        }
    };
    let mut to = InterruptedWriter { bytes: Vec::new(), act: Some(act) };
    store.write_snapshot(&mut to).unwrap();
    let bytes = to.bytes;
    for max_keys in [50_000, 70_000] {
        let new = restore(max_keys, &bytes).unwrap();
        assert_eq!(new.stats().forced_evictions, 0);
        for key in 0..50 {
            for key in [format!("grows:{key}"), format!("shrinks:{key}")] {
                // Both charges: wide counters are read after the table, and none left them.
                assert_eq!(check(&new, &key, &word, 0).remaining().unwrap(), 98, "{key}");
                assert_eq!(
                    check(&new, &key, &wide, 1).remaining().unwrap(),
                    wide.limit() - 3,
                    "{key}"
                );
                assert_eq!(check(&new, &key, &word, 0).remaining().unwrap(), 97, "{key}");
            }
        }
    }
    // Once it is over, they move again.
    assert_eq!(store.snapshots_running.load(Ordering::Relaxed), 0);
    let live_wide = || store.wide.live_count(START_US);
    let before = live_wide();
    check(&store, "shrinks:1", &word, 1);
    assert_eq!(live_wide(), before - 1);
}

#[test]
fn a_failed_writer_is_told_and_ends_the_snapshot() {
    let store = store(4);
    check(&store, "a", &bucket(), 1);
    let mut no_room = [0; 20];
    let error = store.write_snapshot(&mut no_room.as_mut_slice()).unwrap_err();
    assert!(matches!(error, SnapshotError::Io { action: "write the snapshot", .. }));
    assert_eq!(store.snapshots_running.load(Ordering::Relaxed), 0);
}

/// A directory of this test's own, removed with what is in it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollbar-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
    let directory = Directory::new("replaced");
    let path = directory.0.join("counters");
    let missing = builder(4).0.restore_from_file(&path).unwrap_err();
    assert!(matches!(missing, SnapshotError::Missing { path: named } if named == path));

    let (builder_4, clock) = builder(4);
    let store = builder_4.build();
    for used in 1..=3 {
        check(&store, "a", &bucket(), 1);
        let summary = store.snapshot_to_file(&path).unwrap();
        assert_eq!((summary.counters, summary.taken_at.as_micros()), (1, START_US));
        assert_eq!(summary.bytes, fs::metadata(&path).unwrap().len());
        let new = builder(4).0.restore_from_file(&path).unwrap();
        assert_eq!(check(&new, "a", &bucket(), 0).remaining().unwrap(), 10 - used);
    }
    assert_eq!(directory.names(), ["counters"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // Fresh counters are not written.
    clock.advance(Duration::from_hours(1));
    assert_eq!(store.snapshot_to_file(&path).unwrap().counters, 0);
}

#[test]
fn a_snapshot_that_fails_leaves_the_old_one_as_it_was() {
    let directory = Directory::new("failed");
    let path = directory.0.join("counters");
    fs::write(&path, "old").unwrap();
    let failed: Result<(), _> = file::write_atomically(&path, |to| {
        to.write_all(b"half").unwrap();
        Err(SnapshotError::TooLarge { bytes_max: 1 })
    });
    assert!(matches!(failed, Err(SnapshotError::TooLarge { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(directory.names(), ["counters"]);

    let store = store(4);
    for nowhere in [directory.0.join("absent/counters"), PathBuf::from("/"), PathBuf::new()] {
        assert!(matches!(store.snapshot_to_file(nowhere), Err(SnapshotError::Io { .. })));
    }
    assert!(matches!(builder(4).0.restore_from_file(&directory.0), Err(SnapshotError::Io { .. })));
}
