//! One keep-alive connection to a server. It is light because it shares the machine with the server: a general client
//! took a third of the processor time of a read.

use std::fmt;
use std::io::Write;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Address of a server, with the administrator's name and password if there is one.
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
            bail!("give the server's root, without a path: {url}");
        }
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:5984") };
        Ok(Address { host, user })
    }
}

impl Address {
    /// Host and port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The URL with the user's name and password.
    pub(crate) fn with_user(&self) -> String {
        self.user.as_ref().map_or_else(|| self.to_string(), |user| format!("http://{user}@{}", self.host))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.host)
    }
}

/// The caller's task reads and writes the connection, without a task in between.
pub(crate) struct Client {
    stream: TcpStream,
    host: String,
    authorization: Option<String>,
    /// Buffer of the current request.
    request: Vec<u8>,
    /// Bytes that were read and not used yet.
    read: BytesMut,
}

/// Head of a response: its status, its length, and how the body ends.
struct ResponseHead {
    status: u16,
    length: usize,
    body: Body,
}

enum Body {
    Length(usize),
    Chunked,
}

impl Client {
    pub(crate) async fn connect(address: &Address) -> Result<Client> {
        let stream = TcpStream::connect(&address.host).await.with_context(|| format!("no server at {address}"))?;
        stream.set_nodelay(true)?;
        let authorization = address.user.as_ref().map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
        let (request, read) = (Vec::new(), BytesMut::new());
        Ok(Client { stream, host: address.host.clone(), authorization, request, read })
    }

