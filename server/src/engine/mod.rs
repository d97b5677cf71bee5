//! An engine from a URL. This is the one place where features pick engines.
//!
//! | URL | engine |
//! |---|---|
//! | `mem:` | memory; gone when the process ends |
//! | `lsm:FOLDER` | a log and sorted tables in that folder |
//! | `sled:FOLDER` | a sled tree in that folder |
//! | `FOLDER` | the engine that the folder's mark names ([`disk::folder`]); lsm for a new one |
//! | `fdb:` | the FoundationDB cluster of `FDB_CLUSTER_FILE`, or of the client's default cluster file |
//! | `fdb:FILE` | the FoundationDB cluster of that cluster file |
//! | `fdb:?prefix=TEXT`, `fdb:FILE?prefix=TEXT` | the same, in the keys under that prefix, percent-encoded |
//!
//! A folder has one owner at a time, and its mark decides how it is opened. A folder of another engine or format, or
//! without our mark, is refused and left unchanged. Any number of programs may use a cluster, but they must not share
//! keys: without a prefix the layer uses the whole cluster.

mod error;
mod url;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disk::folder::Mark;
use disk::{FollowedStore, StandbyStore};
use kv_api::AnyDatabase;

pub use self::error::EngineError;
pub use self::url::{Engine, EngineUrl};

/// Whether opening a store may create it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// A folder that is missing or empty becomes a new store.
    Create,
    /// A folder that is missing or empty is an error.
    Fail,
}

/// Options of opening a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The cache of a store in a folder, in bytes; `None` for the engine's default.
    pub cache_bytes: Option<u64>,
    /// How long to wait for the first answer of a cluster.
    pub wait: Duration,
    /// How long a transaction waits for a cluster. Without a limit, a request would wait forever instead of getting a
    /// 503.
    pub timeout: Duration,
    /// Whether transactions on a cluster have the tags of their databases.
    pub tags: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { cache_bytes: None, wait: BETWEEN_SIGNS, timeout: Duration::from_secs(60), tags: false }
    }
}

/// Interval at which the log repeats that the process waits for a cluster.
const BETWEEN_SIGNS: Duration = Duration::from_secs(5);

/// Opens the store that `url` names. The store is closed when the last handle is dropped; acknowledged writes are
/// durable before that. Opening blocks the calling thread, for a cluster for some seconds at most.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn open(url: &EngineUrl, if_missing: IfMissing) -> Result<AnyDatabase, EngineError> {
    open_with(url, if_missing, OpenOptions::default())
}

/// The same with options.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn open_with(url: &EngineUrl, if_missing: IfMissing, options: OpenOptions) -> Result<AnyDatabase, EngineError> {
    match url {
        EngineUrl::Memory => open_mem(),
        EngineUrl::Folder { engine, path } => open_folder(*engine, path, if_missing, options.cache_bytes),
        // Nothing to create: a missing cluster is an error.
        EngineUrl::Cluster { file, prefix } => open_fdb(file.as_deref(), prefix, options),
    }
}

/// A store, and the same for who follows its log.
pub type Followed = (AnyDatabase, Arc<dyn FollowedStore>);

/// The same for a store whose log can be [followed](FollowedStore), of the engine lsm. `None` if it is of another one.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
#[cfg_attr(not(feature = "lsm"), allow(unused_variables, reason = "no other engine can do it"))]
pub fn open_followed(
    url: &EngineUrl,
    if_missing: IfMissing,
    options: OpenOptions,
) -> Result<Option<Followed>, EngineError> {
    match url {
        #[cfg(feature = "lsm")]
        EngineUrl::Folder { path, engine: None | Some(Engine::Lsm) } => {
            let is_ours = Mark::read(path)?.is_none_or(|mark| mark.engine == Engine::Lsm.name());
            if !is_ours {
                return Ok(None);
            }
            if if_missing == IfMissing::Fail && Mark::read(path)?.is_none() {
                return Err(EngineError::Missing { folder: path.clone() });
            }
            let database = lsm(path, options.cache_bytes)?;
            Ok(Some((AnyDatabase::new(database.clone()), Arc::new(database))))
        }
        _ => Ok(None),
    }
}

