//! `GET /_couch_layer/ship`: how far the served store is shipped (`serve --ship-to`).

use crate::http::error::Result;
use crate::http::operation::{Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// What [`status`] does.
pub(crate) const STATUS: Operation = Operation::new("How far the store is shipped to its copy.", &[Reply::object(200)]);

/// `GET /_couch_layer/ship`
pub(crate) fn status(request: &Request) -> Result<Response> {
    let Some(ship) = &request.app.options.ship else {
        return Ok(response::object(|json| {
            json.name("state").str("none");
        }));
    };
    let outcome = ship.outcome.lock().clone();
    let reasons: Vec<String> = outcome.failed.into_iter().flatten().collect();
    let state = match (outcome.is_fenced, outcome.shipped.until_ms) {
        (true, _) => "fenced",
        _ if !reasons.is_empty() => "failing",
        (_, 0) => "starting",
        _ => "running",
    };
    Ok(response::object(|json| {
        json.name("state").str(state).name("to").str(&ship.to).name("until_ms").u64(outcome.shipped.until_ms);
        json.name("segments").u64(outcome.shipped.segments).name("bases").u64(outcome.shipped.bases);
        json.name("bytes").u64(outcome.shipped.bytes).name("begun").u64(outcome.shipped.begun);
        json.name("reasons").begin_array();
        reasons.iter().for_each(|reason| {
            json.str(reason);
        });
        json.end_array();
    }))
}
