//! A file of rules that is looked at again and again, and taken whole when it has changed.
//!
//! Looks at the content and not at the file's date: dates are coarse, are kept by some copies, and
//! mean nothing where a link is put in the place of another, which is how Kubernetes changes files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::file::read_bounded;
use crate::{AsyncEngine, Diff, FileError, Finding, RuleFile};

/// Looks at a file of rules and puts them in force when it has changed.
///
/// ```no_run
/// use std::time::Duration;
/// use tollbar_rules::{Engine, RuleFile, RuleWatch};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let path = std::path::Path::new("rules.yaml");
/// let engine = Engine::new(RuleFile::read(path)?.rules);
/// let watching = RuleWatch::new(path).spawn(&engine, Duration::from_secs(1), |news| match news {
///     Ok(reloaded) => println!("{}", reloaded.diff),
///     Err(error) => eprintln!("the rules stay as they were: {error}"),
/// })?;
/// # drop(watching);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RuleWatch {
    path: PathBuf,
    /// What the file held when it was last looked at; `None` before, and where it cannot be read.
    seen: Option<u64>,
    is_unreadable: bool,
}

/// Rules that were put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// What they change.
    pub diff: Diff,
    /// What their writer should know.
    pub warnings: Vec<Finding>,
}

/// A thread that looks at a file. Ends when this is dropped, or when nobody has the engine any more.
#[derive(Debug)]
pub struct WatchGuard {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RuleWatch {
    /// Looks at the file at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: None, is_unreadable: false }
    }

    /// Looks once. `None` where the file is as it was when it was last looked at. A file that
    /// cannot be used leaves the rules as they are, and is told of once.
    pub fn look(&mut self, engine: &AsyncEngine) -> Option<Result<ReloadReport, FileError>> {
        let read = self.read_changed()?;
        Some(read.and_then(|RuleFile { rules, warnings }| match engine.replace(rules) {
            Ok(diff) => Ok(ReloadReport { diff, warnings }),
            Err(source) => {
                Err(FileError::Unsupported { file: self.path.display().to_string(), source })
            }
        }))
    }

    /// What the file says, where that has changed since it was last looked at: for who has conditions
    /// of their own before rules are put in force.
    pub fn read_changed(&mut self) -> Option<Result<RuleFile, FileError>> {
        let file = self.path.display().to_string();
        let bytes = match read_bounded(&self.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let was_unreadable = std::mem::replace(&mut self.is_unreadable, true);
                self.seen = None;
                let source = Arc::new(error);
                return (!was_unreadable).then_some(Err(FileError::Read { file, source }));
            }
        };
        self.is_unreadable = false;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let seen = Some(hasher.finish());
        if std::mem::replace(&mut self.seen, seen) == seen {
            return None;
        }
        Some(RuleFile::parse_bytes(&file, &bytes))
    }

    /// Looks every so often, in a thread of its own, and calls `report` with what it finds: at once
    /// what is there now, then every change. Holds no engine alive. If `report` panics, the thread goes on, and the
    /// next look reads the file again.
    pub fn spawn(
        mut self,
        engine: impl Into<Arc<AsyncEngine>>,
        every: Duration,
        mut report: impl FnMut(Result<ReloadReport, FileError>) + Send + 'static,
    ) -> std::io::Result<WatchGuard> {
        let engine: Weak<AsyncEngine> = Arc::downgrade(&engine.into());
        let (stop, stopped) = mpsc::channel();
        let look = move || {
            while let Some(engine) = engine.upgrade() {
                // A look that panics, or a report that does, is over. The next one is made all the same: without it
                // no change of the file would ever be noticed again.
                let looked = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(news) = self.look(&engine) {
                        report(news);
                    }
                }));
                if looked.is_err() {
                    self.seen = None;
                }
                drop(engine);
                // Waits for the end, and takes its absence for the next turn.
                if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("tollbar-rules".to_owned()).spawn(look)?;
        Ok(WatchGuard { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        // Hanging up ends the thread's wait.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            #[expect(
                clippy::let_underscore_must_use,
                reason = "a panic was printed when it happened"
            )]
            let _ = thread.join();
        }
    }
}
