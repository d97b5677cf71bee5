//! All figures of a server: its [counts](crate::http::app::statistics), those of its stores, and a sample of what the
//! stores hold. `_stats` and `_prometheus` are two ways to write them.
//!
//! A sample reads rows: of jobs, and of each database that was used lately. It is taken at most once in
//! [`BETWEEN_SAMPLES`], however many ask, on the threads for scans.

use std::time::{Duration, Instant, UNIX_EPOCH};

use budget::Budget;
use futures_util::stream::{self, StreamExt};
use jobs::{Job, JobState};
use kv_api::Database;
use kv_api::figures::{Distribution, Figure, Value};
use model::{Environment, ErrorKind, JsonText, SystemEnvironment};

use crate::http::app::App;
use crate::http::app::hour;
use crate::http::app::process;
use crate::http::app::statistics::{DatabaseSizes, JobCounts, Newest, Reading, Sample, Stat, StatValue};
use crate::http::app::stores::{Documents, Store};
use crate::http::copies;
use crate::http::error::Result;
use crate::http::jobs::replicator::record::{self, JobProgress};
use crate::http::journal;
use crate::http::work;

/// Time for which a sample is used.
const BETWEEN_SAMPLES: Duration = Duration::from_secs(10);

/// Time that the stores have for a reading.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of counted jobs of a kind.
const MOST_JOBS: usize = 10_000;

/// Number of databases that are read at the same time.
const AT_ONCE: usize = 16;

/// Number of databases, and of replications, with their own figures. The others are summed up.
const OWN: usize = 10;

/// The label of that sum.
const OTHERS: &str = "(others)";

/// The quantiles in CouchDB's summaries.
const PARTS: [f64; 6] = [0.5, 0.75, 0.9, 0.95, 0.99, 0.999];

/// Whether the last run of a job failed, and how many changes a replication has not processed. `None` for a replication
/// that has ended and whose job only keeps the answer.
fn state_of(job: &Job) -> Option<(bool, Option<u64>)> {
    let text = |bytes: &[u8]| JsonText::parse(bytes).ok();
    if job.id.kind == record::KIND {
        let progress = JobProgress::of(job);
        let behind = progress.figures.as_ref().and_then(|figures| figures.get("changes_pending")?.as_u64());
        return progress.answer.is_none().then_some((job.lost > 0 || progress.failure().is_some(), behind));
    }
    let progress = job.progress.as_ref().and_then(|progress| text(&progress.bytes));
    Some((job.lost > 0 || progress.is_some_and(|progress| progress.get("error").is_some()), None))
}

/// Counts the jobs of the stores, a page at a time, so that it takes only the memory of a page.
async fn count_jobs(stores: Vec<Store>, budget: Budget) -> (JobCounts, Reading) {
    let until = tokio::time::Instant::now() + TIMEOUT;
    let mut reading = Reading { is_readable: true, is_in_time: true, is_whole: true };
    let (mut counts, mut has_read) = (JobCounts::default(), false);
    for kind in work::kinds() {
        let (mut numbers, mut left) = ([0; 3], MOST_JOBS);
        for store in &stores {
            let mut rest = None;
            loop {
                let page = async {
                    budget.room(TIMEOUT).await.ok()?;
                    Some(store.layer.jobs().page(kind, rest.take()).await)
                };
                let (jobs, behind) = match tokio::time::timeout_at(until, page).await {
                    Ok(Some(Ok(page))) => page,
                    Ok(Some(Err(error))) => {
                        tracing::debug!(kind, %error, "jobs cannot be counted");
                        (reading.is_readable, reading.is_whole) = (false, false);
                        break;
                    }
                    // A lack of memory does not mean that the store is unreadable.
                    late => {
                        let is_readable = reading.is_readable && (has_read || matches!(late, Ok(None)));
                        return (counts, Reading { is_readable, ..Reading::default() });
                    }
                };
                has_read = true;
                left = left.saturating_sub(jobs.len());
                jobs.into_iter().for_each(|job| count_job(job, &mut numbers, &mut counts.behind));
                rest = behind;
                if rest.is_none() {
                    break;
                }
                if left == 0 {
                    reading.is_whole = false;
                    break;
                }
            }
        }
        counts.kinds.push((kind, numbers));
    }
    (counts, reading)
}

fn count_job(job: Job, numbers: &mut [u64; 3], behind: &mut Vec<(String, u64)>) {
    let Some((has_failed, changes)) = state_of(&job) else { return };
    match job.state {
        JobState::Running => numbers[0] += 1,
        JobState::Pending if has_failed => numbers[2] += 1,
        JobState::Pending => numbers[1] += 1,
        JobState::Finished => {}
    }
    behind.extend(job.name.zip(changes));
}

