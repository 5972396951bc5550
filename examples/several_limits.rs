//! One request under several limits: all of them are charged, or none.

use std::error::Error;

use tollbar::{AdmitError, Charges, Limiter, Policy};

fn main() -> Result<(), Box<dyn Error>> {
    let per_user = Policy::token_bucket("2/s")?.with_name("per user and second");
    let per_user_daily = Policy::fixed_window("100/day")?.with_name("per user and day");
    let for_all = Policy::sliding_window("3/s")?.with_name("everyone together");
    let limiter = Limiter::new(per_user.clone());
    let names = [&per_user, &per_user_daily, &for_all].map(|policy| policy.name().unwrap_or(""));

    for user in ["ann", "ann", "ann", "bob", "cid"] {
        let charges = Charges::new()
            .charge(user, &per_user, 1)
            .charge(user, &per_user_daily, 1)
            .charge("everyone", &for_all, 1);
        let binding = |at: Option<usize>| at.map_or("nothing", |at| names[at]);
        match limiter.admit(charges) {
            Ok(grant) => {
                let binding = binding(grant.decisions().binding());
                println!("{user} passes; what binds next is the limit {binding}");
            }
            Err(AdmitError::Denied(decisions)) => {
                let wait = decisions.denied().and_then(|denied| denied.retry_after());
                let binding = binding(decisions.binding());
                println!("{user} waits {wait:?}: the limit {binding} is spent");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
