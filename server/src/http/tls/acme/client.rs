//! Requests to an ACME server: by the HTTP client of the program, with ceilings for time and bytes.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use peer::Trust;

use crate::causes::causes;

/// Maximum time of a request.
const TIME: Duration = Duration::from_secs(30);

/// Maximum bytes of an answer.
const MOST_BYTES: usize = 1 << 20;

/// The client of an ACME server.
pub(super) struct Client(reqwest::Client);

impl Client {
    /// A client for servers that are trusted by these certificates. It speaks TLS only.
    pub(super) fn new(trust: &Trust) -> Result<Client, String> {
        let tls = trust.config().map_err(|error| error.to_string())?;
        let builder = reqwest::Client::builder().no_proxy().https_only(true).timeout(TIME);
        builder.tls_backend_preconfigured(tls).build().map(Client).map_err(|error| error.to_string())
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let request = Request::from_parts(head, body.to_bytes());
            let request = reqwest::Request::try_from(request).map_err(unreachable)?;
            let answer: Response<reqwest::Body> = client.execute(request).await.map_err(unreachable)?.into();
            Ok(answer.map(|body| Limited::new(body, MOST_BYTES)).into())
        })
    }
}

/// A failure below HTTP, with its causes. The error itself would only add the URL.
fn unreachable(error: reqwest::Error) -> Error {
    Error::Other(format!("no answer{}", causes(&error)).into())
}
