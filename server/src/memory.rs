//! The memory of a server, and its parts.
//!
//! ```text
//!  --memory ─┬─ the program: code, threads, tables of small things
//!            ├─ the store: its cache, and what it writes
//!            ├─ pages of answers in the making: for each thread that reads them
//!            ├─ functions of design documents: for each thread a heap that runs, and those that it keeps
//!            └─ the budget: bodies, what is parsed from them, answers, connections, what replications read
//! ```
//!
//! The first four are bounded by their own limits, which follow from the whole. All else is reserved in the
//! [budget](Budget).

use std::path::Path;

use budget::Budget;

use crate::http::{CONNECTION_BYTES, largest_body};

/// Memory of the program itself.
const PROGRAM: u64 = 64 << 20;

/// The usual cache of a store in a folder, and the smallest.
const CACHES: (u64, u64) = (disk::DEFAULT_CACHE_BYTES, 16 << 20);

/// A store in a folder takes this many times its cache: runs that wait to be flushed, tables being written, filters.
const CACHE_TIMES: u64 = 3;

/// Memory of a store that is elsewhere, or in memory, beside its rows.
const OTHER_STORE: u64 = 32 << 20;

/// Memory of a page while it is read and written: rows, documents and text of four megabytes, and one document of
/// eight.
const PAGE: u64 = 32 << 20;

/// The usual heap of a function, and the smallest.
const HEAPS: (u64, u64) = (64 << 20, 16 << 20);

/// Number of heaps of each thread for functions: the running one, and as much again for those that are kept.
const HEAPS_OF_THREAD: u64 = 2;

/// The largest body of a request, unless it is set.
const REQUEST: usize = 64 << 20;

/// The smallest maximum that a server may have: the largest document, with what is around it.
const SMALLEST_REQUEST: usize = 9 << 20;

/// Assumed memory if the system does not report any.
const UNKNOWN: u64 = 4 << 30;

const MIB: u64 = 1 << 20;

/// The parts of a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Number of bytes in the budget.
    pub budget: usize,
    /// The cache of a store in a folder.
    pub cache: u64,
    /// The heap of a function.
    pub heap: usize,
    /// The largest body of a request.
    pub request: usize,
    /// Maximum number of functions of a database at the same time.
    functions: usize,
    /// Maximum number of pages that are read at the same time.
    pages: usize,
}

/// Requested settings beside the memory.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The cache of the store.
    pub cache: Option<u64>,
    /// The largest body of a request.
    pub request: Option<usize>,
    /// Number of threads for functions.
    pub threads: usize,
    /// Whether the store is in a folder.
    pub in_folder: bool,
}

/// The requested memory is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes of memory are too few for these options; the smallest --memory that works is {smallest}")]
pub struct TooSmall {
    /// The requested number of bytes.
    pub asked: u64,
    /// The smallest that works.
    pub smallest: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            budget: 1 << 30,
            cache: CACHES.0,
            heap: 64 << 20,
            request: REQUEST,
            functions: usize::MAX,
            pages: usize::MAX,
        }
    }
}

impl Memory {
    /// The parts of `all`; without it, of a quarter of the available memory, or of the smallest size that works.
    ///
    /// # Errors
    /// [`TooSmall`]
    pub fn of(all: Option<u64>, asked: &Asked) -> Result<Memory, TooSmall> {
        let quarter = || available() / 4;
        let wanted = all.unwrap_or_else(quarter);
        if let Some(memory) = split(wanted, asked) {
            return Ok(memory);
        }
        // Each step has room for more, so this ends.
        let mut smallest = wanted / MIB * MIB;
        loop {
            smallest = smallest.saturating_add(MIB);
            match split(smallest, asked) {
                Some(memory) if all.is_none() => return Ok(memory),
                Some(_) => return Err(TooSmall { asked: wanted, smallest }),
                None if smallest == u64::MAX => return Err(TooSmall { asked: wanted, smallest }),
                None => {}
            }
        }
    }

    /// The number of threads that read pages.
    pub(crate) fn scan_threads(&self, threads: usize) -> usize {
        threads.min(self.pages)
    }

    /// The number of connections that take a quarter of the budget while they have only small requests.
    pub(crate) fn connections(&self) -> u32 {
        u32::try_from(self.budget / 4 / CONNECTION_BYTES).unwrap_or(u32::MAX)
    }

    /// The number of functions of a database that run at the same time, if there are enough threads.
    #[cfg_attr(not(feature = "javascript"), expect(dead_code, reason = "there are none then"))]
    pub(crate) fn function_threads(&self, threads: usize) -> usize {
        threads.min(self.functions)
    }
}

