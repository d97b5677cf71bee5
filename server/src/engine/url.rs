//! The URL of a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use disk::folder::Mark;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::engine::error::EngineError;

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

impl Engine {
    /// The engine of new folders: lsm, or the one that this build has.
    pub(super) const NEW: Engine = if cfg!(feature = "lsm") {
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

    pub(super) fn from_name(name: &str) -> Option<Self> {
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

    /// Whether it names the same store in every working directory.
    pub fn is_absolute(&self) -> bool {
        match self {
            EngineUrl::Memory => true,
            EngineUrl::Folder { path, .. } => path.is_absolute(),
            EngineUrl::Cluster { file, .. } => file.as_ref().is_none_or(|file| file.is_absolute()),
        }
    }

    /// The same store under a name that is valid for every process of this machine: with its engine, and without
    /// symbolic links if the path exists.
    ///
    /// # Errors
    /// [`EngineError::Unnameable`] if such a name does not exist, [`EngineError::Open`] if the folder's mark cannot be
    /// read.
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
                // Keys that start with 0xff belong to the cluster.
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
}
