//! Compares the views of design documents with their functions, for the check of a database.

use std::collections::HashMap;

use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{AllDocsEntry, AllDocsRequest, CheckReport, Error, ErrorKind, Result, ViewError, ViewGroup};

use super::DESIGN_END;
use crate::http::app::stores::Documents;
use crate::http::functions::Functions;
use crate::http::functions::view_group::ViewDesign;
use crate::report::Checked;

/// Why a group without a design document is left out.
const LEFT_BEHIND: &str = "no design document has these views any more; `_view_cleanup` removes them";

/// The view groups with rows.
#[derive(Default)]
struct Built {
    /// Groups of design documents, with their functions.
    groups: Vec<ViewGroup>,
    /// Names of groups without one, and the reason.
    left_out: Vec<(String, String)>,
}

/// Compares the rows of all view groups with what their functions emit, and adds differences to the report of a
/// database. Calls `progress` with what is compared, and the number of documents so far. Reports which groups were left
/// out.
pub(crate) async fn check(
    functions: &Functions,
    database: &Documents,
    mut report: CheckReport,
    mut progress: impl FnMut(&str, u64),
) -> Result<Checked> {
    let Built { groups, mut left_out } = built(functions, database).await?;
    let (mut compared, mut views_incomplete) = (0, Vec::new());
    for group in groups {
        let what = format!("the views of {:?}", group.name());
        match database.check_built_views(&group, &mut report, |documents| progress(&what, documents)).await {
            Ok(true) => {
                compared += 1;
                views_incomplete.extend(incomplete(database, &group).await?);
            }
            Ok(false) => left_out.push((group.name().to_owned(), "they were updated meanwhile".to_owned())),
            Err(error) if is_left_out(&error) => {
                left_out.push((group.name().to_owned(), error.reason().into_owned()));
            }
            Err(error) => return Err(error),
        }
    }
    let sentence = |(name, reason)| format!("the views of {name:?} were not compared with their functions: {reason}");
    let views_left_out = left_out.into_iter().map(sentence).collect();
    Ok(Checked { view_groups: compared, views_left_out, views_incomplete, ..report.into() })
}

/// Reports how many documents lack rows in a group because of an error: functions fail, or they emit too much. That is
/// not an inconsistency, and queries answer without these rows.
async fn incomplete(database: &Documents, group: &ViewGroup) -> Result<Option<String>> {
    let (mut count, mut first, mut after) = (0, None, None::<String>);
    loop {
        let errors = match database.view_errors(group, after.as_deref()).await {
            // The group was removed meanwhile.
            Err(error) if error.status() == StatusCode::NOT_FOUND => return Ok(None),
            errors => errors?,
        };
        count += errors.len();
        after = errors.last().map(|last| last.id.clone());
        first = first.or(errors.into_iter().next());
        if after.is_none() {
            break;
        }
    }
    Ok(first.map(|first| {
        let (name, ViewError { id, error }) = (group.name(), first);
        format!("the views of {name:?} lack rows of {count} documents because of errors; the first is {id:?}: {error}")
    }))
}

/// Removes the view groups whose rows differ from what their functions emit: the next query rebuilds them. Calls
/// `removed` with the name of each.
pub(crate) async fn repair(functions: &Functions, database: &Documents, mut removed: impl FnMut(&str)) -> Result<()> {
    for group in built(functions, database).await?.groups {
        let mut report = CheckReport::default();
        match database.check_built_views(&group, &mut report, |_| ()).await {
            Err(error) if !is_left_out(&error) => return Err(error),
            _ => {}
        }
        if !report.is_sound() && database.remove_view_group(group.signature()).await? {
            removed(group.name());
        }
    }
    Ok(())
}

/// Whether a group cannot be compared, since its functions fail or a later version wrote its rows. Other groups can
/// still be compared.
fn is_left_out(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Functions(_) | ErrorKind::UnknownFormat(_))
}

async fn built(functions: &Functions, database: &Documents) -> Result<Built> {
    let mut known = HashMap::new();
    match database.view_groups().await {
        Ok(groups) => known.extend(groups.into_iter().map(|group| (group.signature, group))),
        // The check of the database reports it.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt(_) | ErrorKind::UnknownFormat(_)) => {}
        Err(error) => return Err(error),
    }
    let mut built = Built::default();
    if known.is_empty() {
        return Ok(built);
    }
    let mut without = LEFT_BEHIND.to_owned();
    let (start, end) = (Some(DESIGN_PREFIX.to_owned()), Some(DESIGN_END.to_owned()));
    let mut next = Some(AllDocsRequest { start, end, include_docs: true, ..AllDocsRequest::default() });
    while let Some(request) = next {
        let page = database.all_docs(&request).await?;
        for row in page.rows {
            match row.entry {
                AllDocsEntry::Live { doc: Some(document), .. } => {
                    match ViewDesign::of(functions, database, &document) {
                        Ok(ViewDesign { group, .. }) if known.remove(group.signature()).is_some() => {
                            built.groups.push(group)
                        }
                        Err(error) if error.status() == StatusCode::NOT_IMPLEMENTED => {
                            without = error.reason().to_owned()
                        }
                        _ => {}
                    }
                }
                AllDocsEntry::Damaged { error } => without = format!("{} cannot be read: {}", row.id, error.reason()),
                _ => {}
            }
        }
        next = page.next;
    }
    for group in known.into_values() {
        let reason = if group.is_of_design { without.clone() } else { "a program has their functions".to_owned() };
        built.left_out.push((group.name, reason));
    }
    built.left_out.sort();
    Ok(built)
}
