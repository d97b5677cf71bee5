//! Bytes of the wire: what every endpoint needs to read a request and to write an answer.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod multipart;
pub(crate) mod params;
pub(crate) mod quotes;
pub(crate) mod range;
pub(crate) mod response;
