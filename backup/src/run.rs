//! A run of a backup.

use std::collections::{BTreeMap, HashMap, HashSet};

use kv_api::Database;
use model::{Layer, LayerOptions, NameRange};

use crate::copy::{Copied, Progress, copy};
use crate::error::{Error, Result};
use crate::live::{Live, read_segment};
use crate::manifest::{self, FORMAT, Manifest, Pack, Setting};
use crate::pack::ObjectId;
use crate::repository::Repository;
use crate::writer::{SegmentWriter, Writer};

/// More segments of a database than this are merged.
const MOST_SEGMENTS: usize = 32;

/// With fewer documents in later segments, the number of segments is not a reason to merge.
const FEW_DOCUMENTS: u64 = 5_000;

/// A run as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Its id.
    pub id: String,
    /// When it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// A hash of the store's identity: the same for all runs of a store.
    pub store: String,
    /// Its databases, in the order of their names.
    pub databases: Vec<RunDatabase>,
}

/// A database in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDatabase {
    /// Its name.
    pub name: String,
    /// The sequence at which it is complete.
    pub seq: String,
    /// Number of documents, deleted ones included.
    pub documents: u64,
    /// Documents that could not be read. Earlier runs may have them.
    pub damaged: Vec<String>,
    /// Why the run could not copy it. Then its state is that of an earlier run.
    pub not_renewed: Option<String>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The run.
    pub run: RunInfo,
    /// Number of databases that were copied as a whole, since no earlier run had them.
    pub whole: usize,
    /// Bytes of the packs that it wrote.
    pub bytes: u64,
    /// Databases that could not be copied, each with the reason. The run has their state from the last run that could,
    /// or lacks them.
    pub failed: Vec<(String, String)>,
    /// Problems of earlier runs, as sentences.
    pub remarks: Vec<String>,
}

impl RunInfo {
    pub(crate) fn of(id: &str, manifest: &Manifest) -> Self {
        let database = |database: &manifest::Database| RunDatabase {
            name: database.name.clone(),
            seq: database.seq.clone(),
            documents: database.documents,
            damaged: database.damaged.clone(),
            not_renewed: database.not_renewed.clone(),
        };
        let databases = manifest.databases.iter().map(database).collect();
        let store = short_identity(&manifest.identity);
        RunInfo { id: id.to_owned(), began_ms: manifest.began_ms, store, databases }
    }
}

impl Repository {
    /// The description of a run.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such run; [`Error::Damaged`].
    pub async fn run(&self, id: &str) -> Result<RunInfo> {
        Ok(RunInfo::of(id, &self.manifest(id).await?))
    }

    /// Backs up databases of a store, in the background ([`Database::in_background`]); all if `names` is empty. Others
    /// may write meanwhile. `progress` is called with a database and the number of its copied documents. If files of
    /// earlier runs are damaged, all databases are copied as a whole.
    ///
    /// # Errors
    /// Those of the store and the place. Earlier runs stay as they are. The error of one database of several is in the
    /// report.
    pub async fn back_up<D: Database>(
        &self,
        engine: D,
        options: &LayerOptions,
        names: &[String],
        progress: Progress<'_>,
    ) -> Result<Report> {
        let layer = Layer::open(engine.in_background(), options.clone()).await?;
        let mut remarks = Vec::new();
        match self.make_run(&layer, options, names, Some(&mut remarks), progress).await {
            Err(Error::Damaged { file, reason }) => {
                remarks.push(format!("{file} is damaged: {reason}. So the databases were copied as a whole"));
                let made = self.make_run(&layer, options, names, None, progress).await?;
                Ok(Report { remarks, ..made })
            }
            made => Ok(Report { remarks, ..made? }),
        }
    }

    /// Backs up databases like [`back_up`](Self::back_up), but does not continue an earlier run: all objects are
    /// written again, so the run does not need files that may be damaged.
    ///
    /// # Errors
    /// As [`back_up`](Self::back_up).
    pub async fn back_up_whole<D: Database>(
        &self,
        engine: D,
        options: &LayerOptions,
        names: &[String],
        progress: Progress<'_>,
    ) -> Result<Report> {
        let layer = Layer::open(engine.in_background(), options.clone()).await?;
        self.make_run(&layer, options, names, None, progress).await
    }

