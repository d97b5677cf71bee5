//! Moves data documents to objects, and back.
//!
//! ```text
//!  there:  the place in the settings ─► object, read back and compared ─► stub over the document's revision
//!  back:   object, checked ─► document over the stub's revision, read back and compared
//!          ─► a collection removes the object after the grace period
//! ```
//!
//! Only sealed documents move: only collections write them again. Writers continue to write documents, and do not need
//! the object store for that. The stub replaces the revision that was read, so the write fails if a collection has
//! replaced the document or a client has united leaves. Then the object has no stub, and a collection removes it. There
//! is no other state: an interrupted move is completed by repeating it.

use std::collections::{BTreeMap, BTreeSet};

use crate::ChunkStore;
use crate::contents::Contents;
use crate::data::{Data, OPEN_BELOW};
use crate::database::refused;
use crate::environment::{pause, random};
use crate::error::{Error, Result};
use crate::load::{OBJECTS_AT_ONCE, object_grace_ms, place_object};
use crate::lookup::DATA_AT_ONCE;
use crate::objects::{ObjectFigures, Places};
use crate::placement::{DATA_PREFIX, SETTINGS_ID, data_parts};
use crate::settings::Settings;
use crate::store::{Body, Edit, Figures, Leaf};
use crate::stub::{Stub, parts, place_name};

/// Result of a move; of a dry run, what it would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Number of data documents that moved.
    pub data_documents: u64,
    /// Their bytes, as data documents.
    pub bytes: u64,
    /// Data documents that were left where they are, with the reason.
    pub left: Vec<String>,
    /// Figures of the database before.
    pub before: Figures,
    /// Figures of the database after.
    pub after: Figures,
    /// This database's objects before, in all places.
    pub objects_before: ObjectFigures,
    /// The objects after. Objects whose chunks came back stay for the grace period.
    pub objects_after: ObjectFigures,
}

