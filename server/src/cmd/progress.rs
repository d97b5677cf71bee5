//! What a command tells its user: progress on a terminal, silence anywhere else; results on the standard
//! output.
//!
//! The `println!` family panics when nobody reads any more; these do not.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over a known number of bytes or documents.
pub(crate) fn bar(total: u64, unit: Unit) -> ProgressBar {
    let template = match unit {
        Unit::Bytes => "{msg} [{bar:40}] {bytes}/{total_bytes}, {eta} left",
        Unit::Documents => "{msg} [{bar:40}] {human_pos}/{human_len}, {eta} left",
    };
    styled(ProgressBar::new(total), template)
}

/// A counter, where nobody knows how much there will be.
pub(crate) fn counter(unit: Unit) -> ProgressBar {
    let template = match unit {
        Unit::Bytes => "{spinner} {msg} {bytes}",
        Unit::Documents => "{spinner} {msg} {human_pos}",
    };
    styled(ProgressBar::new_spinner(), template)
}

/// What a bar counts.
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

/// A result, on the standard output. Nobody reading it is no error.
pub(crate) fn print(result: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{result}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// A remark, on the standard error; one that cannot be made is not.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A remark for a person: made only on a terminal.
pub(crate) fn tell(line: &str) {
    if io::stderr().is_terminal() {
        remark(line);
    }
}
