//! Loads data documents with their chunks from wherever they are, and stores chunks in objects.
//!
//! ```text
//!  stow:  object under a unique name ─► read back, compared ─► the stub to write
//!  load:  stub ─► the place in the settings ─► object, checked against the stub
//! ```
//!
//! There are two kinds of failure: a damaged or missing object concerns only its document; an unreachable or wrong
//! store ends the operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;

use crate::ChunkStore;
use crate::data::Data;
use crate::environment::random;
use crate::error::{Error, Result, StoreError, StoreErrorKind};
use crate::objects::{Objects, Places};
use crate::settings::Settings;
use crate::store::Leaf;
use crate::stub::{Stub, object_name};

/// Number of concurrent transfers of objects, each up to the size limit of a data document.
pub(crate) const OBJECTS_AT_ONCE: usize = 8;

/// Minimum age in milliseconds at which an object may be removed, whatever the grace period: its stub may be on
/// its way.
const LEAST_GRACE_MS: u64 = 600_000;

/// Time for which an object without a stub is kept, in milliseconds.
pub(crate) fn object_grace_ms(settings: Settings) -> u64 {
    settings.grace_ms.max(LEAST_GRACE_MS)
}

/// Name of the object that marks a place.
pub(crate) fn place_object(place: &str) -> String {
    format!("{place}/place")
}

impl ChunkStore {
    /// The places of objects in the settings.
    ///
    /// # Errors
    /// As for [`settings`](Self::settings).
    pub(crate) async fn places(&self) -> Result<Places> {
        let leaves = self.settings_leaves().await?;
        Settings::read(&leaves)?;
        Places::read(&leaves)
    }

    /// The store and location of a place, after a check that it is the right one. `None` if the settings do not
    /// name it.
    ///
    /// # Errors
    /// The errors of both stores.
    pub(crate) async fn objects(&self, place: &str) -> Result<Option<(String, Arc<dyn Objects>)>> {
        if let Some(opened) = self.handles.opened(place) {
            return Ok(Some(opened));
        }
        let places = self.places().await?;
        let Some(location) = places.0.get(place) else { return Ok(None) };
        let objects = self.handles.connect.connect(location)?;
        if objects.get(&place_object(place)).await?.is_none() {
            // An unmounted directory or another endpoint. All objects would seem lost.
            return Err(Error::Store(StoreError::new(
                StoreErrorKind::Refused,
                format!(
                    "the object store {location} does not have the objects of this database ({place}); is it the right one?"
                ),
            )));
        }
        self.handles.keep_open(place, location, objects.clone());
        Ok(Some((location.clone(), objects)))
    }

    /// The chunks of leaves of data documents, in order. Reads several objects at a time. The inner error concerns
    /// one leaf: [`Error::Malformed`].
    ///
    /// # Errors
    /// The errors of both stores.
    pub(crate) async fn data_of(&self, leaves: &[(&str, &Leaf)]) -> Result<Vec<Result<Arc<Data>>>> {
        let mut all: Vec<Option<Result<Arc<Data>>>> = Vec::with_capacity(leaves.len());
        let mut wanted = Vec::new();
        for (place, (id, leaf)) in leaves.iter().enumerate() {
            all.push(match Stub::read(id, &leaf.body) {
                Ok(Some(stub)) => {
                    wanted.push((place, (*id).to_owned(), stub));
                    None
                }
                Ok(None) => Some(Data::read(id, &leaf.body).map(Arc::new)),
                Err(error) => Some(Err(error)),
            });
        }
        let loads = wanted.into_iter().map(|(place, id, stub)| {
            let chunks = self.clone();
            async move { (place, chunks.load(&id, stub).await) }
        });
        let mut loads = stream::iter(loads).buffer_unordered(OBJECTS_AT_ONCE);
        while let Some((place, loaded)) = loads.next().await {
            match loaded {
                Err(error) if !matches!(error, Error::Malformed { .. }) => return Err(error),
                loaded => all[place] = Some(loaded),
            }
        }
        // Each leaf was read directly or loaded.
        Ok(all.into_iter().flatten().collect())
    }

    /// The union of a data document's live leaves with their chunks; `None` if there are none. The inner error
    /// concerns this document only.
    ///
    /// # Errors
    /// The errors of both stores.
    pub(crate) async fn united_data(&self, id: &str, leaves: &[Leaf]) -> Result<Result<Option<Data>>> {
        let live: Vec<(&str, &Leaf)> = leaves.iter().filter(|leaf| !leaf.deleted).map(|leaf| (id, leaf)).collect();
        let mut united: Option<Data> = None;
        for data in self.data_of(&live).await? {
            match (data, &mut united) {
                (Err(error), _) => return Ok(Err(error)),
                (Ok(data), None) => united = Some(Data::clone(&data)),
                (Ok(data), Some(united)) => united.join(&data),
            }
        }
        Ok(Ok(united))
    }

    async fn load(&self, id: &str, stub: Stub) -> Result<Arc<Data>> {
        if let Some(data) = self.handles.read(&stub) {
            return Ok(data);
        }
        let Some((location, objects)) = self.objects(stub.place()).await? else {
            return Err(Error::malformed(id, "its object is in a place that the settings do not name"));
        };
        let Some(content) = objects.get(&stub.object).await? else {
            return Err(Error::malformed(id, format!("its object {} is missing in {location}", stub.object)));
        };
        let data = Arc::new(stub.open(id, &content)?);
        self.handles.keep_read(stub, &data);
        Ok(data)
    }

    /// Writes objects for data documents, and reads each back. Returns the stubs to write, in order.
    ///
    /// # Errors
    /// [`Error::Differs`] if an object reads back differently; the errors of both stores.
    pub(crate) async fn stow(&self, place: &str, documents: &[(&str, &Data)]) -> Result<Vec<Stub>> {
        let Some((location, objects)) = self.objects(place).await? else {
            return Err(Error::Setting(format!("the settings do not name the place {place} any more")));
        };
        let mut made = Vec::with_capacity(documents.len());
        for (id, data) in documents {
            made.push(Stub::of(id, object_name(place, id, random(&*self.environment)), data));
        }
        let stored = made.into_iter().map(|(stub, content)| {
            let (objects, location) = (objects.clone(), location.clone());
            async move {
                let content = Bytes::from(content);
                objects.put(&stub.object, content.clone()).await?;
                // A length or a checksum would only be the store's claim.
                match objects.get(&stub.object).await? {
                    Some(found) if found == content => Ok(stub),
                    _ => Err(Error::Differs { id: format!("{location}/{}", stub.object) }),
                }
            }
        });
        let stored: Vec<Result<Stub>> = stream::iter(stored).buffered(OBJECTS_AT_ONCE).collect().await;
        stored.into_iter().collect()
    }

    /// The reasons why data documents that indexes name for these chunks cannot be read.
    ///
    /// # Errors
    /// The errors of both stores.
    pub(crate) async fn damaged_places(&self, chunks: &[String]) -> Result<BTreeMap<String, Error>> {
        let mut damaged = BTreeMap::new();
        for (place, leaves) in self.named_places(chunks).await? {
            if let Err(error) = self.united_data(&place, &leaves).await? {
                damaged.insert(place, error);
            }
        }
        Ok(damaged)
    }
}
