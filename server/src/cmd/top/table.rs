//! A report as a table of text.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use serde_json::Value;

use super::report::{Report, Times};

/// Number of routes shown. The JSON has all.
const ROUTES: usize = 12;

/// Number of running jobs shown.
const TASKS: usize = 10;

/// Classes of statuses with a column.
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// The lines of the table.
pub(super) fn text(report: &Report, place: &str) -> String {
    let rate = |name: &str| number(report.rates.get(name).copied().flatten());
    let byte_rate = |name: &str| format!("{}/s", bytes(report.rates.get(name).copied().flatten()));
    let level = |name: &str| report.levels.get(name).copied().flatten();
    let count = |name: &str| level(name).map_or("-".to_owned(), |value| HumanCount(value as u64).to_string());
    let size = |name: &str| bytes(level(name));
    let up = humantime::format_duration(Duration::from_secs(report.uptime_seconds.unwrap_or(0.0) as u64));
    let mut lines = vec![format!("couch-layer {} at {place}, up {up}", report.version), String::new()];
    let statuses: Vec<String> =
        report.statuses.iter().map(|(class, rate)| format!("{class} {}", number(Some(*rate)))).collect();
    let mut line = |name: &str, parts: &[String]| lines.push(format!("{name:<10} {}", parts.join("   ")));
    line("requests", &[format!("{}/s", number(report.requests)), times(report.request_times), statuses.join("  ")]);
    line(
        "clients",
        &[
            format!("{} of {} connections", count("connections"), count("connections_limit")),
            format!("feeds {}", count("feeds")),
            format!("watches {}", count("watches")),
            format!("sent {}", byte_rate("sent_bytes")),
        ],
    );
    line(
        "documents",
        &[
            format!("written {}/s", rate("documents_written")),
            format!("read {}/s", rate("documents_read")),
            format!("views {}/s", rate("view_reads")),
            format!("replicated {}/s", rate("replicated_documents")),
        ],
    );
    line(
        "commits",
        &[
            format!("{}/s", rate("commits")),
            times(report.commit_times),
            format!("syncs {}/s", rate("syncs")),
            times(report.sync_times),
        ],
    );
    line(
        "conflicts",
        &[
            format!("of transactions {}/s", rate("transaction_conflicts")),
            format!("of documents (409) {}/s", rate("document_conflicts")),
        ],
    );
    line(
        "memory",
        &[
            format!("{} of {}", size("memory_used_bytes"), size("memory_budget_bytes")),
            format!("{} waiting", count("memory_waiting")),
            format!("cache {}", size("cache_bytes")),
            format!("process {}", size("process_bytes")),
            format!("JavaScript {} waiting", count("javascript_waiting")),
        ],
    );
    line(
        "disk",
        &[
            format!("{} free", size("disk_free_bytes")),
            format!("tables {}", size("table_bytes")),
            format!("unflushed {}", size("unflushed_bytes")),
            format!("log {}", byte_rate("log_bytes")),
            format!("flushed {}", byte_rate("flushed_bytes")),
            format!("compacted {}", byte_rate("compacted_bytes")),
        ],
    );
    let jobs = report.jobs.iter().map(|(kind, states)| {
        let states = states.iter().zip(["running", "waiting", "failed"]).filter(|(number, _)| **number > 0.0);
        let states: Vec<String> = states.map(|(number, state)| format!("{number} {state}")).collect();
        format!("{kind}: {}", states.join(", "))
    });
    let jobs: Vec<String> = jobs.collect();
    line("jobs", &if jobs.is_empty() { vec!["none".to_owned()] } else { jobs });
    lines.extend(routes(report));
    // Names come last, since they may be long.
    if !report.databases.is_empty() {
        lines.extend([String::new(), format!("{:>12} {:>12}   database", "bytes", "documents")]);
        lines.extend(report.databases.iter().map(|(name, size, documents)| {
            let documents = HumanCount(*documents as u64).to_string();
            format!("{:>12} {documents:>12}   {}", bytes(Some(*size)), shown(name))
        }));
    }
    if !report.behind.is_empty() {
        lines.extend([String::new(), format!("{:>12}   replication", "behind")]);
        lines.extend(
            report
                .behind
                .iter()
                .map(|(name, changes)| format!("{:>12}   {}", HumanCount(*changes as u64).to_string(), shown(name))),
        );
    }
    match &report.tasks {
        Some(tasks) if tasks.is_empty() => {}
        Some(tasks) => {
            lines.extend([String::new(), "running".to_owned()]);
            lines.extend(tasks.iter().take(TASKS).map(task));
            if tasks.len() > TASKS {
                lines.push(format!("and {} more", tasks.len() - TASKS));
            }
        }
        None => lines.extend([String::new(), "running jobs are shown to administrators only".to_owned()]),
    }
    lines.join("\n")
}

