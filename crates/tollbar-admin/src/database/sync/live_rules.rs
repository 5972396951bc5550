//! What is enforced: the rules of the file and those of the database, put together here and nowhere
//! else, whichever of them changes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tollbar_rules::{AsyncEngine, Diff, RuleError, RuleSet, RuleSetError};
use tracing::{error, info, warn};

use crate::database::sync::contents::{DatabaseContents, KnownRevision, RowChanges, SkippedRow};
use crate::database::sync::merge::{BuiltRules, MergedRules, merge, merge_changes};
use crate::database::{RepositoryError, Revisions};
use tollbar_daemon::health::{Health, HealthSource};

/// The most rows that are told of in the log at once; the status has all.
const TOLD_MAX: usize = 20;

/// The rules in force, and where they came from.
pub struct LiveRules {
    engine: Arc<AsyncEngine>,
    parts: Mutex<RuleSources>,
    status: ArcSwap<LiveStatus>,
    enforced: watch::Sender<Revisions>,
}

/// What is put together.
struct RuleSources {
    file: Arc<RuleSet>,
    loaded: Arc<DatabaseContents>,
    known: BuiltRules,
    /// What came of it.
    together: RuleSet,
    /// False where it is what the database said before the daemon started.
    is_of_database: bool,
}

/// How following goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveStatus {
    /// Why the database does not answer, where it does not.
    pub away: Option<Arc<str>>,
    /// Rows that are not enforced.
    pub skipped: Arc<[SkippedRow]>,
}

impl LiveRules {
    /// The rules of the engine are the file's; there are no others yet.
    #[must_use]
    pub fn new(engine: Arc<AsyncEngine>) -> Self {
        let file = engine.rules();
        let parts = RuleSources {
            file: Arc::new(file.clone()),
            loaded: Arc::default(),
            known: BuiltRules::new(),
            together: file,
            is_of_database: false,
        };
        let (enforced, _) = watch::channel(Revisions::default());
        Self { engine, parts: Mutex::new(parts), status: ArcSwap::default(), enforced }
    }

    /// The rules of the file, which nobody changes but by the file.
    #[must_use]
    pub fn file_rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.parts().file)
    }

    /// How following goes.
    #[must_use]
    pub fn status(&self) -> Arc<LiveStatus> {
        self.status.load_full()
    }

    /// Tells of revisions once they are enforced here.
    #[must_use]
    pub fn revisions(&self) -> watch::Receiver<Revisions> {
        self.enforced.subscribe()
    }

    /// The revisions that are enforced here.
    #[must_use]
    pub fn enforced_revisions(&self) -> Revisions {
        *self.enforced.borrow()
    }

    /// Returns when this node enforces that revision, or a later one.
    pub async fn enforced(&self, rules: u64) {
        // It lasts as long as `self`, so it cannot end before.
        let _ = self.enforced.subscribe().wait_for(|it| it.rules >= rules).await;
    }

    /// Puts the rules of the file in force, together with the others. The same rules once more are no
    /// new version.
    pub fn put_file(&self, rules: RuleSet) -> Diff {
        let mut parts = self.parts();
        if *parts.file == rules {
            return Diff::between(&parts.file, &rules);
        }
        parts.file = Arc::new(rules);
        self.put_together(&mut parts)
    }

    /// The same with what the database says.
    pub(crate) fn put_from_database(&self, loaded: Arc<DatabaseContents>) -> Diff {
        self.parts().is_of_database = true;
        self.put_loaded(loaded)
    }

    /// The same with what the database said before.
    pub(crate) fn put_loaded(&self, loaded: Arc<DatabaseContents>) -> Diff {
        let revisions = loaded.revisions;
        let mut parts = self.parts();
        parts.loaded = loaded;
        let diff = self.put_together(&mut parts);
        drop(parts);
        self.enforced.send_replace(revisions);
        diff
    }

    /// The same with what has changed there. `None` where the rules do not fit together with it: they
    /// stay as they were until everything is read.
    pub(crate) fn put_changes(&self, changes: RowChanges) -> Option<Diff> {
        let (revisions, mark) = (changes.revisions, changes.mark);
        let mut parts = self.parts();
        let RuleSources { loaded, known, together, .. } = &mut *parts;
        let loaded = Arc::make_mut(loaded);
        let applied = loaded.apply(changes);
        let rules = merge_changes(together, loaded, &applied, known)?;
        let diff = self.engine.replace(rules.clone()).ok()?;
        *together = rules;
        loaded.mark = Some(mark);
        drop(parts);
        self.enforced.send_replace(revisions);
        Some(diff)
    }

    /// What the database said, as far as it is known.
    pub(crate) fn loaded(&self) -> Arc<DatabaseContents> {
        Arc::clone(&self.parts().loaded)
    }

    /// The revision since which changes are enough to know: none where anything is in doubt.
    pub(crate) fn since(&self) -> Option<KnownRevision> {
        let fits = self.status.load().skipped.is_empty();
        let parts = self.parts();
        parts.loaded.since().filter(|_| fits && parts.is_of_database)
    }

    /// Whoever calls this holds the parts, so that no two changes overtake each other.
    fn put_together(&self, parts: &mut RuleSources) -> Diff {
        let RuleSources { file, loaded, known, together, .. } = parts;
        let MergedRules { rules, mut skipped } = merge(file, loaded, known);
        let replaced = self.engine.replace(rules.clone()).or_else(|error| {
            let fewer = without(&rules, error, &mut skipped);
            self.engine.replace(fewer.unwrap_or_else(|| (**file).clone()))
        });
        let diff = replaced.unwrap_or_else(|error| {
            error!(%error, "the rules stay as they were");
            Diff::between(&rules, &rules)
        });
        *together = self.engine.rules();
        let before = self.status.load_full();
        let is_new = |it: &&SkippedRow| !before.skipped.contains(it);
        for SkippedRow { what, id, name, why } in skipped.iter().filter(is_new).take(TOLD_MAX) {
            error!(what, %id, %name, %why, "a row of the database is not enforced");
        }
        self.status.store(Arc::new(LiveStatus { skipped: skipped.into(), ..(*before).clone() }));
        diff
    }

    /// True where what is in force is what the database said to this process.
    pub(crate) fn is_of_database(&self) -> bool {
        self.parts().is_of_database
    }

    pub(crate) fn tokens_changed(&self, tokens: u64) {
        Arc::make_mut(&mut self.parts().loaded).revisions.tokens = tokens;
        self.enforced.send_modify(|it| it.tokens = tokens);
    }

    pub(crate) fn found_well(&self) {
        let before = self.status.load_full();
        if before.away.is_some() {
            info!("the database answers again");
            self.status.store(Arc::new(LiveStatus { away: None, ..(*before).clone() }));
        }
    }

    pub(crate) fn found_away(&self, error: &RepositoryError) {
        let before = self.status.load_full();
        if before.away.is_none() {
            warn!(why = %error, "the database does not answer: the rules stay as they are");
        }
        let away = Some(error.to_string().into());
        if before.away != away {
            self.status.store(Arc::new(LiveStatus { away, ..(*before).clone() }));
        }
    }

    fn parts(&self) -> MutexGuard<'_, RuleSources> {
        // Parts are changed one by one and put together again by the next who comes.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rules without those that the store cannot count, which are told of; `None` if the others do not fit
