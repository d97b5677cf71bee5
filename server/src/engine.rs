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
//! A folder has one owner at a time, and is opened by its mark. A folder of another engine or format, or without our
//! mark, is refused and left unchanged. A cluster has any number of users, who must not share keys: without a prefix the
//! layer uses the whole cluster.
//!
//! `redb:FOLDER` and `fjall:FOLDER` mean `lsm:FOLDER`. Earlier versions had those engines; `couch-layer move` turns
//! their folders into folders of lsm.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use disk::folder::Mark;
use kv_api::AnyDatabase;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// The engines that have a URL, whether or not this build has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A sorted map in memory.
    Mem,
    /// A log and sorted tables in a folder.
    Lsm,
    /// A sled tree in a folder.
    Sled,
    /// A FoundationDB cluster.
    Fdb,
}

/// Engines of earlier versions, whose folders can only be moved.
const FORMER: [&str; 2] = ["redb", "fjall"];

impl Engine {
    /// The engine of new folders: lsm, or the one that this build has.
    const NEW: Engine = if cfg!(feature = "lsm") {
        Engine::Lsm
    } else if cfg!(feature = "sled") {
        Engine::Sled
    } else {
        Engine::Lsm
    };

    const ALL: [Engine; 4] = [Engine::Mem, Engine::Lsm, Engine::Sled, Engine::Fdb];

    /// The engine's name in URLs, marks and features.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Mem => "mem",
            Engine::Lsm => "lsm",
            Engine::Sled => "sled",
            Engine::Fdb => "fdb",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        // Scripts, and markers of databases that moved there, may still name the old engine of a moved folder.
        let name = if FORMER.contains(&name) { Engine::Lsm.name() } else { name };
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

/// The place of a store.
///
/// ```
/// use server::engine::EngineUrl;
///
/// let url: EngineUrl = "sled:./couch-data".parse().unwrap();
/// assert_eq!(url.to_string(), "sled:./couch-data");
/// assert!("mem:".parse::<EngineUrl>().unwrap().folder().is_none());
/// assert!("fdb:/etc/foundationdb/fdb.cluster?prefix=notes%2F".parse::<EngineUrl>().is_ok());
/// assert!("ftp:x".parse::<EngineUrl>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// In memory.
    Memory,
    /// In a folder of this machine.
    Folder {
        /// `None`: the engine that the folder's mark names.
        engine: Option<Engine>,
        /// The folder.
        path: PathBuf,
    },
    /// In a FoundationDB cluster.
    Cluster {
        /// The cluster file; `None` for the client's default.
        file: Option<PathBuf>,
        /// The prefix of all keys.
        prefix: Vec<u8>,
    },
}

/// Characters that a prefix shows without an escape.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

