//! What a URL of PostgreSQL says: where the server is, who asks, and how much of TLS there is.
//!
//! Certificates are always checked where there is TLS: `require` asks for as much as `verify-full` does
//! elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use rustls::ClientConfig;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollbar_tls::Pem;

use crate::database::{RepositoryError, Result};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// After which a peer that is silent is gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What the server sees to: how long a statement, a wait for a lock and an idle transaction may take.
const BOUNDS: &str = "-c statement_timeout=15000 -c lock_timeout=5000 \
                      -c idle_in_transaction_session_timeout=15000";

/// Where to, and how.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (url, tls_parameters) = TlsParameters::take(url)?;
        // What is wrong with a URL is told without it: it may hold a password.
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            invalid(format!("the URL cannot be read: {}", source.unwrap_or_default()))
        })?;
        // Where nobody listens in between, there is nothing to be hidden; elsewhere there is.
        let is_local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback);
        let usual = if is_local { "disable" } else { "verify-full" };
        let mode = match tls_parameters.mode.as_deref().unwrap_or(usual) {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            "require" | "verify-full" => SslMode::Require,
            _ => {
                let message = "sslmode is none that is known: write disable, prefer or verify-full";
                return Err(invalid(message.to_owned()));
            }
        };
        config.ssl_mode(mode);
        if config.get_application_name().is_none() {
            config.application_name("tollbar");
        }
        let options =
            config.get_options().map_or_else(String::new, |options| format!("{options} "));
        config.options(format!("{options}{BOUNDS}"));
        config.connect_timeout(CONNECT_MAX);
        config.tcp_user_timeout(SILENCE_MAX);
        config.keepalives_idle(SILENCE_MAX);
        Ok(Self { config, tls: MakeRustlsConnect::new(trust(tls_parameters.authority)?) })
    }
}

/// The parameters of TLS in a URL.
#[derive(Debug, Default, PartialEq, Eq)]
struct TlsParameters {
    mode: Option<String>,
    authority: Option<PathBuf>,
}

impl TlsParameters {
    /// Takes it out of the URL: the rest is for the client, which knows less of it.
    fn take(url: &str) -> Result<(String, Self)> {
        let Some((rest, query)) = url.split_once('?') else {
            return Ok((url.to_owned(), Self::default()));
        };
        let mut tls_parameters = Self::default();
        let mut others = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let pair = form_urlencoded::parse(part.as_bytes()).next();
            match pair.as_ref().map(|(name, value)| (&**name, &**value)) {
                Some(("sslmode", mode)) => tls_parameters.mode = Some(mode.to_owned()),
                Some(("sslrootcert", path)) => tls_parameters.authority = Some(path.into()),
                Some(("sslcert" | "sslkey" | "sslpassword", _)) => {
                    let message = "certificates of clients are not known here: leave sslcert and \
                                   sslkey out, and use a password";
                    return Err(invalid(message.to_owned()));
                }
                _ => others.push(part),
            }
        }
        let query =
            if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        Ok((format!("{rest}{query}"), tls_parameters))
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) if name == "localhost" => true,
        Host::Tcp(name) => name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
    }
}

/// The authority that is named, or the public ones.
fn trust(authority: Option<PathBuf>) -> Result<ClientConfig> {
    let roots = match authority {
        None => tollbar_tls::public_authorities(),
        Some(path) => Pem::read(path)
            .and_then(|pem| pem.authorities())
            .map_err(|error| invalid(format!("sslrootcert: {error}")))?,
    };
    tollbar_tls::client_config(roots).map_err(|error| invalid(error.to_string()))
}

fn invalid(message: String) -> RepositoryError {
    RepositoryError::Invalid { field: "--database", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> SslMode {
        Address::parse(url).unwrap().config.get_ssl_mode()
    }

    #[test]
    fn tls_is_asked_for_where_somebody_could_listen() {
        let table = [
            ("postgres://a@db.internal/x", SslMode::Require),
            ("postgres://a@192.0.2.1/x", SslMode::Require),
            ("postgres://a@localhost,db.internal/x", SslMode::Require),
            ("postgres://a@localhost/x?hostaddr=192.0.2.1", SslMode::Require),
            ("postgres:///x?user=a&hostaddr=192.0.2.1", SslMode::Require),
            ("postgres://a@localhost/x", SslMode::Disable),
            ("postgres://a@127.0.0.1:5433/x", SslMode::Disable),
            ("postgres://%2Frun%2Fpostgresql/x", SslMode::Disable),
            ("postgres:///x?host=/run/postgresql&user=a", SslMode::Disable),
            ("postgres://a@db/x?sslmode=disable", SslMode::Disable),
            ("postgres://a@db/x?sslmode=prefer&application_name=b", SslMode::Prefer),
            ("postgres://a@localhost/x?sslmode=verify-full", SslMode::Require),
        ];
        for (url, expected) in table {
            assert_eq!(mode(url), expected, "{url}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_without_its_password() {
        let table = [
            ("postgres://a:hunter2@db/x?sslmode=maybe", "sslmode is none"),
            ("postgres://a:hunter2@db:port/x", "cannot be read"),
            ("postgres://a:hunter2@db/x?colour=red", "cannot be read"),
            ("postgres://a:hunter2@db/x?sslcert=a.pem", "leave sslcert"),
            (
                "postgres://a:hunter2@db/x?sslrootcert=/nowhere/ca.pem",
                "sslrootcert: cannot read /nowhere/ca.pem",
            ),
        ];
        for (url, expected) in table {
            let error = Address::parse(url).err().unwrap().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_a_server_may_take_is_bounded_beside_what_the_url_says() {
        let address = Address::parse("postgres://a@localhost/x?options=-c%20geqo%3Doff").unwrap();
        let options = address.config.get_options().unwrap();
        assert!(options.starts_with("-c geqo=off -c statement_timeout=15000 "), "{options}");
    }
}
