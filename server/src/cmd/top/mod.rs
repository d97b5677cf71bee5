//! `couch-layer top`: what a server does now, from its own figures.
//!
//! ```text
//!   GET _node/_local/_prometheus ─► figures, before and after ─► report: rates, times, levels ─► table, or JSON
//!   GET _active_tasks ──────────────────────────────────────────►
//! ```
//!
//! The server counts from its start. A report is the difference of two samples. Its own two requests are part of it.

mod figures;
mod report;
mod table;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use console::Term;
use model::JsonText;
use peer::{Address, Http, Method};

use self::figures::Figures;
use self::report::Report;
use super::progress::remark;
use super::source::with_own_user;
use super::tls_args::TrustArgs;
use crate::cmd::Failure;
use crate::units;

/// The shortest interval: a sample costs the server some milliseconds.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// Show what a server does: requests, times, commits, conflicts, memory, disk, feeds, jobs, databases
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The server: http://HOST:PORT or https://HOST, with USER:PASSWORD@ before HOST. Without a user in the URL,
    /// COUCHDB_USER and COUCHDB_PASSWORD are sent if they are set. The user is an administrator, or has the role
    /// _metrics and sees no running jobs
    #[arg(long, value_name = "URL")]
    url: Address,
    /// The time between two samples
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time_from(LEAST_INTERVAL))]
    interval: Duration,
    /// Print one report, of one interval, and end
    #[arg(long)]
    once: bool,
    /// Print each report as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What the server says at one moment.
struct Sample {
    at: Instant,
    figures: Figures,
    /// `None` if they are not for this user.
    tasks: Option<JsonText>,
}

impl Top {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let server = Http::trusting(with_own_user(self.url.clone()), &self.trust.read()?)?;
        let place = self.url.to_string();
        // The first one tells whether the server and the user are right.
        let mut before = sample(&server).await?;
        loop {
            tokio::time::sleep(self.interval).await;
            let after = match sample(&server).await {
                Err(error) if !self.once => {
                    remark(&format!("{place}: {error}"));
                    continue;
                }
                after => after?,
            };
            let seconds = after.at.duration_since(before.at).as_secs_f64();
            let report = Report::between(&before.figures, &after.figures, seconds, after.tasks.as_ref());
            let text = if self.json { report.to_json(&place).to_string() } else { table::text(&report, &place) };
            match write(&text, !self.json && !self.once) {
                // The reader closed the pipe: it has read enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
            if self.once {
                return Ok(());
            }
            before = after;
        }
    }
}

async fn sample(server: &Http) -> Result<Sample, Failure> {
    const NOT_FOR_THIS_USER: [u16; 2] = [401, 403];
    let figures = Figures::parse(&server.text(&["_node", "_local", "_prometheus"]).await?);
    let at = Instant::now();
    let tasks = match server.ask(Method::GET, &["_active_tasks"], &[], None).await {
        Err(error) if error.status().is_some_and(|status| NOT_FOR_THIS_USER.contains(&status)) => None,
        tasks => Some(tasks?),
    };
    Ok(Sample { at, figures, tasks })
}

/// Writes a report; a table that others follow on a terminal, in the place of the one before.
fn write(text: &str, is_in_place: bool) -> io::Result<()> {
    let terminal = Term::stdout();
    let mut screen = String::new();
    match is_in_place && terminal.is_term() {
        true => {
            let (height, width) = terminal.size();
            screen.push_str("\x1b[H");
            // Each line is overwritten and cut, so nothing flickers and nothing scrolls.
            for line in text.lines().take(usize::from(height).saturating_sub(1)) {
                screen.extend(line.chars().take(usize::from(width)));
                screen.push_str("\x1b[K\n");
            }
            screen.push_str("\x1b[J");
        }
        false => {
            screen.push_str(text);
            // Tables in a file are apart.
            screen.push_str(if is_in_place { "\n\n" } else { "\n" });
        }
    }
    let mut out = io::stdout().lock();
    out.write_all(screen.as_bytes()).and_then(|()| out.flush())
}