/// Reads the sizes of these databases.
async fn measure(databases: Vec<Documents>) -> (DatabaseSizes, Reading) {
    let until = tokio::time::Instant::now() + TIMEOUT;
    let mut reading = Reading { is_readable: true, is_in_time: true, is_whole: true };
    let found = stream::iter(databases)
        .map(|database| async move { tokio::time::timeout_at(until, database.info()).await })
        .buffer_unordered(AT_ONCE);
    let mut found = std::pin::pin!(found);
    let mut sizes = Vec::new();
    while let Some(found) = found.next().await {
        match found {
            Ok(Ok(info)) => sizes.push((info.name, info.sizes.file, info.doc_count)),
            // A database that was dropped or has moved does not count.
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::NotFound(_) | ErrorKind::Moved(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "a database cannot be measured");
                reading.is_whole = false;
            }
            Err(_) => (reading.is_in_time, reading.is_whole) = (false, false),
        }
    }
    (sizes, reading)
}

/// The newest sample. It is taken now if the last attempt is old enough. If a reading does not end in time, the
/// previous sample is kept, and shows its age.
async fn sampled<T: Clone + Default>(
    newest: &Newest<T>,
    reading: impl Future<Output = Result<(T, Reading)>>,
) -> Sample<T> {
    let mut newest = newest.lock().await;
    if let Some(sample) = newest.as_ref().filter(|sample| sample.tried.elapsed() < BETWEEN_SAMPLES) {
        return sample.clone();
    }
    // Twice the time: an embedded engine does not notice its timeout while it waits for the disk.
    let read = tokio::time::timeout(TIMEOUT * 2, reading).await.ok().and_then(Result::ok);
    let (held, reading) = read.unwrap_or_default();
    let tried = Instant::now();
    let sample = match newest.take() {
        Some(kept) if !reading.is_in_time => Sample { tried, reading, ..kept },
        _ => Sample { held, taken: tried, tried, reading },
    };
    newest.insert(sample).clone()
}

async fn sampled_jobs(app: &App) -> Sample<JobCounts> {
    let reading = async { app.off_thread(count_jobs(app.databases.stores.all().await, app.budget.clone())).await };
    sampled(&app.samples.jobs, reading).await
}

/// The largest ones, and the sum of the others.
fn largest(all: impl Iterator<Item = (String, u64)>) -> Vec<(String, u64)> {
    let mut all: Vec<_> = all.collect();
    all.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let others: u64 = all.iter().skip(OWN).map(|(_, number)| number).sum();
    all.truncate(OWN);
    all.push((OTHERS.to_owned(), others));
    all
}

/// CouchDB's figures. Only some of them need to read the jobs.
pub(crate) async fn stats(app: &App, with_jobs: bool) -> Vec<Stat> {
    let jobs = if with_jobs { Some(sampled_jobs(app).await.held) } else { None };
    of_couchdb(app, jobs.as_ref(), &app.layer.engine().figures())
}

/// Those of CouchDB's figures for which nothing is read.
fn counted(app: &App) -> Vec<Stat> {
    of_couchdb(app, None, &app.layer.engine().figures())
}

/// The figures of a sample, from those that `_stats` shows.
fn of_hour(stats: &[Stat], memory: Option<u64>) -> [f64; hour::NAMES.len()] {
    let sum = |begin: &str, is_wanted: fn(&str) -> bool| {
        let values = stats.iter().filter_map(|stat| match stat.value {
            StatValue::Counter(value) if is_wanted(stat.path.strip_prefix(begin)?) => Some(value as f64),
            _ => None,
        });
        values.sum::<f64>()
    };
    let one = |path: &str| sum(path, str::is_empty);
    let median = stats.iter().find_map(|stat| match &stat.value {
        StatValue::Times(_, lately) if stat.path == "couchdb.request_time" => lately.quantile(0.5),
        _ => None,
    });
    [
        one("couchdb.httpd.requests"),
        one("couchdb.document_writes"),
        one("couchdb.database_reads"),
        one("couchdb.commits"),
        sum("couchdb.httpd_status_codes.", |code| code.starts_with('5')),
        one("mango.unindexed_queries"),
        median.unwrap_or(0.0) * 1_000.0,
        memory.unwrap_or(0) as f64,
    ]
}

/// Takes [samples of the last hour](crate::http::app::hour) until the server stops.
pub(crate) async fn follow(app: &App) {
    let sampling = async {
        loop {
            app.hour.keep(sample(app));
            tokio::time::sleep(hour::EVERY).await;
        }
    };
    tokio::select! {
        () = app.stopping() => {}
        () = sampling => {}
    }
}

