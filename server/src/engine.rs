//! An engine from a URL, and the mark by which a data folder says which engine it holds.
//!
//! | URL | engine |
//! |---|---|
//! | `mem:` | memory; gone when the process ends |
//! | `sled:PATH` | a sled tree in the folder `PATH` |
//! | `PATH` | the engine that the folder `PATH` says it holds |
//!
//! ```text
//!   PATH/
//!     COUCH-LAYER     "couch-layer data folder\nformat 1\nengine sled\n"
//!     sled/           the engine's own files
//! ```
//!
//! The mark is written before the engine's first file, and synced, so that a folder with anything in
//! it and no mark is somebody else's and is left alone. It names the format of the *folder*; the
//! format of what is in the store is a key in the store, and [`model`]'s affair.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kv_api::AnyDatabase;

/// The name of the mark in a data folder.
pub const MARK: &str = "COUCH-LAYER";

/// The format of data folders that this program writes and reads.
pub const FOLDER_FORMAT: u32 = 1;

/// The engines that there are a URL for, whether or not this build has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A sorted map in memory.
    Mem,
    /// A sled tree in a folder.
    Sled,
}

impl Engine {
    /// The engine's name in URLs, marks and features.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Mem => "mem",
            Engine::Sled => "sled",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Engine::Mem, Engine::Sled].into_iter().find(|engine| engine.name() == name)
    }

    /// Whether this build has the engine.
    pub const fn is_built(self) -> bool {
        match self {
            Engine::Mem => cfg!(feature = "mem"),
            Engine::Sled => cfg!(feature = "sled"),
        }
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
#[allow(missing_docs, reason = "each variant's sentence is its documentation")]
pub enum EngineError {
    #[error("there is no engine \"{name}\"; a store is named mem:, sled:FOLDER, or by its folder alone")]
    UnknownEngine { name: String },
    #[error("mem: takes no path; it keeps everything in memory until the process ends")]
    MemWithPath,
    #[error("\"{url}\" names no folder; write sled:FOLDER")]
    NoPath { url: String },
    #[error("this build has no engine {engine}; build couch-layer again with `--features {engine}`")]
    NotBuilt { engine: &'static str },
    #[error("{} is not a folder; name a folder, which is created if there is none", folder.display())]
    NotAFolder { folder: PathBuf },
    #[error(
        "{} has files in it and no {MARK} file, so it is not a data folder of couch-layer; name an empty or a new one",
        folder.display()
    )]
    NotOurs { folder: PathBuf },
    #[error("the file {} is damaged: {problem}; restore it from a backup, or name another folder", file.display())]
    BadMark { file: PathBuf, problem: String },
    #[error(
        "{} has folder format {found}, and this couch-layer reads format {FOLDER_FORMAT}; open it with the version that wrote it",
        folder.display()
    )]
    FolderFormat { folder: PathBuf, found: u32 },
    #[error("{} holds a store of the engine {holds}, not {asked}; open it as {holds}:{}", folder.display(), folder.display())]
    OtherEngine { folder: PathBuf, holds: String, asked: &'static str },
    #[error("there is no data folder {}", folder.display())]
    Missing { folder: PathBuf },
    #[error("the folder {} cannot be used; see that it can be read and written, and that the disk has room", folder.display())]
    Io { folder: PathBuf, source: io::Error },
    #[error("the store in {} cannot be opened: {problem}", folder.display())]
    Open { folder: PathBuf, problem: String },
}

/// Whether opening a store may create it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// A folder that is missing or empty becomes a new store.
    Create,
    /// A folder that is missing or empty is an error.
    Fail,
}

/// Opens the store that `url` names. A folder that holds another engine than the one asked for, that is
/// of another format, or that is not ours is refused and left as it was.
///
/// # Errors
/// [`EngineError`], whose sentence is for a person.
pub fn open(url: &EngineUrl, if_missing: IfMissing) -> Result<AnyDatabase, EngineError> {
    let Some(folder) = url.folder() else {
        return open_mem();
    };
    match read_mark(folder)? {
        Some(engine) => match url.engine {
            Some(asked) if asked != engine => Err(EngineError::OtherEngine {
                folder: folder.into(),
                holds: engine.name().into(),
                asked: asked.name(),
            }),
            _ => open_folder(engine, folder),
        },
        None if if_missing == IfMissing::Fail => Err(EngineError::Missing { folder: folder.into() }),
        None => {
            let engine = url.engine.unwrap_or(Engine::Sled);
            if !engine.is_built() {
                return Err(EngineError::NotBuilt { engine: engine.name() });
            }
            write_mark(folder, engine).map_err(|source| EngineError::Io { folder: folder.into(), source })?;
            open_folder(engine, folder)
        }
    }
}

