//! Connections to a daemon: TCP, TLS or a path, and HTTP/1.1 on it, one for each request.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use futures_util::TryFutureExt;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, IF_MATCH};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tollbar_tls::{Identity, Pem};

use super::{ANSWER_TIME_MAX, ApiError, ApiRequest};

/// The longest answer that is read whole.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The address of a daemon's admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    Tcp { is_secure: bool, host: String, port: u16 },
    Unix(PathBuf),
}

/// Opens a connection for each request.
pub(super) struct Connector {
    address: ServerAddress,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// The files of the certificate that the daemon is shown. There are both or none.
#[derive(Clone, Copy, Default)]
pub(super) struct ClientCertificate<'p> {
    pub(super) cert: Option<&'p Path>,
    pub(super) key: Option<&'p Path>,
}

impl ClientCertificate<'_> {
    fn identity(self) -> Result<Option<Identity>, String> {
        let (Some(cert), Some(key)) = (self.cert, self.key) else {
            return Ok(None);
        };
        let read =
            |flag: &str, path: &Path| Pem::read(path).map_err(|error| format!("{flag}: {error}"));
        let (cert, key) = (read("--cert", cert)?, read("--key", key)?);
        Identity::new(&cert, &key).map(Some).map_err(|error| format!("--cert and --key: {error}"))
    }
}

/// Either end of a connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no daemon: write http://HOST:PORT, https://HOST:PORT or unix:PATH")
        };
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        // Whoever writes a path means something that there is not.
        let is_bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        let host = uri.host().filter(|host| !host.is_empty() && is_bare).ok_or_else(wrong)?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(wrong());
        }
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self::Tcp { is_secure, host, port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { is_secure, host, port } => {
                let scheme = if *is_secure { "https" } else { "http" };
                let [open, close] = if host.contains(':') { ["[", "]"] } else { ["", ""] };
                write!(f, "{scheme}://{open}{host}{close}:{port}")
            }
        }
    }
}

impl Connector {
    pub(super) fn new(
        address: ServerAddress,
        ca: Option<&Path>,
        certificate: ClientCertificate<'_>,
    ) -> Result<Self, String> {
        let ServerAddress::Tcp { is_secure: true, host, .. } = &address else {
            if ca.is_some() {
                return Err(format!(
                    "--ca has no effect on {address}, which shows no certificate: write --server \
                     https://HOST:PORT, or leave out --ca and TOLLBAR_CA"
                ));
            }
            if certificate.cert.is_some() {
                return Err(format!(
                    "--cert has no effect on {address}, which asks for no certificate: write --server \
                     https://HOST:PORT, or leave out --cert and --key, TOLLBAR_CERT and TOLLBAR_KEY"
                ));
            }
            return Ok(Self { address, tls: None });
        };
        let roots = match ca {
            Some(path) => Pem::read(path)
                .and_then(|pem| pem.authorities())
                .map_err(|error| format!("--ca: {error}"))?,
            None => tollbar_tls::public_authorities(),
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|_| format!("--server: `{host}` is no name of a server"))?;
        let identity = certificate.identity()?;
        let config = tollbar_tls::client_config_as(roots, identity);
        let config = config.map_err(|error| error.to_string())?;
        Ok(Self { address, tls: Some((TlsConnector::from(Arc::new(config)), name)) })
    }

    /// The status and the whole body of an answer.
    pub(super) async fn exchange(
        &self,
        api_request: &ApiRequest,
        token: Option<&str>,
    ) -> Result<(u16, Bytes), ApiError> {
        self.in_time(async {
            let response = self.send(api_request, token).await?;
            let status = response.status().as_u16();
            Ok((status, self.whole(response).await?))
        })
        .await
    }