/// A sample of now.
pub(crate) fn sample(app: &App) -> hour::Sample {
    (SystemEnvironment.now_ms(), of_hour(&counted(app), process::resident_bytes()))
}

fn of_couchdb(app: &App, jobs: Option<&JobCounts>, engine: &[Figure]) -> Vec<Stat> {
    let mut stats = app.statistics.stats();
    let level = |path: &str, help: &str, value| Stat::new(path, help, StatValue::Level(value, "counter"));
    stats.push(level("couchdb.open_databases", "number of open databases", app.databases.open() as u64));
    if let Some(files) = process::open_files() {
        stats.push(level("couchdb.open_os_files", "number of file descriptors that are open", files));
    }
    let number = |name: &str| {
        engine.iter().find(|figure| figure.name == name).and_then(|figure| match &figure.value {
            Value::Histogram(times) => Some(times.count()),
            _ => None,
        })
    };
    let mut count = |path: &str, help: &str, count| stats.push(Stat::new(path, help, StatValue::Counter(count)));
    if let Some(commits) = number("couch_layer_commit_seconds") {
        count("couchdb.commits", "number of commits performed", commits);
    }
    if let Some(syncs) = number("couch_layer_log_sync_seconds") {
        count("fsync.count", "number of fsync calls", syncs);
    }
    for (level, lines) in journal::LEVELS.iter().zip(&journal::LINES) {
        let lines = lines.load(std::sync::atomic::Ordering::Relaxed);
        count(&format!("couch_log.level.{level}"), &format!("number of logged {level} messages"), lines);
    }
    // Running ones are this server's. Waiting ones are the store's: any of its servers may run them.
    let running = app.statistics.replications.value();
    let waiting = jobs.and_then(|jobs| jobs.kinds.iter().find(|(kind, _)| *kind == record::KIND));
    let waiting = waiting.map(|(_, [_, pending, crashed])| {
        [("pending", *pending), ("crashed", *crashed), ("total", running + pending + crashed)]
    });
    for (name, value) in [("running", running)].into_iter().chain(waiting.into_iter().flatten()) {
        let help = format!("replicator scheduler {name} jobs");
        stats.push(Stat::new(format!("couch_replicator.jobs.{name}"), help, StatValue::Level(value, "gauge")));
    }
    stats
}

/// One of CouchDB's figures, named as its `couch_prometheus_util.erl` names it.
fn renamed(stat: Stat) -> Option<Figure> {
    let Stat { path, help, value } = stat;
    let rest = path.strip_prefix("couchdb.").unwrap_or(&path);
    let labelled = [
        ("httpd_request_methods.", "couchdb_httpd_request_methods", "method", "number of HTTP requests by method"),
        ("httpd_status_codes.", "couchdb_httpd_status_codes", "code", "number of HTTP responses by status code"),
        ("couch_log.level.", "couchdb_couch_log_requests_total", "level", "number of logged messages"),
    ];
    if let StatValue::Counter(value) = value
        && let Some((prefix, name, label, help)) = labelled.into_iter().find(|(prefix, ..)| rest.starts_with(prefix))
    {
        return Some(Figure::counter(name, help, value).with(label, &rest[prefix.len()..]));
    }
    let name = format!("couchdb_{}", rest.replace('.', "_"));
    match value {
        StatValue::Counter(value) => Some(Figure::new(name + "_total", help, Value::Counter(value as f64))),
        StatValue::Level(value, _) => Some(Figure::new(name, help, Value::Gauge(value as f64))),
        StatValue::Times(all, lately) => {
            let quantiles = PARTS.map(|part| (part, lately.quantile(part).unwrap_or(0.0)));
            Some(Figure::new(name + "_seconds", help, Value::Summary(quantiles.into(), all.sum, all.count())))
        }
        // CouchDB treats these as times.
        StatValue::Values(_) => None,
    }
}

/// All figures, for Prometheus.
pub(crate) async fn all(app: &App) -> Vec<Figure> {
    let jobs = sampled_jobs(app).await;
    let measuring = async { app.off_thread(measure(app.databases.handles())).await };
    let databases = sampled(&app.samples.databases, measuring).await;
    let engine = app.layer.engine().figures();
    let mut figures: Vec<Figure> = of_couchdb(app, Some(&jobs.held), &engine).into_iter().filter_map(renamed).collect();
    figures.extend(engine);
    let own = app.databases.stores.own().url.map(|url| url.to_string());
    for store in app.databases.stores.all().await {
        let Some(url) = store.url.map(|url| url.to_string()).filter(|url| own.as_ref() != Some(url)) else { continue };
        figures.extend(store.layer.engine().figures().into_iter().map(|figure| figure.with("store", url.clone())));
    }
    of_process(app, &mut figures);
    copies::add(app, &mut figures);
    of_samples(&jobs, &databases, &mut figures);
    figures
}

