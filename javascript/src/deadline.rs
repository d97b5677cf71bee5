//! Deadlines in processor time.
//!
//! A call is late when its thread has used too much processor time. The wall clock would also count the time in which a
//! busy machine runs other threads, and a healthy document would keep the error until its next edit.
//!
//! The wall clock is cheaper to read than a thread's clock, and passes at least as fast. So the thread's clock is read
//! only after the deadline has passed on the wall clock, and now and then as a base.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Maximum age of the base, and the maximum time by which it lengthens a call.
const OLD: Duration = Duration::from_millis(10);

/// The deadline of the running work. It stays on its thread.
pub(crate) struct Deadline {
    /// The processor time of the thread at an instant.
    base: Cell<(Instant, Duration)>,
    /// Processor time that may be used since then.
    allowed: Cell<Duration>,
    /// Before this instant the work cannot be late. `None` if it has no deadline.
    earliest: Cell<Option<Instant>>,
}

impl Deadline {
    pub(crate) fn new() -> Deadline {
        Deadline {
            base: Cell::new((Instant::now(), thread_time())),
            allowed: Cell::new(Duration::ZERO),
            earliest: Cell::new(None),
        }
    }

    /// Starts the time of work that may take this long.
    pub(crate) fn set(&self, time: Duration) {
        let now = Instant::now();
        let mut age = now - self.base.get().0;
        if age > OLD {
            self.base.set((now, thread_time()));
            age = Duration::ZERO;
        }
        self.allowed.set(time.saturating_add(age));
        self.earliest.set(now.checked_add(time));
    }

    pub(crate) fn clear(&self) {
        self.earliest.set(None);
    }

    pub(crate) fn is_over(&self) -> bool {
        let Some(earliest) = self.earliest.get() else { return false };
        let now = Instant::now();
        if now <= earliest {
            return false;
        }
        let left = self.allowed.get().saturating_sub(thread_time().saturating_sub(self.base.get().1));
        self.earliest.set(now.checked_add(left));
        left.is_zero()
    }
}

/// The processor time that this thread has used.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Other systems use the wall clock.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn thread_time() -> Duration {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Limits, Sandbox};

    #[test]
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    fn time_in_which_the_thread_does_nothing_does_not_count() {
        let deadline = Deadline::new();
        deadline.set(Duration::from_millis(40));
        std::thread::sleep(Duration::from_millis(80));
        assert!(!deadline.is_over());
        let begun = thread_time();
        while !deadline.is_over() {}
        assert!(thread_time() - begun > Duration::from_millis(20));
        assert!(deadline.is_over(), "it stays over");
        deadline.set(Duration::from_secs(60));
        assert!(!deadline.is_over());
        deadline.set(Duration::ZERO);
        while !deadline.is_over() {}
        deadline.clear();
        assert!(!deadline.is_over());
    }

    /// Twenty times the full time would be eight seconds.
    #[test]
    fn a_function_that_was_late_gets_less_time() {
        let design = r#"{"views":{"v":{"map":"doc => { for (;;) {} }"}}}"#;
        let limits = Limits { time: Duration::from_millis(400), stack: 512 << 10, ..Limits::default() };
        let mut sandbox = Sandbox::open(design, limits).unwrap();
        let began = thread_time();
        for _ in 0..20 {
            assert_eq!(sandbox.map(&["v"], "{}")[0].as_ref().unwrap_err().kind(), ErrorKind::Time);
        }
        assert!(thread_time() - began < Duration::from_secs(6));
    }
}
