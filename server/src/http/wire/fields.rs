//! `fields`: the requested members of documents.

use mango::Projection;
use model::{JsonText, JsonWriter};

use crate::http::error::Result;
use crate::http::wire::params;

/// Parses paths separated by commas, or a JSON array of paths as in `_find`.
pub(crate) fn parse(value: &str) -> Result<Projection> {
    let list = if value.starts_with('[') {
        params::parse_json(value)?
    } else {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_array();
        for path in value.split(',').filter(|path| !path.is_empty()) {
            json.str(path);
        }
        json.end_array();
        JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
    };
    Ok(Projection::parse(list.root())?)
}
