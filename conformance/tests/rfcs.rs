//! Checks that the files and tests that `docs/rfcs.md` and `docs/api.md` name exist, and that each row names its proof.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of tests and scenarios, and the root of their files.
struct Known {
    root: PathBuf,
    tests: BTreeSet<String>,
}

impl Known {
    fn new() -> Self {
        let mut known = Known { root: root(), tests: BTreeSet::new() };
        let crates = fs::read_dir(&known.root).expect("the workspace").map(|entry| entry.expect("an entry").path());
        for member in crates.filter(|path| path.join("Cargo.toml").exists()).collect::<Vec<_>>() {
            for folder in ["src", "tests"] {
                known.read_all(&member.join(folder));
            }
        }
        known
    }

    fn read_all(&mut self, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                self.read_all(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                // The suites list their scenarios by name, each on a line.
                let lists = path.ends_with("src/list.rs");
                self.tests.extend(tests_in(&text, lists));
            }
        }
    }

    fn has_file(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
}

/// The functions with a test attribute; in a suite's list also the lines that are a name.
fn tests_in(text: &str, lists: bool) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if is_test && let Some((_, rest)) = line.split_once("fn ") {
            names.extend(rest.split(['(', '<']).next().map(str::to_owned));
            is_test = false;
        } else if lists && let Some(name) = line.strip_suffix(',').filter(|name| is_name(name)) {
            names.push(name.to_owned());
        }
    }
    names
}

fn is_name(text: &str) -> bool {
    text.contains('_') && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The texts between backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The files that links name, relative to the page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Whether a span looks like the name of a test, in any column: parameters have fewer words.
fn is_long_name(span: &str) -> bool {
    is_name(span) && span.matches('_').count() > 3
}

/// The problems of the page. In a table, spans of the column `file` are files, and those of `test` are tests. A row
/// without a test gives the reason in its last column. Elsewhere, long names are tests.
fn problems(page: &str, known: &Known) -> Vec<String> {
    let mut problems = Vec::new();
    let mut columns: Vec<&str> = Vec::new();
    for line in page.lines() {
        for target in links(line).filter(|target| !known.has_file(&format!("docs/{target}"))) {
            problems.push(format!("no file {target}: {line}"));
        }
        let unknown = |name: &&str| is_long_name(name) && !known.tests.contains(*name);
        let long = spans(line).filter(unknown).map(|name| format!("no test {name}: {line}"));
        problems.extend(long.collect::<BTreeSet<_>>());
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            columns.clear();
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = cells;
            continue;
        }
        if cells.iter().all(|cell| cell.bytes().all(|byte| byte == b'-')) {
            continue;
        }
        if cells.len() != columns.len() {
            problems.push(format!("{} cells: {line}", cells.len()));
            continue;
        }
        for (column, cell) in columns.iter().zip(&cells) {
            let unknown = |name: &&str| match *column {
                "file" => !known.has_file(name),
                "test" => !is_long_name(name) && !known.tests.contains(*name),
                _ => false,
            };
            problems.extend(spans(cell).filter(unknown).map(|name| format!("no {column} {name}: {line}")));
            if *column == "test" && spans(cell).next().is_none() && cells.last().is_none_or(|why| why.is_empty()) {
                problems.push(format!("neither a test nor a reason: {line}"));
            }
        }
    }
    problems
}

#[test]
fn what_the_pages_name_exists() {
    let known = Known::new();
    for (name, rows) in [("docs/rfcs.md", 30), ("docs/api.md", 80)] {
        let page = fs::read_to_string(root().join(name)).expect("the page is beside the crates");
        let problems = problems(&page, &known);
        assert!(problems.is_empty(), "{name}: {problems:#?}");
        assert!(page.lines().filter(|line| line.starts_with('|')).count() > rows, "the tables of {name} were not read");
    }
}

#[test]
fn planted_mistakes_are_found() {
    let known = Known::new();
    let table = |row: &str| format!("text\n\n| sentence | file | test | decision |\n|---|---|---|---|\n{row}\n");
    let sound = "| `not_a_test` | `model/src/lib.rs` | `known_revisions_change_nothing` | [keys](keyspace.md) |";
    assert_eq!(problems(&table(sound), &known), Vec::<String>::new());
    for (right, wrong) in [
        ("model/src/lib.rs", "model/src/libb.rs"),
        ("known_revisions_change_nothing", "known_revisions_change_something"),
        // A function that is not a test, and a name outside the column of tests.
        ("known_revisions_change_nothing", "tests_in"),
        ("not_a_test", "a_test_that_is_not_there"),
        ("keyspace.md", "keyspaces.md"),
        ("| [keys]", "| one more | [keys]"),
    ] {
        let planted = table(&sound.replace(right, wrong));
        assert_eq!(problems(&planted, &known).len(), 1, "{planted}");
    }
    assert_eq!(problems(&table("| a | `model/src/lib.rs` | | |"), &known).len(), 1);
    assert_eq!(problems(&table("| a | `model/src/lib.rs` | | a reason |"), &known), Vec::<String>::new());
}
