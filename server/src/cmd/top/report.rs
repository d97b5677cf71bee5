//! What a server did between two samples, and how it stands at the second one.

use std::collections::BTreeMap;

use kv_api::figures::Distribution;
use model::JsonText;
use serde_json::{Value, json};

use super::figures::{Between, Figures};

/// See the [module](self). `None` is what the server has no figure of, such as the disk of one in memory.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) version: String,
    pub(super) uptime_seconds: Option<f64>,
    pub(super) seconds: f64,
    /// Requests a second.
    pub(super) requests: Option<f64>,
    pub(super) request_times: Times,
    /// Answers a second, by class of their status.
    pub(super) statuses: BTreeMap<String, f64>,
    /// The routes that were used, the busiest first.
    pub(super) routes: Vec<Route>,
    /// Other rates and levels: their names in JSON.
    pub(super) rates: BTreeMap<&'static str, Option<f64>>,
    pub(super) levels: BTreeMap<&'static str, Option<f64>>,
    pub(super) commit_times: Times,
    pub(super) sync_times: Times,
    /// Kinds of jobs that there are: running, waiting, failed.
    pub(super) jobs: BTreeMap<String, [f64; 3]>,
    /// Replications with changes that they have not looked at, the furthest behind first.
    pub(super) behind: Vec<(String, f64)>,
    /// Databases with their bytes and documents, the largest first.
    pub(super) databases: Vec<(String, f64, f64)>,
    /// Running jobs as the server lists them. `None` if the user may not see them.
    pub(super) tasks: Option<Vec<Value>>,
}

/// The requests of a route.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: String,
    pub(super) route: String,
    /// Requests a second.
    pub(super) requests: f64,
    /// The same by class of statuses.
    pub(super) statuses: BTreeMap<String, f64>,
    pub(super) times: Times,
}

/// The median and the 99th percentile in seconds; `None` if nothing happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

impl From<Distribution> for Times {
    fn from(times: Distribution) -> Times {
        Times { p50: times.quantile(0.5), p99: times.quantile(0.99) }
    }
}

/// Counters, and their names in JSON as rates.
const RATES: [(&str, &str); 11] = [
    ("documents_written", "couchdb_document_writes_total"),
    ("documents_read", "couchdb_database_reads_total"),
    ("view_reads", "couchdb_httpd_view_reads_total"),
    ("sent_bytes", "couch_layer_sent_bytes_total"),
    ("commits", "couch_layer_commit_seconds_count"),
    ("syncs", "couch_layer_log_sync_seconds_count"),
    ("log_bytes", "couch_layer_log_bytes_total"),
    ("flushed_bytes", "couch_layer_flush_bytes_total"),
    ("compacted_bytes", "couch_layer_compaction_bytes_total"),
    ("replicated_documents", "couch_layer_replicated_documents_total"),
    ("failed_jobs", "couch_layer_job_failures_total"),
];

/// Gauges, and their names in JSON.
const LEVELS: [(&str, &str); 14] = [
    ("connections", "couch_layer_connections"),
    ("connections_limit", "couch_layer_connections_limit"),
    ("feeds", "couchdb_httpd_clients_requesting_changes"),
    ("watches", "couch_layer_watches"),
    ("memory_used_bytes", "couch_layer_memory_used_bytes"),
    ("memory_budget_bytes", "couch_layer_memory_budget_bytes"),
    ("memory_waiting", "couch_layer_memory_waiting"),
    ("process_bytes", "process_resident_memory_bytes"),
    ("cache_bytes", "couch_layer_cache_bytes"),
    ("disk_free_bytes", "couch_layer_disk_free_bytes"),
    ("disk_kept_bytes", "couch_layer_disk_kept_bytes"),
    ("table_bytes", "couch_layer_table_bytes"),
    ("unflushed_bytes", "couch_layer_unflushed_bytes"),
    ("javascript_waiting", "couch_layer_javascript_waiting"),
];

/// FoundationDB's code of a conflict with another transaction.
const CONFLICT: &str = "1020";

const REQUESTS: &str = "couch_layer_request_seconds";

/// The label of the sum of those without figures of their own.
const OTHERS: &str = "(others)";