    /// Writes the body of a good answer as it comes; the status and the body of any other.
    pub(super) async fn copy(
        &self,
        api_request: &ApiRequest,
        token: Option<&str>,
        mut to: impl Write,
    ) -> Result<Option<(u16, Bytes)>, ApiError> {
        let mut response = self.in_time(self.send(api_request, token)).await?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            return Ok(Some((status, self.in_time(self.whole(response)).await?)));
        }
        while let Some(frame) = self.in_time(async { Ok(response.frame().await) }).await? {
            let frame = frame.map_err(|error| self.unreachable(error))?;
            if let Some(data) = frame.data_ref() {
                to.write_all(data)?;
            }
        }
        to.flush()?;
        Ok(None)
    }

    async fn in_time<T>(
        &self,
        what: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let seconds = ANSWER_TIME_MAX.as_secs();
        let done = timeout(ANSWER_TIME_MAX, what).await;
        done.unwrap_or_else(|_| Err(self.unreachable(format!("no answer within {seconds} s"))))
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Bytes, ApiError> {
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        Ok(body.map_err(|error| self.unreachable(error))?.to_bytes())
    }

    async fn send(
        &self,
        api_request: &ApiRequest,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, ApiError> {
        let request = self.request(api_request, token)?;
        let stream = self.connect().await.map_err(|error| self.unreachable(error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error))?;
        // It ends when the answer has been read, or this process does.
        #[expect(clippy::disallowed_methods, reason = "after a panic the request fails")]
        tokio::spawn(connection.unwrap_or_else(|_| ()));
        sender.send_request(request).await.map_err(|error| self.unreachable(error))
    }

    fn request(
        &self,
        api_request: &ApiRequest,
        token: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let host = match &self.address {
            ServerAddress::Unix(_) => "localhost".to_owned(),
            ServerAddress::Tcp { .. } => self
                .address
                .to_string()
                .split_once("://")
                .map_or_else(String::new, |(_, host)| host.to_owned()),
        };
        let body = api_request.body.as_ref().map(ToString::to_string);
        let mut request = Request::new(Full::from(body.clone().unwrap_or_default()));
        *request.method_mut() = api_request.method.clone();
        let invalid_input = |error: String| ApiError::InvalidInput(error);
        *request.uri_mut() = api_request
            .target
            .parse()
            .map_err(|error| invalid_input(format!("{}: {error}", api_request.target)))?;
        let bearer = token.map(|token| format!("Bearer {token}"));
        let json = body.map(|_| "application/json".to_owned());
        for (name, value) in [
            (HOST, Some(host)),
            (AUTHORIZATION, bearer),
            (CONTENT_TYPE, json),
            (IF_MATCH, api_request.if_match.clone()),
        ] {
            if let Some(value) = value {
                let value = HeaderValue::try_from(value).map_err(|_| {
                    invalid_input(format!("`{name}` cannot be sent: it is no visible text"))
                })?;
                request.headers_mut().insert(name, value);
            }
        }
        Ok(request)
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let stream = match &self.address {
            ServerAddress::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            ServerAddress::Tcp { host, port, .. } => {
                TcpStream::connect((host.as_str(), *port)).await?
            }
        };
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
        })
    }

    fn unreachable(&self, why: impl fmt::Display) -> ApiError {
        ApiError::Unreachable { server: self.address.to_string(), why: why.to_string() }
    }

    pub(super) fn unexpected_response(&self, why: String) -> ApiError {
        ApiError::UnexpectedResponse { server: self.address.to_string(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_read_as_it_is_written_and_nothing_else_is() {
        for (text, written) in [
            ("http://127.0.0.1:8082", "http://127.0.0.1:8082"),
            ("https://limits.example/", "https://limits.example:443"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("unix:/run/tollbar.sock", "unix:/run/tollbar.sock"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), written);
        }
        for text in
            ["", "unix:", "localhost:8082", "ftp://x", "http://", "http://x/v1", "http://a@b"]
        {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }

    /// It was ignored, and a token went to a server that had shown no certificate.
    #[test]
    fn an_authority_for_a_server_without_tls_is_refused() {
        for text in ["http://127.0.0.1:8082", "unix:/run/tollbar.sock"] {
            let address = || text.parse::<ServerAddress>().unwrap();
            assert!(Connector::new(address(), None, ClientCertificate::default()).is_ok());
            let refused =
                Connector::new(address(), Some(Path::new("ca.pem")), ClientCertificate::default());
            let error = refused.err().expect("it has no effect");
            assert!(error.starts_with(&format!("--ca has no effect on {text}, ")), "{error}");
            assert!(error.contains("write --server https://HOST:PORT"), "{error}");
        }
    }
}
