//! Moving data documents to objects, and back.
//!
//! ```text
//!  there:  the place in the settings ─► object, read back and compared ─► stub over the document's revision
//!  back:   object, checked ─► document over the stub's revision, read back and compared
//!          ─► the object goes with a collection, after the grace
//! ```
//!
//! Only sealed documents move: nobody but a collection writes them again. Writers go on writing documents,
//! and need reach no object store for that. The stub is written on the revision that was read, so that it
//! fails where a collection has replaced the document, or somebody has united leaves: the object is then one
//! that no stub names, and is removed as such. There is no other state: what was interrupted is gone on with
//! by beginning it again.

use std::collections::{BTreeMap, BTreeSet};

use crate::ChunkStore;
use crate::contents::Contents;
use crate::data::{Data, OPEN_BELOW};
use crate::environment::{pause, random};
use crate::error::{Error, Result};
use crate::load::{OBJECTS_AT_ONCE, object_grace_ms, place_object};
use crate::lookup::DATA_AT_ONCE;
use crate::objects::{ObjectFigures, Places};
use crate::placement::{DATA_PREFIX, SETTINGS_ID, data_parts};
use crate::settings::Settings;
use crate::store::{Body, Edit, Figures, Leaf};
use crate::stub::{Stub, parts, place_name};
use crate::write::refused;

/// What a move did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Data documents that moved.
    pub data_documents: u64,
    /// Their bytes, as data documents.
    pub bytes: u64,
    /// Data documents that were left where they are, each with the reason.
    pub left: Vec<String>,
    /// The database before.
    pub before: Figures,
    /// The database after.
    pub after: Figures,
    /// The objects of this database before, in all places.
    pub objects_before: ObjectFigures,
    /// The objects after: those whose chunks came back stay for the grace.
    pub objects_after: ObjectFigures,
}

/// Where data documents are to go.
#[derive(Clone, Copy)]
enum Target<'t> {
    /// To objects of this place; `None` where there is none yet, in a dry run.
    Place(Option<&'t str>),
    /// Into documents again, from this place or, if there is none, from all.
    Documents(Option<&'t str>),
}

/// A data document on its way.
struct Due {
    id: String,
    /// The live leaves.
    leaves: Vec<Leaf>,
    data: Data,
}

impl ChunkStore {
    /// Moves sealed data documents to objects at `location`, those too that are objects elsewhere. The
    /// location is for all clients: it is kept in the settings. `progress` is told how many of how many data
    /// documents have been looked at.
    ///
    /// # Errors
    /// The failures of both stores; [`Error::Differs`] where an object reads back as something else,
    /// [`Error::Contended`]. What has moved until then is right; begun again, it goes on.
    pub async fn offload(
        &self,
        location: &str,
        dry_run: bool,
        progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Offloaded> {
        let objects = self.handles.connect.connect(location)?;
        let place = if dry_run {
            // That it can be reached is what one wants to know beforehand.
            objects.get(&place_object(&place_name(0))).await?;
            self.places().await?.at(location).cloned()
        } else {
            Some(self.place_at(location).await?)
        };
        self.move_all(Target::Place(place.as_deref()), dry_run, progress).await
    }

    /// Brings data documents back from objects, those at `location` or, without one, all.
    ///
    /// # Errors
    /// As [`offload`](Self::offload).
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
                Error::Setting(format!("no objects of this database are in {location}, going by its settings"))
            })?),
        };
        self.move_all(Target::Documents(place.as_deref()), dry_run, progress).await
    }

    /// Takes places without objects out of the settings. How many that were. Nobody may offload meanwhile, on
    /// this replica or another: a stub that comes from there later would name a place that nobody knows, until
    /// it is offloaded to again.
    ///
    /// # Errors
    /// As [`offload`](Self::offload).
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
            // The object that says that the place is here stays: settings of a replica may still name it.
            if self.write_settings_with(&leaves, settings, &places).await? {
                return Ok(gone.len() as u64);
            }
            pause(&*self.environment, attempt).await;
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }

    /// How much of this database is in objects, in all places; those too that are still to be removed.
    ///
    /// # Errors
    /// The failures of both stores.
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

    /// The place at a location: the one that the settings name, or a new one.
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
                // The place is there before anybody is told of it.
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

    /// Places at a location that stubs name and the settings, being lost, do not.
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

    /// Whether a data document is to move.
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
        // Two forks together can be more than a document holds. A single chunk may be, too.
        if is_due && leaves.len() > 1 && contents.bytes() > settings.data_doc_size_limit {
            return Err(Error::Setting(format!(
                "\"{id}\" has conflicting leaves that are more than a document may hold: collect, which takes them apart"
            )));
        }
        Ok(is_due)
    }

    /// Objects, then stubs. Those where somebody else was faster.
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
        // Objects without stubs are removed after the grace: what took so long may have lost its own.
        if !self.is_fresh(began_ms, settings) {
            return Ok(due.into_iter().map(|due| due.id).collect());
        }
        Ok(self.write_over(due, stubs.iter().map(Stub::write).collect(), moved).await?.0)
    }

    /// Whether objects that were begun to be written then are young enough for their stubs.
    pub(crate) fn is_fresh(&self, began_ms: u64, settings: Settings) -> bool {
        self.environment.now_ms().saturating_sub(began_ms) <= object_grace_ms(settings) / 4
    }

    /// Documents, read back. Those where somebody else was faster.
    async fn move_back(&self, due: Vec<Due>, moved: &mut Offloaded) -> Result<Vec<String>> {
        let wanted: BTreeMap<String, Data> = due.iter().map(|due| (due.id.clone(), due.data.clone())).collect();
        let bodies = due.iter().map(|due| due.data.write()).collect();
        let (again, written) = self.write_over(due, bodies, moved).await?;
        let ids: Vec<String> = written.iter().map(|(id, _)| id.clone()).collect();
        let found = if ids.is_empty() { Vec::new() } else { self.store.leaves(&ids, false).await? };
        for ((id, rev), leaves) in written.iter().zip(found) {
            // One that was written again since is another's.
            let own = leaves.iter().find(|leaf| leaf.rev == *rev);
            let is_there = |leaf: &Leaf| Data::read(id, &leaf.body).is_ok_and(|found| wanted.get(id) == Some(&found));
            if own.is_some_and(|leaf| !is_there(leaf)) {
                return Err(Error::Differs { id: id.clone() });
            }
        }
        Ok(again)
    }

    /// Writes bodies over the leaves that were read, and ends the other leaves. Those where somebody else was
    /// faster, and those that were written with their revisions.
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