/// `None` if it is too little.
fn split(all: u64, asked: &Asked) -> Option<Memory> {
    let cache = asked.cache.unwrap_or((all / 24).clamp(CACHES.1, CACHES.0));
    let store = if asked.in_folder { cache.checked_mul(CACHE_TIMES)? } else { OTHER_STORE };
    let heap = (all / 32).clamp(HEAPS.1, HEAPS.0);
    let of_thread = HEAPS_OF_THREAD * heap;
    // There is one more thread than functions of one database may use.
    let functions = (all / 4 / of_thread).clamp(2, asked.threads.max(2) as u64 + 1) - 1;
    let pages = (all / 8 / PAGE).clamp(2, asked.threads.max(2) as u64);
    let fixed = PROGRAM.checked_add(store)?.checked_add((functions + 1) * of_thread + pages * PAGE)?;
    let budget = usize::try_from(all.checked_sub(fixed)?).ok()?;
    let largest = largest_body(Budget::new(budget).most_of_one());
    let request = asked.request.unwrap_or(REQUEST.min(largest));
    let needed = asked.request.unwrap_or(SMALLEST_REQUEST);
    let functions = usize::try_from(functions).ok()?;
    (needed <= largest).then_some(Memory {
        budget,
        cache,
        heap: usize::try_from(heap).ok()?,
        request,
        functions,
        pages: usize::try_from(pages).ok()?,
    })
}

/// The memory of the machine, or the part of it that the process's control groups allow, in bytes.
fn available() -> u64 {
    machine().unwrap_or(UNKNOWN).min(control_groups(Path::new("/sys/fs/cgroup"), Path::new("/proc/self/cgroup")))
}

#[cfg(target_os = "linux")]
fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(not(target_os = "linux"))]
fn machine() -> Option<u64> {
    None
}

/// The lowest limit of the process's groups.
fn control_groups(root: &Path, own: &Path) -> u64 {
    let limit = |file: &Path| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let own = std::fs::read_to_string(own).unwrap_or_default();
    let mut lowest = u64::MAX;
    // NUMBER:CONTROLLERS:PATH. Version 2 names no controllers.
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container the path may be that of the host, and its files are those of the root.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            lowest = lowest.min(limit(&root.join(group).join(name)).unwrap_or(u64::MAX));
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Asked = Asked { cache: None, request: None, threads: 2, in_folder: true };

    #[test]
    fn the_parts_are_within_the_whole() {
        for mib in [480, 512, 1_000, 2_048, 6_000, 64_000] {
            for threads in [1, 2, 16, 256] {
                let memory = Memory::of(Some(mib << 20), &Asked { threads, ..USUAL }).unwrap();
                let functions = 2 * (memory.functions as u64 + 1) * memory.heap as u64;
                let pages = PAGE * memory.pages as u64;
                let whole = PROGRAM + 3 * memory.cache + functions + pages + memory.budget as u64;
                assert_eq!(whole, mib << 20);
                assert!(memory.request >= SMALLEST_REQUEST && memory.functions <= threads.max(2), "{memory:?}");
            }
        }
        let large = Memory::of(Some(8 << 30), &USUAL).unwrap();
        assert_eq!((large.cache, large.heap, large.request, large.functions), (96 << 20, 64 << 20, 64 << 20, 2));
    }

    #[test]
    fn the_smallest_that_works_is_named() {
        for asked in [
            USUAL,
            Asked { request: Some(64 << 20), ..USUAL },
            Asked { request: Some(1 << 30), threads: 64, ..USUAL },
            Asked { cache: Some(1 << 30), ..USUAL },
            Asked { in_folder: false, ..USUAL },
        ] {
            let TooSmall { smallest, .. } = Memory::of(Some(1 << 20), &asked).unwrap_err();
            assert!(Memory::of(Some(smallest), &asked).is_ok());
            assert!(Memory::of(Some(smallest - MIB), &asked).is_err());
        }
        let TooSmall { smallest, .. } = Memory::of(Some(0), &USUAL).unwrap_err();
        assert!(smallest <= 472 << 20, "{smallest}");
        // Without `--memory` it takes what it needs.
        assert!(Memory::of(None, &Asked { request: Some(2 << 30), ..USUAL }).is_ok());
    }

    #[test]
    fn a_control_group_limits_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let own = folder.path().join("own");
        assert_eq!(control_groups(folder.path(), &own), u64::MAX, "there are none");
        write("own", "0::/a/b\n");
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(control_groups(folder.path(), &own), 1_000);
        write("a/b/memory.max", "500\n");
        assert_eq!(control_groups(folder.path(), &own), 500);
        write("own", "4:cpu:/a\n3:memory,x:/docker/1\n");
        write("memory/memory.limit_in_bytes", "700\n");
        assert_eq!(control_groups(folder.path(), &own), 700);
    }
}
