//! `POST /_couch_layer/promote`: a standby (`serve --follow`) takes writes from now on.
//!
//! `{}`, or `{"anyway": true}` to promote it even if it may not have everything that was shipped. Before the answer the
//! promotion is noted on the disk, so it happens even if the server is killed. The server then starts again: its
//! databases get new incarnations, and connections end.

use hyper::StatusCode;
use tokio::sync::oneshot;

use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};
use crate::standby_state::Promotion;

/// What [`promote`] does.
pub(crate) const PROMOTE: Operation = Operation::new("Lets a standby take writes from now on.", &[Reply::done(200)])
    .bodies(&[Content::members(&[Param::flag(
        "anyway",
        "Even if it may not have everything that was shipped. Default: false.",
    )])])
    .refusals(&[412]);

/// `POST /_couch_layer/promote`
pub(crate) async fn promote(request: &mut Request) -> Result<Response> {
    require_json(&request.headers)?;
    let json = request.json_object().await?;
    let anyway = match json.get("anyway") {
        None => false,
        Some(anyway) => anyway.as_bool().ok_or_else(|| ApiError::bad_request("`anyway` must be true or false"))?,
    };
    let Some(standby) = request.app.options.standby.clone() else {
        return Err(ApiError::precondition_failed("This server follows none: it takes writes."));
    };
    let (answer, answered) = oneshot::channel();
    let ended = |_| ApiError::unavailable("This server does not follow any more.");
    standby.promotions.send(Promotion { anyway, answer }).map_err(|_| ended(()))?;
    answered.await.map_err(|_| ended(()))?.map_err(ApiError::unavailable)?;
    request.audit("standby_promoted", &[("from", &standby.from)]);
    Ok(response::ok(StatusCode::OK))
}
