//! An engine from a URL. This is the one place where features pick engines.
//!
//! | URL | engine |
//! |---|---|
//! | `mem:` | memory; gone when the process ends |
//! | `sled:FOLDER` | a sled tree in that folder |
//! | `redb:FOLDER` | a redb file in that folder |
//! | `FOLDER` | the engine that the folder's mark names ([`occ::folder`]); sled for a new one |
//!
//! A folder has one owner at a time, and is opened by its mark: one of another engine or format, and
//! one that is not ours, is refused and left as it was.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kv_api::AnyDatabase;
use occ::folder::Mark;

/// The engines that there are a URL for, whether or not this build has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A sorted map in memory.
    Mem,
    /// A sled tree in a folder.
    Sled,
    /// A redb file in a folder.
    Redb,
}

impl Engine {
    const ALL: [Engine; 3] = [Engine::Mem, Engine::Sled, Engine::Redb];

    /// The engine's name in URLs, marks and features.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Mem => "mem",
            Engine::Sled => "sled",
            Engine::Redb => "redb",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

/// Where a store is: an engine and, but for `mem:`, a folder.
///
/// ```
/// use server::engine::EngineUrl;
///
/// let url: EngineUrl = "sled:./couch-data".parse().unwrap();
/// assert_eq!(url.to_string(), "sled:./couch-data");
/// assert!("mem:".parse::<EngineUrl>().unwrap().folder().is_none());
/// assert!("ftp:x".parse::<EngineUrl>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineUrl {
    /// `None`: whichever the folder says it holds.
    engine: Option<Engine>,
    folder: Option<PathBuf>,
}

impl EngineUrl {
    /// The data folder, but for `mem:`.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
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
            Some(Ok(Engine::Mem)) if rest.is_empty() => Ok(EngineUrl { engine: Some(Engine::Mem), folder: None }),
            Some(Ok(Engine::Mem)) => Err(EngineError::MemWithPath),
            Some(Ok(_)) | None if rest.is_empty() => Err(EngineError::NoPath { url: url.into() }),
            Some(Ok(engine)) => Ok(EngineUrl { engine: Some(engine), folder: Some(rest.into()) }),
            None => Ok(EngineUrl { engine: None, folder: Some(rest.into()) }),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(engine) = self.engine {
            write!(f, "{}:", engine.name())?;
        }
        match &self.folder {
            Some(folder) => write!(f, "{}", folder.display()),
            None => Ok(()),
        }
    }
}

/// Why a store could not be opened: a sentence that says what is wrong and what to do. Nothing in the
/// folder has been changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The URL's scheme names no engine.
    #[error("there is no engine \"{name}\"; a store is named mem:, sled:FOLDER, redb:FOLDER, or by its folder alone")]
    UnknownEngine {
        /// What it names.
        name: String,
    },
    /// `mem:` with something behind it.
    #[error("mem: takes no path; it keeps everything in memory until the process ends")]
    MemWithPath,
    /// An engine on disk without a folder.
    #[error("\"{url}\" names no folder; write sled:FOLDER or redb:FOLDER")]
    NoPath {
        /// The URL.
        url: String,
    },
    /// An engine that this build was made without.
    #[error("this build has no engine {engine}; build couch-layer again with `--features {engine}`")]
    NotBuilt {
        /// The engine's name.
        engine: String,
    },
    /// There is no store, and none was to be created.
    #[error("there is no data folder at {}", folder.display())]
    Missing {
        /// Where one was looked for.
        folder: PathBuf,
    },
    /// The engine cannot open its store; it says why and what to do.
    #[error("{}", .0.context().map_or_else(|| .0.to_string(), str::to_owned))]
    Open(kv_api::Error),
}

impl From<kv_api::Error> for EngineError {
    /// Not as a source: its sentence is this error's own already, and would be printed twice.
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

/// Opens the store that `url` names. It is closed when the last handle is dropped; what was
/// acknowledged is durable before.
///
/// # Errors
/// [`EngineError`], whose sentence is for a person.
pub fn open(url: &EngineUrl, if_missing: IfMissing) -> Result<AnyDatabase, EngineError> {
    let Some(folder) = url.folder() else {
        return open_mem();
    };
    let mark = Mark::read(folder)?;
    if mark.is_none() && if_missing == IfMissing::Fail {
        return Err(EngineError::Missing { folder: folder.into() });
    }
    let engine = match (url.engine, mark) {
        // Where the mark names another one, the engine says so itself.
        (Some(engine), _) => engine,
        (None, Some(mark)) => Engine::from_name(&mark.engine).ok_or(EngineError::NotBuilt { engine: mark.engine })?,
        (None, None) => Engine::Sled,
    };
    match engine {
        Engine::Sled => open_sled(folder),
        Engine::Redb => open_redb(folder),
        Engine::Mem => Err(EngineError::MemWithPath),
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
fn open_sled(folder: &Path) -> Result<AnyDatabase, EngineError> {
    Ok(AnyDatabase::new(engine_sled::SledDatabase::open(folder, engine_sled::SledOptions::new())?))
}

#[cfg(not(feature = "sled"))]
fn open_sled(_folder: &Path) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Sled.name().into() })
}

#[cfg(feature = "redb")]
fn open_redb(folder: &Path) -> Result<AnyDatabase, EngineError> {
    Ok(AnyDatabase::new(engine_redb::RedbDatabase::open(folder, engine_redb::RedbOptions::new())?))
}

#[cfg(not(feature = "redb"))]
fn open_redb(_folder: &Path) -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Redb.name().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<EngineUrl, EngineError> {
        text.parse()
    }

    #[test]
    fn urls_name_an_engine_and_a_folder() {
        assert_eq!(url("mem:").unwrap(), EngineUrl { engine: Some(Engine::Mem), folder: None });
        assert_eq!(url("sled:/a b").unwrap(), EngineUrl { engine: Some(Engine::Sled), folder: Some("/a b".into()) });
        assert_eq!(url("./data").unwrap(), EngineUrl { engine: None, folder: Some("./data".into()) });
        assert_eq!(url("./a:b").unwrap().folder(), Some(Path::new("./a:b")));
        assert!(matches!(url("mem:x"), Err(EngineError::MemWithPath)));
        assert!(matches!(url("sled:"), Err(EngineError::NoPath { .. })));
        assert!(matches!(url(""), Err(EngineError::NoPath { .. })));
        assert!(matches!(url("redis://x"), Err(EngineError::UnknownEngine { .. })));
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

    #[cfg(all(feature = "redb", feature = "sled"))]
    #[test]
    fn a_new_folder_is_opened_by_its_name_alone_afterwards() {
        let root = tempfile::tempdir().unwrap();
        for (engine, other) in [("sled", "redb"), ("redb", "sled")] {
            let folder = root.path().join(engine);
            let with = |engine: &str| url(&format!("{engine}:{}", folder.display())).unwrap();
            drop(open(&with(engine), IfMissing::Create).unwrap());
            drop(open(&url(&folder.display().to_string()).unwrap(), IfMissing::Fail).unwrap());
            let refused = open(&with(other), IfMissing::Create).unwrap_err().to_string();
            assert!(refused.contains(engine) && refused.contains(other), "{refused}");
        }
    }
}
