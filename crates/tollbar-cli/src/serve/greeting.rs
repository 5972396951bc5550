//! What `tollbar serve` prints when it is ready.

use std::io::{self, Write};

use tollbar_rules::RuleSet;

use tollbar_admin::operations::auth::credential::Credential;

use crate::config::Config;
use tollbar_daemon::net::endpoint::Endpoint;

/// What opens the HTTP interface beside a proxy.
const HTTP_FLAG: &str = "--listen 127.0.0.1:8080";

/// Prints where the daemon listens and how to try it. An error is ignored: standard output may be closed.
pub(super) fn print(config: &Config, rules: &RuleSet, urls: &[String], token: Option<&Credential>) {
    #[expect(
        clippy::let_underscore_must_use,
        reason = "a daemon without a standard output serves as well"
    )]
    let _ = write(config, rules, urls, token, io::stdout().lock());
}

/// True where no request meets a limit, because there is no rule yet.
pub(super) fn is_without_limits(config: &Config, rules: &RuleSet) -> bool {
    rules.is_empty() && config.envoy.envoy_config.is_none()
}

fn write(
    config: &Config,
    rules: &RuleSet,
    urls: &[String],
    admin_token: Option<&Credential>,
    mut to: impl Write,
) -> io::Result<()> {
    for url in urls {
        writeln!(to, "listening on {url}")?;
    }
    if let Some(token) = admin_token {
        // Here and nowhere else: what is logged is read by many, and kept.
        writeln!(to, "admin token (shown once): {}", token.reveal())?;
    }
    match (&config.rules, &config.gateway.limit) {
        (Some(path), _) => writeln!(to, "rules: {}", path.display())?,
        (None, Some(limit)) => writeln!(to, "rules: {limit} for each client")?,
        (None, None) if config.database.database.is_some() => {}
        (None, None) => {
            writeln!(to, "rules: the built-in example, 5 requests per 10 s for each client")?;
        }
    }
    if let Some(location) = &config.database.database {
        writeln!(to, "rules: {location}")?;
        if is_without_limits(config, rules) {
            writeln!(
                to,
                "rules: none yet, so nothing is limited; begin with one for each client:"
            )?;
            writeln!(to, "  echo 'rules: [{{ name: per_client, limit: 100/min }}]' > rules.yaml")?;
            writeln!(to, "  tollbar rules apply rules.yaml")?;
        }
    }
    let proxy = urls.iter().find_map(|url| url.strip_prefix("proxy"));
    if let (Some(proxy), Some(upstream)) = (proxy, &config.gateway.upstream) {
        writeln!(to, "passing on to {upstream}")?;
        if config.listen == Endpoint::Off {
            writeln!(to, "for health, metrics and why requests were denied: add {HTTP_FLAG}")?;
        }
        return match proxy.strip_prefix("://unix:") {
            Some(path) => writeln!(to, "try: curl -i --unix-socket {path} http://localhost/"),
            None => writeln!(to, "try: curl -i http{proxy}/"),
        };
    }
    let Some(url) = urls.iter().find(|url| url.starts_with("http")) else {
        return writeln!(to, "ready");
    };
    let bearer = if config.token_file.is_some() { " -H 'Authorization: Bearer ..'" } else { "" };
    let target = match url.strip_prefix("http://unix:") {
        Some(path) => format!("--unix-socket {path} http://localhost"),
        None => url.clone(),
    };
    writeln!(
        to,
        "try: curl -i{bearer} {target}/v1/check -d '{{\"path\":\"/\",\"attributes\":{{\"user\":\"42\"}}}}'"
    )
}
