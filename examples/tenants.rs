//! One default for all tenants, more for some, changed while the limiter is in use.

use tollbar::{Limiter, Policy, PolicyMap};

fn main() -> Result<(), tollbar::PolicyError> {
    let tenants = PolicyMap::new(Policy::token_bucket("3/s")?);
    tenants.set("tenant:acme", Policy::token_bucket("5/s")?);
    let limiter = Limiter::new(tenants.clone());

    let admitted = |tenant: &str| (0..8).filter(|_| limiter.check(tenant).is_allowed()).count();
    println!("acme, with a limit of its own: {} of 8 pass", admitted("tenant:acme"));
    println!("umbrella, under the default:   {} of 8 pass", admitted("tenant:umbrella"));

    // The next check sees the change. What was counted stays: a bucket keeps its debt of time.
    tenants.set("tenant:umbrella", Policy::token_bucket("3/s")?.with_burst(6)?);
    println!("umbrella, given a larger burst: {} more pass", admitted("tenant:umbrella"));
    for (tenant, policy) in tenants.iter() {
        println!("{}: {policy}", String::from_utf8_lossy(&tenant));
    }
    Ok(())
}
