//! `/_node/{node}/_stats`, `_prometheus`, `_system` and `_versions`: figures about this server. Only measured figures
//! are included: CouchDB's clients treat the others as unknown.
//!
//! Source: CouchDB's `chttpd_node.erl`.

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use kv_api::figures::{Distribution, Figure};
use model::{JsonRef, JsonText, JsonWriter};

use crate::http::app::process;
use crate::http::app::statistics::{Stat, StatValue};
use crate::http::error::{ApiError, Result};
use crate::http::figures;
use crate::http::handlers::root::require_node;
use crate::http::handlers::views::COLLATION;
use crate::http::operation::{Content, Kind, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::exposition;
use crate::http::wire::response::{self, Response};

/// The JavaScript engine: quickjs-ng, in the version that `rquickjs-sys` has. The test fails when that crate changes.
const JAVASCRIPT: (&str, &str) = ("quickjs", "0.16.2");

/// What [`statistics`] does.
pub(crate) const STATISTICS: Operation = Operation::new(
    "The figures, with CouchDB's names; the path names a part of them.",
    &[Reply::new(200, &[Content::json(Kind::Json)])],
);

/// `GET /_node/{node}/_stats`, and one part of it. An unknown part is `null`.
pub(crate) async fn statistics(request: &Request, node: &str, path: &[&str]) -> Result<Response> {
    require_node(node)?;
    let with_jobs = path.first().is_none_or(|first| *first == "couch_replicator");
    let mut stats = figures::stats(&request.app, with_jobs).await;
    stats.sort_by(|one, other| one.path.cmp(&other.path));
    let mut all = Vec::with_capacity(8_000);
    write_stats(&stats, &mut JsonWriter::new(&mut all));
    if path.is_empty() {
        return Ok(response::json(StatusCode::OK, all));
    }
    let all = JsonText::parse(&all).map_err(|_| ApiError::internal())?;
    let part = path.iter().try_fold(all.root(), |at, name| at.get(name));
    let text = part.map_or("null", JsonRef::text);
    Ok(response::json(StatusCode::OK, text.as_bytes().to_vec()))
}

/// Writes figures in CouchDB's form: an object for each part of a path. They must be sorted by their paths.
fn write_stats(stats: &[Stat], json: &mut JsonWriter<'_>) {
    json.begin_object();
    let mut open: Vec<&str> = Vec::new();
    for Stat { path, help, value } in stats {
        let mut parts: Vec<&str> = path.split('.').collect();
        let name = parts.pop().unwrap_or_default();
        let common = open.iter().zip(&parts).take_while(|(one, other)| one == other).count();
        for _ in open.drain(common..) {
            json.end_object();
        }
        for part in parts.drain(common..) {
            json.name(part).begin_object();
            open.push(part);
        }
        json.name(name).begin_object().name("value");
        let kind = match value {
            StatValue::Counter(value) => {
                json.u64(*value);
                "counter"
            }
            StatValue::Level(value, kind) => {
                json.u64(*value);
                kind
            }
            // CouchDB's times are in milliseconds.
            StatValue::Times(_, lately) => {
                write_distribution(lately, 1_000.0, json);
                "histogram"
            }
            StatValue::Values(values) => {
                write_distribution(values, 1.0, json);
                "histogram"
            }
        };
        json.name("type").str(kind).name("desc").str(help).end_object();
    }
    for _ in open {
        json.end_object();
    }
    json.end_object();
}

fn write_distribution(values: &Distribution, times: f64, json: &mut JsonWriter<'_>) {
    let mean = if values.count() == 0 { 0.0 } else { values.sum * times / values.count() as f64 };
    let percentiles = figures::percentiles(values, times);
    json.begin_object().name("arithmetic_mean").display(mean);
    json.name("median").f64(percentiles.first().map_or(0.0, |(_, median)| *median));
    json.name("percentile").begin_array();
    for (part, value) in percentiles {
        // 50, 75, 90, 95, 99 and 999.
        let part = if part > 0.99 { 999.0 } else { (part * 100.0).round() };
        json.begin_array().f64(part).f64(value).end_array();
    }
    json.end_array().name("n").u64(values.count()).end_object();
}

/// What [`prometheus`] does.
pub(crate) const PROMETHEUS: Operation =
    Operation::new("The figures for Prometheus.", &[Reply::new(200, &[Content::of("text/plain")])]);

/// `GET /_node/{node}/_prometheus`
pub(crate) async fn prometheus(request: &Request, node: &str) -> Result<Response> {
    require_node(node)?;
    Ok(exposed(&figures::all(&request.app).await))
}

/// The answer with figures for Prometheus.
fn exposed(figures: &[Figure]) -> Response {
    let text = exposition::text(figures).into_bytes();
    let mut answer = response::with_json(StatusCode::OK, response::Body::whole(text));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(exposition::CONTENT_TYPE));
    answer
}

