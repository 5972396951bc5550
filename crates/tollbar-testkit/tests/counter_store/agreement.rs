//! `CounterStore` and the oracle give the same answers, to the last number.

use tollbar_testkit::memory_backend::CounterSubject;

tollbar_testkit::agreement!(
    CounterSubject::boxed,
    96,
    agrees_with_the_oracle,
    agrees_when_parts_are_reserved,
    agrees_when_rules_change,
    agrees_on_batches,
    agrees_on_batches_when_rules_change,
    agrees_on_reservations,
);

// A counter that was fresh and forgotten is not there when the clock goes back.
tollbar_testkit::agreement!(
    CounterSubject::boxed_forgetting_nothing,
    96,
    agrees_when_the_clock_goes_back,
    agrees_when_rules_change_and_the_clock_goes_back,
    agrees_on_reservations_when_the_clock_goes_back,
);

// More of them: few overdrafts meet a cut that has begun to shrink.
tollbar_testkit::agreement!(
    CounterSubject::boxed_forgetting_nothing,
    1_000,
    agrees_on_loans_when_the_clock_goes_back,
);

tollbar_testkit::agreement!(
    CounterSubject::boxed,
    1_000,
    agrees_on_loans,
    agrees_on_loans_when_rules_change,
);
