//! What is enforced: the rules of the file and those of the database, put together here and nowhere
//! else, whichever of them changes.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tollbar::Timestamp;
use tollbar_rules::{AsyncEngine, Diff, Rule, RuleError, RuleSet, RuleSetError, RuleWarning};
use tracing::{error, info, warn};

use crate::database::sync::contents::{DatabaseContents, KnownRevision, RowChanges, SkippedRow};
use crate::database::sync::merge::{
    BuiltRules, UnsupportedRules, VoidReplaces, merge, merge_changes,
};
use crate::database::{RepositoryError, Revisions};
use tollbar_daemon::health::{Health, HealthPart};

/// The database of rules, as a part of the daemon.
pub const DATABASE: HealthPart = HealthPart {
    name: "database",
    degraded: "the database does not answer: the rules stay as they are",
    recovered: "the database answers again",
};

/// The file that keeps the rules of the database, as a part of the daemon.
pub const RULES_CACHE: HealthPart = HealthPart {
    name: "rules_cache",
    degraded: "cannot keep the rules for a start without the database",
    recovered: "the rules are kept for a start without the database again",
};

/// The most rows that are logged at once; the status has all.
const LOGGED_MAX: usize = 20;

/// The rules in force, and where they came from.
pub struct LiveRules {
    engine: Arc<AsyncEngine>,
    sources: Mutex<RuleSources>,
    status: ArcSwap<LiveStatus>,
    /// Why nothing is limited, where that is so.
    idle: ArcSwap<Option<String>>,
    enforced: watch::Sender<Revisions>,
    /// Why the rules are not kept for a start without the database, where they are not.
    cache_error: Mutex<Option<Arc<str>>>,
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
    /// How many nodes share the limits: those that follow the database, as far as is known, and those that have gone
    /// not long ago.
    node_count: u64,
    /// How many follow it, and since when, where that is fewer.
    fewer_nodes: Option<(u64, Timestamp)>,
}

/// How following goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveStatus {
    /// Why the database does not answer, where it does not.
    pub away: Option<Arc<str>>,
    /// Rows that are not enforced.
    pub skipped: Arc<[SkippedRow]>,
    /// Rules that replace a rule which is not in force.
    pub void_replaces: Arc<[VoidReplaces]>,
}

impl LiveStatus {
    /// Why the rule of that id is not enforced; `None` where it is.
    #[must_use]
    pub fn why_not_in_force(&self, id: &str) -> Option<&str> {
        let is_it = |row: &&SkippedRow| row.what == "rule" && row.id == id;
        self.skipped.iter().find(is_it).map(|row| &*row.why)
    }

    /// What the rule of that id replaces in vain, as warnings.
    pub(crate) fn void_replaces(&self, id: &str) -> impl Iterator<Item = RuleWarning> {
        let of_rule = self.void_replaces.iter().filter(move |void| void.id == id);
        of_rule.map(|void| RuleWarning::new("replaces", void.to_string()))
    }

