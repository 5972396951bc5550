//! What limits mean, and what is said of texts that are none.

use super::*;

fn options(counting: AlgorithmKind) -> LimitOptions {
    LimitOptions { counting: Some(counting), ..LimitOptions::default() }
}

#[test]
fn a_limit_means_a_policy() {
    let table = [
        ("10/s", "sliding_window_counter", 10, 1),
        ("450/15min", "sliding_window_counter", 450, 900),
        ("5/10s", "sliding_window_counter", 5, 10),
        ("1000 per day", "sliding_window_counter", 1_000, 86_400),
        ("1_000 / 2 days", "sliding_window_counter", 1_000, 172_800),
        ("10_000 per calendar month", "calendar_window", 10_000, 30 * 86_400),
        ("500/calendar day", "calendar_window", 500, 86_400),
        ("1 per  calendar  week", "calendar_window", 1, 7 * 86_400),
    ];
    for (text, algorithm, limit, window_s) in table {
        let made = Limit::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let policy = made.policy();
        let seen = (policy.algorithm().name(), policy.limit(), policy.window().as_secs());
        assert_eq!(seen, (algorithm, limit, window_s), "{text}");
        assert_eq!(made.text(), text);
    }
    let burst = LimitOptions { burst: Some(50), ..LimitOptions::default() };
    let bucket = Limit::new("10/s", burst).unwrap();
    assert_eq!(
        (bucket.policy().algorithm().name(), bucket.policy().capacity()),
        ("token_bucket", 50)
    );
    for (name, counting) in AlgorithmKind::NAMED {
        assert_eq!(counting.name(), name);
        let text = match counting {
            AlgorithmKind::CalendarWindow => "9/calendar day",
            AlgorithmKind::Concurrency => "9",
            _ => "9/s",
        };
        let queue = (counting == AlgorithmKind::LeakyQueue).then_some(5);
        let limit = Limit::new(text, LimitOptions { queue, ..options(counting) }).unwrap();
        assert_eq!(limit.policy().algorithm().name(), name);
        let climb = WarmUp { start: 3, over: Duration::from_mins(1), steps: 2 };
        let warm = LimitOptions { queue, warm_up: Some(climb), ..options(counting) };
        assert_eq!(Limit::new(text, warm).unwrap().policy().warm_up(), Some(climb), "{name}");
    }
    let staggered = LimitOptions { staggered: true, ..options(AlgorithmKind::FixedWindow) };
    assert_eq!(
        Limit::new("9/h", staggered).unwrap().policy().algorithm().name(),
        "staggered_window"
    );
    let india = LimitOptions { utc_offset_minutes: Some(330), ..LimitOptions::default() };
    let daily = Limit::new("9/calendar day", india).unwrap();
    assert_eq!(daily.policy().utc_offset_minutes(), Some(330));
    let strict =
        LimitOptions { subwindows: Some(12), ..options(AlgorithmKind::SlidingWindowStrict) };
    assert_eq!(Limit::new("9/h", strict).unwrap().policy().subwindows(), Some(12));
    let warm_up = WarmUp { start: 3, over: Duration::from_mins(1), steps: 2 };
    let warm = LimitOptions { warm_up: Some(warm_up), ..LimitOptions::default() };
    assert_eq!(Limit::new("9/s", warm).unwrap().policy().warm_up(), Some(warm_up));
    let max_wait = Some(Duration::from_millis(100));
    let queue = LimitOptions { queue: Some(5), max_wait, ..LimitOptions::default() };
    assert_eq!(Limit::new("9/s", queue).unwrap().policy().max_wait(), max_wait);
}

