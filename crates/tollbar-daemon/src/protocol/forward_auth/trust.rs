//! Whose word is taken, and for what: the flags, and what they come to.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use thiserror::Error;
use tollbar_http::{ApiKeys, ClientIp, Identity, IdentityError, TermHeaders};
use tollbar_rules::Cidr;

use crate::files;
use crate::net::Peer;

/// The most API keys.
const KEYS_MAX: usize = 1_024;

/// The most characters of a key, as identities have it.
const KEY_BYTES_MAX: usize = 1_024;

/// The flags about proxies that ask on behalf of their clients.
#[derive(Debug, Clone, Default, Args)]
pub struct ProxyFlags {
    /// Proxies of yours: blocks of addresses such as 10.0.0.0/8, apart by commas. They may ask on behalf of
    /// clients (/v1/forward-auth; without this flag, those on this machine and on Unix sockets may), and
    /// in front of --proxy their X-Forwarded-For is believed
    #[arg(long, env = "TOLLBAR_TRUSTED_PROXIES", value_name = "CIDR", value_delimiter = ',')]
    pub trusted_proxies: Vec<Cidr>,

    /// Attributes that such proxies tell by headers, which they must set or remove on every request,
    /// such as user=X-User-Id; apart by commas. Without it none are read
    #[arg(
        long,
        env = "TOLLBAR_TRUSTED_HEADERS",
        value_name = "ATTRIBUTE=HEADER",
        value_delimiter = ','
    )]
    pub(crate) trusted_headers: Vec<TrustedHeader>,

    /// Reads what a request costs from this header of such proxies, such as X-Cost: a whole number, 1 where the
    /// header is absent. They must set or remove it on every request
    #[arg(long, env = "TOLLBAR_COST_HEADER", value_name = "HEADER", value_parser = header)]
    pub(crate) cost_header: Option<String>,

    /// Reads a request's id from this header of such proxies, such as X-Request-Id: a request that comes again
    /// under its id is not charged again. They must set or remove it on every request
    #[arg(long, env = "TOLLBAR_REQUEST_ID_HEADER", value_name = "HEADER", value_parser = header)]
    pub(crate) request_id_header: Option<String>,

    /// Reads low, normal, high or critical from this header of such proxies: who is shed last. They must set or
    /// remove it on every request
    #[arg(long, env = "TOLLBAR_CRITICALITY_HEADER", value_name = "HEADER", value_parser = header)]
    pub(crate) criticality_header: Option<String>,

    /// The API keys that clients may show in X-Api-Key or as a bearer's token, to --proxy or through such
    /// proxies: a name and a key a line. Others are as good as none
    #[arg(long, env = "TOLLBAR_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
}

/// `user=X-User-Id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrustedHeader {
    attribute: String,
    header: String,
}

/// Why there is nothing to be read from a header.
#[derive(Debug, Error)]
pub(crate) enum TrustedHeaderError {
    #[error("`{text}` names no attribute and header: write such as user=X-User-Id")]
    Form { text: String },
    #[error(transparent)]
    Name(#[from] IdentityError),
}

/// Why a file has no API keys.
#[derive(Debug, Error)]
pub enum ApiKeysError {
    #[error("--api-keys: cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "--api-keys: line {line} of {} is not a name and a key of 16 to {KEY_BYTES_MAX} visible ASCII \
         characters, with a space between: write such as `partner 4f1c..`",
        path.display()
    )]
    Line { path: PathBuf, line: usize },
    #[error("--api-keys: line {line} of {} has a key that an earlier line has", path.display())]
    Twice { path: PathBuf, line: usize },
    #[error("--api-keys: {} has no key, or more than {KEYS_MAX}: write one a line", path.display())]
    Count { path: PathBuf },
}

/// Why the flags about proxies cannot be meant.
#[derive(Debug, Error)]
pub enum ProxyFlagsError {
    #[error(transparent)]
    ApiKeys(#[from] ApiKeysError),
    #[error(
        "--trusted-headers reads `{attribute}` from {} and from {}, and only one can count: leave one of \
         them out",
        headers[0], headers[1]
    )]
    AttributeTwice { attribute: String, headers: [String; 2] },
}

/// Who is believed, and who clients are.
#[derive(Debug, Clone)]
pub struct ProxyTrust {
    /// Empty: this machine.
    proxies: Vec<Cidr>,
    /// Through the proxies that are named. Those on this machine are trusted to ask, but an address of
    /// this machine in a header is a client: who connects from here is not a proxy for that.
    pub(super) chain: ClientIp,
    pub(super) identity: Identity,
    pub(super) terms: TermHeaders,
    headers: Vec<TrustedHeader>,
    api_keys: Option<ApiKeys>,
}