fn open_mem() -> Result<AnyDatabase, EngineError> {
    Err(EngineError::NotBuilt { engine: Engine::Mem.name() })
}

fn open_folder(engine: Engine, folder: &Path) -> Result<AnyDatabase, EngineError> {
    let _ = folder;
    Err(EngineError::NotBuilt { engine: engine.name() })
}

/// The engine that `folder` says it holds; `None` when there is no such folder or nothing in it.
fn read_mark(folder: &Path) -> Result<Option<Engine>, EngineError> {
    let failed = |source| EngineError::Io { folder: folder.into(), source };
    let file = folder.join(MARK);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match fs::read_dir(folder) {
                Ok(mut entries) => match entries.next() {
                    None => Ok(None),
                    Some(Ok(_)) => Err(EngineError::NotOurs { folder: folder.into() }),
                    Some(Err(error)) => Err(failed(error)),
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(failed(error)),
            };
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(EngineError::NotAFolder { folder: folder.into() });
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(EngineError::BadMark { file, problem: "it is not text".into() });
        }
        Err(error) => return Err(failed(error)),
    };
    let bad = |problem: &str| EngineError::BadMark { file: file.clone(), problem: problem.into() };
    let mut lines = text.lines();
    if lines.next() != Some("couch-layer data folder") {
        return Err(bad("its first line is not \"couch-layer data folder\""));
    }
    let mut field = |name: &str| {
        let value = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.ok_or_else(|| bad(&format!("it does not say its {name}")))
    };
    let format: u32 = field("format")?.parse().map_err(|_| bad("its format is not a number"))?;
    if format != FOLDER_FORMAT {
        return Err(EngineError::FolderFormat { folder: folder.into(), found: format });
    }
    let engine = field("engine")?;
    match Engine::from_name(engine) {
        Some(engine) if engine != Engine::Mem => Ok(Some(engine)),
        _ => Err(bad(&format!("it names an engine that is not known here, \"{engine}\""))),
    }
}

/// Makes `folder` a data folder of `engine`. The mark is whole or not there: written under another
/// name, synced, then renamed.
fn write_mark(folder: &Path, engine: Engine) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!("{MARK}.new"));
    let written = (|| {
        let mut file = fs::File::create(&draft)?;
        write!(file, "couch-layer data folder\nformat {FOLDER_FORMAT}\nengine {}\n", engine.name())?;
        file.sync_all()?;
        fs::rename(&draft, folder.join(MARK))?;
        fs::File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        // A folder that could not become ours is left empty; what cannot be removed was not written.
        let _ = fs::remove_file(&draft);
    }
    written
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
    fn a_new_folder_is_marked_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        assert_eq!(read_mark(&folder).unwrap(), None);
        write_mark(&folder, Engine::Sled).unwrap();
        assert_eq!(read_mark(&folder).unwrap(), Some(Engine::Sled));
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [MARK]);
    }

    #[test]
    fn what_is_not_ours_is_refused_and_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let sled = |folder: &Path| url(&format!("sled:{}", folder.display())).unwrap();

        fs::write(dir.path().join("photo.jpg"), "x").unwrap();
        let refused = open(&sled(dir.path()), IfMissing::Create).err().unwrap();
        assert!(matches!(refused, EngineError::NotOurs { .. }), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        let file = dir.path().join("photo.jpg");
        assert!(matches!(open(&sled(&file), IfMissing::Create), Err(EngineError::NotAFolder { .. })));

        for (text, expected) in [
            ("couch-layer data folder\nformat 2\nengine sled\n", "folder format 2"),
            ("couch-layer data folder\nformat 1\nengine rocks\n", "not known here"),
            ("couch-layer data folder\nformat 1\nengine mem\n", "not known here"),
            ("couch-layer data folder\nformat x\n", "not a number"),
            ("couch-layer data folder\n", "does not say its format"),
            ("", "first line"),
        ] {
            fs::write(dir.path().join(MARK), text).unwrap();
            let refused = open(&sled(dir.path()), IfMissing::Create).err().unwrap().to_string();
            assert!(refused.contains(expected), "{text:?}: {refused}");
            assert_eq!(fs::read_to_string(dir.path().join(MARK)).unwrap(), text);
        }
        let missing = dir.path().join("none");
        assert!(matches!(open(&sled(&missing), IfMissing::Fail), Err(EngineError::Missing { .. })));
        assert!(!missing.exists());
    }
}