/// Restores a shipped store into the new folder that `url` names, as it was at a time or as the newest is.
///
/// # Errors
/// As [`backup::Repository::restore_shipped`].
#[cfg_attr(not(feature = "lsm"), allow(unused_variables, reason = "no other engine can do it"))]
pub async fn restore_shipped(
    repository: &backup::Repository,
    url: &EngineUrl,
    at_ms: Option<u64>,
    progress: &mut (dyn FnMut(&str) + Send),
) -> backup::Result<backup::RestoredShip> {
    match url {
        #[cfg(feature = "lsm")]
        EngineUrl::Folder { path, engine: None | Some(Engine::Lsm) } => {
            repository.restore_shipped::<engine_lsm::LsmStore>(path, at_ms, progress).await
        }
        _ => Err(backup::Error::Refused(format!("{url}: a shipped store is restored into a folder of the engine lsm"))),
    }
}

/// Whether a store of this URL can follow another one: one in a folder of the engine lsm.
pub fn can_follow(url: &EngineUrl) -> bool {
    cfg!(feature = "lsm") && matches!(url, EngineUrl::Folder { engine: None | Some(Engine::Lsm), .. })
}

/// A store that follows another one, and the same for who lets it.
pub type Standby = (AnyDatabase, Arc<dyn StandbyStore>);

/// Opens the store of a standby ([`backup::standby_folder`]).
///
/// # Errors
/// [`EngineError`], whose message is for a person.
#[cfg_attr(not(feature = "lsm"), allow(unused_variables, reason = "no other engine can do it"))]
pub fn open_standby(folder: &Path, options: OpenOptions) -> Result<Standby, EngineError> {
    #[cfg(feature = "lsm")]
    {
        let mut opening = engine_lsm::LsmOptions::new().standby();
        if let Some(bytes) = options.cache_bytes {
            opening = opening.cache_bytes(bytes);
        }
        let database = engine_lsm::LsmDatabase::open(folder, opening)?;
        Ok((AnyDatabase::new(database.clone()), Arc::new(database)))
    }
    #[cfg(not(feature = "lsm"))]
    Err(EngineError::NotBuilt { engine: Engine::Lsm.name().into() })
}

/// Restores a shipped store beside the folder of a standby.
///
/// # Errors
/// As [`backup::Repository::restore_standby`].
#[cfg_attr(not(feature = "lsm"), allow(unused_variables, reason = "no other engine can do it"))]
pub async fn restore_standby(
    repository: &backup::Repository,
    folder: &Path,
    from: u64,
    progress: &mut (dyn FnMut(&str) + Send),
) -> backup::Result<backup::RestoredShip> {
    #[cfg(feature = "lsm")]
    return repository.restore_standby::<engine_lsm::LsmStore>(folder, from, progress).await;
    #[cfg(not(feature = "lsm"))]
    Err(backup::Error::Refused("this build has no engine lsm".into()))
}

/// Puts what was restored beside the folder of a standby in its place.
///
/// # Errors
/// As [`backup::replace_standby`].
#[cfg_attr(not(feature = "lsm"), allow(unused_variables, reason = "no other engine can do it"))]
pub fn replace_standby(folder: &Path) -> backup::Result<()> {
    #[cfg(feature = "lsm")]
    return backup::replace_standby::<engine_lsm::LsmStore>(folder);
    #[cfg(not(feature = "lsm"))]
    Err(backup::Error::Refused("this build has no engine lsm".into()))
}

/// Fails while anybody has the store of a standby open.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn is_free(folder: &Path) -> Result<(), EngineError> {
    disk::folder::Folder::open_copy(folder, Engine::Lsm.name())?;
    Ok(())
}

/// Opens a snapshot that nobody has taken into use ([`kv_api::Database::snapshot`]), for who gives its databases new
/// incarnations. `None` if the store is none.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn open_copy(url: &EngineUrl) -> Result<Option<AnyDatabase>, EngineError> {
    match url {
        #[cfg(feature = "lsm")]
        EngineUrl::Folder { path, engine: None | Some(Engine::Lsm) }
            if Mark::read(path)?.is_some_and(|mark| mark.copied) =>
        {
            let options = engine_lsm::LsmOptions::new().copy();
            Ok(Some(AnyDatabase::new(engine_lsm::LsmDatabase::open(path, options)?)))
        }
        _ => Ok(None),
    }
}

/// Makes a snapshot an ordinary store. Called while [it is open](open_copy).
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn take_into_use(url: &EngineUrl) -> Result<(), EngineError> {
    match url.folder() {
        Some(path) => Ok(disk::folder::take_into_use(path)?),
        None => Ok(()),
    }
}

