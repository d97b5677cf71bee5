//! `/_node/{node}/_stats`, `_system` and `_versions`: figures about this server. Only what is measured is there: clients of
//! CouchDB take the rest for unknown.
//!
//! Source: CouchDB's `chttpd_node.erl`.

use hyper::StatusCode;
use model::{JsonRef, JsonText, JsonWriter};

use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::root::require_node;
use crate::http::wire::response::{self, Response};

/// The collation library.
pub(crate) const COLLATION: (&str, &str) = ("icu4x", "2.4.0");

/// The JavaScript engine: quickjs-ng, in the version that `rquickjs-sys` has. The test fails when that crate changes.
const JAVASCRIPT: (&str, &str) = ("quickjs", "0.16.2");

/// `GET /_node/{node}/_stats`, and one part of it. An unknown part is `null`.
pub(crate) fn statistics(request: &Request, node: &str, path: &[&str]) -> Result<Response> {
    require_node(node)?;
    let mut all = Vec::with_capacity(6_000);
    request.app.statistics.write(request.app.databases.open(), &mut JsonWriter::new(&mut all));
    if path.is_empty() {
        return Ok(response::json(StatusCode::OK, all));
    }
    let all = JsonText::parse(&all).map_err(|_| ApiError::internal())?;
    let part = path.iter().try_fold(all.root(), |at, name| at.get(name));
    let text = part.map_or("null", JsonRef::text);
    Ok(response::json(StatusCode::OK, text.as_bytes().to_vec()))
}

/// `GET /_node/{node}/_system`
pub(crate) fn system(request: &Request, node: &str) -> Result<Response> {
    require_node(node)?;
    let seconds = request.app.statistics.uptime().as_secs();
    Ok(response::object(|json| {
        json.name("uptime").u64(seconds).name("memory").begin_object();
        if let Some(bytes) = resident_bytes() {
            json.name("other").u64(bytes);
        }
        json.end_object();
        // There are no other nodes, and functions have no processes of their own.
        json.name("internal_replication_jobs").u64(0).name("os_proc_count").u64(0);
        json.name("message_queues").begin_object().end_object();
        json.name("distribution").begin_object().end_object();
    }))
}

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

/// Any other path below `/_node`. `what` is what this server lacks.
pub(crate) fn unknown(path: &[&str], what: &str) -> Result<Response> {
    let [node, rest @ ..] = path else { return Err(ApiError::bad_request("Incomplete path to _node request")) };
    require_node(node)?;
    match rest {
        ["_config", ..] => Err(ApiError::not_found("missing")),
        _ => Err(ApiError::not_implemented(what)),
    }
}

/// The memory of this process, if the system tells it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
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
