//! CouchDB's document model as key layouts over a transactional key-value store.

// The codec: values in, bytes out, no store in sight.
mod bigint;
mod body;
mod etf;
mod json;
mod revid;
mod tuple;

pub use body::{
    BodyError, BodyFormat, BodyLimits, CorruptDocument, RevisionMetadata, StoredBody, decode_body, decode_rows,
    row_cost,
};
pub use etf::{AttachmentDigest, Edit};
pub use json::{
    Elements, Event, Events, FromSerdeError, JsonError, JsonErrorKind, JsonKind, JsonRef, JsonStr, JsonText,
    JsonWriter, MAX_INPUT_BYTES, Members, ParseOptions, SplitObject, TooDeepForSerde,
};
pub use revid::{InvalidRev, MAX_REV_HASH_BYTES, RevHash, RevId};
