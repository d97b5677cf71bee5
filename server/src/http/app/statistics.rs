//! Counts of what this server has done since it started, for `_stats`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};
use model::JsonWriter;

/// The methods that are counted, and the statuses, as in CouchDB.
const METHODS: [&str; 8] = ["COPY", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
const STATUSES: [u16; 28] = [
    200, 201, 202, 204, 206, 301, 302, 304, 400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 414, 415, 416, 417, 426,
    428, 500, 501, 503, 507,
];

/// What a successful request does, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// Reads a document.
    Read,
    /// Changes a database.
    Write,
    /// Changes a database, by `_bulk_docs`.
    BulkWrite,
    /// Reads a view.
    View,
    /// Purges documents.
    Purge,
}

/// The counts, and when the server started.
#[derive(Debug)]
pub(crate) struct Statistics {
    began: Instant,
    requests: AtomicU64,
    methods: [AtomicU64; METHODS.len()],
    statuses: [AtomicU64; STATUSES.len()],
    bulk_requests: AtomicU64,
    view_reads: AtomicU64,
    purge_requests: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Default for Statistics {
    fn default() -> Self {
        Statistics {
            began: Instant::now(),
            requests: AtomicU64::default(),
            methods: Default::default(),
            statuses: Default::default(),
            bulk_requests: AtomicU64::default(),
            view_reads: AtomicU64::default(),
            purge_requests: AtomicU64::default(),
            reads: AtomicU64::default(),
            writes: AtomicU64::default(),
        }
    }
}

impl Statistics {
    /// Time since the server started.
    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// Counts a request and its answer.
    pub(crate) fn answered(&self, method: &Method, status: StatusCode) {
        add(&self.requests, 1);
        if let Some(at) = METHODS.iter().position(|known| *known == method.as_str()) {
            add(&self.methods[at], 1);
        }
        if let Ok(at) = STATUSES.binary_search(&status.as_u16()) {
            add(&self.statuses[at], 1);
        }
    }

    /// Counts what a successful request did.
    pub(crate) fn did(&self, what: Effect) {
        match what {
            Effect::Nothing => {}
            Effect::Read => add(&self.reads, 1),
            Effect::Write => add(&self.writes, 1),
            Effect::BulkWrite => {
                add(&self.bulk_requests, 1);
                add(&self.writes, 1);
            }
            Effect::View => add(&self.view_reads, 1),
            Effect::Purge => {
                add(&self.purge_requests, 1);
                add(&self.writes, 1);
            }
        }
    }

    /// Counts documents that were read.
    pub(crate) fn read(&self, documents: usize) {
        add(&self.reads, documents as u64);
    }

    /// Writes the counts in CouchDB's form. `databases` is the number of open ones.
    pub(crate) fn write(&self, databases: usize, json: &mut JsonWriter<'_>) {
        json.begin_object().name("couchdb").begin_object();
        counter(json, "database_purges", &self.purge_requests, "number of requests that purged documents");
        counter(json, "database_reads", &self.reads, "number of documents read by requests");
        counter(json, "database_writes", &self.writes, "number of requests that changed a database");
        json.name("httpd").begin_object();
        counter(json, "bulk_requests", &self.bulk_requests, "number of bulk requests");
        counter(json, "purge_requests", &self.purge_requests, "number of purge requests");
        counter(json, "requests", &self.requests, "number of HTTP requests");
        counter(json, "view_reads", &self.view_reads, "number of view reads");
        json.end_object().name("httpd_request_methods").begin_object();
        for (method, count) in METHODS.iter().zip(&self.methods) {
            counter(json, method, count, &format!("number of HTTP {method} requests"));
        }
        json.end_object().name("httpd_status_codes").begin_object();
        for (status, count) in STATUSES.iter().zip(&self.statuses) {
            let name = StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
            let description = format!("number of HTTP {status} {} responses", name.unwrap_or_default());
            counter(json, &status.to_string(), count, &description);
        }
        json.end_object();
        value(json, "open_databases", databases as u64, "counter", "number of open databases");
        json.end_object().end_object();
    }
}

fn add(count: &AtomicU64, number: u64) {
    count.fetch_add(number, Ordering::Relaxed);
}

fn counter(json: &mut JsonWriter<'_>, name: &str, count: &AtomicU64, description: &str) {
    value(json, name, count.load(Ordering::Relaxed), "counter", description);
}

fn value(json: &mut JsonWriter<'_>, name: &str, value: u64, kind: &str, description: &str) {
    json.name(name).begin_object().name("value").u64(value).name("type").str(kind);
    json.name("desc").str(description).end_object();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_in_order_and_unknown_ones_count_as_requests_only() {
        assert!(STATUSES.is_sorted());
        let statistics = Statistics::default();
        for (method, status) in [("GET", 200), ("GET", 404), ("LOCK", 405), ("PUT", 299)] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            statistics.answered(&method, StatusCode::from_u16(status).unwrap());
        }
        let sum = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
        assert_eq!(statistics.requests.load(Ordering::Relaxed), 4);
        assert_eq!((sum(&statistics.methods), sum(&statistics.statuses)), (3, 3));
    }
}
