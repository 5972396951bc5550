//! Rules that change while traffic flows: nothing is lost, nothing minted, nothing half.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use tollbar::counter::CounterStore;
use tollbar::{Clock, ManualClock, Timestamp};
use tollbar_rules::{AsyncEngine, Engine, Request, RuleFile, RuleSet, RuleWatch};
use tollbar_testkit::memory_backend::MemoryBackend;

fn rules(text: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}")).rules
}

fn engine(rules: RuleSet) -> Engine {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    Engine::builder(rules).clock(clock).build()
}

/// Long enough for any machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file of its own for each test, gone at the end.
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn new(name: &str) -> Self {
        let name = format!("tollbar-rules-{}-{name}.yaml", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_changed_file_is_taken_whole_and_a_bad_one_not_at_all() {
    let file = ScratchFile::new("look");
    let engine = engine(RuleSet::empty());
    let mut watch = RuleWatch::new(&file.0);
    let error = watch.look(&engine).unwrap().unwrap_err().to_string();
    assert!(error.starts_with("cannot read "), "{error}");
    assert!(watch.look(&engine).is_none(), "it is told once");

    file.write("rules: [{ name: a, limit: 1/h }]");
    assert_eq!(watch.look(&engine).unwrap().unwrap().diff.to_string(), "+ a\n0 unchanged");
    assert!(watch.look(&engine).is_none(), "nothing has changed");

    // The same length, and for all a coarse clock knows the same time.
    file.write("rules: [{ name: b, limit: 1/h }]");
    assert_eq!(watch.look(&engine).unwrap().unwrap().diff.to_string(), "+ b\n- a\n0 unchanged");

    file.write("rules: [{ name: b, limit: 2/h }, { name: c, limit: 0/h }]");
    let error = watch.look(&engine).unwrap().unwrap_err().to_string();
    let place = format!("{}:1:52: rules[1].limit: the limit is 0", file.0.display());
    assert!(error.starts_with(&place), "{error}");
    assert_eq!(engine.rules().rules()[0].limits[0].text(), "1/h", "the good half is not taken");
    assert!(watch.look(&engine).is_none(), "it is told once");

    file.write("rules: [{ name: b, limit: 1/h }, { name: c, limit: 9/h }]");
    assert_eq!(watch.look(&engine).unwrap().unwrap().diff.to_string(), "+ c\n1 unchanged");
}

/// A store that swaps one key at a time cannot charge two limits of a rule together.
#[test]
fn rules_that_the_store_cannot_count_leave_those_before_them_in_force() {
    let file = ScratchFile::new("unsupported");
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let store = CounterStore::new(MemoryBackend::new(clock.clone(), 1), [1; 32]);
    let before = rules("rules: [{ name: a, limit: 1/h }]");
    let engine = AsyncEngine::builder(before, Arc::new(store)).clock(clock).build().unwrap();
    let mut watch = RuleWatch::new(&file.0);
    file.write("rules: [{ name: a, limit: 2/h }, { name: b, limit: [1/s, 5/h] }]");
    let error = watch.look(&engine).unwrap().unwrap_err().to_string();
    let place = format!("{}: 1 of the rules cannot be used: ", file.0.display());
    assert!(error.starts_with(&place), "{error}");
    let why = "`limit` of rule `b`: this store cannot charge several counters all or none: use one";
    assert!(error.contains(why), "{error}");
    assert_eq!(engine.rules().rules()[0].limits[0].text(), "1/h", "the good half is not taken");
    file.write("rules: [{ name: a, limit: 2/h }, { name: b, limit: 5/h }]");
    watch.look(&engine).unwrap().unwrap();
    assert_eq!(engine.rules().len(), 2);
}

#[test]
fn a_thread_looks_by_itself_until_it_is_told_to_stop() {
    let file = ScratchFile::new("spawn");
    file.write("rules: [{ name: a, limit: 1/h }]");
    let engine = engine(RuleSet::empty());
    let (news, heard) = std::sync::mpsc::channel();
    let every = Duration::from_millis(1);
    let watching = RuleWatch::new(&file.0)
        .spawn(&engine, every, move |reload| {
            // Nobody listens any more once the test is over.
            let _ = news.send(reload.map(|report| report.diff.to_string()));
        })
        .unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap().unwrap(), "+ a\n0 unchanged");
    let next = ScratchFile::new("spawn-next");
    next.write("rules: [{ name: b, limit: 1/h }]");
    fs::rename(&next.0, &file.0).unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap().unwrap(), "+ b\n- a\n0 unchanged");
    drop(watching);
    let end = heard.recv_timeout(PATIENCE);
    assert!(matches!(end, Err(RecvTimeoutError::Disconnected)), "the thread has ended and hung up");
}