/// Lets a closed store forget the rows between two keys that it cannot read. Returns the number of damaged places. Only
/// a person may decide this: what those rows hid becomes visible again, and the rest must be checked.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
#[cfg_attr(not(feature = "lsm"), allow(unused_variables, reason = "no other engine can do it"))]
pub fn give_up(url: &EngineUrl, begin: &[u8], end: &[u8]) -> Result<usize, EngineError> {
    let places = match url {
        #[cfg(feature = "lsm")]
        EngineUrl::Folder { path, .. } if Mark::read(path)?.is_some_and(|mark| mark.engine == Engine::Lsm.name()) => {
            engine_lsm::give_up(path, begin, end)?.len()
        }
        _ => 0,
    };
    Ok(places)
}

/// Stops background work that an engine runs for the life of the process. Call it before `main` returns. No cluster can
/// be opened afterwards.
pub fn shut_down() {
    #[cfg(feature = "fdb")]
    engine_fdb::stop_network();
}

fn open_folder(
    engine: Option<Engine>,
    folder: &Path,
    if_missing: IfMissing,
    cache_bytes: Option<u64>,
) -> Result<AnyDatabase, EngineError> {
    let mark = Mark::read(folder)?;
    if mark.is_none() && if_missing == IfMissing::Fail {
        return Err(EngineError::Missing { folder: folder.into() });
    }
    match (engine, mark) {
        (None, None) => open_folder(Some(Engine::NEW), folder, if_missing, cache_bytes),
        // If the mark names another engine, the engine refuses it.
        (Some(Engine::Lsm), _) => open_lsm(folder, cache_bytes),
        (Some(Engine::Sled), _) => open_sled(folder, cache_bytes),
        (Some(engine), _) => Err(EngineError::NotBuilt { engine: engine.name().into() }),
        (None, Some(mark)) => match Engine::from_name(&mark.engine) {
            Some(Engine::Lsm) => open_lsm(folder, cache_bytes),
            Some(Engine::Sled) => open_sled(folder, cache_bytes),
            // Marks of this program never name these.
            Some(Engine::Mem | Engine::Fdb) | None => Err(EngineError::NotBuilt { engine: mark.engine }),
        },
    }
}

#[cfg(feature = "mem")]
fn open_mem() -> Result<AnyDatabase, EngineError> {
    Ok(AnyDatabase::new(engine_mem::MemDatabase::new()))
}

#[cfg(not(feature = "mem"))]
fn open_mem() -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Mem.name().into() })
}

#[cfg(feature = "sled")]
fn open_sled(folder: &Path, cache_bytes: Option<u64>) -> Result<AnyDatabase, EngineError> {
    let mut options = engine_sled::SledOptions::new();
    if let Some(bytes) = cache_bytes {
        options = options.cache_bytes(bytes);
    }
    Ok(AnyDatabase::new(engine_sled::SledDatabase::open(folder, options)?))
}

#[cfg(not(feature = "sled"))]
fn open_sled(_folder: &Path, _cache_bytes: Option<u64>) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Sled.name().into() })
}

#[cfg(feature = "lsm")]
fn open_lsm(folder: &Path, cache_bytes: Option<u64>) -> Result<AnyDatabase, EngineError> {
    Ok(AnyDatabase::new(lsm(folder, cache_bytes)?))
}

#[cfg(feature = "lsm")]
fn lsm(folder: &Path, cache_bytes: Option<u64>) -> Result<engine_lsm::LsmDatabase, EngineError> {
    let mut options = engine_lsm::LsmOptions::new();
    if let Some(bytes) = cache_bytes {
        options = options.cache_bytes(bytes);
    }
    Ok(engine_lsm::LsmDatabase::open(folder, options)?)
}

#[cfg(not(feature = "lsm"))]
fn open_lsm(_folder: &Path, _cache_bytes: Option<u64>) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Lsm.name().into() })
}

#[cfg(feature = "fdb")]
fn open_fdb(file: Option<&Path>, prefix: &[u8], opening: OpenOptions) -> Result<AnyDatabase, EngineError> {
    let options = engine_fdb::OpenOptions {
        cluster_file: file.map(Path::to_owned),
        first_answer: opening.wait,
        transaction_timeout: Some(opening.timeout),
        // One for each database with waiting clients. Only watches in use take memory.
        watches: engine_fdb::MOST_WATCHES,
        tags: opening.tags,
    };
    let database = while_saying_that_it_waits(opening.wait, || {
        futures_executor::block_on(engine_fdb::FdbDatabase::open_with(options))
    })?;
    Ok(if prefix.is_empty() {
        AnyDatabase::new(database)
    } else {
        AnyDatabase::new(kv_api::Prefixed::new(database, prefix.to_vec()))
    })
}

