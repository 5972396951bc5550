//! The same bursty traffic through every algorithm, and what each lets through.
//!
//! `cargo run --release --example algorithms`

use std::error::Error;
use std::time::Duration;

use tollbar::{BuildError, Limiter, ManualClock, Policy, PolicyError, Timestamp};

/// The picture's columns are half seconds.
const TICK: Duration = Duration::from_millis(500);
const TICKS: usize = 72;
const WINDOW_TICKS: usize = 20;

/// Requests in each tick: a burst on both sides of a window's boundary, a steady stream below the
/// limit, silence, and a flood.
fn traffic(tick: usize) -> u32 {
    match tick {
        18..22 => 5, // ten just before the boundary at 10 s, and ten just after it
        26..42 => u32::from(tick.is_multiple_of(2)), // one a second
        52..68 => 3, // six a second: six times the limit
        _ => 0,
    }
}

fn policies() -> Result<[(&'static str, Policy); 5], PolicyError> {
    Ok([
        ("token bucket, burst 10", Policy::token_bucket("10/10s")?),
        ("leaky bucket, burst 3", Policy::leaky_bucket("10/10s")?.with_burst(3)?),
        ("fixed window", Policy::fixed_window("10/10s")?),
        ("sliding window counter", Policy::sliding_window("10/10s")?),
        ("sliding window strict(10)", Policy::sliding_window_strict("10/10s", 10)?),
    ])
}

/// How many of the requests of each tick pass.
fn admitted(policy: Policy) -> Result<Vec<u32>, BuildError> {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let limiter = Limiter::builder(policy).max_keys(1_000).clock(clock.clone()).build()?;
    let mut admitted = Vec::with_capacity(TICKS);
    for tick in 0..TICKS {
        let passes = |_: &u32| limiter.check("client").is_allowed();
        admitted.push((0..traffic(tick)).filter(passes).count() as u32);
        clock.advance(TICK);
    }
    Ok(admitted)
}

/// A bar a tick, as high as the count.
fn draw(counts: &[u32]) -> String {
    const BARS: [char; 6] = ['·', '▁', '▂', '▄', '▆', '█'];
    counts.iter().map(|count| BARS[*count as usize]).collect()
}

/// The most that passed within any ten seconds.
fn busiest_window(counts: &[u32]) -> u32 {
    counts.windows(WINDOW_TICKS).map(|window| window.iter().sum()).max().unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let sent: Vec<u32> = (0..TICKS).map(traffic).collect();
    println!("10 requests per 10 s, one column is half a second, | is a window's boundary\n");
    let ruler: String =
        (0..TICKS).map(|tick| if tick % WINDOW_TICKS == 0 { '|' } else { ' ' }).collect();
    println!("{:<27}{ruler}  total  most in any 10 s", "");
    let line = |name: &str, counts: &[u32]| {
        let total: u32 = counts.iter().sum();
        println!("{name:<27}{}  {total:>5}  {:>16}", draw(counts), busiest_window(counts));
    };
    line("sent", &sent);
    for (name, policy) in policies()? {
        line(name, &admitted(policy)?);
    }
    println!(
        "\nThe fixed window lets 20 through around the boundary; the strict one never more than 10."
    );
    Ok(())
}
