//! `GET /_couch_layer/log`: the last lines of this server's log. CouchDB has no such endpoint.

use crate::http::error::{ApiError, Result};
use crate::http::log_tail;
use crate::http::operation::{Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::params::parse_count;
use crate::http::wire::response::{self, Response};

/// What [`tail`] does.
pub(crate) const TAIL: Operation = Operation::new("The last lines of the server's log.", &[Reply::object(200)])
    .query(&[&[Param::count("after", "Only lines after the one with this number.")]]);

/// Answers with `{"last", "lines": [{"number", "time", "level", "target", "text"}]}`: the lines after the number
/// `after`, as many as are kept.
///
/// # Errors
/// 403 on a server without an administrator: whoever reaches it could read what others did.
pub(crate) fn tail(request: &Request) -> Result<Response> {
    if request.app.auth.is_open_admin() {
        return Err(ApiError::forbidden("the log is for administrators, and this server has none"));
    }
    let after = request.params.get("after").map(parse_count).transpose()?.unwrap_or(0);
    Ok(response::object(|json| log_tail::write(json, after)))
}