/// Destination of data documents.
#[derive(Clone, Copy)]
enum Target<'t> {
    /// Objects at this place; `None` if it does not exist yet, in a dry run.
    Place(Option<&'t str>),
    /// Documents again, from this place, or from all places.
    Documents(Option<&'t str>),
}

/// A data document to move.
struct Due {
    id: String,
    /// The live leaves.
    leaves: Vec<Leaf>,
    data: Data,
}

impl ChunkStore {
    /// Moves sealed data documents to objects at `location`, including those in objects elsewhere. The settings keep
    /// the location for all clients. `progress` gets the numbers of data documents done and in all.
    ///
    /// # Errors
    /// The errors of both stores; [`Error::Differs`] if an object reads back differently; [`Error::Contended`].
    /// Documents that have moved stay moved. Repeating it continues.
    pub async fn offload(
        &self,
        location: &str,
        dry_run: bool,
        progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Offloaded> {
        let objects = self.handles.connect.connect(location)?;
        let place = if dry_run {
            // A dry run too shows whether the store can be reached.
            objects.get(&place_object(&place_name(0))).await?;
            self.places().await?.at(location).cloned()
        } else {
            Some(self.place_at(location).await?)
        };
        self.move_all(Target::Place(place.as_deref()), dry_run, progress).await
    }

    /// Brings data documents back from objects: those at `location`, or all.
    ///
    /// # Errors
    /// As for [`offload`](Self::offload).
    pub async fn offload_back(
        &self,
        location: Option<&str>,
        dry_run: bool,
        progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Offloaded> {
        let places = self.places().await?;
        let place = match location {
            None => None,
            Some(location) => Some(places.at(location).cloned().ok_or_else(|| {
                Error::Setting(format!("according to its settings, this database has no objects in {location}"))
            })?),
        };
        self.move_all(Target::Documents(place.as_deref()), dry_run, progress).await
    }

    /// Removes places without objects from the settings. Returns their number. No replica may offload meanwhile: a stub
    /// that arrives later would name an unknown place until the location is used again.
    ///
    /// # Errors
    /// As for [`offload`](Self::offload).
    pub async fn forget_places(&self) -> Result<u64> {
        for attempt in 0..self.attempts {
            let leaves = self.settings_leaves().await?;
            let (Some(settings), mut places) = (Settings::read(&leaves)?, Places::read(&leaves)?) else { return Ok(0) };
            let mut gone = Vec::new();
            for place in places.0.keys() {
                if self.object_figures_of(place).await?.objects == 0 {
                    gone.push(place.clone());
                }
            }
            if gone.is_empty() {
                return Ok(0);
            }
            places.0.retain(|place, _| !gone.contains(place));
            // The object that marks the place stays: a replica's settings may still name it.
            if self.write_settings_with(&leaves, settings, &places).await? {
                return Ok(gone.len() as u64);
            }
            pause(&*self.environment, attempt).await;
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }

    /// This database's objects, in all places. Includes those that are still to be removed.
    ///
    /// # Errors
    /// The errors of both stores.
    pub async fn object_figures(&self) -> Result<ObjectFigures> {
        let mut figures = ObjectFigures::default();
        for place in self.places().await?.0.keys() {
            let there = self.object_figures_of(place).await?;
            figures.objects += there.objects;
            figures.bytes += there.bytes;
        }
        Ok(figures)
    }

    pub(crate) async fn object_figures_of(&self, place: &str) -> Result<ObjectFigures> {
        let mut figures = ObjectFigures::default();
        if let Some((_, objects)) = self.objects(place).await? {
            for object in objects.list(place).await?.iter().filter(|object| parts(&object.name).is_some()) {
                figures.objects += 1;
                figures.bytes += object.bytes;
            }
        }
        Ok(figures)
    }

    /// The place at a location, from the settings or new.
    async fn place_at(&self, location: &str) -> Result<String> {
        for attempt in 0..self.attempts {
            let leaves = self.settings_leaves().await?;
            let mut places = Places::read(&leaves)?;
            let settings = Settings::read(&leaves)?;
            let place = match places.at(location) {
                Some(place) => place.clone(),
                None => place_name(random(&*self.environment)),
            };
            if places.0.contains_key(&place) {
                self.objects(&place).await?;
                return Ok(place);
            }
            let lost = self.lost_places_at(location, &places).await?;
            if lost.is_empty() {
                // The place is marked before it is announced.
                self.handles.connect.connect(location)?.put(&place_object(&place), bytes::Bytes::new()).await?;
            }
            let place = lost.first().cloned().unwrap_or(place);
            places.0.extend(lost.into_iter().chain([place.clone()]).map(|place| (place, location.to_owned())));
            let settings = match settings {
                Some(settings) => settings,
                None => Settings { chunk_prefix_length: self.longest_index().await?, ..Settings::default() },
            };
            if self.write_settings_with(&leaves, settings, &places).await? {
                self.objects(&place).await?;
                return Ok(place);
            }
            pause(&*self.environment, attempt).await;
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }

    /// Places at a location that stubs name although lost settings do not.
    async fn lost_places_at(&self, location: &str, places: &Places) -> Result<Vec<String>> {
        let mut unknown = BTreeSet::new();
        for some in self.ids(DATA_PREFIX).await?.chunks(DATA_AT_ONCE) {
            for (id, leaves) in some.iter().zip(self.store.leaves(some, false).await?) {
                let stubs = leaves.iter().filter_map(|leaf| Stub::read(id, &leaf.body).ok().flatten());
                unknown.extend(stubs.map(|stub| stub.place().to_owned()));
            }
        }
        let objects = self.handles.connect.connect(location)?;
        let mut found = Vec::new();
        for place in unknown.into_iter().filter(|place| !places.0.contains_key(place)) {
            if objects.get(&place_object(&place)).await?.is_some() {
                found.push(place);
            }
        }
        Ok(found)
    }

    async fn move_all(
        &self,
        target: Target<'_>,
        dry_run: bool,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Offloaded> {
        let mut moved = Offloaded {
            before: self.store.figures().await?,
            objects_before: self.object_figures().await?,
            ..Offloaded::default()
        };
        let settings = self.settings().await?.unwrap_or_default();
        let ids: Vec<String> = self.ids(DATA_PREFIX).await?.into_iter().filter(|id| data_parts(id).is_some()).collect();
        let (total, mut done) = (ids.len() as u64, 0);
        for some in ids.chunks(OBJECTS_AT_ONCE) {
            self.move_some(some.to_vec(), target, settings, dry_run, &mut moved).await?;
            done += some.len() as u64;
            progress(done, total);
        }
        moved.after = self.store.figures().await?;
        moved.objects_after = self.object_figures().await?;
        Ok(moved)
    }

    async fn move_some(
        &self,
        mut open: Vec<String>,
        target: Target<'_>,
        settings: Settings,
        dry_run: bool,
        moved: &mut Offloaded,
    ) -> Result<()> {
        for attempt in 0..self.attempts {
            if attempt > 0 {
                pause(&*self.environment, attempt).await;
            }
            let leaves = self.store.leaves(&open, false).await?;
            let mut due = Vec::new();
            for (id, mut leaves) in open.drain(..).zip(leaves) {
                leaves.retain(|leaf| !leaf.deleted);
                match self.is_due(&id, &leaves, target, settings) {
                    Ok(false) => continue,
                    Ok(true) if dry_run => {
                        moved.data_documents += 1;
                        moved.bytes += Contents::unite(&id, &leaves)?.map_or(0, |contents| contents.bytes() as u64);
                    }
                    Ok(true) => match self.united_data(&id, &leaves).await? {
                        Ok(Some(data)) => due.push(Due { id, leaves, data }),
                        Ok(None) => {}
                        Err(error) => moved.left.push(error.to_string()),
                    },
                    Err(error) => moved.left.push(error.to_string()),
                }
            }
            if due.is_empty() {
                return Ok(());
            }
            open = match target {
                Target::Place(place) => self.move_to(place.unwrap_or_default(), due, settings, moved).await?,
                Target::Documents(_) => self.move_back(due, moved).await?,
            };
            if open.is_empty() {
                return Ok(());
            }
        }
        Err(Error::Contended { what: format!("{} data documents", open.len()), attempts: self.attempts })
    }

    /// Whether a data document must move.
    fn is_due(&self, id: &str, leaves: &[Leaf], target: Target<'_>, settings: Settings) -> Result<bool> {
        let Some(contents) = Contents::unite(id, leaves)? else { return Ok(false) };
        let mut stubs = Vec::new();
        for leaf in leaves {
            stubs.push(Stub::read(id, &leaf.body)?);
        }
        let is_due = match target {
            Target::Place(place) => {
                let is_there = |stub: &Option<Stub>| stub.as_ref().is_some_and(|stub| Some(stub.place()) == place);
                contents.bytes() >= OPEN_BELOW && !(stubs.len() == 1 && stubs.iter().all(is_there))
            }
            Target::Documents(place) => {
                stubs.iter().flatten().any(|stub| place.is_none_or(|place| place == stub.place()))
            }
        };
        // Two forks together can exceed the size limit. So can a single chunk.
        if is_due && leaves.len() > 1 && contents.bytes() > settings.data_doc_size_limit {
            return Err(Error::Setting(format!(
                "\"{id}\" has conflicting leaves that are together too large for a document: a collection splits them"
            )));
        }
        Ok(is_due)
    }

    /// Writes objects, then stubs. Returns the documents for which another writer was faster.
    async fn move_to(
        &self,
        place: &str,
        due: Vec<Due>,
        settings: Settings,
        moved: &mut Offloaded,
    ) -> Result<Vec<String>> {
        let began_ms = self.environment.now_ms();
        let documents: Vec<(&str, &Data)> = due.iter().map(|due| (due.id.as_str(), &due.data)).collect();
        let stubs = self.stow(place, &documents).await?;
        // Objects without stubs are removed after the grace period, so a slow writer may have lost its objects.
        if !self.is_fresh(began_ms, settings) {
            return Ok(due.into_iter().map(|due| due.id).collect());
        }
        Ok(self.write_over(due, stubs.iter().map(Stub::write).collect(), moved).await?.0)
    }

    /// Whether objects whose writing began then are young enough for their stubs.
    pub(crate) fn is_fresh(&self, began_ms: u64, settings: Settings) -> bool {
        self.environment.now_ms().saturating_sub(began_ms) <= object_grace_ms(settings) / 4
    }

    /// Writes documents and reads them back. Returns those for which another writer was faster.
    async fn move_back(&self, due: Vec<Due>, moved: &mut Offloaded) -> Result<Vec<String>> {
        let wanted: BTreeMap<String, Data> = due.iter().map(|due| (due.id.clone(), due.data.clone())).collect();
        let bodies = due.iter().map(|due| due.data.write()).collect();
        let (again, written) = self.write_over(due, bodies, moved).await?;
        let ids: Vec<String> = written.iter().map(|(id, _)| id.clone()).collect();
        let found = if ids.is_empty() { Vec::new() } else { self.store.leaves(&ids, false).await? };
        for ((id, rev), leaves) in written.iter().zip(found) {
            // A document that has been written since belongs to another writer.
            let own = leaves.iter().find(|leaf| leaf.rev == *rev);
            let is_there = |leaf: &Leaf| Data::read(id, &leaf.body).is_ok_and(|found| wanted.get(id) == Some(&found));
            if own.is_some_and(|leaf| !is_there(leaf)) {
                return Err(Error::Differs { id: id.clone() });
            }
        }
        Ok(again)
    }

    /// Writes bodies over the leaves that were read, and ends the other leaves. Returns the documents for which
    /// another writer was faster, and the written ones with their revisions.
    async fn write_over(
        &self,
        due: Vec<Due>,
        bodies: Vec<Body>,
        moved: &mut Offloaded,
    ) -> Result<(Vec<String>, Vec<(String, String)>)> {
        let edits = due.iter().zip(bodies).map(|(due, body)| {
            let rev = due.leaves.first().map(|leaf| leaf.rev.clone());
            Edit { id: due.id.clone(), rev, deleted: false, body }
        });
        let outcomes = self.store.write(edits.collect()).await?;
        let (mut again, mut written, mut losers, mut failure) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (due, outcome) in due.into_iter().zip(outcomes) {
            if refused(&due.id, &outcome, &mut failure)? {
                again.push(due.id);
                continue;
            }
            written.extend(outcome.ok().map(|rev| (due.id.clone(), rev)));
            moved.data_documents += 1;
            moved.bytes += due.data.bytes() as u64;
            losers.push((due.id, due.leaves.into_iter().skip(1).map(|leaf| leaf.rev).collect()));
        }
        self.end_losers(losers).await?;
        Ok((again, written))
    }
}
