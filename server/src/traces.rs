//! Spans for a collector of OpenTelemetry, by OTLP over HTTP (<https://opentelemetry.io/docs/specs/otlp/>).
//!
//! ```text
//!   request ──┬─ commit        its trace, and its parent's id, by the client's `traceparent`
//!             └─ commit
//!      └──► a queue of 2,048 spans ──► a thread, every five seconds ──► POST …/v1/traces
//!             full: the span is dropped
//! ```
//!
//! A span has the route, the status, the request id and times: no path, no name of a document or a user, no contents.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::{HeaderMap, Request, Response};
use kv_api::SPANS;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use parking_lot::Mutex;
use peer::{Trust, Url};
use tokio::runtime::Handle;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::causes::causes;

/// Maximum time of a request to the collector.
const TIME: Duration = Duration::from_secs(10);

/// Maximum time to send what is left when the server ends.
const LAST: Duration = Duration::from_secs(5);

/// Maximum bytes of an answer.
const MOST_BYTES: usize = 64 << 10;

/// Minimum time between two log lines about a collector that does not take spans.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracesError {
    #[error("no collector can be reached: {0}")]
    Client(String),
    #[error("the collector's address cannot be used")]
    Exporter(#[from] ExporterBuildError),
}

/// Sends spans to a collector until it is dropped.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends spans to this collector, by tasks of this runtime.
    pub(crate) fn start(endpoint: &Url, trust: &Trust, runtime: Handle) -> Result<Traces, TracesError> {
        let tls = trust.config().map_err(|error| TracesError::Client(error.to_string()))?;
        let client = reqwest::Client::builder().no_proxy().timeout(TIME).tls_backend_preconfigured(tls);
        let client = client.build().map_err(|error| TracesError::Client(error.to_string()))?;
        let client = Client { client, runtime, said: Arc::default() };
        let exporter = SpanExporter::builder().with_http().with_http_client(client);
        let exporter = exporter.with_endpoint(traces_url(endpoint)).with_timeout(TIME).build()?;
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("couch-layer").with_attribute(version).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter);
        Ok(Traces(provider.build()))
    }

    /// Gets the spans of requests and commits, and nothing that is logged.
    pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("couch-layer"));
        let layer = layer.with_location(false).with_threads(false).with_tracked_inactivity(false).with_target(false);
        layer.with_filter(Targets::new().with_target(SPANS, LevelFilter::TRACE))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST) {
            tracing::warn!("the last spans were not sent: {error}");
        }
    }
}

/// Makes a span part of the client's trace, if the client names one (`traceparent`).
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    // Fails for spans that nobody records.
    let _ = span.set_parent(TraceContextPropagator::new().extract(&HeaderExtractor(headers)));
}

/// Names a span. Its field `otel.name` would name it only until it is entered.
pub(crate) fn rename(span: &Span, name: String) {
    span.context().span().update_name(name);
}

/// The URL for spans: that of the collector, with the usual path if it has none.
fn traces_url(endpoint: &Url) -> String {
    let mut url = endpoint.clone();
    if url.path() == "/" {
        url.set_path("/v1/traces");
    }
    url.into()
}

/// Sends requests by tasks of a runtime, since spans are sent by a thread of their own.
#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    runtime: Handle,
    /// When a failure was last logged.
    said: Arc<Mutex<Option<Instant>>>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let request = reqwest::Request::try_from(request)?;
            // The URL may have a password.
            let answer = client.execute(request).await.map_err(reqwest::Error::without_url)?;
            let answer: Response<reqwest::Body> = answer.into();
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        });
        let answer = sent.await.unwrap_or_else(|error| Err(error.into()));
        match &answer {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => self.complain(&format!("it answers {}", answer.status())),
            Err(error) => self.complain(&format!("{error}{}", causes(error.as_ref()))),
        }
        answer
    }
}

impl Client {
    fn complain(&self, why: &str) {
        let mut said = self.said.lock();
        if said.is_none_or(|said| said.elapsed() >= BETWEEN_LINES) {
            *said = Some(Instant::now());
            tracing::warn!("spans are lost, since the collector did not take them: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_without_a_path_gets_spans_at_the_usual_one() {
        for (endpoint, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://otlp.example/", "https://otlp.example/v1/traces"),
            ("https://otlp.example/own/traces", "https://otlp.example/own/traces"),
        ] {
            assert_eq!(traces_url(&endpoint.parse().unwrap()), url);
        }
    }
}
