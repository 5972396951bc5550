//! Limiting one key, in five lines.

use tollbar::{Limiter, Policy};

fn main() -> Result<(), tollbar::PolicyError> {
    let limiter = Limiter::new(Policy::token_bucket("10/s")?);
    for request in 1..=12 {
        println!(
            "request {request}: {}",
            if limiter.check("user:42").is_allowed() { "in" } else { "wait" }
        );
    }
    Ok(())
}
