//! The settings that all clients of a database share: one document, replicated with the rest.
//!
//! ```json
//! {"_id":"chunks:settings","format":1,"chunk_prefix_length":2,"data_doc_size_limit":900000,"grace_ms":604800000}
//! ```
//!
//! Independent changes of two clients are united: the longer prefix, the smaller limit, the longer grace period. Each
//! is the safer choice, and a longer prefix costs nothing for existing chunks. If chunks are in objects too, the format
//! is 2 and [`Places`] are named.

use serde_json::json;

use crate::error::{Error, Result};
use crate::objects::Places;
use crate::placement::{MAX_PREFIX_LENGTH, SETTINGS_ID};
use crate::store::{Body, Leaf};

/// The latest format that this program reads and writes. 2 means that chunks may be in objects; it is written only
/// then.
pub const FORMAT: u64 = 2;
/// The format of a database without objects.
const PLAIN_FORMAT: u64 = 1;
/// Default size limit of data documents, in bytes. Every server accepts such documents.
pub const DEFAULT_DATA_LIMIT: usize = 900_000;
/// Smallest size limit of data documents, in bytes.
pub const LEAST_DATA_LIMIT: usize = 64_000;
/// Default grace period of chunks that no file refers to, in milliseconds: a week.
pub const DEFAULT_GRACE_MS: u64 = 7 * 24 * 60 * 60 * 1_000;
/// Shortest grace period that can be set: an hour. A file may be written up to a quarter of it after its chunks
/// were looked up, a write is retried for ten minutes, and clocks differ by minutes.
pub const LEAST_GRACE_MS: u64 = 60 * 60 * 1_000;
const _: () = assert!(peer::LONGEST_MS + 120_000 < LEAST_GRACE_MS / 4);

const LENGTH: &str = "chunk_prefix_length";
const LIMIT: &str = "data_doc_size_limit";
const GRACE: &str = "grace_ms";

/// The settings of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of hexadecimal digits in the prefixes of new entries. It only grows.
    pub chunk_prefix_length: u8,
    /// Size limit of a data document, in bytes of compact JSON. A single chunk may exceed it.
    pub data_doc_size_limit: usize,
    /// Time for which a chunk without references is kept, in milliseconds. A client may be offline for half of it,
    /// and clocks may differ by a small part of it. At least [`LEAST_GRACE_MS`] when it is set; a value in the
    /// database is used as it is.
    pub grace_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { chunk_prefix_length: 0, data_doc_size_limit: DEFAULT_DATA_LIMIT, grace_ms: DEFAULT_GRACE_MS }
    }
}

impl Settings {
    /// The settings in live leaves; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Malformed`].
    pub(crate) fn read(leaves: &[Leaf]) -> Result<Option<Settings>> {
        let mut united: Option<Settings> = None;
        for leaf in leaves.iter().filter(|leaf| !leaf.deleted) {
            let one = Settings::read_body(&leaf.body)?;
            united = Some(united.map_or(one, |united| united.join(one)));
        }
        Ok(united)
    }

    /// The settings for an operation that adds something: if at least one leaf can be read, the readable parts of
    /// damaged leaves count too.
    ///
    /// # Errors
    /// As for [`read`](Self::read), if no leaf can be read.
    pub(crate) fn legible(leaves: &[Leaf]) -> Result<Option<Settings>> {
        let mut live = leaves.iter().filter(|leaf| !leaf.deleted);
        match Settings::read(leaves) {
            Err(Error::Malformed { .. }) if live.any(|leaf| Settings::read_body(&leaf.body).is_ok()) => {
                Settings::salvage(leaves)
            }
            settings => settings,
        }
    }

    /// The readable parts of damaged leaves, with defaults for the rest; `None` if nothing is damaged.
    ///
    /// # Errors
    /// [`Error::Format`]: settings of a later version are not damaged.
    pub(crate) fn salvage(leaves: &[Leaf]) -> Result<Option<Settings>> {
        match Settings::read(leaves) {
            Ok(_) => return Ok(None),
            Err(Error::Malformed { .. }) => {}
            Err(error) => return Err(error),
        }
        let live = leaves.iter().filter(|leaf| !leaf.deleted);
        let each = live.map(|leaf| {
            let mut body = Settings::default().write(&Body::new(), &Places::default());
            for name in [LENGTH, LIMIT, GRACE] {
                let mut one = body.clone();
                one.insert(name.into(), leaf.body.get(name).cloned().unwrap_or_default());
                if Settings::read_body(&one).is_ok() {
                    body = one;
                }
            }
            Settings::read_body(&body)
        });
        Ok(each.collect::<Result<Vec<_>>>()?.into_iter().reduce(Settings::join))
    }