    /// What is wrong, in a sentence; `None` where nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<Arc<str>> {
        if self.away.is_some() {
            return self.away.clone();
        }
        let first = self.skipped.first()?;
        let SkippedRow { what, name, why, .. } = first;
        let more = match self.skipped.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!("{what} `{name}` of the database is not in force: {why}{more}").into())
    }
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
            node_count: 1,
            fewer_nodes: None,
        };
        let (enforced, _) = watch::channel(Revisions::default());
        let (status, idle) = (ArcSwap::default(), ArcSwap::default());
        let (sources, cache_error) = (Mutex::new(sources), Mutex::default());
        Self { engine, sources, status, idle, enforced, cache_error }
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
        #[expect(
            clippy::let_underscore_must_use,
            reason = "it fails only when the daemon stops, and then nobody waits"
        )]
        let _ = self.enforced.subscribe().wait_for(|enforced| enforced.rules >= rules).await;
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
        self.log_warnings(merged, &diff, contents);
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
        let status = self.status.load();
        let fits = status.skipped.is_empty() && status.void_replaces.is_empty();
        let sources = self.sources();
        sources.contents.known_revision().filter(|_| fits && sources.is_of_database)
    }

    /// Merges all sources and puts the rules in force. The caller holds the sources, so that no two changes
    /// overtake each other.
    fn merge_and_enforce(&self, sources: &mut RuleSources) -> Diff {
        let mut unsupported = UnsupportedRules::new();
        let before = self.status.load_full();
        loop {
            let RuleSources { file, contents, built, merged, node_count, is_of_database, .. } =
                sources;
            let found = merge(file, contents, built, &unsupported);
            let rules = found.rules.with_node_count((*node_count).max(file.node_count()));
            let diff = match self.engine.replace(rules.clone()) {
                Ok(diff) => diff,
                // Once more without what the store cannot count. The file's rules were checked before.
                Err(error) if add_unsupported(&rules, &error, &mut unsupported) => continue,
                Err(error) => {
                    error!(%error, "the rules stay as they were");
                    Diff::between(&rules, &rules)
                }
            };
            *merged = self.engine.rules();
            let is_new = |row: &&SkippedRow| !before.skipped.contains(row);
            for SkippedRow { what, id, name, why } in
                found.skipped.iter().filter(is_new).take(LOGGED_MAX)
            {
                error!(what, %id, %name, %why, "a row of the database is not enforced");
            }
            let is_new = |void: &&VoidReplaces| !before.void_replaces.contains(void);
            for void in found.void_replaces.iter().filter(is_new).take(LOGGED_MAX) {
                warn!(rule = %void.name, field = "replaces", warning = %void, "a rule of the database");
            }
            self.status.store(Arc::new(LiveStatus {
                skipped: found.skipped.into(),
                void_replaces: found.void_replaces.into(),
                ..(*before).clone()
            }));
            // Warnings about the file alone are logged by its reader.
            if *is_of_database || !contents.rules.is_empty() {
                self.log_warnings(merged, &diff, contents);
            }
            return diff;
        }
    }

    /// Puts another number of nodes in force: each has its share of a limit while the store is away, and of limits that
    /// are counted by nodes. A smaller number is put in force when what those have admitted that are gone is forgotten.
    pub(crate) fn put_node_count(&self, node_count: u64, now: Timestamp) {
        let mut sources = self.sources();
        if node_count < sources.node_count {
            let since = match sources.fewer_nodes {
                Some((count, since)) if count == node_count => since,
                _ => now,
            };
            sources.fewer_nodes = Some((node_count, since));
            let elapsed_us = now.as_micros().saturating_sub(since.as_micros());
            if Duration::from_micros(elapsed_us) < sources.merged.node_memory() {
                return;
            }
        }
        sources.fewer_nodes = None;
        if sources.node_count != node_count {
            sources.node_count = node_count;
            self.merge_and_enforce(&mut sources);
            info!(nodes = self.engine.rules().node_count(), "nodes that share the limits");
        }
    }

    /// Logs what rules of the database that are new or changed say and probably do not mean, and when
    /// nothing is limited any more.
    fn log_warnings(&self, rules: &RuleSet, diff: &Diff, contents: &DatabaseContents) {
        let changed: HashSet<&str> = diff
            .added
            .iter()
            .map(|name| &**name)
            .chain(diff.changed.iter().map(|change| &*change.rule))
            .collect();
        if !changed.is_empty() {
            let of_database: HashSet<&str> =
                contents.rules.iter().map(|row| &*row.rule.name).collect();
            let is_news = |rule: &&Arc<Rule>| {
                changed.contains(&*rule.name) && of_database.contains(&*rule.name)
            };
            let news = rules.rules().iter().filter(is_news);
            let warnings =
                news.flat_map(|rule| rule.warnings().into_iter().map(move |found| (rule, found)));
            for (rule, RuleWarning { field, message, .. }) in warnings.take(LOGGED_MAX) {
                warn!(rule = %rule.name, field, warning = message, "a rule of the database");
            }
        }
        let idle = rules.idle_reason();
        let before = self.idle.swap(Arc::new(idle.clone()));
        if let Some(reason) = idle.filter(|reason| before.as_ref().as_ref() != Some(reason)) {
            warn!("{reason}");
        }
    }

    /// True where what is in force is what the database said to this process.
    pub(crate) fn is_of_database(&self) -> bool {
        self.sources().is_of_database
    }

    pub(crate) fn set_token_revision(&self, tokens: u64) {
        Arc::make_mut(&mut self.sources().contents).revisions.tokens = tokens;
        self.enforced.send_modify(|enforced| enforced.tokens = tokens);
    }

    pub(crate) fn mark_reachable(&self) {
        let before = self.status.load_full();
        if before.away.is_some() {
            self.status.store(Arc::new(LiveStatus { away: None, ..(*before).clone() }));
        }
    }

    pub(crate) fn mark_unreachable(&self, error: &RepositoryError) {
        let before = self.status.load_full();
        let away = Some(error.to_string().into());
        if before.away != away {
            self.status.store(Arc::new(LiveStatus { away, ..(*before).clone() }));
        }
    }

    /// Returns the health of the database; `None` until it has answered or failed once.
    #[must_use]
    pub fn health(&self) -> Option<Health> {
        let status = self.status.load();
        let is_there = self.sources().is_of_database || status.away.is_some();
        is_there.then(|| match status.problem() {
            None => Health::Ok,
            Some(why) => Health::Degraded { why },
        })
    }

    /// Returns whether the rules are kept for a start without the database.
    #[must_use]
    pub fn cache_health(&self) -> Health {
        let error = self.cache_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        error.map_or(Health::Ok, |why| Health::Degraded { why })
    }

    pub(crate) fn set_cache_error(&self, error: Option<Arc<str>>) {
        *self.cache_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn sources(&self) -> MutexGuard<'_, RuleSources> {
        // Parts are changed one by one and put together again by the next who comes.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the rules that the store cannot count, by their ids. Returns false if all were known.
fn add_unsupported(
    rules: &RuleSet,
    error: &RuleSetError,
    unsupported: &mut UnsupportedRules,
) -> bool {
    let known = unsupported.len();
    for RuleError { rule, field, problem, .. } in &error.errors {
        let id = rules.rules()[*rule].identity();
        unsupported.entry(id.to_string()).or_insert_with(|| format!("{field}: {problem}"));
    }
    unsupported.len() > known
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

    fn live(text: &str) -> LiveRules {
        let rules = RuleFile::parse("rules.yaml", text).unwrap().rules;
        let store = Arc::new(tollbar::MemoryStore::builder().max_keys(10).build());
        LiveRules::new(Arc::new(AsyncEngine::new(rules, store).unwrap()))
    }

    #[test]
    fn rules_that_the_store_cannot_count_are_left_out_and_told_of() {
        let text = "rules: [{ name: a, limit: 1/h }, { name: b, limit: [1/s, 5/h] }]";
        let rules = RuleFile::parse("rules.yaml", text).unwrap().rules;
        let store = CounterStore::new(MemoryBackend::new(ManualClock::default(), 1), [1; 32]);
        let error = rules.check_support(&store).unwrap_err();
        let mut unsupported = UnsupportedRules::new();
        assert!(add_unsupported(&rules, &error, &mut unsupported));
        assert_eq!(unsupported.len(), 1);
        let why = &unsupported["b"];
        assert!(why.starts_with("limit: this store cannot charge several counters"), "{why}");
        assert!(
            !add_unsupported(&rules, &error, &mut unsupported),
            "there is nothing to try again"
        );
    }

    /// What a node has admitted weighs on the limit after it is gone: were its part given to the others at once, all
    /// together would exceed it.
    #[test]
    fn parts_grow_when_what_a_node_that_is_gone_has_admitted_is_forgotten() {
        let text = "rules: [{ name: a, limit: 12/min, algorithm: fixed_window, accuracy: local }]";
        let live = live(text);
        let at = |seconds: u64, node_count: u64| {
            live.put_node_count(node_count, Timestamp::from_micros(seconds * 1_000_000));
            live.engine.rules().node_count()
        };
        assert_eq!([at(0, 3), at(10, 2), at(69, 2), at(70, 2)], [3, 3, 3, 2]);
        assert_eq!([at(80, 4), at(81, 3), at(100, 2), at(141, 2), at(160, 2)], [4, 4, 4, 4, 2]);
        assert_eq!([at(170, 1), at(200, 2), at(230, 1), at(289, 1), at(290, 1)], [2, 2, 2, 2, 1]);
    }

    /// Each of three nodes took the whole limit while the store was away, unless a file said how many they are.
    #[test]
    fn as_many_nodes_share_the_limits_as_follow_the_database_or_as_the_file_says() {
        let unsaid = live("rules: []");
        unsaid.put_node_count(3, Timestamp::ZERO);
        assert_eq!(unsaid.engine.rules().node_count(), 3);
        unsaid.put_contents(Arc::default());
        assert_eq!(unsaid.engine.rules().node_count(), 3, "new rules keep it");
        unsaid.put_node_count(1, Timestamp::ZERO);
        assert_eq!(unsaid.engine.rules().node_count(), 1);
        let said = live("{ nodes: 4, rules: [] }");
        for (found, shared_by) in [(2, 4), (9, 9)] {
            said.put_node_count(found, Timestamp::ZERO);
            assert_eq!(said.engine.rules().node_count(), shared_by);
        }
    }
}
