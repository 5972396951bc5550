//! `CounterStore` and the oracle give the same answers, to the last number.

use tollbar_testkit::memory_backend::CounterSubject;

tollbar_testkit::agreement!(CounterSubject::boxed, 96);
