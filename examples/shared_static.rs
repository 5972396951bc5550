//! One limiter in a `static`, used from several modules.

use tollbar::Denied;

/// The limits of the program, each made when it is first used.
mod limits {
    use std::sync::LazyLock;

    use tollbar::{Limiter, Policy};

    pub(crate) static LOGINS: LazyLock<Limiter> = LazyLock::new(|| limiter("2/min"));
    pub(crate) static SEARCHES: LazyLock<Limiter> = LazyLock::new(|| limiter("10/s"));

    fn limiter(rate: &str) -> Limiter {
        Limiter::new(Policy::token_bucket(rate).expect("the rate is part of the program"))
    }
}

mod login {
    use tollbar::Denied;

    use super::limits::LOGINS;

    pub(crate) fn log_in(user: &str) -> Result<String, Denied> {
        LOGINS.check(user).ok()?;
        Ok(format!("{user} may try a password"))
    }
}

mod account {
    use tollbar::Denied;

    use super::limits::{LOGINS, SEARCHES};

    /// Asks for the password again, so it counts as a login.
    pub(crate) fn change_email(user: &str) -> Result<String, Denied> {
        LOGINS.check(user).ok()?;
        Ok(format!("{user} may change the address"))
    }

    pub(crate) fn search(user: &str) -> Result<String, Denied> {
        SEARCHES.check(user).ok()?;
        Ok(format!("{user} may search"))
    }
}

fn main() {
    let print = |answer: Result<String, Denied>| match answer {
        Ok(text) => println!("{text}"),
        Err(denied) => println!("too many attempts ({:?})", denied.reason()),
    };
    print(login::log_in("ann"));
    print(account::change_email("ann"));
    // The two modules count together.
    print(login::log_in("ann"));
    print(login::log_in("bob"));
    print(account::search("ann"));
}
