//! `GET /_couch_layer/figures`: the figures of the last hour. CouchDB has no such endpoint.

use std::time::UNIX_EPOCH;

use crate::http::app::hour::NAMES;
use crate::http::error::Result;
use crate::http::figures;
use crate::http::operation::{Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::params::parse_count;
use crate::http::wire::response::{self, Response};

/// What [`lately`] does.
pub(crate) const LATELY: Operation =
    Operation::new("Figures of the last hour, a sample every ten seconds.", &[Reply::object(200)])
        .query(&[&[Param::count("after", "Samples after this time, in milliseconds since 1970.")]]);

/// Answers with `{"began_ms", "names": [...], "samples": [[time, ...]]}`: the samples after the time `after`, in
/// milliseconds since 1970, and one of now. Most figures are numbers since the server began at `began_ms`.
pub(crate) fn lately(request: &Request) -> Result<Response> {
    let app = &request.app;
    let after = request.params.get("after").map(parse_count).transpose()?.unwrap_or(0);
    let began = app.statistics.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(response::object(|json| {
        json.name("began_ms").u64(u64::try_from(began.as_millis()).unwrap_or(0)).name("names").begin_array();
        NAMES.iter().for_each(|name| {
            json.str(name);
        });
        json.end_array().name("samples").begin_array();
        for (at, values) in app.hour.after(after).into_iter().chain([figures::sample(app)]) {
            json.begin_array().u64(at);
            values.iter().for_each(|value| {
                json.f64(*value);
            });
            json.end_array();
        }
        json.end_array();
    }))
}