impl EngineUrl {
    /// The data folder of an engine on disk.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            EngineUrl::Folder { path, .. } => Some(path),
            EngineUrl::Memory | EngineUrl::Cluster { .. } => None,
        }
    }

    /// Whether it names the same store whatever the process's working directory is.
    pub fn is_absolute(&self) -> bool {
        match self {
            EngineUrl::Memory => true,
            EngineUrl::Folder { path, .. } => path.is_absolute(),
            EngineUrl::Cluster { file, .. } => file.as_ref().is_none_or(|file| file.is_absolute()),
        }
    }

    /// The same store under the name that is valid for every process of this machine: with its engine, and without
    /// symbolic links if the path exists.
    ///
    /// # Errors
    /// [`EngineError::Unnameable`] if there is no such name, [`EngineError::Open`] if the folder's mark cannot be read.
    pub fn absolute(&self) -> Result<EngineUrl, EngineError> {
        let absolute = |path: &Path| {
            let path = path.canonicalize().or_else(|_| std::path::absolute(path));
            // The name is written into stores and messages, which are text.
            let path = path.ok().filter(|path| path.to_str().is_some());
            path.ok_or_else(|| EngineError::Unnameable { url: self.to_string() })
        };
        Ok(match self {
            EngineUrl::Memory => EngineUrl::Memory,
            EngineUrl::Folder { engine, path } => {
                let known = match engine {
                    Some(engine) => Some(*engine),
                    None => Mark::read(path)?.map_or(Some(Engine::NEW), |mark| Engine::from_name(&mark.engine)),
                };
                EngineUrl::Folder { engine: known, path: absolute(path)? }
            }
            EngineUrl::Cluster { file, prefix } => {
                let file = file.as_deref().map(absolute).transpose()?;
                EngineUrl::Cluster { file, prefix: prefix.clone() }
            }
        })
    }

    /// Parses what follows `fdb:`, which is `[FILE][?prefix=TEXT]`.
    fn cluster(rest: &str) -> Result<Self, EngineError> {
        let (file, query) = rest.split_once('?').map_or((rest, None), |(file, query)| (file, Some(query)));
        let prefix = match query {
            None => Vec::new(),
            Some(query) => {
                let prefix = query.strip_prefix("prefix=").map(|text| percent_decode_str(text).collect::<Vec<u8>>());
                // Keys that begin with 0xff are the cluster's own.
                let prefix = prefix.filter(|prefix| !prefix.is_empty() && prefix[0] != 0xff && prefix.len() <= 1_000);
                prefix.ok_or_else(|| EngineError::BadPrefix { query: query.into() })?
            }
        };
        Ok(EngineUrl::Cluster { file: (!file.is_empty()).then(|| file.into()), prefix })
    }
}

impl FromStr for EngineUrl {
    type Err = EngineError;

    fn from_str(url: &str) -> Result<Self, EngineError> {
        let (scheme, rest) = match url.split_once(':') {
            // `C:\data` and `./a:b` are paths, not URLs.
            Some((scheme, rest)) if scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_lowercase()) => {
                (Some(scheme), rest)
            }
            _ => (None, url),
        };
        match scheme.map(|scheme| Engine::from_name(scheme).ok_or(scheme)) {
            Some(Err(unknown)) => Err(EngineError::UnknownEngine { name: unknown.into() }),
            Some(Ok(Engine::Mem)) if rest.is_empty() => Ok(EngineUrl::Memory),
            Some(Ok(Engine::Mem)) => Err(EngineError::MemWithPath),
            Some(Ok(Engine::Fdb)) => EngineUrl::cluster(rest),
            Some(Ok(_)) | None if rest.is_empty() => Err(EngineError::NoPath { url: url.into() }),
            Some(Ok(engine)) => Ok(EngineUrl::Folder { engine: Some(engine), path: rest.into() }),
            None => Ok(EngineUrl::Folder { engine: None, path: rest.into() }),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineUrl::Memory => f.write_str("mem:"),
            EngineUrl::Folder { engine: None, path } => write!(f, "{}", path.display()),
            EngineUrl::Folder { engine: Some(engine), path } => write!(f, "{}:{}", engine.name(), path.display()),
            EngineUrl::Cluster { file, prefix } => {
                f.write_str("fdb:")?;
                if let Some(file) = file {
                    write!(f, "{}", file.display())?;
                }
                if !prefix.is_empty() {
                    write!(f, "?prefix={}", percent_encode(prefix, PLAIN))?;
                }
                Ok(())
            }
        }
    }
}

