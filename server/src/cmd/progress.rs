//! Output of commands: progress on a terminal only, results on standard output.
//!
//! The `println!` family panics when the reader has closed the pipe; these functions do not.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// A progress bar over a known number of bytes or documents.
pub(crate) fn bar(total: u64, unit: Unit) -> ProgressBar {
    let template = match unit {
        Unit::Bytes => "{msg} [{bar:40}] {bytes}/{total_bytes}, {eta} left",
        Unit::Documents => "{msg} [{bar:40}] {human_pos}/{human_len}, {eta} left",
    };
    styled(ProgressBar::new(total), template)
}

/// A progress bar over documents whose prefix has their bytes ([`transferred`]).
pub(crate) fn transfer_bar() -> ProgressBar {
    styled(ProgressBar::new(0), "{msg} [{bar:30}] {human_pos}/{human_len}, {per_sec}, {prefix}, {eta} left")
}

/// Number of bytes, and bytes per second.
pub(crate) fn transferred(bytes: u64, took: Duration) -> String {
    let rate = bytes as f64 / took.as_secs_f64().max(0.001);
    format!("{}, {}/s", HumanBytes(bytes), HumanBytes(rate as u64))
}

/// A counter, where the total is unknown.
pub(crate) fn counter(unit: Unit) -> ProgressBar {
    let template = match unit {
        Unit::Bytes => "{spinner} {msg} {bytes}",
        Unit::Documents => "{spinner} {msg} {human_pos}",
    };
    styled(ProgressBar::new_spinner(), template)
}

/// Unit that a bar counts.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    Documents,
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Prints a result on standard output. A closed pipe is not an error.
pub(crate) fn print(result: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{result}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Prints a remark on standard error. Failures are ignored.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a remark on standard error if that is a terminal.
pub(crate) fn tell(line: &str) {
    if io::stderr().is_terminal() {
        remark(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_with_their_rate() {
        assert_eq!(transferred(3 << 20, Duration::from_secs(2)), "3.00 MiB, 1.50 MiB/s");
        assert_eq!(transferred(0, Duration::ZERO), "0 B, 0 B/s");
    }
}
