//! Checks that `docs/fdb-semantics.md` and the suite agree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use conformance::{CLAUSES, scenarios};

/// A clause of the page: its scenarios, and whether it refers to a proof elsewhere.
#[derive(Debug, Default)]
struct Clause {
    scenarios: Vec<String>,
    elsewhere: bool,
}

fn page() -> BTreeMap<String, Clause> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fdb-semantics.md");
    let text = std::fs::read_to_string(path).expect("the page is beside the crates");
    let mut clauses = BTreeMap::<String, Clause>::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(clause) = line.strip_prefix("## ") {
            current = Some(clause.to_owned());
            assert!(clauses.insert(clause.to_owned(), Clause::default()).is_none(), "{clause} stands there twice");
        }
        let Some(clause) = current.as_ref().and_then(|clause| clauses.get_mut(clause)) else { continue };
        if let Some(name) = line.strip_prefix("- `").and_then(|rest| rest.strip_suffix('`')) {
            clause.scenarios.push(name.to_owned());
        }
        clause.elsewhere |= line.starts_with("Proved elsewhere:");
    }
    clauses
}

#[test]
fn every_clause_has_scenarios_or_says_where_it_is_proved() {
    for (name, clause) in page() {
        assert_eq!(clause.scenarios.is_empty(), clause.elsewhere, "{name}");
    }
}

#[test]
fn every_clause_of_the_suite_is_on_the_page() {
    let page = page();
    for clause in CLAUSES {
        assert!(page.contains_key(*clause), "no heading for {clause}");
    }
}

#[test]
fn the_page_names_every_scenario_under_its_clause_and_no_other() {
    let page: BTreeSet<(String, String)> = page()
        .into_iter()
        .flat_map(|(clause, listed)| listed.scenarios.into_iter().map(move |name| (clause.clone(), name)))
        .collect();
    let suite: BTreeSet<(String, String)> =
        scenarios().iter().map(|scenario| (scenario.clause.to_owned(), scenario.name.to_owned())).collect();
    let missing: Vec<_> = suite.difference(&page).collect();
    let unknown: Vec<_> = page.difference(&suite).collect();
    assert!(missing.is_empty(), "not on the page: {missing:#?}");
    assert!(unknown.is_empty(), "on the page, not in the suite: {unknown:#?}");
}

#[test]
fn no_two_scenarios_share_a_name() {
    let names: BTreeSet<_> = scenarios().iter().map(|scenario| scenario.name).collect();
    assert_eq!(names.len(), scenarios().len());
}