#[test]
fn what_is_no_limit_is_refused_with_what_to_write() {
    let plain = LimitOptions::default();
    let table = [
        (
            "100",
            plain,
            "limit",
            "`100` is not a rate: write a number, `/` and a window, such as `10/s` or `450/15min`",
        ),
        (
            "0/s",
            plain,
            "limit",
            "the limit is 0: write at least 1, or deny the request without asking a limiter",
        ),
        (
            "10/0s",
            plain,
            "limit",
            "the window is 0: write a window of at least 1 microsecond, such as `10/s`",
        ),
        (
            "10/calendar year",
            plain,
            "limit",
            "a calendar has no `year` here: write `calendar day`, `calendar week` or `calendar month`",
        ),
        (
            "1.5/calendar day",
            plain,
            "limit",
            "`1.5` is not a whole number: write digits such as `10000` or `10_000`",
        ),
        (
            "10/calendar day",
            options(AlgorithmKind::TokenBucket),
            "algorithm",
            "a calendar is counted by `calendar_window`: leave the algorithm out, or write `30 days` instead",
        ),
        (
            "10/day",
            options(AlgorithmKind::CalendarWindow),
            "limit",
            "`10/day` is not of the calendar: write `1000 per calendar day`, week or month",
        ),
        (
            "10/s",
            LimitOptions { burst: Some(9), ..options(AlgorithmKind::FixedWindow) },
            "burst",
            "`fixed_window` has no burst: leave it out, or use a token bucket",
        ),
        (
            "10/s",
            LimitOptions { burst: Some(0), ..plain },
            "burst",
            "the burst is 0: write at least 1",
        ),
        (
            "10/s",
            LimitOptions { staggered: true, ..plain },
            "staggered",
            "`sliding_window_counter` cannot be staggered: leave it out, or use a fixed window",
        ),
        (
            "10/s",
            LimitOptions { subwindows: Some(3), ..plain },
            "subwindows",
            "only `sliding_window_strict` has sub-windows: leave them out, or use that algorithm",
        ),
        (
            "10/s",
            LimitOptions { utc_offset_minutes: Some(60), ..plain },
            "utc_offset",
            "`sliding_window_counter` knows no calendar: leave the offset out, or use a calendar window",
        ),
    ];
    for (text, options, field, message) in table {
        let error = Limit::new(text, options).expect_err(text);
        assert_eq!((error.field(), error.to_string().as_str()), (field, message), "{text}");
    }
}

#[test]
fn the_shares_of_all_nodes_are_at_most_the_limit() {
    let burst = |burst| LimitOptions { burst: Some(burst), ..LimitOptions::default() };
    let strict = options(AlgorithmKind::SlidingWindowStrict);
    let table = [
        ("100/s", LimitOptions::default(), 3, 33),
        ("100/min", burst(200), 3, 66),
        ("0.5/s", burst(10), 4, 2),
        ("100/h", options(AlgorithmKind::LeakyBucket), 8, 12),
        ("100/h", options(AlgorithmKind::FixedWindow), 7, 14),
        ("100/h", strict, 7, 14),
        ("100/calendar month", LimitOptions::default(), 6, 16),
        // Never nothing: here the nodes together admit more than the limit.
        ("1/h", LimitOptions::default(), 5, 1),
    ];
    for (text, options, nodes, capacity) in table {
        let limit = Limit::new(text, options).unwrap();
        let share = limit.policy().share(nodes);
        assert_eq!(share.capacity(), capacity, "{text}");
        assert_eq!(share.algorithm().name(), limit.policy().algorithm().name());
        assert_eq!(limit.policy().share(1).capacity(), limit.policy().capacity());
    }
    // Found by fuzzing: space around the number was once taken for more digits of it.
    let share = Limit::new(" 1_0.50 / s", burst(200)).unwrap().policy().share(2);
    assert_eq!(share, Policy::token_bucket("10.50/2s").unwrap().with_burst(100).unwrap());
    // Found by fuzzing: a rate that cannot be divided exactly once forgot its burst, and a share
    // held more than the whole.
    let share = Limit::new("117717377.77778/s", burst(100)).unwrap().policy().share(100_000);
    assert_eq!((share.limit(), share.capacity()), (117_717_377, 1));
    assert_eq!(share.window(), Duration::from_secs(100_000));
    // 100/min over three nodes: a token every 1.8 s, not every 1.82 (33/min).
    let share = Limit::new("100/min", burst(200)).unwrap().policy().share(3);
    assert_eq!((share.limit(), share.window()), (100, Duration::from_mins(3)));
}