/// What [`system`] does.
pub(crate) const SYSTEM: Operation = Operation::new("The memory of the process, and its time.", &[Reply::object(200)]);

/// `GET /_node/{node}/_system`
pub(crate) fn system(request: &Request, node: &str) -> Result<Response> {
    require_node(node)?;
    let statistics = &request.app.statistics;
    let tasks = tokio::runtime::Handle::current().metrics();
    Ok(response::object(|json| {
        json.name("uptime").u64(statistics.uptime().as_secs()).name("memory").begin_object();
        if let Some(bytes) = process::resident_bytes() {
            json.name("other").u64(bytes);
        }
        json.end_object();
        // Tasks correspond to Erlang's processes.
        json.name("run_queue").u64(tasks.global_queue_depth() as u64);
        json.name("process_count").u64(tasks.num_alive_tasks() as u64);
        json.name("io_output").u64(statistics.sent.value());
        // There are no other nodes, and functions have no processes of their own.
        json.name("internal_replication_jobs").u64(0).name("os_proc_count").u64(0).name("stale_proc_count").u64(0);
        json.name("message_queues").begin_object().end_object();
        json.name("distribution").begin_object().end_object();
        json.name("distribution_events").begin_object().end_object();
    }))
}

/// What [`versions`] does.
pub(crate) const VERSIONS: Operation =
    Operation::new("The versions of what the server is made of.", &[Reply::object(200)]);

/// `GET /_node/{node}/_versions`
pub(crate) fn versions(node: &str) -> Result<Response> {
    require_node(node)?;
    Ok(response::object(|json| {
        if cfg!(feature = "javascript") {
            json.name("javascript_engine").begin_object().name("name").str(JAVASCRIPT.0);
            json.name("version").str(JAVASCRIPT.1).end_object();
        }
        json.name("collation_driver").begin_object().name("name").str(COLLATION.0);
        json.name("library_version").str(COLLATION.1).name("collator_version").str(COLLATION.1).end_object();
    }))
}

/// Any other path below `/_node`. `what` names what this server lacks.
pub(crate) fn unknown(path: &[&str], what: &str) -> Result<Response> {
    let [node, rest @ ..] = path else { return Err(ApiError::bad_request("Incomplete path to _node request")) };
    require_node(node)?;
    match rest {
        ["_config", ..] => Err(ApiError::not_found("missing")),
        _ => Err(ApiError::not_implemented(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_no_node_are_not_of_this_one() {
        let answer = |path: &[&str]| {
            let refused = unknown(path, "nodes").unwrap_err();
            (refused.status().as_u16(), refused.reason().to_owned())
        };
        assert_eq!(answer(&[]), (400, "Incomplete path to _node request".to_owned()));
        assert_eq!(answer(&["x", "_restart"]), (404, "no such node: x".to_owned()));
        assert_eq!(answer(&["_local", "_config", "a", "b", "c"]), (404, "missing".to_owned()));
        assert_eq!(answer(&["_local", "_restart"]).0, 501);
    }

    #[test]
    fn versions_are_those_that_are_linked() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
        for (name, version) in [("icu_collator", COLLATION.1), ("rquickjs-sys", "0.14.0")] {
            assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")), "{name}: name its version");
        }
    }
}
