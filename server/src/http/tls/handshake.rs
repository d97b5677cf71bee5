//! Starts a TLS connection.

use std::io;
use std::pin::Pin;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Tls;

/// The first byte of a handshake.
const HANDSHAKE: u8 = 0x16;

/// Maximum bytes of a request without TLS that are read before its refusal.
const MOST_PLAIN: u64 = 64 * 1024;

/// The answer to a request without TLS.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\
    x-content-type-options: nosniff\r\ncontent-length: 83\r\n\r\n{\"error\":\"bad_request\",\"reason\":\"This port speaks TLS: send requests to https://\"}\n";

/// A connection whose writes have a time limit.
pub(crate) type Timed = Pin<Box<TimeoutStream<TcpStream>>>;

impl Tls {
    /// Performs the handshake. A client that speaks HTTP without TLS gets an answer that says so. `None` if the handshake
    /// was all that the client wanted: a check of the certificate's domain.
    pub(crate) async fn accept(&self, mut stream: Timed) -> io::Result<Option<TlsStream<Timed>>> {
        let mut first = [0];
        if stream.get_ref().peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            if first[0].is_ascii_uppercase() {
                refuse(&mut stream).await?;
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        let stream = TlsAcceptor::from(self.config.clone()).accept(stream).await?;
        #[cfg(feature = "acme")]
        if stream.get_ref().1.alpn_protocol() == Some(super::acme::challenges::CHALLENGE_PROTOCOL) {
            let mut stream = stream;
            stream.shutdown().await?;
            return Ok(None);
        }
        Ok(Some(stream))
    }
}

/// Answers a request without TLS, whatever it is.
async fn refuse(stream: &mut Timed) -> io::Result<()> {
    stream.write_all(PLAIN).await?;
    stream.shutdown().await?;
    // Unread bytes would reset the connection, and the client might not see the answer.
    tokio::io::copy(&mut stream.as_mut().take(MOST_PLAIN), &mut tokio::io::sink()).await.map(drop)
}
