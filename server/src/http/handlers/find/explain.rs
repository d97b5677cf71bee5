//! The answer of `_explain`.
//!
//! Source: `mango_cursor:explain/1`, `mango_cursor_view:explain/1`.

use mango::{Bookmark, Candidate, Choice, Index, Query};
use model::{JsonText, JsonWriter};

use crate::http::handlers::find::plan::PlannedQuery;

/// Writes the members into an open object.
pub(crate) fn write(json: &mut JsonWriter<'_>, db: &str, plan: &PlannedQuery) {
    let query = &plan.query;
    json.name("dbname").str(db);
    json.name("index");
    match &plan.chosen.choice {
        Choice::Nothing => {
            json.null();
        }
        Choice::AllDocs => write_index(json, None),
        Choice::Scan(scan) => write_index(json, Some(&scan.index)),
    }
    json.name("partitioned").bool(query.in_partitioned);
    json.name("selector").text(&query.selector.to_json());
    json.name("opts");
    write_options(json, query);
    json.name("limit").u64(query.limit);
    json.name("skip").u64(query.skip);
    write_names(json.name("fields"), query.fields.names());
    json.name("index_candidates").begin_array();
    plan.chosen.candidates.iter().for_each(|candidate| write_candidate(json, candidate));
    json.end_array();
    write_hints(json.name("selector_hints"), query);
    if !matches!(plan.chosen.choice, Choice::Nothing) {
        write_arguments(json, plan);
        json.name("covering").bool(plan.scan().is_some_and(|scan| scan.is_covering));
    }
}

fn write_candidate(json: &mut JsonWriter<'_>, candidate: &Candidate) {
    json.begin_object().name("index");
    write_index(json, candidate.index.as_deref());
    json.name("analysis").begin_object();
    json.name("usable").bool(candidate.is_usable);
    json.name("reasons").begin_array();
    json.begin_object().name("name").str(candidate.reason).end_object();
    json.end_array();
    json.name("ranking").u64(candidate.ranking as u64);
    match candidate.is_covering {
        Some(is_covering) => json.name("covering").bool(is_covering),
        None => json.name("covering").null(),
    };
    json.end_object().end_object();
}

/// Writes an index. `None` is the list of documents by id, which CouchDB shows as an index.
fn write_index(json: &mut JsonWriter<'_>, index: Option<&Index>) {
    json.begin_object();
    write_index_members(json, index);
    json.end_object();
}

/// Writes the members of an index into an open object.
pub(super) fn write_index_members(json: &mut JsonWriter<'_>, index: Option<&Index>) {
    match index {
        None => {
            json.name("ddoc").null();
            json.name("name").str("_all_docs");
            json.name("type").str("special");
            json.name("def").begin_object().name("fields").begin_array();
            json.begin_object().name("_id").str("asc").end_object();
            json.end_array().end_object();
        }
        Some(index) => {
            json.name("ddoc").str(index.design_id());
            json.name("name").str(index.name());
            json.name("type").str("json");
            json.name("partitioned").bool(index.is_partitioned());
            index.write_def(json.name("def"));
        }
    }
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

/// Writes the arguments that CouchDB would read its view with.
fn write_arguments(json: &mut JsonWriter<'_>, plan: &PlannedQuery) {
    let query = &plan.query;
    let descending = plan.is_descending();
    json.name("mrargs").begin_object();
    json.name("include_docs").bool(query.r == 1 && !plan.scan().is_some_and(|scan| scan.is_covering));
    json.name("view_type").str("map");
    json.name("reduce").bool(false);
    json.name("partition");
    match query.partition.as_str() {
        "" => json.null(),
        partition => json.str(partition),
    };
    if plan.finds_nothing() {
        json.name("start_key").null().name("end_key").null();
    } else if let Some(scan) = plan.scan() {
        let mut bound = |name: &str, values: &[JsonText], is_highest: bool| {
            json.name(name).begin_array();
            values.iter().for_each(|value| {
                json.text(value);
            });
            if is_highest {
                // The highest key has no text.
                json.str("<MAX>");
            }
            json.end_array();
        };
        let (low, high) = (&scan.low[..], &scan.high[..]);
        let (start, end) = if descending { (high, low) } else { (low, high) };
        bound("start_key", start, descending);
        bound("end_key", end, !descending);
    } else {
        let bounds = &plan.chosen.id_bounds;
        let (low, high) = ((&bounds.low, true), (&bounds.high, false));
        let (start, end) = if descending { (high, low) } else { (low, high) };
        for (name, (bound, is_low)) in [("start_key", start), ("end_key", end)] {
            json.name(name);
            match bound {
                Some(value) => json.text(value),
                None if !is_low => json.str("<MAX>"),
                // The lowest id, or the lowest value.
                None if bounds.is_bounded => json.str(""),
                None => json.null(),
            };
        }
    }
    json.name("direction").str(if descending { "rev" } else { "fwd" });
    json.name("stable").bool(query.stable || query.stale);
    json.name("update").bool(query.update && !query.stale);
    json.name("conflicts");
    if query.conflicts {
        json.bool(true);
    } else {
        // An Erlang atom, which CouchDB writes as a string.
        json.str("undefined");
    }
    json.end_object();
}

/// Writes a list of texts.
fn write_names<'n>(json: &mut JsonWriter<'_>, names: impl IntoIterator<Item = &'n str>) {
    json.begin_array();
    names.into_iter().for_each(|name| {
        json.str(name);
    });
    json.end_array();
}
