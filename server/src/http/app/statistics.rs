//! Counters since the start of this server: the one place of counters for `_stats`, `_system` and `_prometheus`.
//!
//! CouchDB's counters that mean the same here have CouchDB's names. A new one is a variant of [`Count`] and its row in
//! [`COUNTS`]. Engines report their own counts ([`kv_api::figures`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use hyper::{Method, StatusCode};
use kv_api::figures::{Counter, Distribution, Histogram};

/// The methods that are counted, and the statuses, as in CouchDB.
pub(crate) const METHODS: [&str; 8] = ["COPY", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
const STATUSES: [u16; 28] = [
    200, 201, 202, 204, 206, 301, 302, 304, 400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 414, 415, 416, 417, 426,
    428, 500, 501, 503, 507,
];

/// Number of classes of statuses, from 1xx.
const CLASSES: usize = 5;

/// Bounds for the number of documents in a request.
const DOCUMENTS: &[u64] = &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

/// The time span of recent figures: the last one or two of these.
const LATELY: Duration = Duration::from_secs(60);

/// A counter of CouchDB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    DatabasePurges,
    DatabaseReads,
    DatabaseWrites,
    DocumentWrites,
    LocalDocumentWrites,
    BulkRequests,
    PartitionAllDocs,
    PartitionExplain,
    PartitionFind,
    PartitionView,
    PurgeRequests,
    Requests,
    ViewReads,
    DocsExamined,
    KeysExamined,
    ResultsReturned,
    TooManyScanned,
    UnindexedQueries,
}

/// The place of each in `_stats`, and what it means.
const COUNTS: [(&str, &str); Count::UnindexedQueries as usize + 1] = [
    ("couchdb.database_purges", "number of requests that purged documents"),
    ("couchdb.database_reads", "number of documents read by requests"),
    ("couchdb.database_writes", "number of requests that changed a database"),
    ("couchdb.document_writes", "number of document write operations"),
    ("couchdb.local_document_writes", "number of _local document write operations"),
    ("couchdb.httpd.bulk_requests", "number of bulk requests"),
    ("couchdb.httpd.partition_all_docs_requests", "number of partition HTTP _all_docs requests"),
    ("couchdb.httpd.partition_explain_requests", "number of partition HTTP _explain requests"),
    ("couchdb.httpd.partition_find_requests", "number of partition HTTP _find requests"),
    ("couchdb.httpd.partition_view_requests", "number of partition HTTP view requests"),
    ("couchdb.httpd.purge_requests", "number of purge requests"),
    ("couchdb.httpd.requests", "number of HTTP requests"),
    ("couchdb.httpd.view_reads", "number of view reads"),
    ("mango.docs_examined", "number of documents examined by mango queries"),
    ("mango.keys_examined", "number of keys examined by mango queries"),
    ("mango.results_returned", "number of rows returned by mango queries"),
    ("mango.too_many_docs_scanned", "number of mango queries that generated an index scan warning"),
    ("mango.unindexed_queries", "number of mango queries that could not use an index"),
];

/// Counts of the stores' jobs.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobCounts {
    /// For each kind, the number of jobs that run, that wait, and that wait after a failure.
    pub(crate) kinds: Vec<(&'static str, [u64; 3])>,
    /// Number of changes that each replication has not processed yet.
    pub(crate) behind: Vec<(String, u64)>,
}

/// The name, the bytes and the documents of each database.
pub(crate) type DatabaseSizes = Vec<(String, u64, u64)>;

/// How complete a reading of the stores is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Whether the stores answered without an error.
    pub(crate) is_readable: bool,
    /// Whether it ended in time.
    pub(crate) is_in_time: bool,
    /// Whether everything was read.
    pub(crate) is_whole: bool,
}

/// State of the stores at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample<T> {
    pub(crate) held: T,
    /// When it was read.
    pub(crate) taken: Instant,
    /// When a reading was tried last, and how far that came.
    pub(crate) tried: Instant,
    pub(crate) reading: Reading,
}

/// The newest sample, if there is one. Taking the next one locks it.
pub(crate) type Newest<T> = tokio::sync::Mutex<Option<Sample<T>>>;

/// The newest samples.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(crate) jobs: Newest<JobCounts>,
    pub(crate) databases: Newest<DatabaseSizes>,
}

/// A figure of `_stats`.
pub(crate) struct Stat {
    /// Its place, with dots.
    pub(crate) path: String,
    pub(crate) help: String,
    pub(crate) value: StatValue,
}