/// Why a store could not be opened, with what to do about it. Nothing in the folder was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The URL's scheme names no engine.
    #[error(
        "there is no engine \"{name}\"; a store is named lsm:FOLDER, sled:FOLDER, fdb:CLUSTER_FILE, mem:, or by its folder alone"
    )]
    UnknownEngine {
        /// The scheme.
        name: String,
    },
    /// `mem:` with a path.
    #[error("mem: takes no path; it keeps everything in memory until the process ends")]
    MemWithPath,
    /// An engine on disk without a folder.
    #[error("\"{url}\" names no folder; write lsm:FOLDER or sled:FOLDER")]
    NoPath {
        /// The URL.
        url: String,
    },
    /// A cluster's URL whose query is no prefix.
    #[error(
        "\"?{query}\" is no prefix for keys; write ?prefix=TEXT with 1 to 1000 bytes, percent-encoded, the first not %FF"
    )]
    BadPrefix {
        /// The text after the question mark.
        query: String,
    },
    /// A path that cannot be made absolute, or is not UTF-8.
    #[error("\"{url}\" has no absolute path in UTF-8, which a store must have that databases move to or from")]
    Unnameable {
        /// The URL.
        url: String,
    },
    /// An engine that this build does not have.
    #[error("this build has no engine {engine}; build couch-layer again with `--features {engine}`")]
    NotBuilt {
        /// The engine's name.
        engine: String,
    },
    /// A folder of an earlier version's engine.
    #[error(
        "the folder {} is {state}: run `couch-layer move {}` once; it keeps the old files",
        folder.display(),
        folder.display()
    )]
    Former {
        /// Its state, for the message.
        state: String,
        /// The folder.
        folder: PathBuf,
    },
    /// There is no store, and none was to be created.
    #[error("there is no data folder at {}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The engine's error, with its own message.
    #[error("{}", .0.context().map_or_else(|| .0.to_string(), str::to_owned))]
    Open(kv_api::Error),
}

impl From<kv_api::Error> for EngineError {
    /// Not as a source: its message is this error's own, and would be printed twice.
    fn from(error: kv_api::Error) -> Self {
        EngineError::Open(error)
    }
}

/// Whether opening a store may create it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// A folder that is missing or empty becomes a new store.
    Create,
    /// A folder that is missing or empty is an error.
    Fail,
}

/// Opens the store that `url` names. It is closed when the last handle is dropped; acknowledged writes are durable before
/// that. Opening blocks the calling thread, for a cluster for some seconds at most.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn open(url: &EngineUrl, if_missing: IfMissing) -> Result<AnyDatabase, EngineError> {
    open_with_cache(url, if_missing, None)
}

/// The same, with a cache of `cache_bytes` for a store in a folder, instead of the engine's default.
///
/// # Errors
/// [`EngineError`], whose message is for a person.
pub fn open_with_cache(
    url: &EngineUrl,
    if_missing: IfMissing,
    cache_bytes: Option<u64>,
) -> Result<AnyDatabase, EngineError> {
    match url {
        EngineUrl::Memory => open_mem(),
        EngineUrl::Folder { engine, path } => open_folder(*engine, path, if_missing, cache_bytes),
        // Nothing to create: a missing cluster is an error.
        EngineUrl::Cluster { file, prefix } => open_fdb(file.as_deref(), prefix),
    }
}

/// Stops what an engine runs for the whole life of the process. Call it before `main` returns. No cluster can be opened
/// afterwards.
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
    if let Some(Mark { engine, .. }) = &mark {
        let state = match engine.as_str() {
            engine if FORMER.contains(&engine) => format!("of {engine}, which this program only reads"),
            "moving" => "half moved".to_owned(),
            _ => String::new(),
        };
        if !state.is_empty() {
            return Err(EngineError::Former { state, folder: folder.into() });
        }
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
            // No mark of this program names these.
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
    let mut options = engine_lsm::LsmOptions::new();
    if let Some(bytes) = cache_bytes {
        options = options.cache_bytes(bytes);
    }
    Ok(AnyDatabase::new(engine_lsm::LsmDatabase::open(folder, options)?))
}

#[cfg(not(feature = "lsm"))]
fn open_lsm(_folder: &Path, _cache_bytes: Option<u64>) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Lsm.name().into() })
}

