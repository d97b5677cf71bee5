//! `GET /_couch_layer/ship`: how far the served store is shipped (`serve --ship-to`), or how far a standby follows
//! (`serve --follow`).

use model::{Environment, SystemEnvironment};

use crate::http::error::Result;
use crate::http::operation::{Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};
use crate::standby_state::StandbyState;

/// What [`status`] does.
pub(crate) const STATUS: Operation =
    Operation::new("How far the store is shipped, or how far a standby follows.", &[Reply::object(200)]);

/// `GET /_couch_layer/ship`
pub(crate) fn status(request: &Request) -> Result<Response> {
    if let Some(standby) = &request.app.options.standby {
        return Ok(following(standby));
    }
    let Some(ship) = &request.app.options.ship else {
        return Ok(response::object(|json| {
            json.name("state").str("none");
        }));
    };
    let outcome = ship.outcome.lock().clone();
    Ok(response::object(|json| {
        json.name("state").str(outcome.state()).name("to").str(&ship.to).name("until_ms").u64(outcome.shipped.until_ms);
        if outcome.shipped.until_ms > 0 {
            let behind = SystemEnvironment.now_ms().saturating_sub(outcome.shipped.until_ms);
            json.name("behind_ms").u64(behind);
        }
        json.name("segments").u64(outcome.shipped.segments).name("bases").u64(outcome.shipped.bases);
        json.name("bytes").u64(outcome.shipped.bytes).name("begun").u64(outcome.shipped.begun);
        json.name("reasons").begin_array();
        outcome.failed.iter().flatten().for_each(|reason| {
            json.str(reason);
        });
        json.end_array();
    }))
}

fn following(standby: &StandbyState) -> Response {
    let outcome = standby.outcome.lock().clone();
    let behind_ms = SystemEnvironment.now_ms().saturating_sub(outcome.looked_ms);
    response::object(|json| {
        json.name("state").str(outcome.state()).name("standby").bool(true).name("from").str(&standby.from);
        json.name("until_ms").u64(outcome.until_ms).name("segments").u64(outcome.segments);
        json.name("behind_ms");
        match outcome.looked_ms {
            0 => json.null(),
            _ => json.u64(behind_ms),
        };
        json.name("reasons").begin_array();
        outcome.failed.iter().chain(&outcome.not_restored).for_each(|reason| {
            json.str(reason);
        });
        json.end_array();
    })
}