/// Its value.
pub(crate) enum StatValue {
    Counter(u64),
    /// The current value. CouchDB's `_stats` calls some of these counters too.
    Level(u64, &'static str),
    /// Times in seconds: all, and recent ones.
    Times(Distribution, Distribution),
    /// Other values.
    Values(Distribution),
}

impl Stat {
    pub(crate) fn new(path: impl Into<String>, help: impl Into<String>, value: StatValue) -> Stat {
        Stat { path: path.into(), help: help.into(), value }
    }
}

/// A number of existing things. Clones share the number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level(Arc<AtomicU64>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Arc<AtomicU64>);

impl Level {
    pub(crate) fn enter(&self) -> Entered {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entered(self.0.clone())
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Times: all of them, and those of the last one or two minutes.
#[derive(Debug)]
pub(crate) struct Times {
    all: Histogram,
    /// For this minute and the last one, in turn.
    lately: [Histogram; 2],
    /// The number of this minute.
    minute: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        let new = Histogram::of_times;
        Times { all: new(), lately: [new(), new()], minute: AtomicU64::new(0) }
    }
}

impl Times {
    /// Adds a time; `now` is the time since the start. When the minute changes, two threads may lose a few recent
    /// values.
    pub(crate) fn observe(&self, time: Duration, now: Duration) {
        self.all.observe_time(time);
        self.turn(now).observe_time(time);
    }

    /// The histogram of this minute.
    fn turn(&self, now: Duration) -> &Histogram {
        let minute = now.as_secs() / LATELY.as_secs();
        let last = self.minute.load(Ordering::Relaxed);
        let place = usize::from(minute % 2 == 1);
        let is_mine = || self.minute.compare_exchange(last, minute, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if minute > last && is_mine() {
            self.lately[place].clear();
            if minute > last + 1 {
                self.lately[1 - place].clear();
            }
        }
        &self.lately[place]
    }

    fn value(&self, now: Duration) -> StatValue {
        self.turn(now);
        let [mut lately, other] = [&self.lately[0], &self.lately[1]].map(Histogram::seconds);
        lately.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        lately.sum += other.sum;
        StatValue::Times(self.all.seconds(), lately)
    }
}

/// The counts, and when the server started.
#[derive(Debug)]
pub(crate) struct Statistics {
    began: Instant,
    /// The same time by the clock. It is taken once: a changing figure would look like a restart.
    pub(crate) began_at: SystemTime,
    counts: [Counter; COUNTS.len()],
    methods: [Counter; METHODS.len()],
    statuses: [Counter; STATUSES.len()],
    request_time: Times,
    query_time: Times,
    bulk_docs: Histogram,
    /// Method and path of each row of the table of endpoints.
    routes: Vec<(&'static str, &'static str)>,
    /// The times of each row's answers, for each class of statuses.
    route_times: Vec<OnceLock<Box<Histogram>>>,
    pub(crate) connections: Level,
    /// Feeds that are being sent.
    pub(crate) feeds: Level,
    /// Running jobs of this server, and the replications among them.
    pub(crate) jobs: Level,
    pub(crate) replications: Level,
    /// Runs of jobs that failed, or ended in a panic.
    pub(crate) failed_runs: Counter,
    /// Runs lost when their server ended, as noticed by this server.
    pub(crate) lost_runs: Counter,
    /// Renewals of this server's lease that failed.
    pub(crate) failed_renewals: Counter,
    /// Documents that replications of this server wrote.
    pub(crate) replicated: Counter,
    /// Sent bytes of bodies.
    pub(crate) sent: Arc<Counter>,
}

impl Statistics {
    /// `routes`: the methods and the path of each row of the table of endpoints.
    pub(crate) fn new(routes: Vec<(&'static str, &'static str)>) -> Self {
        Statistics {
            began: Instant::now(),
            began_at: SystemTime::now(),
            counts: Default::default(),
            methods: Default::default(),
            statuses: Default::default(),
            request_time: Times::default(),
            query_time: Times::default(),
            bulk_docs: Histogram::new(DOCUMENTS),
            route_times: (0..routes.len() * CLASSES).map(|_| OnceLock::new()).collect(),
            routes,
            connections: Level::default(),
            feeds: Level::default(),
            jobs: Level::default(),
            replications: Level::default(),
            failed_runs: Counter::default(),
            lost_runs: Counter::default(),
            failed_renewals: Counter::default(),
            replicated: Counter::default(),
            sent: Arc::default(),
        }
    }

    /// Time since the server started.
    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// Counts a request and its answer; `time` is until the head was made. `route`: the number of its row, if it has
    /// one.
    pub(crate) fn answered(&self, method: &Method, status: StatusCode, route: Option<usize>, time: Duration) {
        self.add(Count::Requests, 1);
        if let Some(at) = METHODS.iter().position(|known| *known == method.as_str()) {
            self.methods[at].add(1);
        }
        if let Ok(at) = STATUSES.binary_search(&status.as_u16()) {
            self.statuses[at].add(1);
        }
        self.request_time.observe(time, self.uptime());
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        if let Some(times) = route.and_then(|route| self.route_times.get(route * CLASSES + class)) {
            times.get_or_init(|| Box::new(Histogram::of_times())).observe_time(time);
        }
    }

    /// Adds to a counter.
    pub(crate) fn add(&self, count: Count, number: u64) {
        self.counts[count as usize].add(number);
    }

