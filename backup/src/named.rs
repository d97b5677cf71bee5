//! A place from the name that a person gives.

use std::sync::Arc;

use crate::place::{Folder, Place};

/// The place that a person names: a folder, or `s3://BUCKET/PREFIX` in a build with object stores.
///
/// # Errors
/// [`Error::Refused`](crate::Error::Refused) with a sentence.
pub fn place(name: &str) -> crate::Result<Arc<dyn Place>> {
    let variables = std::env::vars_os();
    place_with(name, variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))))
}

/// Whether a name is that of a folder.
pub fn place_is_folder(name: &str) -> bool {
    name.split_once("://").is_none_or(|(scheme, _)| scheme.contains('/'))
}

/// The [`place`] of a name, with these variables instead of the environment: credentials and the endpoint of an object
/// store (`AWS_…`).
///
/// # Errors
/// As [`place`].
#[cfg_attr(not(feature = "objects"), allow(unused_variables, reason = "folders need none"))]
pub fn place_with(name: &str, variables: impl IntoIterator<Item = (String, String)>) -> crate::Result<Arc<dyn Place>> {
    match name.split_once("://") {
        #[cfg(feature = "objects")]
        Some(("s3", _)) => Ok(Arc::new(crate::bucket::Bucket::new(name, variables)?)),
        #[cfg(not(feature = "objects"))]
        Some(("s3", _)) => {
            Err(crate::Error::refused("this build has no object stores: build it with `--features objects`"))
        }
        Some((scheme, _)) if !scheme.contains('/') => {
            Err(crate::Error::refused(format!("{scheme}:// is no place; write a folder, or s3://BUCKET/PREFIX")))
        }
        _ => Ok(Arc::new(Folder::new(name))),
    }
}
