//! How a program reaches object stores, unless it says otherwise.

use std::sync::Arc;

use super::Connect;

/// The default connector.
#[cfg(feature = "objects")]
pub(crate) fn default_connect() -> Arc<dyn Connect> {
    Arc::new(super::bucket::Connector::from_env())
}

/// The default connector.
#[cfg(not(feature = "objects"))]
pub(crate) fn default_connect() -> Arc<dyn Connect> {
    Arc::new(Unconnected)
}

/// The connector of a build without object stores.
#[cfg(not(feature = "objects"))]
#[derive(Debug)]
struct Unconnected;

#[cfg(not(feature = "objects"))]
impl Connect for Unconnected {
    fn connect(&self, location: &str) -> crate::store::StoreResult<Arc<dyn super::Objects>> {
        Err(crate::StoreError::new(
            crate::StoreErrorKind::Refused,
            format!(
                "chunks of this database are in {location}, and this program was built without object stores: build it with \
                 --features objects"
            ),
        ))
    }
}
