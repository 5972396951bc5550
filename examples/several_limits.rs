//! One request under several limits: all of them are charged, or none.

use tollbar::{Entry, Limiter, Policy};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let per_user = Policy::token_bucket("2/s")?.named("per_user");
    let per_user_daily = Policy::fixed_window("100/day")?;
    let for_all = Policy::sliding_window("3/s")?;
    let limiter = Limiter::new(per_user.clone());
    let names = ["per user and second", "per user and day", "everyone together"];

    for user in ["ann", "ann", "ann", "bob", "cid"] {
        let mut entries = [
            Entry::new(user, &per_user),
            Entry::new(user, &per_user_daily),
            Entry::new("everyone", &for_all),
        ];
        let verdict = limiter.check_all(&mut entries)?;
        let binding = verdict.binding().map_or("nothing", |entry| names[entry]);
        match verdict.decision().and_then(|decision| decision.retry_after()) {
            None => println!("{user} passes; what binds next is the limit {binding}"),
            Some(wait) => println!("{user} waits {wait:?}: the limit {binding} is spent"),
        }
    }
    Ok(())
}