fn of_process(app: &App, figures: &mut Vec<Figure>) {
    let statistics = &app.statistics;
    let mut gauge = |name, help, value: f64| figures.push(Figure::gauge(name, help, value));
    gauge("couch_layer_connections", "open connections", statistics.connections.value() as f64);
    gauge("couch_layer_connections_limit", "most connections at a time", app.options.max_connections as f64);
    gauge("couch_layer_jobs_here", "jobs that this server runs", statistics.jobs.value() as f64);
    gauge("couch_layer_memory_budget_bytes", "size of the budget of memory", app.budget.total() as f64);
    gauge("couch_layer_memory_used_bytes", "bytes of the budget that are taken", app.budget.used() as f64);
    gauge("couch_layer_memory_most_used_bytes", "most bytes that were taken", app.budget.most_used() as f64);
    gauge("couch_layer_memory_waiting", "reservations of memory that wait", app.budget.waiting() as f64);
    if let Some(waiting) = app.functions.waiting() {
        gauge("couch_layer_javascript_waiting", "calls of functions that wait for a thread", waiting as f64);
    }
    if let Some(bytes) = process::resident_bytes() {
        gauge("process_resident_memory_bytes", "memory of the process", bytes as f64);
    }
    if let Some(files) = process::open_files() {
        gauge("process_open_fds", "open file descriptors", files as f64);
    }
    let began = statistics.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge("process_start_time_seconds", "start of the server, in seconds since 1970", began.as_secs_f64());
    let mut counter = |name, help, value| figures.push(Figure::counter(name, help, value));
    counter("couchdb_uptime_seconds", "couchdb uptime", statistics.uptime().as_secs());
    counter("couch_layer_sent_bytes_total", "bytes of bodies that were sent", statistics.sent.value());
    counter("couch_layer_job_failures_total", "runs of jobs that failed here", statistics.failed_runs.value());
    let lost = "runs of jobs whose server ended, as this server found";
    counter("couch_layer_jobs_lost_total", lost, statistics.lost_runs.value());
    let renewals = "renewals of the lease on this server's jobs that failed";
    counter("couch_layer_lease_renewal_failures_total", renewals, statistics.failed_renewals.value());
    let replicated = "documents that replications of this server wrote";
    counter("couch_layer_replicated_documents_total", replicated, statistics.replicated.value());
    let build = Figure::gauge("couch_layer_build_info", "1, with the version", 1.0);
    figures.push(build.with("version", env!("CARGO_PKG_VERSION")));
    for (method, route, status, times) in statistics.route_times() {
        let help = "time from the head of a request to the head of its answer";
        let figure = Figure::histogram("couch_layer_request_seconds", help, times);
        figures.push(figure.with("method", method).with("route", route).with("status", status));
    }
}

fn of_samples(jobs: &Sample<JobCounts>, databases: &Sample<DatabaseSizes>, figures: &mut Vec<Figure>) {
    let gauge = |name, help, is: bool| Figure::gauge(name, help, f64::from(u8::from(is)));
    let readable = "1 if the store could be read for these figures";
    figures.push(gauge("couch_layer_store_readable", readable, jobs.reading.is_readable));
    for (name, reading, taken) in
        [("jobs", jobs.reading, jobs.taken), ("databases", databases.reading, databases.taken)]
    {
        let whole = "1 if the last reading of jobs, or of databases, was in time and read all of them";
        figures.push(gauge("couch_layer_sample_whole", whole, reading.is_whole).with("sample", name));
        let age = "age of the figures of jobs, or of databases";
        let age = Figure::gauge("couch_layer_sample_age_seconds", age, taken.elapsed().as_secs_f64());
        figures.push(age.with("sample", name));
    }
    for (kind, numbers) in &jobs.held.kinds {
        for (state, number) in ["running", "waiting", "failed"].into_iter().zip(numbers) {
            let help = "jobs of the store by kind and state; each server of the store tells the same";
            let figure = Figure::gauge("couch_layer_jobs", help, *number as f64);
            figures.push(figure.with("kind", *kind).with("state", state));
        }
    }
    let mut list = |name, help, label, all: Vec<(String, u64)>| {
        figures.extend(all.into_iter().map(|(one, value)| Figure::gauge(name, help, value as f64).with(label, one)));
    };
    let behind = "changes that a replication of the store has not looked at; the ten that are furthest behind";
    list("couch_layer_replication_behind", behind, "replication", largest(jobs.held.behind.iter().cloned()));
    let databases = |number: fn(&(String, u64, u64)) -> u64| {
        largest(databases.held.iter().map(|database| (database.0.clone(), number(database))))
    };
    let bytes = "bytes in the store of the ten largest databases of those that this server used lately";
    list("couch_layer_database_bytes", bytes, "database", databases(|database| database.1));
    let documents = "documents of the ten largest databases of those that this server used lately";
    list("couch_layer_database_documents", documents, "database", databases(|database| database.2));
}