impl Report {
    pub(super) fn between(before: &Figures, after: &Figures, seconds: f64, tasks: Option<&JsonText>) -> Report {
        let between = Between { before, after, seconds };
        let mut rates: BTreeMap<_, _> = RATES.iter().map(|(name, counter)| (*name, between.rate(counter))).collect();
        // Without a conflict the server has no such figure.
        let retried = between.rates("couch_layer_transaction_retries_total", |series| series.label("code"));
        rates.insert("transaction_conflicts", Some(retried.get(CONFLICT).copied().unwrap_or(0.0)));
        let answered = between.rates("couchdb_httpd_status_codes", |series| series.label("code"));
        rates.insert("document_conflicts", answered.get("409").copied());
        let mut levels: BTreeMap<_, _> = LEVELS.iter().map(|(name, gauge)| (*name, after.sum(gauge))).collect();
        // The disk is one, whatever number of stores is on it.
        for (name, gauge) in LEVELS.iter().filter(|(name, _)| name.starts_with("disk_")) {
            levels.insert(name, after.named(gauge).map(|(_, value)| value).reduce(f64::min));
        }
        Report {
            version: after
                .named("couch_layer_build_info")
                .map(|(series, _)| series.label("version").to_owned())
                .collect(),
            uptime_seconds: after.sum("couchdb_uptime_seconds"),
            seconds,
            requests: between.rate("couchdb_httpd_requests_total"),
            request_times: between.all_times(REQUESTS).into(),
            statuses: statuses(&between),
            routes: routes(&between),
            rates,
            levels,
            commit_times: between.all_times("couch_layer_commit_seconds").into(),
            sync_times: between.all_times("couch_layer_log_sync_seconds").into(),
            jobs: jobs(after),
            behind: largest(after, "couch_layer_replication_behind", "replication"),
            databases: databases(after),
            tasks: tasks.map(|tasks| {
                let tasks: Result<Vec<Value>, _> = serde_json::from_slice(tasks.as_bytes());
                tasks.unwrap_or_default()
            }),
        }
    }

    /// Rates are per second, times in milliseconds.
    pub(super) fn to_json(&self, place: &str) -> Value {
        let rounded = |numbers: &BTreeMap<&'static str, Option<f64>>| -> BTreeMap<&'static str, Option<f64>> {
            numbers.iter().map(|(name, number)| (*name, number.map(round))).collect()
        };
        let routes: Vec<Value> = self
            .routes
            .iter()
            .map(|route| {
                json!({
                    "method": route.method, "route": route.route, "requests": round(route.requests),
                    "statuses": rounded_all(&route.statuses), "times_ms": route.times.to_json(),
                })
            })
            .collect();
        let jobs: BTreeMap<&str, Value> = self
            .jobs
            .iter()
            .map(|(kind, [running, waiting, failed])| {
                (kind.as_str(), json!({"running": running, "waiting": waiting, "failed": failed}))
            })
            .collect();
        let behind: Vec<Value> =
            self.behind.iter().map(|(name, changes)| json!({"replication": name, "changes": changes})).collect();
        let databases: Vec<Value> = self
            .databases
            .iter()
            .map(|(name, bytes, documents)| json!({"database": name, "bytes": bytes, "documents": documents}))
            .collect();
        let mut report = json!({
            "url": place, "version": self.version, "uptime_seconds": self.uptime_seconds,
            "seconds": round(self.seconds),
            "requests": {
                "rate": self.requests.map(round), "times_ms": self.request_times.to_json(),
                "statuses": rounded_all(&self.statuses), "routes": routes,
            },
            "rates": rounded(&self.rates), "levels": rounded(&self.levels),
        });
        report["commit_times_ms"] = self.commit_times.to_json();
        report["sync_times_ms"] = self.sync_times.to_json();
        report["jobs"] = json!(jobs);
        report["behind"] = json!(behind);
        report["databases"] = json!(databases);
        report["tasks"] = json!(self.tasks);
        report
    }
}

impl Times {
    fn to_json(self) -> Value {
        let milliseconds = |time: Option<f64>| time.map(|seconds| round(seconds * 1_000.0));
        json!({"p50": milliseconds(self.p50), "p99": milliseconds(self.p99)})
    }
}

