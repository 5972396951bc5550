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

/// The most rows that are logged at once; the status has all.
const LOGGED_MAX: usize = 20;

/// The rules in force, and where they came from.
pub struct LiveRules {
    engine: Arc<AsyncEngine>,
    sources: Mutex<RuleSources>,
    status: ArcSwap<LiveStatus>,
    enforced: watch::Sender<Revisions>,
}

/// What the rules in force are merged from.
struct RuleSources {
    file: Arc<RuleSet>,
    contents: Arc<DatabaseContents>,
    built: BuiltRules,
    /// The rules in force.
    merged: RuleSet,
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
        let sources = RuleSources {
            file: Arc::new(file.clone()),
            contents: Arc::default(),
            built: BuiltRules::new(),
            merged: file,
            is_of_database: false,
        };
        let (enforced, _) = watch::channel(Revisions::default());
        Self { engine, sources: Mutex::new(sources), status: ArcSwap::default(), enforced }
    }

    /// The rules of the file, which nobody changes but by the file.
    #[must_use]
    pub fn file_rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.sources().file)
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

    /// Waits until this node enforces that revision, or a later one.
    pub async fn wait_until_enforced(&self, rules: u64) {
        // It lasts as long as `self`, so it cannot end before.
        let _ = self.enforced.subscribe().wait_for(|it| it.rules >= rules).await;
    }

    /// Puts the rules of the file in force, together with the others. The same rules once more are no
    /// new version.
    pub fn put_file(&self, rules: RuleSet) -> Diff {
        let mut sources = self.sources();
        if *sources.file == rules {
            return Diff::between(&sources.file, &rules);
        }
        sources.file = Arc::new(rules);
        self.merge_and_enforce(&mut sources)
    }

    /// The same with what the database says.
    pub(crate) fn put_from_database(&self, contents: Arc<DatabaseContents>) -> Diff {
        self.sources().is_of_database = true;
        self.put_contents(contents)
    }

    /// The same with what the database said before.
    pub(crate) fn put_contents(&self, contents: Arc<DatabaseContents>) -> Diff {
        let revisions = contents.revisions;
        let mut sources = self.sources();
        sources.contents = contents;
        let diff = self.merge_and_enforce(&mut sources);
        drop(sources);
        self.enforced.send_replace(revisions);
        diff
    }

    /// The same with what has changed there. `None` where the rules do not fit together with it: they
    /// stay as they were until everything is read.
    pub(crate) fn put_changes(&self, changes: RowChanges) -> Option<Diff> {
        let (revisions, mark) = (changes.revisions, changes.mark);
        let mut sources = self.sources();
        let RuleSources { contents, built, merged, .. } = &mut *sources;
        let contents = Arc::make_mut(contents);
        let delta = contents.apply(changes);
        let rules = merge_changes(merged, contents, &delta, built)?;
        let diff = self.engine.replace(rules.clone()).ok()?;
        *merged = rules;
        contents.mark = Some(mark);
        drop(sources);
        self.enforced.send_replace(revisions);
        Some(diff)
    }

    /// What the database said, as far as it is known.
    pub(crate) fn contents(&self) -> Arc<DatabaseContents> {
        Arc::clone(&self.sources().contents)
    }

    /// The revision since which changes are enough to know: none where anything is in doubt.
    pub(crate) fn known_revision(&self) -> Option<KnownRevision> {
        let fits = self.status.load().skipped.is_empty();
        let sources = self.sources();
        sources.contents.known_revision().filter(|_| fits && sources.is_of_database)
    }

    /// Whoever calls this holds the parts, so that no two changes overtake each other.
    fn merge_and_enforce(&self, sources: &mut RuleSources) -> Diff {
        let RuleSources { file, contents, built, merged, .. } = sources;
        let MergedRules { rules, mut skipped } = merge(file, contents, built);
        let replaced = self.engine.replace(rules.clone()).or_else(|error| {
            let fewer = without_unsupported(&rules, error, &mut skipped);
            self.engine.replace(fewer.unwrap_or_else(|| (**file).clone()))
        });
        let diff = replaced.unwrap_or_else(|error| {
            error!(%error, "the rules stay as they were");
            Diff::between(&rules, &rules)
        });
        *merged = self.engine.rules();
        let before = self.status.load_full();
        let is_new = |it: &&SkippedRow| !before.skipped.contains(it);
        for SkippedRow { what, id, name, why } in skipped.iter().filter(is_new).take(LOGGED_MAX) {
            error!(what, %id, %name, %why, "a row of the database is not enforced");
        }
        self.status.store(Arc::new(LiveStatus { skipped: skipped.into(), ..(*before).clone() }));
        diff
    }

    /// True where what is in force is what the database said to this process.
    pub(crate) fn is_of_database(&self) -> bool {
        self.sources().is_of_database
    }

    pub(crate) fn set_token_revision(&self, tokens: u64) {
        Arc::make_mut(&mut self.sources().contents).revisions.tokens = tokens;
        self.enforced.send_modify(|it| it.tokens = tokens);
    }

    pub(crate) fn mark_reachable(&self) {
        let before = self.status.load_full();
        if before.away.is_some() {
            info!("the database answers again");
            self.status.store(Arc::new(LiveStatus { away: None, ..(*before).clone() }));
        }
    }

    pub(crate) fn mark_unreachable(&self, error: &RepositoryError) {
        let before = self.status.load_full();
        if before.away.is_none() {
            warn!(why = %error, "the database does not answer: the rules stay as they are");
        }
        let away = Some(error.to_string().into());
        if before.away != away {
            self.status.store(Arc::new(LiveStatus { away, ..(*before).clone() }));
        }
    }

    fn sources(&self) -> MutexGuard<'_, RuleSources> {
        // Parts are changed one by one and put together again by the next who comes.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rules without those that the store cannot count, which are told of; `None` if the others do not fit
/// together without them. The file's are checked before they get here.
fn without_unsupported(
    rules: &RuleSet,
    error: RuleSetError,
    skipped: &mut Vec<SkippedRow>,
) -> Option<RuleSet> {
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
        let is_there = self.sources().is_of_database || status.away.is_some();
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
        let fewer = without_unsupported(&rules, error, &mut skipped).unwrap();
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
