//! What a proxy writes itself, and where: all that is believed of what it sends.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use tollbar_http::ClientIp;

use crate::protocol::http::Refusal;

/// One proxy.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) name: &'static str,
    pub(super) method: RequestSource,
    pub(super) target: RequestSource,
    pub(super) client: ClientSource,
    /// The only status by which it can be told of a denial, where there is only one.
    pub(super) denied_as: Option<StatusCode>,
    /// Where its configuration has what is needed.
    pub(super) example: &'static str,
}

/// Where a fact about the original request is found.
#[derive(Debug, Clone, Copy)]
pub(super) enum RequestSource {
    /// In a header that the proxy sets.
    Header(&'static str),
    /// The method or the path of the proxy's own request.
    Request,
}

/// Where the client's address is found.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClientSource {
    /// In a header that the proxy sets to one address.
    Header(&'static str),
    /// At the right end of `X-Forwarded-For`, which the proxy sets or appends to.
    ForwardedFor,
}

/// The request that the proxy holds.
#[derive(Debug)]
pub(super) struct OriginalRequest<'h> {
    pub(super) method: &'h str,
    pub(super) target: &'h str,
    pub(super) client: IpAddr,
}

impl Profile {
    /// What a trusted proxy tells. `rest` is what follows the profile's name in the path, `chain` the
    /// proxies in front of it.
    pub(super) fn read<'h>(
        &self,
        head: &'h Parts,
        rest: &'h str,
        chain: &ClientIp,
    ) -> Result<OriginalRequest<'h>, Refusal> {
        let header = |name| single_value(&head.headers, name).ok_or_else(|| self.lacks(name));
        let method = match self.method {
            RequestSource::Header(name) => header(name)?,
            RequestSource::Request => head.method.as_str(),
        };
        let target = match self.target {
            RequestSource::Header(name) => header(name)?,
            RequestSource::Request if rest.is_empty() => return Err(self.lacks_path()),
            RequestSource::Request => rest,
        };
        let client = match self.client {
            ClientSource::Header(name) => {
                let address = header(name)?.parse::<IpAddr>().ok();
                address.ok_or_else(|| self.lacks(name))?.to_canonical()
            }
            ClientSource::ForwardedFor => {
                let address = chain.of(None, &head.headers);
                address.ok_or_else(|| self.lacks("x-forwarded-for"))?
            }
        };
        Ok(OriginalRequest { method, target, client })
    }

    fn lacks(&self, header: &str) -> Refusal {
        let Self { name, example, .. } = self;
        Refusal::bad_request(format!(
            "the header `{header}` is not there exactly once with something usable in it: have {name} \
             set it as {example} does"
        ))
    }

    fn lacks_path(&self) -> Refusal {
        let Self { name, example, .. } = self;
        Refusal::bad_request(format!(
            "the original path is missing: have {name} put it behind `{}{name}` as {example} does",
            super::PREFIX
        ))
    }
}

/// The value of a header that is there once and says something. Of two it would be a guess which one
/// the proxy has written.
pub(super) fn single_value<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => {
            std::str::from_utf8(line.as_bytes()).ok().filter(|text| !text.is_empty())
        }
        _ => None,
    }
}
