//! File descriptors: each connection takes one, and the store and replications need some.

/// Maximum number of descriptors that connections leave to the rest of the process.
#[cfg(any(unix, test))]
const KEPT: u64 = 512;

/// The number of connections for which there are descriptors: `asked`, or fewer. Raises the process's limit as far as
/// the system allows, usually far beyond the initial limit.
#[cfg(unix)]
pub(super) fn connections(asked: u32) -> u32 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    // If it is refused, the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let Some(limit) = getrlimit(Resource::Nofile).current else { return asked };
    let most = most_of(limit);
    if most < asked {
        tracing::warn!(
            asked,
            connections = most,
            limit,
            "the limit of open files leaves room for fewer connections: raise it (ulimit -n)"
        );
    }
    asked.min(most)
}

#[cfg(not(unix))]
pub(super) fn connections(asked: u32) -> u32 {
    asked
}

/// The maximum number of connections under a limit.
#[cfg(any(unix, test))]
fn most_of(limit: u64) -> u32 {
    u32::try_from(limit - KEPT.min(limit / 2)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_to_the_store() {
        let most: Vec<u32> = [0, 1, 60, 1_024, 4_096, u64::MAX].map(most_of).into();
        assert_eq!(most, [1, 1, 30, 512, 3_584, u32::MAX]);
    }
}
