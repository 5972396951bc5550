//! Two processes, one limit, one Redis: together they let through what one would.
//!
//! `cargo run --example fleet` starts a Redis of its own; with `REDIS_URL` it uses that one.

use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tollbar::{AsyncLimiter, Policy};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
use tollbar_testkit::redis::process::RedisProcess;

/// The same in every process of a fleet, and known to nobody else.
const SECRET: [u8; 32] = *b"a secret of 32 bytes for a fleet";

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(url) = std::env::var("FLEET_MEMBER") {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        return runtime.block_on(serve(&url));
    }
    let own = std::env::var("REDIS_URL").is_err().then(RedisProcess::start);
    let url = own.as_ref().map_or_else(|| std::env::var("REDIS_URL"), |own| Ok(own.url()))?;
    let member = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.env("FLEET_MEMBER", &url).stdout(Stdio::piped()).spawn()
    };
    let members = [member()?, member()?];
    let mut total = 0;
    for (number, member) in members.into_iter().enumerate() {
        let output = member.wait_with_output()?;
        let admitted: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
        println!("process {number} let {admitted} of 100 through");
        total += admitted;
    }
    println!("together {total}, and the limit is 100 an hour");
    assert!(own.is_none() || total == 100);
    Ok(())
}

/// One process of the fleet: a hundred requests of one client.
async fn serve(url: &str) -> Result<(), Box<dyn Error>> {
    let store =
        RedisStore::builder(url, KeyNames::Hashed(FleetSecret::new(SECRET))).connect().await?;
    let policy = Policy::fixed_window("100/h")?.with_name("per_user");
    let limiter = AsyncLimiter::builder(policy, Arc::new(store)).build()?;
    let mut admitted = 0;
    for _ in 0..100 {
        let decision = limiter.check("user:42").await?;
        admitted += u64::from(decision.is_allowed());
    }
    println!("{admitted}");
    Ok(())
}