/// together without them. The file's are checked before they get here.
fn without(rules: &RuleSet, error: RuleSetError, skipped: &mut Vec<SkippedRow>) -> Option<RuleSet> {
    let mut ids = Vec::new();
    for RuleError { rule, name, field, problem, .. } in error.errors {
        let id = rules.rules()[rule].identity().to_string();
        let why = format!("{field}: {problem}");
        skipped.push(SkippedRow { what: "rule", id: id.clone(), name, why });
        ids.push(id);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    rules.changed(&ids, Vec::new()).ok()
}

/// There is no health to report until the database has answered or failed once.
impl HealthSource for LiveRules {
    fn health(&self) -> Option<Health> {
        let status = self.status.load();
        let is_there = self.parts().is_of_database || status.away.is_some();
        is_there.then(|| match &status.away {
            None => Health::Ok,
            Some(why) => Health::Degraded { why: Arc::clone(why) },
        })
    }
}

impl fmt::Debug for LiveRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("enforced", &self.enforced_revisions()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tollbar::{CounterStore, ManualClock};
    use tollbar_rules::RuleFile;
    use tollbar_testkit::memory_backend::MemoryBackend;

    use super::*;

    #[test]
    fn rules_that_the_store_cannot_count_are_left_out_and_told_of() {
        let text = "rules: [{ name: a, limit: 1/h }, { name: b, limit: [1/s, 5/h] }]";
        let rules = RuleFile::parse("rules.yaml", text).unwrap().rules;
        let store = CounterStore::new(MemoryBackend::new(ManualClock::default(), 1), [1; 32]);
        let error = rules.check_support(&store).unwrap_err();
        let mut skipped = Vec::new();
        let fewer = without(&rules, error, &mut skipped).unwrap();
        fewer.check_support(&store).unwrap();
        let names: Vec<&str> = fewer.rules().iter().map(|rule| &*rule.name).collect();
        assert_eq!(names, ["a"]);
        let [SkippedRow { what: "rule", name, why, .. }] = &skipped[..] else {
            panic!("{skipped:?}");
        };
        assert_eq!(name, "b");
        assert!(why.starts_with("limit: this store cannot charge several counters"), "{why}");
    }
}