    /// Writes a run. Without `remarks` it does not continue an earlier one.
    async fn make_run<D: Database>(
        &self,
        layer: &Layer<D>,
        options: &LayerOptions,
        names: &[String],
        remarks: Option<&mut Vec<String>>,
        progress: Progress<'_>,
    ) -> Result<Report> {
        let mut writer = Writer::begin(self).await?;
        match self.fill_run(&mut writer, layer, options, names, remarks, progress).await {
            Ok(filled) => {
                let bytes = writer.written();
                let id = writer.finish(&filled.manifest).await?;
                let Filled { manifest, whole, failed } = filled;
                Ok(Report { run: RunInfo::of(&id, &manifest), whole, bytes, failed, remarks: Vec::new() })
            }
            Err(error) => {
                writer.give_up().await;
                Err(error)
            }
        }
    }

    async fn fill_run<D: Database>(
        &self,
        writer: &mut Writer,
        layer: &Layer<D>,
        options: &LayerOptions,
        names: &[String],
        mut remarks: Option<&mut Vec<String>>,
        progress: Progress<'_>,
    ) -> Result<Filled> {
        let began_ms = self.environment.now_ms();
        let all = match names {
            [] => layer.database_names(&NameRange::default()).await?,
            names => names.to_vec(),
        };
        let identity = model::hex(&layer.identity().await?);
        let Bases { mut databases, packs } = match &mut remarks {
            Some(remarks) => self.bases(&all, &identity, remarks).await?,
            None => Bases::default(),
        };
        let mut together: Vec<Pack> = packs.values().flatten().cloned().collect();
        together.sort();
        together.dedup();
        writer.continue_from(packs.into_keys().collect(), &together).await?;
        let (mut copies, mut failed, mut whole, mut first) = (Vec::new(), Vec::new(), 0, None);
        for name in &all {
            let base = databases.remove(name);
            match copy_one(writer, layer, options, name, names.is_empty(), base.as_ref(), progress).await {
                Ok(None) => {}
                Ok(Some(Copied { database, is_incremental, is_other })) => {
                    whole += usize::from(!is_incremental);
                    copies.push(database);
                    if let (true, Some(remarks)) = (is_other, &mut remarks) {
                        let other = "has another history than in an earlier run, as after a return to an older copy";
                        remarks.push(format!("{name} {other}. It was copied as a whole"));
                    }
                }
                Err(error) if is_of_one(&error) => {
                    writer.check_mark().await?;
                    failed.push((name.clone(), error.to_string()));
                    copies.extend(base.map(|base| {
                        let not_renewed = Some(error.to_string());
                        manifest::Database { not_renewed, ..base }
                    }));
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        // No database was copied, so the error is not about a single one.
        if let Some(error) = first
            && copies.iter().all(|database| database.not_renewed.is_some())
        {
            return Err(error);
        }
        let setting =
            |setting: model::Setting| Setting { section: setting.section, name: setting.name, value: setting.value };
        let configuration = layer.configuration().await?.0.into_iter().map(setting).collect();
        writer.flush().await?;
        let mut needed = Vec::new();
        for database in &copies {
            needed.extend(needs(writer, database).await?);
        }
        let packs = writer.objects.packs_of(needed)?;
        let ended_ms = self.environment.now_ms();
        let manifest =
            Manifest { format: FORMAT, began_ms, ended_ms, databases: copies, configuration, identity, packs };
        Ok(Filled { manifest, whole, failed })
    }

    /// Each database in the newest run of this store that has it.
    async fn bases(&self, names: &[String], identity: &str, remarks: &mut Vec<String>) -> Result<Bases> {
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut bases = Bases::default();
        for run in self.runs().await?.into_iter().rev() {
            if bases.databases.len() == names.len() {
                break;
            }
            let manifest = match self.manifest(&run).await {
                // A damaged run is not continued.
                Err(Error::Damaged { file, reason }) => {
                    remarks.push(format!("{file} is damaged: {reason}. It is not continued"));
                    continue;
                }
                manifest => manifest?,
            };
            if manifest.identity != identity {
                continue;
            }
            let before = bases.databases.len();
            for database in manifest.databases {
                if names.contains(database.name.as_str()) {
                    bases.databases.entry(database.name.clone()).or_insert(database);
                }
            }
            if bases.databases.len() > before {
                bases.packs.insert(run, manifest.packs);
            }
        }
        Ok(bases)
    }
}

/// The databases and packs of earlier runs.
#[derive(Default)]
struct Bases {
    databases: HashMap<String, manifest::Database>,
    /// The packs of each run.
    packs: BTreeMap<String, Vec<Pack>>,
}

/// A run that lacks only its last file.
struct Filled {
    manifest: Manifest,
    whole: usize,
    failed: Vec<(String, String)>,
}

/// Copies a database, and merges its segments if that is due. `None` if it was dropped after the listing.
async fn copy_one<D: Database>(
    writer: &mut Writer,
    layer: &Layer<D>,
    options: &LayerOptions,
    name: &str,
    is_listed: bool,
    base: Option<&manifest::Database>,
    progress: Progress<'_>,
) -> Result<Option<Copied>> {
    if is_listed && layer.has_unfinished_restore(name).await? {
        return Ok(None);
    }
    match copy(writer, layer, options, name, base, progress).await {
        // It was dropped, or has moved.
        Err(Error::Model(error)) if is_listed && is_gone(&error) => Ok(None),
        copied => {
            let mut copied = copied?;
            merge(writer, &mut copied.database).await?;
            Ok(Some(copied))
        }
    }
}

/// Whether the error may be about a single database. A requested database that does not exist is the caller's mistake.
fn is_of_one(error: &Error) -> bool {
    match error {
        Error::Model(error) => !is_gone(error),
        Error::Refused(_) | Error::Peer(_) | Error::Store(_) => true,
        _ => false,
    }
}

fn is_gone(error: &model::Error) -> bool {
    matches!(error.kind(), model::ErrorKind::NotFound(_) | model::ErrorKind::Moved(_))
}

/// The names of everything that a database needs.
async fn needs(writer: &mut Writer, database: &manifest::Database) -> Result<Vec<ObjectId>> {
    let mut needed: Vec<ObjectId> = database.segments.clone();
    needed.extend(&database.locals);
    needed.extend(&database.purges);
    for name in &database.segments {
        let segment = read_segment(&mut writer.objects, *name).await?;
        needed.extend(segment.blocks);
        needed.extend(segment.contents);
    }
    Ok(needed)
}

/// Merges the segments of a database into one, if there are many or most of their documents are replaced.
async fn merge(writer: &mut Writer, database: &mut manifest::Database) -> Result<()> {
    let [_, later @ ..] = &database.segments[..] else { return Ok(()) };
    writer.flush().await?;
    let mut changed = 0;
    for name in later {
        changed += read_segment(&mut writer.objects, *name).await?.documents;
    }
    let is_much = changed > FEW_DOCUMENTS && changed > database.documents;
    if database.segments.len() <= MOST_SEGMENTS && !is_much {
        return Ok(());
    }
    let mut live = Live::new(&mut writer.objects, &database.segments).await?;
    let mut merged = SegmentWriter::default();
    while let Some(records) = live.next(&mut writer.objects).await? {
        for record in records {
            merged.add(writer, &record).await?;
        }
    }
    database.segments = merged.finish(writer).await?.into_iter().collect();
    Ok(())
}

/// A hash of a store's identity: the same for all that is kept of a store.
///
/// # Errors
/// The store's errors.
pub async fn store_name<D: Database>(layer: &Layer<D>) -> Result<String> {
    Ok(short_identity(&model::hex(&layer.identity().await?)))
}

fn short_identity(identity: &str) -> String {
    ObjectId::of(identity.as_bytes()).to_string()[..8].to_owned()
}
