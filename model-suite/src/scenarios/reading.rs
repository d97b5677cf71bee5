//! Reading leaves, histories and differences.

use kv_api::Database;
use model::{BulkGet, Document, Documents, GetOptions, OpenRev, OpenRevs, RevId, RevStatus};

use crate::stage::*;

async fn tree<D: Database>(documents: &Documents<D>) {
    merge(documents, replicated("a", "3-c b a", r#"{"at":"c"}"#)).await;
    merge(documents, replicated("a", "3-d b a", r#"{"at":"d"}"#)).await;
    merge(documents, replicated("a", "4-e c b a", r#"{"at":"e"}"#).deleting()).await;
    merge(documents, replicated("a", "2-f a", "{}").deleting()).await;
}

fn found(answer: &OpenRev) -> &Document {
    match answer {
        OpenRev::Found(document) => document,
        OpenRev::Missing(rev) => panic!("{rev} is missing"),
    }
}

fn name(answer: &OpenRev) -> String {
    match answer {
        OpenRev::Found(document) => document.rev.to_string(),
        OpenRev::Missing(rev) => format!("no {rev}"),
    }
}

pub(crate) async fn leaves_are_read_by_their_revisions(stage: Stage) {
    let documents = stage.documents().await;
    tree(&documents).await;
    let open = async |which: OpenRevs, latest: bool| {
        let options = GetOptions { latest, revs: true, ..GetOptions::default() };
        documents.open_revs("a", &which, &options).await.unwrap()
    };
    let these = |revs: &[&str]| OpenRevs::These(revs.iter().map(|text| rev(text)).collect());
    let all = open(OpenRevs::All, false).await;
    assert_eq!(all.iter().map(name).collect::<Vec<_>>(), ["3-d", "4-e", "2-f"]);
    assert_eq!(found(&all[1]).body.as_str(), r#"{"at":"e"}"#);
    assert!(found(&all[2]).deleted);

    let some = open(these(&["2-f", "3-c", "3-d", "4-e", "9-x"]), false).await;
    assert_eq!(some.iter().map(name).collect::<Vec<_>>(), ["2-f", "no 3-c", "3-d", "4-e", "no 9-x"]);
    assert_eq!(found(&some[3]).revisions.as_ref().unwrap().ids.len(), 4);
    assert_eq!(found(&some[2]).revisions.as_ref().unwrap().ids.len(), 3);
    let latest = open(these(&["2-b"]), true).await;
    assert_eq!(latest.iter().map(name).collect::<Vec<_>>(), ["3-d", "4-e"]);
    let latest = open(these(&["3-c", "3-d", "1-a", "1-x"]), true).await;
    assert_eq!(latest.iter().map(name).collect::<Vec<_>>(), ["4-e", "3-d", "2-f", "no 1-x"]);
    assert_eq!(found(&latest[1]).body.as_str(), r#"{"at":"d"}"#);

    let get = async |at: &str, latest: bool| {
        let options = GetOptions { rev: Some(rev(at)), latest, ..GetOptions::default() };
        documents.get("a", &options).await.map(|document| document.rev.to_string())
    };
    assert_eq!(get("3-d", false).await.unwrap(), "3-d");
    assert_eq!(get("4-e", false).await.unwrap(), "4-e");
    assert_eq!(get("2-b", false).await.unwrap_err().reason(), "missing");
    assert_eq!(get("2-b", true).await.unwrap(), "3-d");
    assert_eq!(get("3-c", true).await.unwrap(), "4-e");

    let bulk = |id: &str, at: Option<&str>| BulkGet { id: id.to_owned(), rev: at.map(rev) };
    let requests = vec![bulk("a", Some("3-d")), bulk("ghost", None), bulk("a", None), bulk("a", Some("1-a"))];
    let many = documents.get_many(requests.clone(), &GetOptions::default()).await.unwrap();
    let names: Vec<Vec<String>> =
        many.iter().map(|(_, answers)| answers.as_ref().unwrap().iter().map(name).collect()).collect();
    assert_eq!(names, [vec!["3-d"], vec![], vec!["3-d", "4-e", "2-f"], vec!["no 1-a"]]);
    let options = GetOptions { latest: true, ..GetOptions::default() };
    let many = documents.get_many(requests, &options).await.unwrap();
    assert_eq!(many[3].1.as_ref().unwrap().iter().map(name).collect::<Vec<_>>(), ["3-d", "4-e", "2-f"]);
}

pub(crate) async fn histories_conflicts_and_sequences_are_read_beside_the_body(stage: Stage) {
    let documents = stage.documents().await;
    tree(&documents).await;
    let plain = get(&documents, "a").await;
    assert_eq!((&plain.revisions, &plain.conflicts, &plain.revs_info), (&None, &None, &None));
    let document = documents.get("a", &all_members()).await.unwrap();
    assert_eq!(document.rev, rev("3-d"));
    assert_eq!((document.revisions.unwrap().position, document.conflicts), (3, None));
    assert_eq!(document.deleted_conflicts.unwrap(), [rev("4-e"), rev("2-f")]);
    assert_eq!(document.local_seq.unwrap(), documents.last_seq().await.unwrap());
    let infos: Vec<(String, RevStatus)> =
        document.revs_info.unwrap().into_iter().map(|info| (info.rev.to_string(), info.status)).collect();
    let expected = [("3-d", RevStatus::Available), ("2-b", RevStatus::Missing), ("1-a", RevStatus::Missing)];
    assert_eq!(infos, expected.map(|(rev, status)| (rev.to_owned(), status)));

    // A large document after small ones, read in reverse over several batches.
    let large = format!(r#"{{"a":[{}1]}}"#, r#""some text","#.repeat(10_000));
    for (path, body) in [("1-a", "{}"), ("1-b", &*large), ("1-c", r#"{"small":1}"#)] {
        merge(&documents, replicated("large", path, body)).await;
    }
    assert_eq!(get(&documents, "large").await.body.as_str(), r#"{"small":1}"#);
    documents.put(edit("large", "{}").over(rev("1-c")).deleting()).await.unwrap();
    assert_eq!(get(&documents, "large").await.body, json(&large));
}

pub(crate) async fn revs_diff_names_what_is_missing(stage: Stage) {
    let documents = stage.documents().await;
    tree(&documents).await;
    let revs = |list: &[&str]| list.iter().map(|text| rev(text)).collect::<Vec<RevId>>();
    let wanted = vec![
        ("a".to_owned(), revs(&["3-c", "1-a", "2-f"])),
        ("a".to_owned(), revs(&["4-x", "3-d", "3-y", "4-x"])),
        ("ghost".to_owned(), revs(&["1-a"])),
        ("a".to_owned(), revs(&[])),
    ];
    let diffs = documents.revs_diff(wanted).await.unwrap();
    assert_eq!(diffs.len(), 2);
    assert_eq!((diffs[0].id.as_str(), &diffs[0].missing), ("a", &revs(&["4-x", "3-y"])));
    assert_eq!(diffs[0].possible_ancestors, revs(&["2-f", "3-d"]));
    assert_eq!((diffs[1].id.as_str(), &diffs[1].missing), ("ghost", &revs(&["1-a"])));
    assert_eq!(diffs[1].possible_ancestors, []);
}
