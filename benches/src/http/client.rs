//! One keep-alive connection to a server: light, since it shares the machine with what it measures.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Where a server listens, and the administrator's name and password where it has one.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    host: String,
    user: Option<String>,
}

impl FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").ok_or_else(|| anyhow!("not an http:// URL: {url}"))?;
        let rest = rest.trim_end_matches('/');
        let (user, host) = match rest.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, rest),
        };
        if host.is_empty() || host.contains('/') {
            bail!("a server's root is wanted, without a path: {url}");
        }
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:5984") };
        Ok(Address { host, user })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.host)
    }
}

pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    authorization: Option<String>,
}

impl Client {
    pub(crate) async fn connect(address: &Address) -> Result<Client> {
        let stream = TcpStream::connect(&address.host).await.with_context(|| format!("no server at {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let authorization = address.user.as_ref().map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
        Ok(Client { sender, host: address.host.clone(), authorization })
    }

    /// Sends a request and reads its whole answer; an answer of 400 and above is an error.
    pub(crate) async fn request(&mut self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<Bytes> {
        let body = body.into();
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.host);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        // The answer before this one may have been read before the connection knows that it was.
        self.sender.ready().await?;
        let answer = self.sender.send_request(request.body(Full::new(body))?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if status.is_client_error() || status.is_server_error() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_servers_roots() {
        let address: Address = "http://admin:secret@127.0.0.1:5984/".parse().unwrap();
        assert_eq!(address.to_string(), "http://127.0.0.1:5984");
        assert_eq!(address.user.as_deref(), Some("admin:secret"));
        assert!("http://localhost/db".parse::<Address>().is_err());
        assert!("localhost:5984".parse::<Address>().is_err());
    }
}
