//! Accounts on their way to a real database, over which questions and answers get lost.

use std::path::PathBuf;
use std::sync::Mutex;

use fastrand::Rng;
use tollbar::Timestamp;
use tollbar_rules::{Engine, Request, RuleFile};

use super::*;
use crate::database::{DatabaseLocation, PageRequest, UsageFilter};

/// A database of its own for each test, gone at the end.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> Self {
        let name = format!("tollbar-books-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    async fn open(&self) -> Repository {
        Repository::open(&DatabaseLocation::Sqlite(self.0.join("usage.sqlite"))).await.unwrap()
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A real database behind a way on which questions and answers get lost.
struct LossyTable {
    table: Repository,
    chance: Mutex<Rng>,
}

impl LossyTable {
    fn new(table: &Repository, seed: u64) -> Self {
        Self { table: table.clone(), chance: Mutex::new(Rng::with_seed(seed)) }
    }

    fn lose(&self, what: &str) -> Result<()> {
        let is_lost = self.chance.lock().unwrap().u8(..3) == 0;
        let why = format!("the {what} was lost");
        if is_lost { Err(RepositoryError::Unavailable { why }) } else { Ok(()) }
    }
}

impl UsageTable for LossyTable {
    async fn last(&self, node: &str) -> Result<u64> {
        self.lose("question")?;
        self.table.usage_sequence(node).await
    }

    async fn add(&self, node: &str, number: u64, rows: &[UsageRow]) -> Result<BatchOutcome> {
        self.lose("question")?;
        let applied = self.table.add_usage(node, number, rows).await;
        self.lose("answer")?;
        applied
    }
}

/// Clients who ask a rule.
struct Clients {
    engine: Engine,
    admitted: i64,
}

impl Clients {
    fn new() -> Self {
        let rules = "rules: [{ name: a, limit: 1000000/day }]";
        let engine = Engine::new(RuleFile::parse("rules.yaml", rules).unwrap().rules);
        Self { engine, admitted: 0 }
    }

    fn ask(&mut self, tally: &Tally, user: u64, cost: u64) {
        let user = user.to_string();
        let pairs = [("user", &*user)];
        let request = Request::new("GET", "/").unwrap().with_attributes(&pairs).unwrap();
        let request = request.with_cost(cost);
        let verdict = self.engine.check(&request);
        assert!(verdict.is_allowed());
        verdict.meter(&request, |record| tally.count(Timestamp::from_micros(7), &record));
        self.admitted += cost.cast_signed();
    }
}

async fn written(table: &Repository) -> i64 {
    let page = table.usage(&UsageFilter::default(), &PageRequest::first(1_000)).await.unwrap();
    assert!(page.next.is_none(), "more clients than the test knows");
    page.rows.iter().map(|row| row.admitted_cost).sum()
}

fn keeper<B: UsageTable>(table: B) -> UsageWriter<B> {
    UsageWriter::new(table, "edge-1".to_owned(), Arc::new(Tally::new(1_000)))
}

#[tokio::test]
async fn whatever_is_lost_on_the_way_all_is_written_once() {
    let scratch = ScratchDirectory::new("lossy");
    let table = scratch.open().await;
    let mut clients = Clients::new();
    let mut failures = 0;
    for seed in 0..20 {
        let mut chance = Rng::with_seed(seed);
        let mut keeper = keeper(LossyTable::new(&table, seed));
        for _ in 0..30 {
            for _ in 0..chance.u64(..4) {
                clients.ask(&keeper.tally, chance.u64(..20), 1 + chance.u64(..5));
            }
            failures += u32::from(keeper.flush().await.is_err());
        }
        // It comes to an end at last, and the next daemon of the name begins.
        while keeper.flush().await.is_err() {}
        assert_eq!(written(&table).await, clients.admitted, "seed {seed}");
    }
    assert!(failures > 100, "nothing was lost: {failures}");
}

#[tokio::test]
async fn a_crash_loses_what_was_not_written_and_a_restart_doubles_nothing() {
    let scratch = ScratchDirectory::new("crash");
    let table = scratch.open().await;
    let mut clients = Clients::new();
    // What is sure to be there, and what may be: the last flush of each daemon was not answered.
    let (mut sure, mut perhaps) = (0, 0);
    for seed in 0..50 {
        let mut chance = Rng::with_seed(seed);
        let mut keeper = keeper(LossyTable::new(&table, seed));
        loop {
            let before = clients.admitted;
            clients.ask(&keeper.tally, chance.u64(..20), 1 + chance.u64(..5));
            let counted = clients.admitted - before;
            if keeper.flush().await.is_err() {
                perhaps += counted;
                break;
            }
            sure += counted;
        }
    }
    let written = written(&table).await;
    assert!(
        (sure..=sure + perhaps).contains(&written),
        "{sure} <= {written} <= {sure} + {perhaps}"
    );
    assert!(perhaps > 50, "no daemon crashed");
}

#[tokio::test]
async fn what_a_dead_daemon_has_left_on_the_way_is_not_taken_for_its_successors() {
    let scratch = ScratchDirectory::new("late");
    let table = scratch.open().await;
    let mut clients = Clients::new();
    let mut dead = keeper(table.clone());
    clients.ask(&dead.tally, 1, 10);
    dead.flush().await.unwrap();
    // Its last batch is on the way when it dies, and arrives after its successor has begun.
    clients.ask(&dead.tally, 1, 100);
    let late = dead.tally.take_all();
    let number = dead.last.unwrap() + 1;
    let mut successor = keeper(table.clone());
    clients.ask(&successor.tally, 1, 1_000);
    successor.flush().await.unwrap();
    assert_eq!(table.add_usage("edge-1", number, &late).await.unwrap(), BatchOutcome::AlreadyAdded);
    assert_eq!(written(&table).await, 1_010);
    // Or before: then both count.
    let mut third = keeper(table.clone());
    let number = successor.last.unwrap() + 1;
    assert_eq!(table.add_usage("edge-1", number, &late).await.unwrap(), BatchOutcome::Added);
    clients.ask(&third.tally, 1, 10_000);
    third.flush().await.unwrap();
    assert_eq!(written(&table).await, 11_110);
}

#[tokio::test]
async fn two_daemons_of_one_name_lose_nothing_while_answers_arrive() {
    let scratch = ScratchDirectory::new("namesakes");
    let table = scratch.open().await;
    let mut clients = Clients::new();
    let mut daemons = [keeper(table.clone()), keeper(table.clone())];
    for round in 0..20 {
        let daemon = &mut daemons[round % 2];
        clients.ask(&daemon.tally, round as u64, 1);
        daemon.flush().await.unwrap();
    }
    assert_eq!(written(&table).await, clients.admitted);
}

#[tokio::test]
async fn many_accounts_go_in_several_batches() {
    let scratch = ScratchDirectory::new("batches");
    let table = scratch.open().await;
    let mut clients = Clients::new();
    let tally = Arc::new(Tally::new(100_000));
    let mut keeper = UsageWriter::new(table.clone(), "edge-1".to_owned(), tally);
    for user in 0..=BATCH_ROWS_MAX as u64 {
        clients.ask(&keeper.tally, user, 1);
    }
    keeper.flush().await.unwrap();
    assert_eq!(keeper.last, Some(3), "one to begin, and two batches");
    let mut page = PageRequest::first(1_000);
    let mut sum = 0;
    loop {
        let rows = table.usage(&UsageFilter::default(), &page).await.unwrap();
        sum += rows.rows.iter().map(|row| row.admitted_cost).sum::<i64>();
        match rows.next {
            Some(next) => page = PageRequest::after(next, 1_000),
            None => break,
        }
    }
    assert_eq!(sum, clients.admitted);
}

/// A way on which the first batch is lost, and overtaken by what another daemon had sent.
struct OvertakenTable {
    table: Repository,
    late: Mutex<Option<(u64, Vec<UsageRow>)>>,
}

impl UsageTable for OvertakenTable {
    async fn last(&self, node: &str) -> Result<u64> {
        self.table.usage_sequence(node).await
    }

    async fn add(&self, node: &str, number: u64, rows: &[UsageRow]) -> Result<BatchOutcome> {
        let late = if rows.is_empty() { None } else { self.late.lock().unwrap().take() };
        if let Some((number, rows)) = late {
            let _ = self.table.add_usage(node, number, &rows).await?;
            return Err(RepositoryError::Unavailable { why: "the question was lost".to_owned() });
        }
        self.table.add_usage(node, number, rows).await
    }
}

#[tokio::test]
async fn a_batch_that_was_lost_is_not_taken_for_a_late_one_of_a_dead_daemon() {
    let scratch = ScratchDirectory::new("overtaken");
    let table = scratch.open().await;
    let mut clients = Clients::new();
    let mut dead = keeper(table.clone());
    clients.ask(&dead.tally, 1, 10);
    dead.flush().await.unwrap();
    clients.ask(&dead.tally, 1, 100);
    let late = (dead.last.unwrap() + 1, dead.tally.take_all());
    let way = OvertakenTable { table: table.clone(), late: Mutex::new(Some(late)) };
    let mut successor = keeper(way);
    clients.ask(&successor.tally, 1, 1_000);
    assert!(successor.flush().await.is_err());
    successor.flush().await.unwrap();
    assert_eq!(written(&table).await, 1_010);
}