/// Runs `open`, and logs every few seconds that it still waits.
#[cfg(feature = "fdb")]
fn while_saying_that_it_waits<T>(wait: Duration, open: impl FnOnce() -> T) -> T {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    let (opened, is_open) = channel::<()>();
    let saying = std::thread::spawn(move || {
        let mut waited = BETWEEN_SIGNS;
        while is_open.recv_timeout(BETWEEN_SIGNS) == Err(RecvTimeoutError::Timeout) && waited < wait {
            tracing::warn!("no answer from the FoundationDB cluster yet; waiting for up to {} s", wait.as_secs());
            waited += BETWEEN_SIGNS;
        }
    });
    let result = open();
    drop(opened);
    drop(saying.join());
    result
}

#[cfg(not(feature = "fdb"))]
fn open_fdb(_file: Option<&Path>, _prefix: &[u8], _opening: OpenOptions) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Fdb.name().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<EngineUrl, EngineError> {
        text.parse()
    }

    #[cfg(feature = "lsm")]
    #[test]
    fn a_store_has_one_absolute_name() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().canonicalize().unwrap().join("data");
        let named = |text: String| url(&text).unwrap().absolute().unwrap().to_string();
        let expected = format!("lsm:{}", folder.display());
        assert_eq!(named(expected.clone()), expected);
        drop(open(&url(&expected).unwrap(), IfMissing::Create).unwrap());
        for other in [folder.display().to_string(), format!("lsm:{}/../data/.", folder.display())] {
            assert_eq!(named(other), expected);
        }
        let relative = url("lsm:data").unwrap();
        assert!(!relative.is_absolute() && relative.absolute().unwrap().is_absolute());
        assert!(url("fdb:").unwrap().is_absolute() && !url("fdb:fdb.cluster").unwrap().is_absolute());
        assert_eq!(named("mem:".into()), "mem:");
        let new = root.path().canonicalize().unwrap().join("new").display().to_string();
        assert_eq!(named(new.clone()), format!("lsm:{new}"), "as it will be when it is made");
    }

    #[cfg(not(feature = "fdb"))]
    #[test]
    fn a_build_without_the_engine_says_how_to_get_it() {
        let refused = open(&url("fdb:").unwrap(), IfMissing::Create).unwrap_err().to_string();
        assert!(refused.contains("--features fdb"), "{refused}");
    }

    #[test]
    fn a_missing_folder_is_created_only_when_it_may_be() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("none");
        let named = url(&folder.display().to_string()).unwrap();
        assert!(matches!(open(&named, IfMissing::Fail), Err(EngineError::Missing { .. })));
        assert!(!folder.exists());
    }

    #[test]
    fn a_folder_says_which_engine_it_holds() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("couch-layer.json"), r#"{"engine":"rocks","format":1}"#).unwrap();
        let folder = root.path().display().to_string();
        let refused = open(&url(&folder).unwrap(), IfMissing::Create).unwrap_err();
        assert!(matches!(refused, EngineError::NotBuilt { .. }), "{refused}");
        #[cfg(feature = "sled")]
        {
            let refused = open(&url(&format!("sled:{folder}")).unwrap(), IfMissing::Create).unwrap_err().to_string();
            assert!(refused.contains("rocks") && refused.contains("sled"), "{refused}");
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[cfg(all(feature = "lsm", feature = "sled"))]
    #[test]
    fn a_new_folder_is_opened_by_its_name_alone_afterwards() {
        let root = tempfile::tempdir().unwrap();
        for (engine, other) in [("sled", "lsm"), ("lsm", "sled")] {
            let folder = root.path().join(engine);
            let with = |engine: &str| url(&format!("{engine}:{}", folder.display())).unwrap();
            drop(open(&with(engine), IfMissing::Create).unwrap());
            drop(open(&url(&folder.display().to_string()).unwrap(), IfMissing::Fail).unwrap());
            let refused = open(&with(other), IfMissing::Create).unwrap_err().to_string();
            assert!(refused.contains(engine) && refused.contains(other), "{refused}");
        }
        let unnamed = root.path().join("new");
        drop(open(&url(&unnamed.display().to_string()).unwrap(), IfMissing::Create).unwrap());
        assert_eq!(Mark::read(&unnamed).unwrap().unwrap().engine, "lsm");
    }
}
