//! Several at once: all or nothing, one after the other, whoever comes first.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use tollbar_admin::database::{
    AuditFilter, BatchOutcome, PageRequest, Repository, RepositoryError, UsageFilter,
};

use super::{TestDatabase, small};

pub(crate) async fn of_two_who_change_one_version_one_succeeds(database: TestDatabase) {
    let rule = database.repository.insert_rule(&small("a"), "ada").await.unwrap();
    let others = [database.repository.clone(), database.again().await];
    for (round, version) in (0..20).zip(1_u64..) {
        let change = |repository: Repository, who: usize| {
            let form = small(&format!("a{round}-{who}"));
            tokio::spawn(
                async move { repository.update_rule(rule.id, version, &form, "ada").await },
            )
        };
        let mut tasks = Vec::new();
        for who in 0..6 {
            tasks.push(change(others[who % 2].clone(), who));
        }
        let mut succeeded = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(_) => succeeded += 1,
                Err(RepositoryError::Conflict { expected, found }) => {
                    assert_eq!((expected, found), (version, version + 1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(succeeded, 1);
    }
    let audit =
        database.repository.audit(&AuditFilter::default(), &PageRequest::first(100)).await.unwrap();
    assert_eq!(audit.rows.len(), 21);
}

pub(crate) async fn a_batch_of_usage_sent_by_many_is_added_once(database: TestDatabase) {
    let repositories = [database.repository.clone(), database.again().await];
    let mut tasks = Vec::new();
    for at in 0..24_u64 {
        let repository = repositories[(at % 2) as usize].clone();
        // Nodes meet in the same rows, in different orders.
        let (node, sequence) = (format!("n{}", at % 3), 1);
        tasks.push(tokio::spawn(async move {
            let mut rows: Vec<_> =
                (0..50).map(|number| super::rows::used(1, &format!("s{number}"), 1)).collect();
            if at % 2 == 0 {
                rows.reverse();
            }
            repository.add_usage(&node, sequence, &rows).await.unwrap()
        }));
    }
    let mut added = 0;
    for task in tasks {
        added += usize::from(task.await.unwrap() == BatchOutcome::Added);
    }
    assert_eq!(added, 3);
    let rows =
        database.repository.usage(&UsageFilter::default(), &PageRequest::first(100)).await.unwrap();
    assert!(rows.rows.len() == 50 && rows.rows.iter().all(|row| row.admitted_cost == 3));
}

pub(crate) async fn two_who_open_an_empty_database_both_find_it_made(database: TestDatabase) {
    database.empty();
    let open = || {
        let location = database.location.clone();
        tokio::spawn(async move { Repository::open(&location).await })
    };
    for task in [open(), open(), open()] {
        let repository = task.await.unwrap().unwrap();
        assert!(repository.revisions().await.unwrap().rules > 0);
    }
}