fn round(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

fn rounded_all(numbers: &BTreeMap<String, f64>) -> BTreeMap<&str, f64> {
    numbers.iter().map(|(name, number)| (name.as_str(), round(*number))).collect()
}

/// Answers a second by class of statuses.
fn statuses(between: &Between<'_>) -> BTreeMap<String, f64> {
    let rates = between.rates(&format!("{REQUESTS}_count"), |series| series.label("status"));
    rates.into_iter().filter(|(_, rate)| *rate > 0.0).map(|(class, rate)| (class.to_owned(), rate)).collect()
}

fn routes(between: &Between<'_>) -> Vec<Route> {
    let mut times = between.times(REQUESTS, |series| (series.label("method"), series.label("route")));
    let rates = between.rates(&format!("{REQUESTS}_count"), |series| {
        (series.label("method"), series.label("route"), series.label("status"))
    });
    let mut routes: BTreeMap<(&str, &str), Route> = BTreeMap::new();
    for ((method, path, status), rate) in rates.into_iter().filter(|(_, rate)| *rate > 0.0) {
        let route = routes.entry((method, path)).or_insert_with(|| Route {
            method: method.to_owned(),
            route: path.to_owned(),
            requests: 0.0,
            statuses: BTreeMap::new(),
            times: times.remove(&(method, path)).unwrap_or_default().into(),
        });
        route.requests += rate;
        route.statuses.insert(status.to_owned(), rate);
    }
    let mut routes: Vec<Route> = routes.into_values().collect();
    routes.sort_by(|one, other| other.requests.total_cmp(&one.requests));
    routes
}

fn jobs(figures: &Figures) -> BTreeMap<String, [f64; 3]> {
    let mut jobs: BTreeMap<String, [f64; 3]> = BTreeMap::new();
    for (series, number) in figures.named("couch_layer_jobs").filter(|(_, number)| *number > 0.0) {
        let at = ["running", "waiting", "failed"].iter().position(|state| *state == series.label("state"));
        if let Some(at) = at {
            jobs.entry(series.label("kind").to_owned()).or_default()[at] += number;
        }
    }
    jobs
}

/// Names with their numbers, the largest first, without those that are zero.
fn largest(figures: &Figures, name: &str, label: &str) -> Vec<(String, f64)> {
    let all = figures.named(name).filter(|(_, number)| *number > 0.0);
    let mut all: Vec<(String, f64)> = all.map(|(series, number)| (series.label(label).to_owned(), number)).collect();
    all.sort_by(|one, other| (one.0 == OTHERS).cmp(&(other.0 == OTHERS)).then(other.1.total_cmp(&one.1)));
    all
}

fn databases(figures: &Figures) -> Vec<(String, f64, f64)> {
    let documents: BTreeMap<String, f64> =
        largest(figures, "couch_layer_database_documents", "database").into_iter().collect();
    let sizes = largest(figures, "couch_layer_database_bytes", "database").into_iter();
    sizes.map(|(name, bytes)| (name.clone(), bytes, documents.get(&name).copied().unwrap_or(0.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
couch_layer_build_info{version="0.1.0"} 1
couchdb_uptime_seconds 10
couchdb_httpd_requests_total 100
couchdb_httpd_status_codes{code="409"} 4
couchdb_document_writes_total 50
couch_layer_request_seconds_bucket{method="GET",route="/{db}",status="2xx",le="0.01"} 10
couch_layer_request_seconds_bucket{method="GET",route="/{db}",status="2xx",le="0.1"} 10
couch_layer_request_seconds_bucket{method="GET",route="/{db}",status="2xx",le="+Inf"} 10
couch_layer_request_seconds_count{method="GET",route="/{db}",status="2xx"} 10
couch_layer_request_seconds_count{method="GET",route="/_up",status="2xx"} 90
couch_layer_jobs{kind="replication",state="running"} 1
couch_layer_disk_free_bytes 2000
"#;
    const AFTER: &str = r#"
couch_layer_build_info{version="0.1.0"} 1
couchdb_uptime_seconds 14
couchdb_httpd_requests_total 130
couchdb_httpd_status_codes{code="409"} 6
couchdb_document_writes_total 60
couch_layer_request_seconds_bucket{method="GET",route="/{db}",status="2xx",le="0.01"} 10
couch_layer_request_seconds_bucket{method="GET",route="/{db}",status="2xx",le="0.1"} 30
couch_layer_request_seconds_bucket{method="GET",route="/{db}",status="2xx",le="+Inf"} 30
couch_layer_request_seconds_count{method="GET",route="/{db}",status="2xx"} 30
couch_layer_request_seconds_bucket{method="PUT",route="/{db}",status="4xx",le="0.01"} 8
couch_layer_request_seconds_bucket{method="PUT",route="/{db}",status="4xx",le="0.1"} 8
couch_layer_request_seconds_bucket{method="PUT",route="/{db}",status="4xx",le="+Inf"} 8
couch_layer_request_seconds_count{method="PUT",route="/{db}",status="4xx"} 8
couch_layer_request_seconds_count{method="GET",route="/_up",status="2xx"} 90
couch_layer_transaction_retries_total{code="1020",error="not_committed"} 12
couch_layer_transaction_retries_total{code="1007",error="transaction_too_old"} 40
couch_layer_jobs{kind="replication",state="running"} 0
couch_layer_jobs{kind="replication",state="failed"} 2
couch_layer_replication_behind{replication="slow"} 7
couch_layer_replication_behind{replication="(others)"} 9
couch_layer_replication_behind{replication="slower"} 8
couch_layer_database_bytes{database="small"} 10
couch_layer_database_bytes{database="large"} 20
couch_layer_database_bytes{database="(others)"} 0
couch_layer_database_documents{database="large"} 3
couch_layer_disk_free_bytes 1500
couch_layer_disk_free_bytes{store="lsm:other"} 1000
couch_layer_table_bytes{level="0"} 1
couch_layer_table_bytes{level="1"} 2
"#;

    fn report() -> Report {
        let [before, after] = [BEFORE, AFTER].map(Figures::parse);
        let tasks = JsonText::parse(br#"[{"type":"replication"}]"#).unwrap();
        Report::between(&before, &after, 4.0, Some(&tasks))
    }

    #[test]
    fn a_report_is_the_difference_of_two_samples() {
        let report = report();
        assert_eq!((report.requests, report.rates["documents_written"]), (Some(7.5), Some(2.5)));
        assert_eq!((report.rates["document_conflicts"], report.rates["transaction_conflicts"]), (Some(0.5), Some(3.0)));
        assert_eq!(report.rates["syncs"], None, "this server has no such figure");
        assert_eq!(report.statuses, BTreeMap::from([("2xx".to_owned(), 5.0), ("4xx".to_owned(), 2.0)]));
        let routes: Vec<_> = report.routes.iter().map(|route| (route.method.as_str(), route.requests)).collect();
        assert_eq!(routes, [("GET", 5.0), ("PUT", 2.0)], "the busiest first, and none that rested");
        // All twenty new requests of the route took between 10 and 100 ms.
        let slow = report.routes[0].times.p50.unwrap();
        assert!((0.05..0.06).contains(&slow), "{slow}");
        assert!(report.routes[1].times.p99.unwrap() <= 0.01);
        assert_eq!(report.jobs, BTreeMap::from([("replication".to_owned(), [0.0, 0.0, 2.0])]));
        let behind = [("slower", 8.0), ("slow", 7.0), ("(others)", 9.0)];
        assert_eq!(report.behind, behind.map(|(name, changes)| (name.to_owned(), changes)));
        let databases = [("large", 20.0, 3.0), ("small", 10.0, 0.0)];
        assert_eq!(report.databases, databases.map(|(name, bytes, documents)| (name.to_owned(), bytes, documents)));
        assert_eq!((report.levels["disk_free_bytes"], report.levels["table_bytes"]), (Some(1_000.0), Some(3.0)));
    }

    #[test]
    fn programs_get_the_same() {
        let json = report().to_json("http://host/");
        assert_eq!(
            (&json["url"], &json["version"], &json["seconds"]),
            (&json!("http://host/"), &json!("0.1.0"), &json!(4.0))
        );
        assert_eq!(json["requests"]["routes"][1]["statuses"], json!({"4xx": 2.0}));
        assert_eq!(json["requests"]["routes"][0]["times_ms"]["p50"], json!(55.0));
        assert_eq!(json["rates"]["transaction_conflicts"], json!(3.0));
        assert_eq!((&json["levels"]["feeds"], &json["commit_times_ms"]["p50"]), (&Value::Null, &Value::Null));
        assert_eq!(json["jobs"], json!({"replication": {"running": 0.0, "waiting": 0.0, "failed": 2.0}}));
        assert_eq!(json["tasks"], json!([{"type": "replication"}]));
        let [before, after] = [BEFORE, AFTER].map(Figures::parse);
        assert_eq!(Report::between(&before, &after, 1.0, None).to_json("")["tasks"], Value::Null);
    }
}
