//! The judge is judged by what no program worked out, and by the whole suite.

use tollbar::Timestamp;

use crate::oracle_store::OracleStore;
use crate::subject::Subject;
use crate::suite;
use crate::suite::by_hand;

fn oracle(now: Timestamp) -> Box<dyn Subject> {
    Box::new(OracleStore::at(now))
}

#[test]
fn the_oracle_agrees_with_every_table_worked_out_by_hand() {
    for (name, case) in by_hand::CASES {
        println!("{name}");
        case(&oracle);
    }
}

#[test]
fn the_oracle_passes_the_suite_it_judges_with() {
    suite::run_all(&oracle);
}
