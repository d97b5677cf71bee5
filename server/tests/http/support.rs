//! A server for each test, and requests that are easy to read.

use std::net::SocketAddr;
use std::time::Duration;

use kv_api::AnyDatabase;
use model::Layer;
use reqwest::{Client, Method, RequestBuilder, StatusCode, header::HeaderMap};
use serde_json::Value;
use server::http::{Administrator, Options, Server};

/// A running server and a client of it.
pub(crate) struct Couch {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) base: String,
    pub(crate) layer: Layer<AnyDatabase>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

/// Waits until `is_good` finds a value, for two minutes at most.
pub(crate) async fn wait_for<T>(what: &str, is_good: impl AsyncFn() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = is_good().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| panic!("{what}"))
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status, `error` and `reason`.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, error: &str, reason: &str) {
        let json = self.json();
        let found = (self.status.as_u16(), json["error"].as_str().unwrap(), json["reason"].as_str().unwrap());
        assert_eq!(found, (status, error, reason));
    }
}

impl Couch {
    pub(crate) async fn start() -> Couch {
        Self::with(Options::default()).await
    }

    /// A server with a database `db` of these documents.
    #[cfg(feature = "javascript")]
    pub(crate) async fn with_docs(docs: impl Into<Value>) -> Couch {
        let couch = Couch::start().await;
        couch.database("db").await;
        let answer = couch.json("POST", "/db/_bulk_docs", serde_json::json!({ "docs": (docs.into()) })).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        couch
    }

    pub(crate) async fn with_administrator() -> Couch {
        let administrator = Administrator { name: "adm".into(), password: "pass word".into() };
        Self::with(Options { administrator: Some(administrator), ..Options::default() }).await
    }

    pub(crate) async fn with(options: Options) -> Couch {
        let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
        Self::over(engine, options).await
    }

    pub(crate) async fn over(engine: AnyDatabase, options: Options) -> Couch {
        Self::serving(Layer::open(engine, server::layer_options()).await.unwrap(), options).await
    }

    pub(crate) async fn serving(layer: Layer<AnyDatabase>, options: Options) -> Couch {
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(layer.clone(), address, options).await.unwrap();
        let base = format!("http://{}", server.address());
        Couch { server, client: Client::new(), base, layer }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.client.request(Method::from_bytes(method.as_bytes()).unwrap(), format!("{}{path}", self.base))
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        Answer { status, headers, text: response.text().await.unwrap() }
    }

    pub(crate) async fn call(&self, method: &str, path: &str) -> Answer {
        self.send(self.request(method, path)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path).await
    }

    /// Sends JSON, with its `Content-Type`.
    pub(crate) async fn json(&self, method: &str, path: &str, body: Value) -> Answer {
        self.raw(method, path, body.to_string()).await
    }

    /// Sends bytes with the `Content-Type` of JSON.
    pub(crate) async fn raw(&self, method: &str, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        self.send(self.request(method, path).header("content-type", "application/json").body(body)).await
    }

    /// Creates a database.
    pub(crate) async fn database(&self, name: &str) {
        let answer = self.call("PUT", &format!("/{name}")).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
    }

    /// Writes a document. Returns its revision.
    pub(crate) async fn put(&self, path: &str, body: Value) -> String {
        let answer = self.json("PUT", path, body).await;
        assert!(answer.status.is_success(), "{}", answer.text);
        answer.json()["rev"].as_str().unwrap().to_owned()
    }

    /// The contents of a database, for tests in which nothing may be written.
    pub(crate) async fn contents(&self, db: &str) -> String {
        let changes = self.get(&format!("/{db}/_changes?include_docs=true&style=all_docs")).await;
        let locals = self.get(&format!("/{db}/_local_docs?include_docs=true")).await;
        format!("{}{}", changes.text, locals.text)
    }
}
