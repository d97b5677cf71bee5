//! Reads requests and writes responses, for all endpoints.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod database_info;
pub(crate) mod exposition;
pub(crate) mod fields;
pub(crate) mod headers;
pub(crate) mod multipart;
pub(crate) mod paging;
pub(crate) mod params;
pub(crate) mod quotes;
pub(crate) mod range;
pub(crate) mod response;
pub(crate) mod revisions;
pub(crate) mod row_query;
pub(crate) mod rows;
