//! The in-memory store gives the answers of every committed vector.

use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::{settlements, suite, vector};

fn run(file: &str) {
    let vectors = vector::load(file);
    assert!(!vectors.is_empty());
    for vector in &vectors {
        suite::run_vector(&MemorySubject::boxed, vector);
    }
}

#[test]
fn memory_store_answers_the_token_bucket_vectors() {
    run("token_bucket");
}

#[test]
fn memory_store_answers_the_leaky_bucket_vectors() {
    run("leaky_bucket");
}

#[test]
fn memory_store_answers_the_leaky_queue_vectors() {
    run("leaky_queue");
}

#[test]
fn memory_store_answers_the_fixed_window_vectors() {
    run("fixed_window");
}

#[test]
fn memory_store_answers_the_staggered_window_vectors() {
    run("staggered_window");
}

#[test]
fn memory_store_answers_the_calendar_window_vectors() {
    run("calendar_window");
}

#[test]
fn memory_store_answers_the_sliding_window_counter_vectors() {
    run("sliding_window_counter");
}

#[test]
fn memory_store_answers_the_sliding_window_strict_vectors() {
    run("sliding_window_strict");
}

#[test]
fn memory_store_answers_the_sliding_window_log_vectors() {
    run("sliding_window_log");
}

#[test]
fn memory_store_answers_the_concurrency_vectors() {
    run("concurrency");
}

#[test]
fn memory_store_answers_the_leased_concurrency_vectors() {
    run("leased_concurrency");
}

#[test]
fn memory_store_answers_the_batch_vectors() {
    run("batches");
}

#[test]
fn memory_store_answers_the_rule_change_vectors() {
    run("rule_change");
}

#[test]
fn memory_store_answers_the_warm_up_vectors() {
    run("warm_up");
}

#[test]
fn memory_store_answers_the_settlement_vectors() {
    let vectors = settlements::load();
    assert!(!vectors.is_empty());
    for vector in &vectors {
        settlements::run(&MemorySubject::boxed, vector);
    }
}