    /// Sends a request and reads the whole response. A status of 400 and above is an error.
    pub(crate) async fn request(&mut self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<Bytes> {
        let (status, body) = self.answer_to(method, path, body).await?;
        if status >= 400 {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    /// The same, with any status.
    pub(crate) async fn answer_to(&mut self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<(u16, Bytes)> {
        let body = body.into();
        let content = if method == "GET" { None } else { Some(("application/json", body.len() as u64)) };
        self.head(method, path, content, "")?;
        self.request.extend_from_slice(&body);
        self.answer().await
    }

    /// Sends a `PUT` whose body of `length` bytes comes in pieces, and reads the whole response.
    pub(crate) async fn upload(
        &mut self,
        path: &str,
        content_type: &str,
        length: u64,
        pieces: impl IntoIterator<Item = Bytes>,
    ) -> Result<Bytes> {
        self.head("PUT", path, Some((content_type, length)), "")?;
        self.stream.write_all(&self.request).await?;
        self.request.clear();
        for piece in pieces {
            self.stream.write_all(&piece).await?;
        }
        let (status, body) = self.answer().await?;
        if status >= 400 {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    /// Sends a `GET` with further header lines, and drops the response's body as it comes. Returns its length.
    pub(crate) async fn download(&mut self, path: &str, headers: &str) -> Result<u64> {
        self.head("GET", path, None, headers)?;
        let head = self.begin().await?;
        if head.status >= 400 {
            bail!("{path}: {}", head.status);
        }
        let mut length = 0;
        match head.body {
            Body::Length(all) => {
                length = all as u64;
                self.skip(all).await?;
            }
            Body::Chunked => loop {
                let size = self.chunk_size().await?;
                self.skip(size).await?;
                self.skip(2).await?;
                if size == 0 {
                    break;
                }
                length += size as u64;
            },
        }
        Ok(length)
    }

    /// Writes a request's head into its buffer.
    fn head(&mut self, method: &str, path: &str, content: Option<(&str, u64)>, headers: &str) -> Result<()> {
        self.request.clear();
        write!(self.request, "{method} {path} HTTP/1.1\r\nhost: {}\r\n{headers}", self.host)?;
        if let Some(authorization) = &self.authorization {
            write!(self.request, "authorization: {authorization}\r\n")?;
        }
        if let Some((content_type, length)) = content {
            write!(self.request, "content-type: {content_type}\r\ncontent-length: {length}\r\n")?;
        }
        self.request.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Sends the rest of the request, and reads the response's head.
    async fn begin(&mut self) -> Result<ResponseHead> {
        self.stream.write_all(&self.request).await?;
        let head = loop {
            match head(&self.read)? {
                Some(head) => break head,
                None => self.more().await?,
            }
        };
        self.read.advance(head.length);
        Ok(head)
    }

    async fn answer(&mut self) -> Result<(u16, Bytes)> {
        let head = self.begin().await?;
        let body = match head.body {
            Body::Length(length) => {
                while self.read.len() < length {
                    self.more().await?;
                }
                self.read.split_to(length).freeze()
            }
            Body::Chunked => self.chunks().await?,
        };
        Ok((head.status, body))
    }

    /// Drops the next bytes.
    async fn skip(&mut self, mut bytes: usize) -> Result<()> {
        while bytes > 0 {
            if self.read.is_empty() {
                self.more().await?;
            }
            let some = bytes.min(self.read.len());
            self.read.advance(some);
            bytes -= some;
        }
        Ok(())
    }

    /// Reads the line before a chunk.
    async fn chunk_size(&mut self) -> Result<usize> {
        loop {
            match httparse::parse_chunk_size(&self.read) {
                Ok(httparse::Status::Complete((line, size))) => {
                    self.read.advance(line);
                    return Ok(usize::try_from(size)?);
                }
                Ok(httparse::Status::Partial) => self.more().await?,
                Err(_) => bail!("an answer's chunk has no size"),
            }
        }
    }

    async fn chunks(&mut self) -> Result<Bytes> {
        let mut body = BytesMut::new();
        loop {
            let size = self.chunk_size().await?;
            // And the end of its line.
            while self.read.len() < size + 2 {
                self.more().await?;
            }
            body.extend_from_slice(&self.read[..size]);
            self.read.advance(size + 2);
            if size == 0 {
                return Ok(body.freeze());
            }
        }
    }

    async fn more(&mut self) -> Result<()> {
        self.read.reserve(64 << 10);
        match self.stream.read_buf(&mut self.read).await? {
            0 => bail!("the server closed the connection in the middle of an answer"),
            _ => Ok(()),
        }
    }
}

/// The head at the beginning of `read`, once it is complete.
fn head(read: &[u8]) -> Result<Option<ResponseHead>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(read)? else { return Ok(None) };
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| std::str::from_utf8(header.value).ok())
    };
    let body = match header("content-length") {
        Some(length) => Body::Length(length.trim().parse().context("an answer's content-length")?),
        None if header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) => {
            Body::Chunked
        }
        None => bail!("an answer does not say where it ends"),
    };
    Ok(Some(ResponseHead { status: response.code.unwrap_or(0), length, body }))
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

    /// A response may arrive in any pieces.
    #[tokio::test]
    async fn answers_are_read_to_their_end() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let answers = [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n",
            "HTTP/1.1 404 Object Not Found\r\ncontent-length: 7\r\n\r\nmissing",
            "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n",
        ];
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for (n, answer) in answers.into_iter().enumerate() {
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                for piece in answer.as_bytes().chunks(1 + 2 * n) {
                    stream.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut client = Client::connect(&address).await.unwrap();
        assert_eq!(client.request("GET", "/", "").await.unwrap(), "hello");
        assert_eq!(client.request("GET", "/", "").await.unwrap(), "abc0123456789");
        let missing = client.request("PUT", "/db", "{}").await.unwrap_err();
        assert_eq!(missing.to_string(), "/db: 404: missing");
        assert_eq!(client.request("PUT", "/db", "").await.unwrap(), "");
        assert_eq!(client.download("/", "").await.unwrap(), 5);
        assert_eq!(client.download("/", "").await.unwrap(), 13);
        server.await.unwrap();
        assert!(client.request("GET", "/", "").await.is_err());
    }
}