impl ProxyFlags {
    /// What the flags come to.
    pub fn trust(&self) -> Result<ProxyTrust, ProxyFlagsError> {
        for (at, second) in self.trusted_headers.iter().enumerate() {
            let mut earlier = self.trusted_headers[..at].iter();
            if let Some(first) = earlier.find(|first| first.attribute == second.attribute) {
                let headers = [first.header.clone(), second.header.clone()];
                let attribute = second.attribute.clone();
                return Err(ProxyFlagsError::AttributeTwice { attribute, headers });
            }
        }
        // It believes no peer by itself; here nobody else's questions get so far.
        let mut identity = Identity::new();
        let api_keys = match &self.api_keys {
            Some(path) => Some(ApiKeys::known(read_keys(path)?).bearer()),
            None => None,
        };
        if let Some(api_keys) = &api_keys {
            identity = identity.api_keys(api_keys.clone());
        }
        for TrustedHeader { attribute, header } in &self.trusted_headers {
            // Was found good when the flag was read.
            identity = identity.clone().untrusted_header(attribute, header).unwrap_or(identity);
        }
        let proxies = self.trusted_proxies.clone();
        let chain = ClientIp::behind_proxies(proxies.iter().copied()).trusting_nameless_peers();
        let (terms, headers) = (self.terms(), self.trusted_headers.clone());
        Ok(ProxyTrust { proxies, chain, identity, terms, headers, api_keys })
    }

    /// The first flag about headers of trusted proxies that is given.
    pub(crate) fn header_flag(&self) -> Option<&'static str> {
        let Self { trusted_headers, cost_header, request_id_header, criticality_header, .. } = self;
        let given = [
            ("--trusted-headers", !trusted_headers.is_empty()),
            ("--cost-header", cost_header.is_some()),
            ("--request-id-header", request_id_header.is_some()),
            ("--criticality-header", criticality_header.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    fn terms(&self) -> TermHeaders {
        // The names were found good when the flags were read.
        let mut terms = TermHeaders::default();
        if let Some(header) = &self.cost_header {
            terms = terms.clone().cost(header).unwrap_or(terms);
        }
        if let Some(header) = &self.request_id_header {
            terms = terms.clone().request_id(header).unwrap_or(terms);
        }
        if let Some(header) = &self.criticality_header {
            terms = terms.clone().criticality(header).unwrap_or(terms);
        }
        terms
    }
}

fn header(name: &str) -> Result<String, IdentityError> {
    TermHeaders::default().cost(name)?;
    Ok(name.to_owned())
}

impl ProxyTrust {
    /// True for a proxy that may ask.
    pub(super) fn trusts(&self, peer: Peer) -> bool {
        match peer {
            Peer::Unix => true,
            Peer::Tcp(address) => {
                let address = address.ip().to_canonical();
                match &*self.proxies {
                    [] => address.is_loopback(),
                    blocks => blocks.iter().any(|block| block.contains(address)),
                }
            }
        }
    }

    /// Who asks through the gateway: API keys and addresses of anybody, headers of trusted proxies. A clone of the
    /// API keys, so that [`reload_api_keys`](Self::reload_api_keys) reaches the gateway too.
    pub(crate) fn gateway_identity(&self) -> Identity {
        let mut identity = Identity::new().terms(self.terms.clone());
        if let Some(api_keys) = &self.api_keys {
            identity = identity.api_keys(api_keys.clone());
        }
        for TrustedHeader { attribute, header } in &self.headers {
            identity = identity.clone().trusted_header(attribute, header).unwrap_or(identity);
        }
        identity
    }

    /// Reads the file of API keys again. What cannot be used leaves them as they were.
    pub fn reload_api_keys(&self, flags: &ProxyFlags) -> Result<(), ApiKeysError> {
        if let (Some(api_keys), Some(path)) = (&self.api_keys, &flags.api_keys) {
            api_keys.replace(read_keys(path)?);
        }
        Ok(())
    }
}

impl FromStr for TrustedHeader {
    type Err = TrustedHeaderError;

    fn from_str(text: &str) -> Result<Self, TrustedHeaderError> {
        let Some((attribute, header)) = text.split_once('=') else {
            let text = text.chars().take(64).collect();
            return Err(TrustedHeaderError::Form { text });
        };
        Identity::new().untrusted_header(attribute, header)?;
        Ok(Self { attribute: attribute.to_owned(), header: header.to_owned() })
    }
}

/// Names and keys. Empty lines and those that begin with `#` say nothing.
fn read_keys(path: &Path) -> Result<Vec<(String, String)>, ApiKeysError> {
    let path = path.to_path_buf();
    let text = files::read_to_string(&path)
        .map_err(|source| ApiKeysError::Read { path: path.clone(), source })?;
    let mut keys: Vec<(String, String)> = Vec::new();
    for (line, said) in (1..).zip(text.lines().map(str::trim)) {
        if said.is_empty() || said.starts_with('#') {
            continue;
        }
        let Some((name, key)) = pair(said) else {
            return Err(ApiKeysError::Line { path, line });
        };
        if keys.iter().any(|(_, known)| known == key) {
            return Err(ApiKeysError::Twice { path, line });
        }
        keys.push((name.to_owned(), key.to_owned()));
    }
    if !(1..=KEYS_MAX).contains(&keys.len()) {
        return Err(ApiKeysError::Count { path });
    }
    Ok(keys)
}

fn pair(line: &str) -> Option<(&str, &str)> {
    let (name, key) = line.split_once(char::is_whitespace)?;
    let key = key.trim_start();
    let is_key = (16..=KEY_BYTES_MAX).contains(&key.len());
    (is_key && key.bytes().all(|byte| byte.is_ascii_graphic())).then_some((name, key))
}