    fn read_body(body: &Body) -> Result<Settings> {
        let number = |name: &str| {
            let number = body.get(name).and_then(serde_json::Value::as_u64);
            number.ok_or_else(|| Error::malformed(SETTINGS_ID, format!("\"{name}\" is not a whole number")))
        };
        let found = number("format")?;
        if !(PLAIN_FORMAT..=FORMAT).contains(&found) {
            return Err(Error::Format { found, known: FORMAT });
        }
        let length = number(LENGTH)?;
        let too_long = || Error::malformed(SETTINGS_ID, format!("\"{LENGTH}\" is {length}, over {MAX_PREFIX_LENGTH}"));
        let length = u8::try_from(length).ok().filter(|length| *length <= MAX_PREFIX_LENGTH).ok_or_else(too_long)?;
        let limit = usize::try_from(number(LIMIT)?).unwrap_or(usize::MAX);
        if limit < LEAST_DATA_LIMIT {
            return Err(Error::malformed(SETTINGS_ID, format!("\"{LIMIT}\" is {limit}, under {LEAST_DATA_LIMIT}")));
        }
        Ok(Settings { chunk_prefix_length: length, data_doc_size_limit: limit, grace_ms: number(GRACE)? })
    }

    fn join(self, other: Settings) -> Settings {
        Settings {
            chunk_prefix_length: self.chunk_prefix_length.max(other.chunk_prefix_length),
            data_doc_size_limit: self.data_doc_size_limit.min(other.data_doc_size_limit),
            grace_ms: self.grace_ms.max(other.grace_ms),
        }
    }

    /// The document. Unknown members in `before` are kept.
    pub(crate) fn write(&self, before: &Body, places: &Places) -> Body {
        let mut body = before.clone();
        body.insert("format".into(), json!(if places.0.is_empty() { PLAIN_FORMAT } else { FORMAT }));
        places.write(&mut body);
        body.insert(LENGTH.into(), json!(self.chunk_prefix_length));
        body.insert(LIMIT.into(), json!(self.data_doc_size_limit));
        body.insert(GRACE.into(), json!(self.grace_ms));
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(body: Body) -> Leaf {
        Leaf { rev: "1-a".into(), deleted: false, body, ancestors: Vec::new() }
    }

    #[test]
    fn leaves_are_united_to_the_safe_side() {
        let one = Settings { chunk_prefix_length: 2, data_doc_size_limit: 100_000, grace_ms: 5 };
        let other = Settings { chunk_prefix_length: 1, data_doc_size_limit: 200_000, grace_ms: 7 };
        let plain = |settings: Settings| leaf(settings.write(&Body::new(), &Places::default()));
        let leaves = [plain(one), plain(other)];
        let united = Settings::read(&leaves).unwrap().unwrap();
        assert_eq!(united, Settings { chunk_prefix_length: 2, data_doc_size_limit: 100_000, grace_ms: 7 });
        assert_eq!(Settings::read(&[]).unwrap(), None);
    }

    #[test]
    fn what_is_legible_of_damaged_settings_is_kept() {
        let salvage = |texts: &[&str]| {
            Settings::salvage(&texts.iter().map(|text| leaf(serde_json::from_str(text).unwrap())).collect::<Vec<_>>())
        };
        let good = r#"{"format":1,"chunk_prefix_length":1,"data_doc_size_limit":70000,"grace_ms":8}"#;
        assert_eq!(salvage(&[good]).unwrap(), None);
        let damaged = r#"{"format":1,"chunk_prefix_length":9,"data_doc_size_limit":"x","grace_ms":2592000000}"#;
        let kept = Settings { grace_ms: 2_592_000_000, ..Settings::default() };
        assert_eq!(salvage(&[damaged]).unwrap(), Some(kept));
        let both = Settings { chunk_prefix_length: 1, data_doc_size_limit: 70_000, ..kept };
        assert_eq!(salvage(&[damaged, good]).unwrap(), Some(both));
        assert_eq!(salvage(&["{}"]).unwrap(), Some(Settings::default()));
        assert!(matches!(salvage(&[r#"{"format":3}"#]), Err(Error::Format { .. })));
    }

    #[test]
    fn a_program_that_knows_no_objects_is_told_by_the_format() {
        let places = Places([("5e1f0c9a7b3d2468".to_owned(), "s3://vaults".to_owned())].into());
        let hybrid = Settings::default().write(&Body::new(), &places);
        assert_eq!((&hybrid["format"], &hybrid["objects"]["5e1f0c9a7b3d2468"]), (&json!(2), &json!("s3://vaults")));
        assert_eq!(Settings::read(&[leaf(hybrid.clone())]).unwrap(), Some(Settings::default()));
        let plain = Settings::default().write(&hybrid, &Places::default());
        assert_eq!((&plain["format"], plain.get("objects")), (&json!(1), None));
    }

    #[test]
    fn nonsense_and_the_future_are_refused() {
        for (text, wanted) in [
            (r#"{}"#, "\"format\" is not a whole number"),
            (r#"{"format":0}"#, "use a newer one"),
            (r#"{"format":3}"#, "use a newer one"),
            (r#"{"format":1,"chunk_prefix_length":5}"#, "over 4"),
            (r#"{"format":1,"chunk_prefix_length":-1}"#, "not a whole number"),
            (r#"{"format":1,"chunk_prefix_length":1,"data_doc_size_limit":3,"grace_ms":1}"#, "under 64000"),
        ] {
            let refused = Settings::read(&[leaf(serde_json::from_str(text).unwrap())]).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{text}: {refused}");
        }
    }
}