/// The median and other percentiles as in CouchDB's `_stats`. `per_second`: the number of units in a second.
pub(crate) fn percentiles(values: &Distribution, per_second: f64) -> Vec<(f64, f64)> {
    PARTS.map(|part| (part, values.quantile(part).unwrap_or(0.0) * per_second)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_read_in_time_keeps_the_sample_before() {
        let newest = Newest::default();
        let all = Reading { is_readable: true, is_in_time: true, is_whole: true };
        let late = Reading { is_readable: true, ..Reading::default() };
        let again = async || {
            let mut sample = newest.lock().await;
            let sample: &mut Sample<u64> = sample.as_mut().unwrap();
            sample.tried = sample.tried.checked_sub(BETWEEN_SAMPLES).unwrap();
        };
        let part = sampled(&newest, async { Ok((1, late)) }).await;
        assert_eq!((part.held, part.reading), (1, late), "there is none before");
        assert_eq!(sampled(&newest, async { panic!("too soon") }).await.held, 1);
        again().await;
        let whole = sampled(&newest, async { Ok((7, all)) }).await;
        assert_eq!((whole.held, whole.reading), (7, all));
        again().await;
        let kept = sampled(&newest, async { Ok((2, late)) }).await;
        assert_eq!((kept.held, kept.reading, kept.taken), (7, late, whole.taken), "and it says that it is old");
    }

    #[test]
    fn figures_are_found_by_their_names() {
        let counter = |path: &str, value| Stat::new(path, "", StatValue::Counter(value));
        let stats = [
            counter("couchdb.httpd.requests", 7),
            counter("couchdb.httpd.requests_of_others", 99),
            counter("couchdb.document_writes", 3),
            counter("couchdb.database_reads", 4),
            counter("couchdb.httpd_status_codes.200", 50),
            counter("couchdb.httpd_status_codes.500", 1),
            counter("couchdb.httpd_status_codes.503", 2),
            counter("mango.unindexed_queries", 5),
        ];
        assert_eq!(of_hour(&stats, Some(9)), [7.0, 3.0, 4.0, 0.0, 3.0, 5.0, 0.0, 9.0]);
    }

    #[test]
    fn ten_have_figures_of_their_own() {
        let all = (0..30_u64).map(|number| (format!("db{number}"), number));
        let found = largest(all);
        assert_eq!((found.len(), found[0].clone(), found[10].clone()), (11, ("db29".into(), 29), (OTHERS.into(), 190)));
        assert_eq!(largest(std::iter::empty()), [(OTHERS.to_owned(), 0)]);
    }

    #[test]
    fn names_are_those_of_couchdb() {
        let name = |path: &str, value| {
            let figure = renamed(Stat::new(path, "", value))?;
            Some(format!("{}{:?}", figure.name, figure.labels))
        };
        let counter = |path| name(path, StatValue::Counter(1)).unwrap();
        assert_eq!(counter("couchdb.httpd.requests"), "couchdb_httpd_requests_total[]");
        assert_eq!(counter("couchdb.httpd_status_codes.200"), r#"couchdb_httpd_status_codes[("code", "200")]"#);
        assert_eq!(counter("couchdb.httpd_request_methods.GET"), r#"couchdb_httpd_request_methods[("method", "GET")]"#);
        assert_eq!(counter("couch_log.level.error"), r#"couchdb_couch_log_requests_total[("level", "error")]"#);
        assert_eq!(counter("mango.docs_examined"), "couchdb_mango_docs_examined_total[]");
        let level = name("couchdb.open_databases", StatValue::Level(1, "counter"));
        assert_eq!(level.as_deref(), Some("couchdb_open_databases[]"));
        let times = StatValue::Times(Distribution::default(), Distribution::default());
        assert_eq!(name("couchdb.request_time", times).as_deref(), Some("couchdb_request_time_seconds[]"));
        assert_eq!(name("couchdb.httpd.bulk_docs", StatValue::Values(Distribution::default())), None);
    }
}