fn routes(report: &Report) -> Vec<String> {
    if report.routes.is_empty() {
        return Vec::new();
    }
    let row = |rates: [String; 5], times: [String; 2], route: &str| {
        let rates: String = rates.iter().map(|rate| format!("{rate:>8}")).collect();
        let times: String = times.iter().map(|time| format!("{time:>9}")).collect();
        format!("{rates}{times}   {route}")
    };
    let [two, three, four, five] = CLASSES.map(str::to_owned);
    let head = row(["req/s".to_owned(), two, three, four, five], ["p50", "p99"].map(str::to_owned), "route");
    let rows = report.routes.iter().take(ROUTES).map(|route| {
        let [two, three, four, five] =
            CLASSES.map(|class| route.statuses.get(class).map_or(String::new(), |rate| number(Some(*rate))));
        let rates = [number(Some(route.requests)), two, three, four, five];
        let times = [route.times.p50, route.times.p99].map(time);
        row(rates, times, &format!("{} {}", route.method, route.route))
    });
    let mut rows: Vec<String> = [String::new(), head].into_iter().chain(rows).collect();
    if report.routes.len() > ROUTES {
        rows.push(format!("and {} more", report.routes.len() - ROUTES));
    }
    rows
}

/// A running job in a line: its type, what it works on, and how far it came.
fn task(task: &Value) -> String {
    let text = |name: &str| task[name].as_str();
    let what = match (text("source"), text("target"), text("database")) {
        (Some(source), Some(target), _) => format!("{source} to {target}"),
        (_, _, Some(database)) => database.to_owned(),
        _ => String::new(),
    };
    let design = text("design_document").map(|design| format!(" {design}"));
    let progress = task["progress"].as_f64().map(|percent| format!(", {percent} %"));
    let pending = task["changes_pending"].as_u64().map(|changes| format!(", {} changes pending", HumanCount(changes)));
    let rest: String = [design, progress, pending].into_iter().flatten().collect();
    format!("{:<20} {}{rest}", text("type").unwrap_or("?"), shown(&what))
}

/// A name that comes from clients, without what a terminal would obey.
fn shown(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => HumanCount(value.round() as u64).to_string(),
        Some(value) => format!("{value:.1}"),
    }
}

fn bytes(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| BinaryBytes(value as u64).to_string())
}

fn times(times: Times) -> String {
    format!("p50 {} p99 {}", time(times.p50), time(times.p99))
}

/// A time in seconds.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds >= 1.0 => format!("{seconds:.1} s"),
        Some(seconds) if seconds >= 0.01 => format!("{:.0} ms", seconds * 1_000.0),
        Some(seconds) => format!("{:.1} ms", seconds * 1_000.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::report::Route;
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        assert_eq!([None, Some(0.04), Some(99.94), Some(12_345.6)].map(number), ["-", "0.0", "99.9", "12,346"]);
        assert_eq!([None, Some(0.0004), Some(0.0123), Some(2.5)].map(time), ["-", "0.4 ms", "12 ms", "2.5 s"]);
        assert_eq!(bytes(Some(1_536.0)), "1.50 KiB");
    }

    #[test]
    fn jobs_are_told_in_a_line() {
        let replication = json!({"type": "replication", "source": "a", "target": "b", "changes_pending": 1_000});
        assert_eq!(task(&replication), "replication          a to b, 1,000 changes pending");
        let build =
            json!({"type": "indexer", "database": "a\u{1b}[2J", "design_document": "_design/d", "progress": 45});
        assert_eq!(task(&build), "indexer              a?[2J _design/d, 45 %");
        assert_eq!(task(&json!({})).trim(), "?");
    }

    #[test]
    fn columns_stand_below_their_heads() {
        let route = |name: &str, requests| Route {
            method: "GET".to_owned(),
            route: name.to_owned(),
            requests,
            statuses: [("2xx".to_owned(), requests)].into(),
            times: Times { p50: Some(0.001), p99: Some(0.2) },
        };
        let routes = vec![route("/{db}/a_long_name/of_a_route", 12_000.0), route("/", 0.5)];
        let report = Report { routes, databases: vec![("notes".to_owned(), 10.0, 3.0)], ..Report::default() };
        let table = text(&report, "");
        let end = |line: &str, word: &str| line.find(word).unwrap_or_else(|| panic!("{word} in {table}")) + word.len();
        let lines: Vec<&str> = table.lines().collect();
        let at = lines.iter().position(|line| line.contains("req/s")).unwrap();
        for (head, first, second) in
            [("req/s", "12,000", "0.5"), ("p50", "1.0 ms", "1.0 ms"), ("p99", "200 ms", "200 ms")]
        {
            let ends = [end(lines[at], head), end(lines[at + 1], first), end(lines[at + 2], second)];
            assert!(ends.iter().all(|end| *end == ends[0]), "{head}: {table}");
        }
        assert!(lines[at + 1].ends_with("   GET /{db}/a_long_name/of_a_route"), "{table}");
        assert!(table.contains("\n        10 B            3   notes"), "{table}");
    }

    #[test]
    fn a_server_that_rests_has_a_table_too() {
        let table = text(&Report::default(), "http://host/");
        assert!(table.contains("requests   -/s   p50 - p99 -") && table.contains("jobs       none"), "{table}");
        assert!(table.contains("shown to administrators only"), "{table}");
    }
}
