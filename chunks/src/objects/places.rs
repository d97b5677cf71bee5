//! Places: the locations of a database's objects, in its settings.
//!
//! ```json
//! {"_id":"chunks:settings","format":2,"objects":{"5e1f0c9a7b3d2468":"s3://vaults/notes"},…}
//! ```
//!
//! A place has a random name. So two databases with one bucket have separate places in it, and neither takes the
//! other's objects for garbage. When two clients choose places independently, both stay, since both have objects.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::placement::SETTINGS_ID;
use crate::store::{Body, Leaf};
use crate::stub::is_place;

const OBJECTS: &str = "objects";

/// Locations by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places(pub(crate) BTreeMap<String, String>);

impl Places {
    /// The places in live leaves of the settings.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn read(leaves: &[Leaf]) -> Result<Places> {
        let mut places = Places::default();
        let damaged = |what: &str| Error::malformed(SETTINGS_ID, format!("\"{OBJECTS}\" {what}"));
        for leaf in leaves.iter().filter(|leaf| !leaf.deleted) {
            let Some(objects) = leaf.body.get(OBJECTS) else { continue };
            for (place, location) in objects.as_object().ok_or_else(|| damaged("is not an object"))? {
                let location = location.as_str().ok_or_else(|| damaged("has a location that is not a string"))?;
                if !is_place(place) {
                    return Err(damaged("has a place with an invalid name"));
                }
                // All uniting clients choose the same.
                let known = places.0.entry(place.clone()).or_insert_with(|| location.to_owned());
                if location < known.as_str() {
                    *known = location.to_owned();
                }
            }
        }
        Ok(places)
    }

    /// The places that can be read in damaged leaves.
    pub(crate) fn salvage(leaves: &[Leaf]) -> Places {
        let mut places = Places::default();
        for leaf in leaves.iter().filter(|leaf| !leaf.deleted) {
            for (place, location) in leaf.body.get(OBJECTS).and_then(Value::as_object).into_iter().flatten() {
                if let Some(location) = location.as_str().filter(|_| is_place(place)) {
                    places.0.entry(place.clone()).or_insert_with(|| location.to_owned());
                }
            }
        }
        places
    }

    /// Writes the places into settings.
    pub(crate) fn write(&self, body: &mut Body) {
        match self.0.is_empty() {
            true => drop(body.remove(OBJECTS)),
            false => drop(body.insert(OBJECTS.into(), json!(self.0))),
        }
    }

    /// The place at a location; the first one of several.
    pub(crate) fn at(&self, location: &str) -> Option<&String> {
        self.0.iter().find_map(|(place, known)| (known == location).then_some(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(text: &str) -> Leaf {
        Leaf { rev: "1-a".into(), deleted: false, body: serde_json::from_str(text).unwrap(), ancestors: Vec::new() }
    }

    #[test]
    fn places_are_united() {
        let one = leaf(r#"{"objects":{"5e1f0c9a7b3d2468":"s3://a"}}"#);
        let other = leaf(r#"{"objects":{"5e1f0c9a7b3d2469":"file:/b"}}"#);
        let united = Places::read(&[one.clone(), other.clone(), leaf("{}")]).unwrap();
        assert_eq!(united, Places::read(&[other, one]).unwrap());
        assert_eq!(united.at("file:/b").map(String::as_str), Some("5e1f0c9a7b3d2469"));
        assert_eq!((united.0.len(), united.at("s3://b")), (2, None));
        let mut body = Body::new();
        united.write(&mut body);
        assert_eq!(body.len(), 1);
        Places::default().write(&mut body);
        assert!(body.is_empty());
    }

    #[test]
    fn damage_is_named() {
        for (text, wanted) in [
            (r#"{"objects":[]}"#, "is not an object"),
            (r#"{"objects":{"5e1f0c9a7b3d2468":1}}"#, "a location that is not a string"),
            (r#"{"objects":{"../x":"s3://a"}}"#, "a place with an invalid name"),
        ] {
            let refused = Places::read(&[leaf(text)]).unwrap_err().to_string();
            assert!(refused.contains(wanted) && refused.contains(SETTINGS_ID), "{refused}");
        }
        let damaged = leaf(r#"{"objects":{"../x":"s3://a","5e1f0c9a7b3d2468":1,"5e1f0c9a7b3d2469":"s3://b"}}"#);
        let salvaged = Places::salvage(&[damaged]);
        assert_eq!((salvaged.0.len(), salvaged.at("s3://b").is_some()), (1, true));
    }
}