    /// Counts the documents of one `_bulk_docs`.
    pub(crate) fn wrote(&self, documents: usize) {
        self.add(Count::DocumentWrites, documents as u64);
        self.bulk_docs.observe(documents as u64);
    }

    /// Counts a search.
    pub(crate) fn searched(&self, time: Duration) {
        self.query_time.observe(time, self.uptime());
    }

    /// CouchDB's figures that are counted here.
    pub(crate) fn stats(&self) -> Vec<Stat> {
        let counter =
            |path: String, help, counter: &Counter| Stat::new(path, help, StatValue::Counter(counter.value()));
        let counts = COUNTS.iter().zip(&self.counts);
        let counts = counts.map(|((path, help), count)| counter((*path).to_owned(), (*help).to_owned(), count));
        let methods = METHODS.iter().zip(&self.methods).map(|(method, count)| {
            counter(
                format!("couchdb.httpd_request_methods.{method}"),
                format!("number of HTTP {method} requests"),
                count,
            )
        });
        let statuses = STATUSES.iter().zip(&self.statuses).map(|(status, count)| {
            let name = StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
            let help = format!("number of HTTP {status} {} responses", name.unwrap_or_default());
            counter(format!("couchdb.httpd_status_codes.{status}"), help, count)
        });
        let now = self.uptime();
        let feeds = StatValue::Level(self.feeds.value(), "counter");
        let others = [
            Stat::new("couchdb.request_time", "time to the head of an answer", self.request_time.value(now)),
            Stat::new("mango.query_time", "length of time processing a mango query", self.query_time.value(now)),
            Stat::new(
                "couchdb.httpd.bulk_docs",
                "distribution of the number of docs in _bulk_docs requests",
                StatValue::Values(self.bulk_docs.distribution(1.0)),
            ),
            Stat::new("couchdb.httpd.clients_requesting_changes", "number of clients for continuous _changes", feeds),
        ];
        counts.chain(methods).chain(statuses).chain(others).collect()
    }

    /// The times of answers: method, path and class of statuses.
    pub(crate) fn route_times(&self) -> impl Iterator<Item = (&'static str, &'static str, String, Distribution)> {
        self.route_times.iter().enumerate().filter_map(|(at, times)| {
            let (methods, path) = *self.routes.get(at / CLASSES)?;
            // HEAD is answered as GET.
            let method = methods.split(',').next().unwrap_or(methods);
            Some((method, path, format!("{}xx", at % CLASSES + 1), times.get()?.seconds()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(statistics: &Statistics, wanted: &str) -> u64 {
        let values = statistics.stats().into_iter().filter(|stat| stat.path.starts_with(wanted));
        values
            .map(|stat| match stat.value {
                StatValue::Counter(value) => value,
                _ => panic!("{} is not a counter", stat.path),
            })
            .sum()
    }

    #[test]
    fn statuses_are_in_order_and_unknown_ones_count_as_requests_only() {
        assert!(STATUSES.is_sorted());
        let statistics = Statistics::new(vec![("GET,HEAD", "/{db}")]);
        for (method, status, route) in
            [("GET", 200, Some(0)), ("GET", 404, None), ("LOCK", 405, None), ("PUT", 299, Some(7))]
        {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            statistics.answered(&method, StatusCode::from_u16(status).unwrap(), route, Duration::from_millis(3));
        }
        assert_eq!(counter(&statistics, "couchdb.httpd.requests"), 4);
        assert_eq!(counter(&statistics, "couchdb.httpd_request_methods."), 3);
        assert_eq!(counter(&statistics, "couchdb.httpd_status_codes."), 3);
        let times: Vec<_> = statistics.route_times().collect();
        let [("GET", "/{db}", class, times)] = times.as_slice() else { panic!("{times:?}") };
        assert_eq!((class.as_str(), times.count()), ("2xx", 1));
    }

    #[test]
    fn the_names_are_those_of_the_variants() {
        assert_eq!(COUNTS[Count::Requests as usize].0, "couchdb.httpd.requests");
        assert_eq!(COUNTS[Count::UnindexedQueries as usize].0, "mango.unindexed_queries");
    }

    #[test]
    fn what_is_so_lately_is_forgotten_after_two_minutes() {
        let times = Times::default();
        let lately = |second| match times.value(Duration::from_secs(second)) {
            StatValue::Times(all, lately) => (all.count(), lately.count()),
            _ => panic!("no times"),
        };
        times.observe(Duration::from_millis(1), Duration::from_secs(59));
        times.observe(Duration::from_millis(1), Duration::from_secs(61));
        assert_eq!(lately(62), (2, 2));
        assert_eq!(lately(121), (2, 1));
        times.observe(Duration::from_millis(1), Duration::from_secs(600));
        assert_eq!(lately(600), (3, 1));
        assert_eq!(lately(720), (3, 0));
    }
}