/// A thousand tokens, four threads that want more, and rules that change under them all the while
/// in everything but the counter's identity: a thousand pass, not one more and not one less.
#[test]
fn a_reload_under_load_loses_no_charge_and_mints_none() {
    const TOKENS: u64 = 1_000;
    let version = |n: usize| {
        rules(&format!(
            "rules:
             - {{ name: counted, per: [], limit: {TOKENS}/h, algorithm: fixed_window, priority: {} }}
             - {{ name: other{}, match: {{ path: '/x{}/**' }}, limit: 5/s }}",
            n % 5,
            n % 3,
            n % 7,
        ))
    };
    let engine = engine(version(0));
    let is_done = AtomicBool::new(false);
    let allowed = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let request = Request::new("GET", "/x1/a").unwrap();
                    for _ in 0..TOKENS {
                        let verdict = engine.check(&request);
                        allowed.fetch_add(u64::from(verdict.is_allowed()), Ordering::Relaxed);
                        // Both rules of one version, or one of another: never a mixture.
                        assert!(verdict.decisions().count() <= 2);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut n = 0;
            while !is_done.load(Ordering::Relaxed) {
                n += 1;
                engine.replace(version(n));
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let peek = Request::new("GET", "/").unwrap().with_cost(0);
    let left = engine.check(&peek).binding().unwrap().decision().remaining().unwrap();
    assert_eq!(allowed.into_inner() + left, TOKENS);
}

/// Two rules that always come together: a check that saw one version's first and another's second
/// would see them differ.
#[test]
fn no_check_sees_half_of_two_versions() {
    let version = |limit: u64| {
        rules(&format!(
            "rules:
             - {{ name: one, per: [], limit: {limit}/h }}
             - {{ name: two, per: [], limit: {limit}/h }}"
        ))
    };
    let engine = engine(version(1_000_000));
    thread::scope(|scope| {
        let checker = scope.spawn(|| {
            let request = Request::new("GET", "/").unwrap().with_cost(0);
            for _ in 0..5_000 {
                let verdict = engine.check(&request);
                // What was decided, and what the verdict says was in force.
                let limits = verdict.decisions().flat_map(|decision| {
                    [decision.decision().limit(), decision.limit().policy().limit()]
                });
                let limits: Vec<u64> = limits.collect();
                assert!(
                    limits.len() == 4 && limits.iter().all(|limit| *limit == limits[0]),
                    "{limits:?}"
                );
            }
        });
        for limit in 1..500 {
            engine.replace(version(limit));
        }
        checker.join().unwrap();
    });
}

/// A clock that changes the rules whenever somebody looks at it.
#[derive(Debug, Default)]
struct MeddlingClock {
    engine: OnceLock<Weak<AsyncEngine>>,
    version: AtomicU64,
}

/// Two rules of one limit. Whether the exemption has ended, the clock is asked between the choice of the rules and
/// the question to the store.
fn version(limit: u64) -> RuleSet {
    let rule = |name: &str| {
        let exempt = "exempt: [{ user: former, until: 2001-01-01 }]";
        format!("- {{ name: {name}, per: [], limit: {limit}/h, {exempt} }}")
    };
    rules(&format!("rules:\n{}\n{}", rule("one"), rule("two")))
}

impl Clock for MeddlingClock {
    fn now(&self) -> Timestamp {
        if let Some(engine) = self.engine.get().and_then(Weak::upgrade) {
            let limit = 1_000 + self.version.fetch_add(1, Ordering::SeqCst);
            engine.replace(version(limit)).unwrap();
        }
        Timestamp::from_micros(1_700_000_000_000_000)
    }
}

/// The same without chance: a change in the middle of every check.
#[test]
fn a_change_in_the_middle_of_a_check_is_for_the_next_one() {
    let clock = Arc::new(MeddlingClock::default());
    let engine = Engine::builder(version(999)).clock(Arc::clone(&clock)).build();
    clock.engine.set(Arc::downgrade(&(&engine).into())).unwrap();
    let attributes = [("user", "former")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    for round in 0..9 {
        let before = clock.version.load(Ordering::SeqCst);
        let in_force = engine.rules().get("one").unwrap().limits[0].policy().limit();
        let verdict = match round % 3 {
            0 => engine.check(&request),
            1 => engine.admit(&request, None).verdict,
            _ => engine.admit(&request, Some(Duration::from_secs(1))).verdict,
        };
        assert!(clock.version.load(Ordering::SeqCst) > before, "the rules have changed meanwhile");
        let limits = verdict
            .decisions()
            .flat_map(|decision| [decision.decision().limit(), decision.limit().policy().limit()]);
        assert_eq!(limits.collect::<Vec<_>>(), [in_force; 4], "in round {round}");
    }
}

#[test]
fn who_was_limited_is_remembered_over_a_change() {
    let engine = engine(rules("rules: [{ name: a, limit: 1/h }]"));
    let attributes = [("user", "7")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    for _ in 0..3 {
        let _ = engine.check(&request);
    }
    engine.replace(rules("rules: [{ name: a, limit: 1/h, mode: enforce, priority: 3 }]"));
    let top = engine.rule("a").unwrap().top_denied(10);
    assert_eq!(top.len(), 1);
    assert_eq!((top[0].subject.as_str(), top[0].count, top[0].error), ("user:7", 2, 0));
    assert!(engine.rule("b").is_err());
}