#[cfg(feature = "fdb")]
fn open_fdb(file: Option<&Path>, prefix: &[u8]) -> Result<AnyDatabase, EngineError> {
    let options = engine_fdb::OpenOptions {
        cluster_file: file.map(Path::to_owned),
        // So that a request is answered 503 rather than never. The layer retries for as long.
        transaction_timeout: Some(std::time::Duration::from_secs(60)),
        ..engine_fdb::OpenOptions::default()
    };
    let database = futures_executor::block_on(engine_fdb::FdbDatabase::open_with(options))?;
    Ok(if prefix.is_empty() {
        AnyDatabase::new(database)
    } else {
        AnyDatabase::new(kv_api::Prefixed::new(database, prefix.to_vec()))
    })
}

#[cfg(not(feature = "fdb"))]
fn open_fdb(_file: Option<&Path>, _prefix: &[u8]) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Fdb.name().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<EngineUrl, EngineError> {
        text.parse()
    }

    #[test]
    fn urls_name_an_engine_and_a_folder() {
        assert_eq!(url("mem:").unwrap(), EngineUrl::Memory);
        let sled = EngineUrl::Folder { engine: Some(Engine::Sled), path: "/a b".into() };
        assert_eq!(url("sled:/a b").unwrap(), sled);
        assert_eq!(url("./data").unwrap(), EngineUrl::Folder { engine: None, path: "./data".into() });
        assert_eq!(url("./a:b").unwrap().folder(), Some(Path::new("./a:b")));
        assert!(matches!(url("mem:x"), Err(EngineError::MemWithPath)));
        assert!(matches!(url("sled:"), Err(EngineError::NoPath { .. })));
        assert!(matches!(url(""), Err(EngineError::NoPath { .. })));
        assert!(matches!(url("redis://x"), Err(EngineError::UnknownEngine { .. })));
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

    #[test]
    fn urls_name_a_cluster_and_a_prefix() {
        let cluster = |file: Option<&str>, prefix: &[u8]| EngineUrl::Cluster {
            file: file.map(PathBuf::from),
            prefix: prefix.to_vec(),
        };
        for (text, expected) in [
            ("fdb:", cluster(None, b"")),
            ("fdb:/etc/fdb.cluster", cluster(Some("/etc/fdb.cluster"), b"")),
            ("fdb:?prefix=notes/", cluster(None, b"notes/")),
            ("fdb:./a:b?prefix=%15%02%FF%3F%25", cluster(Some("./a:b"), b"\x15\x02\xff?%")),
        ] {
            assert_eq!(url(text).unwrap(), expected);
            assert_eq!(url(text).unwrap().to_string(), text, "it is shown as it is written");
            assert!(url(text).unwrap().folder().is_none());
        }
        for wrong in ["fdb:?", "fdb:?prefix=", "fdb:f?prefix", "fdb:f?tenant=a", "fdb:?prefix=%ffa"] {
            assert!(matches!(url(wrong), Err(EngineError::BadPrefix { .. })), "{wrong}");
        }
        assert!(matches!(url(&format!("fdb:?prefix={}", "a".repeat(1001))), Err(EngineError::BadPrefix { .. })));
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

    #[cfg(feature = "lsm")]
    #[test]
    fn a_folder_of_a_former_engine_is_refused_with_the_command_that_moves_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().canonicalize().unwrap();
        for engine in ["redb", "fjall", "moving"] {
            Mark { engine: engine.into(), format: 1 }.write(&folder).unwrap();
            for name in ["", "lsm:", "redb:", "fjall:"] {
                let named = url(&format!("{name}{}", folder.display())).unwrap();
                let refused = open(&named, IfMissing::Create).unwrap_err().to_string();
                assert!(refused.contains(&format!("`couch-layer move {}`", folder.display())), "{refused}");
                assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing was made");
            }
        }
        // The folder after its move.
        Mark { engine: "lsm".into(), format: 1 }.write(&folder).unwrap();
        let named = url(&format!("redb:{}", folder.display())).unwrap();
        assert_eq!(named.absolute().unwrap().to_string(), format!("lsm:{}", folder.display()));
        drop(open(&named, IfMissing::Fail).unwrap());
    }
}
