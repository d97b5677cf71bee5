//! What all clients share: where the server is, what was asked, and what must not have happened.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;

/// A request that takes longer has no answer.
const NO_ANSWER: Duration = Duration::from_secs(120);

/// Maximum number of problems that are reported.
const MOST_PROBLEMS: usize = 20;

/// Lies of a client, to show that they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A feed drops the rows of a document.
    DroppedRows,
    /// A write is acknowledged but was not made.
    LostWrite,
}

/// The requests of a kind.
#[derive(Debug, Default)]
struct Requests {
    /// Microseconds to the whole answer, or to the head of a feed.
    answered: Vec<u32>,
    /// 503 with `Retry-After`: the budget of memory.
    refused: u64,
    /// Without an answer, or with a 5xx, while the server was killed and started again.
    down: u64,
}

pub(crate) struct Run {
    pub(crate) base: String,
    pub(crate) lie: Option<Lie>,
    client: Client,
    /// Odd while the server is killed and starts again.
    epoch: AtomicU64,
    stopping: AtomicBool,
    requests: Mutex<BTreeMap<&'static str, Requests>>,
    pub(crate) rows: AtomicU64,
    problems: Mutex<Vec<String>>,
}

impl Run {
    pub(crate) fn new(base: String, lie: Option<Lie>) -> Run {
        Run {
            base,
            lie,
            // The machine's proxies are for other machines.
            client: Client::builder().no_proxy().build().expect("a client"),
            epoch: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            requests: Mutex::default(),
            rows: AtomicU64::new(0),
            problems: Mutex::default(),
        }
    }

    /// A request of the administrator.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).basic_auth("anna", Some("secret"))
    }

    /// The same with JSON.
    pub(crate) fn with_json(&self, method: Method, path: &str, body: &Value) -> RequestBuilder {
        self.request(method, path).header("content-type", "application/json").body(body.to_string())
    }

    /// The server is about to be killed, or has started again.
    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn problem(&self, problem: String) {
        let mut problems = self.problems.lock().expect("no panic");
        if problems.len() < MOST_PROBLEMS {
            println!("problem: {problem}");
            problems.push(problem);
        }
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().expect("no panic").clone()
    }

    fn count(&self, kind: &'static str, count: impl FnOnce(&mut Requests)) {
        count(self.requests.lock().expect("no panic").entry(kind).or_default());
    }

    /// A request of this epoch has no answer. That is a problem unless the server was killed.
    pub(crate) fn broken(&self, kind: &'static str, epoch: u64, reason: &str) {
        if epoch % 2 == 1 || self.epoch() != epoch {
            self.count(kind, |requests| requests.down += 1);
        } else {
            self.problem(format!("{kind}: {reason}"));
        }
    }

    /// Sends a request of this epoch. The head of its answer, unless what the request did is unknown.
    pub(crate) async fn begin(&self, kind: &'static str, epoch: u64, request: RequestBuilder) -> Option<Response> {
        let answer = match request.send().await {
            Ok(answer) if answer.status().as_u16() < 500 => return Some(answer),
            Ok(answer) => answer,
            Err(error) => {
                self.broken(kind, epoch, &format!("{error:?}"));
                // Until the server is there again.
                tokio::time::sleep(Duration::from_millis(50)).await;
                return None;
            }
        };
        if answer.status() == 503 && answer.headers().contains_key("retry-after") {
            self.count(kind, |requests| requests.refused += 1);
            tokio::time::sleep(Duration::from_millis(200)).await;
        } else {
            let status = answer.status();
            self.broken(kind, epoch, &format!("{status}: {}", answer.text().await.unwrap_or_default()));
        }
        None
    }

    pub(crate) fn answered(&self, kind: &'static str, begun: Instant) {
        let took = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.count(kind, |requests| requests.answered.push(took));
    }

    /// Sends a request. Status and body of its answer, unless what the request did is unknown.
    pub(crate) async fn ask(&self, kind: &'static str, request: RequestBuilder) -> Option<(u16, Vec<u8>)> {
        let (epoch, begun) = (self.epoch(), Instant::now());
        let answer = self.begin(kind, epoch, request.timeout(NO_ANSWER)).await?;
        let status = answer.status().as_u16();
        match answer.bytes().await {
            Ok(body) => {
                self.answered(kind, begun);
                Some((status, body.to_vec()))
            }
            Err(error) => {
                self.broken(kind, epoch, &format!("{error:?}"));
                None
            }
        }
    }

    /// The same for JSON, with a status that is expected. Any other is a problem, and nothing is known then.
    pub(crate) async fn ask_json(
        &self,
        kind: &'static str,
        request: RequestBuilder,
        expected: &[u16],
    ) -> Option<Value> {
        let (status, body) = self.ask(kind, request).await?;
        match serde_json::from_slice(&body) {
            Ok(value) if expected.contains(&status) => Some(value),
            _ => {
                self.problem(format!("{kind}: {status}: {}", String::from_utf8_lossy(&body)));
                None
            }
        }
    }

    /// A line for each kind of request.
    pub(crate) fn table(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{:<12} {:>9} {:>10} {:>10} {:>10} {:>8} {:>8}",
            "requests", "answered", "median ms", "99 % ms", "most ms", "refused", "down"
        )];
        for (kind, requests) in self.requests.lock().expect("no panic").iter_mut() {
            requests.answered.sort_unstable();
            let times = &requests.answered;
            let at = |part: usize| times.get(times.len() * part / 100).or(times.last()).copied().unwrap_or_default();
            let [median, slow, most] = [at(50), at(99), at(100)].map(|micros| f64::from(micros) / 1_000.0);
            lines.push(format!(
                "{kind:<12} {:>9} {median:>10.1} {slow:>10.1} {most:>10.1} {:>8} {:>8}",
                times.len(),
                requests.refused,
                requests.down
            ));
        }
        lines
    }
}
