//! What `_explain` shows.
//!
//! Source: `mango_cursor:explain/1`, `mango_cursor_view:explain/1`.

use mango::{Bookmark, Query};
use model::JsonWriter;

use crate::http::find::plan::Plan;
use crate::http::find::write_names;

/// Writes the members into the object that is open.
pub(crate) fn write(json: &mut JsonWriter<'_>, db: &str, plan: &Plan) {
    let query = &plan.query;
    let is_usable = plan.unusable.is_empty();
    json.name("dbname").str(db);
    json.name("index");
    if is_usable {
        write_all_docs(json);
    } else {
        json.null();
    }
    json.name("partitioned").bool(false);
    json.name("selector").text(&query.selector.to_json());
    json.name("opts");
    write_options(json, query);
    json.name("limit").u64(query.limit);
    json.name("skip").u64(query.skip);
    write_names(json.name("fields"), query.fields.names());
    json.name("index_candidates").begin_array();
    if !is_usable {
        json.begin_object().name("index");
        write_all_docs(json);
        json.name("analysis").begin_object();
        json.name("usable").bool(false);
        json.name("reasons").begin_array();
        if let Some(reason) = plan.unusable.first() {
            json.begin_object().name("name").str(reason).end_object();
        }
        json.end_array();
        json.name("ranking").u64(1);
        json.name("covering").null();
        json.end_object().end_object();
    }
    json.end_array();
    write_hints(json.name("selector_hints"), query);
    if is_usable {
        write_arguments(json, plan);
        json.name("covering").bool(false);
    }
}

/// The documents by id, as an index.
fn write_all_docs(json: &mut JsonWriter<'_>) {
    json.begin_object();
    json.name("ddoc").null();
    json.name("name").str("_all_docs");
    json.name("type").str("special");
    json.name("def").begin_object().name("fields").begin_array();
    json.begin_object().name("_id").str("asc").end_object();
    json.end_array().end_object();
    json.end_object();
}

fn write_options(json: &mut JsonWriter<'_>, query: &Query) {
    json.begin_object();
    write_names(json.name("use_index"), query.use_index.iter().map(String::as_str));
    json.name("bookmark").str(query.bookmark.as_deref().unwrap_or(Bookmark::NIL));
    json.name("limit").u64(query.limit);
    json.name("skip").u64(query.skip);
    json.name("sort").begin_object();
    for (field, direction) in &query.sort {
        json.name(field).str(direction.as_str());
    }
    json.end_object();
    write_names(json.name("fields"), query.fields.names());
    json.name("partition").str(&query.partition);
    json.name("r").u64(query.r);
    json.name("conflicts").bool(query.conflicts);
    json.name("stale");
    if query.stale {
        json.str("ok");
    } else {
        json.bool(false);
    }
    json.name("update").bool(query.update);
    json.name("stable").bool(query.stable);
    json.name("execution_stats").bool(query.execution_stats);
    json.name("allow_fallback").bool(query.allow_fallback);
    json.end_object();
}

fn write_hints(json: &mut JsonWriter<'_>, query: &Query) {
    let indexable = query.selector.indexable_fields();
    let fields = query.selector.fields();
    let others = fields.iter().filter(|field| !indexable.contains(field));
    json.begin_array().begin_object();
    json.name("type").str("json");
    write_names(json.name("indexable_fields"), indexable.iter().map(String::as_str));
    write_names(json.name("unindexable_fields"), others.map(String::as_str));
    json.end_object().end_array();
}

/// The arguments of the listing, as those of a view.
fn write_arguments(json: &mut JsonWriter<'_>, plan: &Plan) {
    let query = &plan.query;
    let listing = plan.listing(None);
    json.name("mrargs").begin_object();
    json.name("include_docs").bool(query.r == 1);
    json.name("view_type").str("map");
    json.name("reduce").bool(false);
    json.name("partition").null();
    // The lowest of all keys is null, and the highest has no text.
    let edges = if listing.descending { [Some("<MAX>"), None] } else { [None, Some("<MAX>")] };
    for (name, bound, edge) in [("start_key", &listing.start, edges[0]), ("end_key", &listing.end, edges[1])] {
        match bound.as_deref().or(edge).filter(|_| !plan.finds_nothing()) {
            Some(id) => json.name(name).str(id),
            None => json.name(name).null(),
        };
    }
    json.name("direction").str(if listing.descending { "rev" } else { "fwd" });
    json.name("stable").bool(query.stable || query.stale);
    json.name("update").bool(query.update && !query.stale);
    json.name("conflicts");
    if query.conflicts {
        json.bool(true);
    } else {
        // An atom of Erlang's on its way to JSON.
        json.str("undefined");
    }
    json.end_object();
}
