//! Where a listener listens: an address, a path, or nowhere.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};

use super::{Socket, UnixSocket};

/// What is written behind `--listen`, `--grpc` and `--resp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Off,
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "cannot listen on `{text}`: write an address and a port such as 127.0.0.1:8080 (port 0 takes any \
     free one), unix:PATH, or off"
)]
pub struct EndpointError {
    text: String,
}

impl Endpoint {
    /// True where only this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Off | Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().is_loopback(),
        }
    }

    /// Listens; `None` where it is off.
    pub(crate) async fn bind(&self) -> io::Result<Option<Socket>> {
        Ok(Some(match self {
            Self::Off => return Ok(None),
            Self::Tcp(address) => Socket::Tcp(TcpListener::bind(address).await?),
            Self::Unix(path) => Socket::Unix(bind_unix(path)?),
        }))
    }
}

/// Who may connect to a path: the daemon's user and group.
const UNIX_MODE: u32 = 0o660;

/// A socket that nobody listens on any more, left by a process that was killed, is replaced; one
/// that somebody answers on, or a file that is no socket, is not.
fn bind_unix(path: &PathBuf) -> io::Result<UnixSocket> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let answer = std::os::unix::net::UnixStream::connect(path);
            match answer {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)?
                }
                _ => return Err(error),
            }
        }
        bound => bound?,
    };
    let socket = UnixSocket::new(listener, path.clone());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(UNIX_MODE))?;
    Ok(socket)
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        match text.strip_prefix("unix:") {
            Some("") => Err(EndpointError { text: text.to_owned() }),
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                text.parse().map(Self::Tcp).map_err(|_| EndpointError { text: text.to_owned() })
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_the_same() {
        for text in ["off", "127.0.0.1:8080", "[::1]:0", "unix:/run/tollbar.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["", "8080", "localhost:8080", "unix:", "0.0.0.0"] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains("such as 127.0.0.1:8080"), "{text}");
        }
    }

    #[test]
    fn only_loopback_paths_and_nowhere_are_local() {
        for (text, is_local) in [
            ("off", true),
            ("127.0.0.2:1", true),
            ("[::1]:1", true),
            ("unix:x", true),
            ("0.0.0.0:1", false),
            ("192.0.2.1:1", false),
            ("[::]:1", false),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().is_local(), is_local, "{text}");
        }
    }
}
