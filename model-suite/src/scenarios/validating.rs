//! `validate_doc_update`: which functions are asked, when, and the state after a refusal.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::chaos::{Chaos, Fault, Rates};
use futures_util::future::join_all;
use kv_api::{AnyDatabase, Counted, Counts, Database, Read, Transaction};
use model::{
    AllDocsRequest, ChangesRequest, ConflictPolicy, CreateOptions, Documents, Edit, Edits, ErrorKind, GetOptions,
    Patch, Purge, Question, Result, RevId, UploadAs, VALIDATE, Validator, Verdict, WriteMode, Writing,
};
use parking_lot::Mutex;

use super::attachments::inline;
use super::relocating::{self, at};
use crate::stage::*;

const DESIGN: &str = r#"{"validate_doc_update":"first"}"#;

/// Refuses documents by their member `bad`, and all of them by the function `none` and in a closed database.
fn judge(question: &Question) -> Result<()> {
    if question.security.get("closed").is_some() || function(question) == "none" {
        return Err(ErrorKind::Forbidden("closed".to_owned()).into());
    }
    match question.new.get("bad").and_then(|bad| bad.as_str()).as_deref() {
        None => Ok(()),
        Some("unauthorized") => Err(ErrorKind::Unauthorized("who".into()).into()),
        Some("broken") => {
            let (error, reason) = ("unknown_error".into(), "broken".to_owned());
            Err(ErrorKind::ValidationFailed { status: 500, error, reason }.into())
        }
        Some(reason) => Err(ErrorKind::Forbidden(reason.to_owned()).into()),
    }
}

/// An action of another client.
type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A validator that records the questions.
#[derive(Clone, Default)]
struct Clerk {
    questions: Arc<Mutex<Vec<Question>>>,
    /// It is done while the first question is asked.
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

impl Clerk {
    fn take(&self) -> Vec<Question> {
        std::mem::take(&mut *self.questions.lock())
    }

    fn take_one(&self) -> Question {
        let mut questions = self.take();
        assert_eq!(questions.len(), 1, "{questions:?}");
        questions.remove(0)
    }

    fn of(&self, documents: &Documents<AnyDatabase>) -> Documents<AnyDatabase> {
        documents.clone().validated_by(Arc::new(self.clone()))
    }

    fn meanwhile(&self, documents: &Documents<AnyDatabase>, edit: Edit) {
        let documents = documents.clone().unvalidated();
        *self.meanwhile.lock() = Some(Box::pin(async move {
            let mode = if edit.history.is_some() { WriteMode::Replicated } else { WriteMode::Interactive };
            documents.write(vec![edit], mode).await.unwrap().remove(0).unwrap();
        }));
    }

    fn meanwhile_secured(&self, documents: &Documents<AnyDatabase>, security: &str) {
        let (documents, security) = (documents.clone(), json(security));
        *self.meanwhile.lock() = Some(Box::pin(async move { documents.set_security(security).await.unwrap() }));
    }
}

impl Validator for Clerk {
    fn ask(&self, question: Question) -> Verdict<'_> {
        self.questions.lock().push(question.clone());
        let meanwhile = self.meanwhile.lock().take();
        Box::pin(async move {
            if let Some(meanwhile) = meanwhile {
                meanwhile.await;
            }
            judge(&question)
        })
    }

    fn admit(&self, design: model::JsonText) -> Verdict<'_> {
        let is_broken = design.get(VALIDATE).is_some_and(|function| function.as_str().as_deref() == Some("broken"));
        Box::pin(std::future::ready(if is_broken {
            Err(ErrorKind::BadDesign { error: "compilation_error", reason: "broken".to_owned() }.into())
        } else {
            Ok(())
        }))
    }
}

fn function(question: &Question) -> String {
    question.design.get(VALIDATE).unwrap().as_str().unwrap().into_owned()
}

fn old(question: &Question) -> &str {
    question.old.as_ref().map_or("null", |old| old.as_str())
}

pub(crate) async fn functions_get_the_documents_as_couchdb_gives_them(stage: Stage) {
    let (clerk, plain) = (Clerk::default(), stage.documents().await);
    let documents = clerk.of(&plain);
    documents.put(edit("before", "{}")).await.unwrap();
    documents.put(edit("_design/d", DESIGN)).await.unwrap();
    documents.put(edit("_design/e", "{}")).await.unwrap();
    documents.put_local("_local/a", None, json("{}")).await.unwrap();
    assert_eq!(clerk.take(), [], "neither design documents nor local ones");
    let broken = documents.put(edit("_design/f", r#"{"validate_doc_update":"broken"}"#)).await.unwrap_err();
    assert_eq!((broken.status(), broken.error()), (400, "compilation_error"));

    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let asked = clerk.take_one();
    assert_eq!((asked.new.as_str(), old(&asked)), (r#"{"_id":"a","n":1}"#, "null"));
    assert_eq!(asked.design.get("_id").unwrap().as_str().as_deref(), Some("_design/d"));
    assert_eq!((function(&asked).as_str(), asked.security.get("admins").is_some()), ("first", true));
    documents.set_security(json(r#"{"mine":1}"#)).await.unwrap();

    let pictured = Edit { attachments: vec![inline("f", "text/plain", "data")], ..edit("a", r#"{"n":2}"#) };
    let second = documents.put(pictured.over(first.clone())).await.unwrap();
    let asked = clerk.take_one();
    let hash = first.hash();
    assert_eq!(asked.security.as_str(), r#"{"mine":1}"#);
    assert_eq!(
        old(&asked),
        format!(r#"{{"_id":"a","_rev":"{first}","n":1,"_revisions":{{"start":1,"ids":["{hash}"]}}}}"#)
    );
    let start =
        format!(r#"{{"_id":"a","_rev":"{first}","n":2,"_revisions":{{"start":1,"ids":["{hash}"]}},"_attachments":"#);
    assert!(asked.new.as_str().starts_with(&start), "{asked:?}");
    let stub = asked.new.get("_attachments").unwrap().get("f").unwrap();
    assert_eq!((stub.get("stub").unwrap().text(), stub.get("length").unwrap().text()), ("true", "4"));

    documents.put(edit("a", "{}").over(second.clone()).deleting()).await.unwrap();
    let asked = clerk.take_one();
    assert!(asked.new.as_str().contains(r#""_deleted":true"#), "{asked:?}");
    assert!(asked.old.as_ref().unwrap().get("_attachments").is_some(), "{asked:?}");
    documents.put(edit("a", r#"{"n":3}"#)).await.unwrap();
    let asked = clerk.take_one();
    assert_eq!((asked.new.as_str(), old(&asked)), (r#"{"_id":"a","n":3}"#, "null"), "created again");

    // A replicated edit has its own revision, and replaces its nearest ancestor that is a leaf.
    merge(&documents, replicated("r", "2-b a", r#"{"n":1}"#)).await;
    let asked = clerk.take_one();
    let new = r#"{"_id":"r","_rev":"2-b","n":1,"_revisions":{"start":2,"ids":["b","a"]}}"#;
    assert_eq!((asked.new.as_str(), old(&asked)), (new, "null"));
    merge(&documents, replicated("r", "4-d c b a", r#"{"n":2}"#)).await;
    assert_eq!(old(&clerk.take_one()), new);
    merge(&documents, replicated("r", "4-d c b a", r#"{"n":2}"#)).await;
    assert_eq!(clerk.take(), [], "a known revision changes nothing");
    merge(&documents, replicated("r", "2-x a", r#"{"n":3}"#)).await;
    assert_eq!(old(&clerk.take_one()), "null", "its ancestor is not a leaf");
    let tombstone = replicated("r", "5-e d", "{}").deleting();
    merge(&documents, tombstone).await;
    assert_eq!(clerk.take().len(), 1);
    merge(&documents, replicated("r", "6-f e", r#"{"n":4}"#)).await;
    assert!(old(&clerk.take_one()).contains(r#""_rev":"5-e","_deleted":true"#), "a replicated edit over a tombstone");
    // Through an edit of the same batch.
    let batch = vec![replicated("r", "7-g f", "{}"), replicated("r", "8-h g", "{}")];
    documents.write(batch, WriteMode::Replicated).await.unwrap().into_iter().for_each(|one| drop(one.unwrap()));
    assert!(old(&clerk.take_one()).contains(r#""_rev":"6-f""#));
    // With a limit of one revision, nothing of the received path is kept.
    plain.set_revs_limit(1).await.unwrap();
    merge(&documents, replicated("r", "9-i h g", "{}")).await;
    assert!(old(&clerk.take_one()).contains(r#""_rev":"8-h""#));
    assert_sound(&plain).await;
}

pub(crate) async fn all_design_documents_with_functions_are_asked_and_no_others(stage: Stage) {
    let (clerk, plain) = (Clerk::default(), stage.documents().await);
    let documents = clerk.of(&plain);
    let design = documents.put(edit("_design/d", DESIGN)).await.unwrap();
    let other = documents.put(edit("_design/c", r#"{"validate_doc_update":"other"}"#)).await.unwrap();
    documents.put(edit("b", "{}")).await.unwrap();
    let functions: Vec<String> = clerk.take().iter().map(function).collect();
    assert_eq!(functions, ["other", "first"]);
    documents.put(edit("c", r#"{"bad":"x"}"#)).await.unwrap_err();
    assert_eq!(clerk.take().len(), 1, "one that refuses is enough");
    // Another revision is asked again, and a deleted one no longer.
    let changed = documents.put(edit("_design/c", r#"{"validate_doc_update":"changed"}"#).over(other)).await.unwrap();
    documents.put(edit("d", "{}")).await.unwrap();
    assert_eq!(function(&clerk.take()[0]), "changed");
    documents.put(edit("_design/c", "{}").over(changed)).await.unwrap();
    documents.put(edit("_design/d", "{}").over(design).deleting()).await.unwrap();
    documents.put(edit("e", r#"{"bad":"x"}"#)).await.unwrap();
    assert_eq!(clerk.take(), []);
    // A replicated design document, whatever its function is.
    merge(&documents, replicated("_design/r", "1-b", r#"{"validate_doc_update":"broken"}"#)).await;
    documents.put(edit("f", r#"{"bad":"x"}"#)).await.unwrap_err();
    assert_eq!(function(&clerk.take_one()), "broken");
    // The winner counts; purging it makes another revision the winner.
    merge(&documents, replicated("_design/r", "1-a", r#"{"validate_doc_update":"loser"}"#)).await;
    documents.put(edit("g", "{}")).await.unwrap();
    assert_eq!(function(&clerk.take_one()), "broken");
    let purge = async |rev_: &str| {
        let purge = Purge { id: "_design/r".into(), revs: vec![rev(rev_)], uuid: None };
        plain.purge(&[purge]).await.unwrap().into_iter().for_each(|one| drop(one.unwrap()));
    };
    purge("1-b").await;
    documents.put(edit("h", "{}")).await.unwrap();
    assert_eq!(function(&clerk.take_one()), "loser");
    // The same revision with another body, after a purge.
    purge("1-a").await;
    merge(&documents, replicated("_design/r", "1-a", r#"{"validate_doc_update":"again"}"#)).await;
    documents.put(edit("i", "{}")).await.unwrap();
    assert_eq!(function(&clerk.take_one()), "again");
    assert_sound(&plain).await;

    for n in 1..model::MAX_VALIDATING {
        documents.put(edit(&format!("_design/{n}"), DESIGN)).await.unwrap();
    }
    let refused = documents.put(edit("_design/more", DESIGN)).await.unwrap_err();
    assert_eq!((refused.status(), refused.error()), (400, "bad_request"));
    documents.put(edit("_design/more", "{}")).await.unwrap();
    let last = get(&plain, "_design/1").await.rev;
    documents.put(edit("_design/1", DESIGN).over(last)).await.unwrap();
    clerk.take();
    documents.put(edit("j", "{}")).await.unwrap();
    assert_eq!(clerk.take().len(), model::MAX_VALIDATING);
    assert_sound(&plain).await;
}

pub(crate) async fn a_refused_edit_writes_nothing_and_leaves_the_others(stage: Stage) {
    let layer = stage.layer().await;
    let plain = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let documents = plain.clone().validated_by(Arc::new(judge));
    documents.put(edit("_design/d", DESIGN)).await.unwrap();
    for (bad, status, error) in
        [("no", 403, "forbidden"), ("unauthorized", 401, "unauthorized"), ("broken", 500, "unknown_error")]
    {
        let refused = documents.put(edit("a", &format!(r#"{{"bad":"{bad}"}}"#))).await.unwrap_err();
        assert_eq!((refused.status(), refused.error()), (status, error));
    }
    let forbidden = |reason: &str| ErrorKind::Forbidden(reason.to_owned());
    assert!(is_missing(&plain, "a").await);
    assert_eq!(feed(&plain, ChangesRequest::default()).await.len(), 1);
    let batch = vec![edit("a", "{}"), edit("b", r#"{"bad":"b"}"#), edit("c", "{}")];
    let results = documents.write(batch, WriteMode::Interactive).await.unwrap();
    assert_eq!(results[1].as_ref().unwrap_err().kind(), &forbidden("b"));
    assert!(results[0].is_ok() && results[2].is_ok());
    assert!(is_missing(&plain, "b").await);

    // Among several leaves of one document, only the bad one is refused.
    let batch = vec![
        replicated("r", "1-a", "{}"),
        replicated("r", "1-b", r#"{"bad":"r"}"#),
        replicated("r", "1-c", r#"{"n":1}"#),
        replicated("s", "1-a", "{}"),
    ];
    let results = documents.write(batch, WriteMode::Replicated).await.unwrap();
    assert_eq!(results.iter().map(Result::is_err).collect::<Vec<_>>(), [false, true, false, false], "{results:?}");
    assert_eq!((get(&plain, "r").await.rev, lost(&plain, "r").await), (rev("1-c"), vec![rev("1-a")]));

    // A transaction is refused as a whole.
    let written = layer.transact(async |edits: Edits<_>| {
        edits.put(&documents, edit("t", "{}"))?;
        edits.put(&documents, edit("u", r#"{"bad":"u"}"#))
    });
    let refused = written.await.unwrap_err();
    let ErrorKind::Refused(all) = refused.kind() else { panic!("{refused:?}") };
    assert_eq!((all.len(), all[0].id.as_str(), all[0].error.kind()), (1, "u", &forbidden("u")));
    assert!(is_missing(&plain, "t").await);

    // A patch, an attachment, a deletion and the end of a conflict are edits.
    let first = get(&plain, "a").await.rev;
    let patched = documents.patch("a", Some(&first), &Patch::merge(json(r#"{"bad":"p"}"#))).await;
    assert_eq!(patched.unwrap_err().kind(), &forbidden("p"));
    let resolved = documents.resolve("r", |_| Ok(json(r#"{"bad":"m"}"#))).await;
    assert_eq!(resolved.unwrap_err().kind(), &forbidden("m"));
    assert_eq!(lost(&plain, "r").await, [rev("1-a")], "the losers stay");
    let bad = plain.clone().unvalidated().put(edit("x", r#"{"bad":"x"}"#)).await.unwrap();
    let attached = documents
        .put(Edit { attachments: vec![inline("f", "x", "y")], ..edit("x", r#"{"bad":"x"}"#) }.over(bad.clone()));
    assert_eq!(attached.await.unwrap_err().kind(), &forbidden("x"));
    let deleted = documents.put(edit("x", r#"{"bad":"d"}"#).over(bad.clone()).deleting()).await;
    assert_eq!(deleted.unwrap_err().kind(), &forbidden("d"));
    assert_eq!(get(&plain, "x").await.rev, bad);
    assert_sound(&plain).await;
}

/// Decides whether the writer may write, and adds to the edit.
struct Doorman {
    /// Refuses everything with this error.
    refusal: Option<ErrorKind>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Validator for Doorman {
    fn authorize<'v>(&'v self, writing: Writing<'v>) -> Option<Verdict<'v>> {
        let kind = match &writing {
            Writing::Announced(_) => "announced",
            Writing::Edit(_, WriteMode::Interactive) => "edit",
            Writing::Edit(_, WriteMode::Replicated) => "replicated",
            Writing::Computed(_) => "computed",
            Writing::Local(_) => "local",
            Writing::Purge => "purge",
        };
        self.asked.lock().push(format!("{kind} {}", writing.id().unwrap_or_default()).trim_end().to_owned());
        Some(Box::pin(async move {
            if let Some(refusal) = &self.refusal {
                return Err(refusal.clone().into());
            }
            if let Writing::Edit(edit, _) = writing {
                edit.body = json(r#"{"stamped":true}"#);
            }
            Ok(())
        }))
    }

    fn ask(&self, _: Question) -> Verdict<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// All methods that write documents. A new one belongs here.
pub(crate) async fn each_way_to_write_asks_who_writes(stage: Stage) {
    let layer = stage.layer().await;
    let plain = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let guarded =
        |refusal: Option<ErrorKind>| plain.clone().validated_by(Arc::new(Doorman { refusal, asked: asked.clone() }));
    let first = plain.put(edit("a", "{}")).await.unwrap();
    merge(&plain, replicated("r", "1-a", "{}")).await;
    merge(&plain, replicated("r", "1-b", r#"{"n":1}"#)).await;
    plain.put_local("_local/a", None, json("{}")).await.unwrap();
    let content = plain.upload("f", UploadAs::Plain { content_type: "x/y" });
    let content = content.finish().await.unwrap();
    let state = async || {
        let all = AllDocsRequest { include_docs: true, ..AllDocsRequest::default() };
        let locals = plain.local_docs(&all).await.unwrap().rows;
        (list(&plain, all).await, locals, feed(&plain, ChangesRequest::default()).await)
    };
    let before = state().await;
    let forbidden = ErrorKind::Forbidden("no".to_owned());
    let documents = guarded(Some(forbidden.clone()));
    let transacted = async |documents: &Documents<AnyDatabase>| {
        let put = layer.transact(async |edits: Edits<_>| edits.put(documents, edit("t", "{}")));
        put.await.map(drop).map_err(|error: model::Error| match error.kind() {
            ErrorKind::Refused(refused) => refused[0].error.clone(),
            _ => error,
        })
    };
    let patch = Patch::merge(json(r#"{"n":1}"#));
    let purge = [Purge { id: "a".into(), revs: vec![first.clone()], uuid: None }];
    let one = |results: Result<Vec<Result<RevId>>>| results?.remove(0).map(drop);
    for (what, refused) in [
        ("edit a", documents.put(edit("a", "{}").over(first.clone())).await.map(drop)),
        ("edit a", documents.put(edit("a", "{}").over(first.clone()).deleting()).await.map(drop)),
        ("replicated n", one(documents.write(vec![replicated("n", "1-a", "{}")], WriteMode::Replicated).await)),
        ("edit _design/d", documents.put(edit("_design/d", "{}")).await.map(drop)),
        ("edit a", documents.put_attachment("a", Some(&first), "f", "x/y", content.clone()).await.map(drop)),
        ("edit n", documents.put_attachment("n", None, "f", "x/y", content.clone()).await.map(drop)),
        ("computed a", documents.patch("a", None, &patch).await.map(drop)),
        ("computed r", documents.resolve("r", |_| Ok(json("{}"))).await.map(drop)),
        ("edit t", transacted(&documents).await),
        ("local _local/b", documents.put_local("_local/b", None, json("{}")).await.map(drop)),
        ("local _local/a", documents.delete_local("_local/a").await),
        ("purge", documents.purge(&purge).await.map(drop)),
        ("purge", documents.purge_deleted(&purge).await.map(drop)),
        ("edit _design/by-n", documents.index().fields(["n"]).create().await.map(drop)),
    ] {
        let asked = asked.lock().remove(0);
        assert_eq!((asked.as_str(), refused.unwrap_err().kind()), (what, &forbidden));
    }
    assert_eq!(*asked.lock(), [""; 0]);
    assert_eq!(state().await, before);

    // A client's error refuses only its document. Any other error ends the write.
    let broken = ErrorKind::ValidationFailed { status: 503, error: "busy".into(), reason: "busy".to_owned() };
    let documents = guarded(Some(broken.clone()));
    let ended = documents.write(vec![edit("x", "{}"), edit("y", "{}")], WriteMode::Interactive).await;
    assert_eq!((ended.unwrap_err().kind(), asked.lock().len()), (&broken, 1));
    assert_eq!(transacted(&documents).await.unwrap_err().kind(), &broken);
    asked.lock().clear();
    assert_eq!(state().await, before);

    // Its additions are stored, and count for the revision.
    let documents = guarded(None);
    let made = documents.put(edit("x", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(made, plain.put(edit("y", r#"{"stamped":true}"#)).await.unwrap());
    transacted(&documents).await.unwrap();
    for id in ["x", "t"] {
        assert_eq!(get(&plain, id).await.body.as_str(), r#"{"stamped":true}"#);
    }
    documents.authorize(Writing::Announced("z")).await.unwrap();
    assert_eq!(asked.lock().pop().unwrap(), "announced z");
    // For programs that write on their own behalf.
    guarded(Some(forbidden)).unvalidated().put(edit("z", "{}")).await.unwrap();
    assert_sound(&plain).await;
}

pub(crate) async fn a_program_that_cannot_ask_writes_design_documents_only(stage: Stage) {
    let documents = stage.documents().await;
    let design = documents.put(edit("_design/d", DESIGN)).await.unwrap();
    let refused = documents.put(edit("a", "{}")).await.unwrap_err();
    assert_eq!((refused.status(), refused.error()), (501, "not_implemented"));
    let results = documents.write(vec![replicated("a", "1-a", "{}")], WriteMode::Replicated).await.unwrap();
    assert_eq!(results[0].as_ref().unwrap_err().kind(), &ErrorKind::NotValidated);
    assert!(is_missing(&documents, "a").await);
    documents.put_local("_local/a", None, json("{}")).await.unwrap();
    documents.clone().unvalidated().put(edit("a", "{}")).await.unwrap();
    let purge = Purge { id: "a".into(), revs: vec![get(&documents, "a").await.rev], uuid: None };
    assert_eq!(documents.purge(&[purge]).await.unwrap()[0].as_ref().unwrap().len(), 1, "a purge is not an edit");
    documents.put(edit("_design/d", "{}").over(design)).await.unwrap();
    documents.put(edit("a", "{}")).await.unwrap();
}

/// In a design document of the language `query`, which needs no function.
pub(crate) async fn selectors_refuse_what_they_do_not_match(stage: Stage) {
    let documents = stage.documents().await;
    let design = |selector: &str| format!(r#"{{"language":"query","validate_doc_update":{selector}}}"#);
    let not_valid = ErrorKind::Forbidden("document is not valid".to_owned());
    for (bad, reason) in [
        ("1", "`validate_doc_update`: Selector error: expected a JSON object"),
        (r#"{"newDoc.a":{"$no":1}}"#, "`validate_doc_update`: Invalid operator: $no"),
    ] {
        let refused = documents.put(edit("_design/d", &design(bad))).await.unwrap_err();
        assert_eq!((refused.status(), refused.error(), &*refused.reason()), (400, "invalid_design_doc", reason));
    }
    // A document has a kind, which never changes.
    let kind = r#"{"newDoc":{"kind":{"$type":"string"}},
        "$or":[{"oldDoc":null},{"oldDoc.kind":"song","newDoc.kind":"song"},{"newDoc._deleted":true}]}"#;
    let listed = documents.put(edit("_design/d", &design(kind))).await.unwrap();
    assert_eq!(documents.put(edit("a", "{}")).await.unwrap_err().kind(), &not_valid);
    let song = documents.put(edit("a", r#"{"kind":"song"}"#)).await.unwrap();
    let other = edit("a", r#"{"kind":"film"}"#).over(song.clone());
    assert_eq!(documents.put(other).await.unwrap_err().kind(), &not_valid);
    let copies = vec![replicated("b", "1-a", "{}"), replicated("c", "1-a", r#"{"kind":"film"}"#)];
    let copied = documents.write(copies, WriteMode::Replicated).await.unwrap();
    assert_eq!((copied[0].as_ref().unwrap_err().kind(), copied[1].is_ok()), (&not_valid, true));
    documents.put(edit("a", r#"{"kind":"x"}"#).over(song).deleting()).await.unwrap();
    // Functions of other design documents are asked too, if there is a validator.
    let function = documents.put(edit("_design/e", DESIGN)).await.unwrap();
    assert_eq!(documents.put(edit("d", r#"{"kind":"x"}"#)).await.unwrap_err().kind(), &ErrorKind::NotValidated);
    let judged = documents.clone().validated_by(Arc::new(judge));
    let refused = judged.put(edit("d", r#"{"kind":"x","bad":"no"}"#)).await.unwrap_err();
    assert_eq!(refused.kind(), &ErrorKind::Forbidden("no".to_owned()));
    assert_eq!(judged.put(edit("d", "{}")).await.unwrap_err().kind(), &not_valid);
    judged.put(edit("d", r#"{"kind":"x"}"#)).await.unwrap();
    documents.put(edit("_design/e", "{}").over(function).deleting()).await.unwrap();
    // A new selector applies from the next edit on. An invalid one, which only replication can bring, refuses
    // everything.
    let listed = documents.put(edit("_design/d", &design(r#"{"newDoc.n":{"$lt":3}}"#)).over(listed)).await.unwrap();
    documents.put(edit("e", r#"{"n":2}"#)).await.unwrap();
    assert_eq!(documents.put(edit("f", r#"{"n":3}"#)).await.unwrap_err().kind(), &not_valid);
    documents.put(edit("_design/d", "{}").over(listed).deleting()).await.unwrap();
    merge(&documents, replicated("_design/r", "1-a", &design(r#"{"newDoc.a":{"$no":1}}"#))).await;
    let refused = documents.put(edit("g", "{}")).await.unwrap_err();
    let reason = "_design/r: Invalid operator: $no";
    assert_eq!((refused.status(), refused.error(), &*refused.reason()), (500, "invalid_operator", reason));
    assert_sound(&documents).await;
}

/// An edit that passed old rules is judged again if they change before the commit, and is not written.
pub(crate) async fn rules_that_change_before_the_commit_refuse_the_edit(stage: Stage) {
    let (clerk, layer) = (Clerk::default(), stage.layer().await);
    let plain = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let open = r#"{"mine":1}"#;
    // The first round finds no functions before its transaction, so it asks them inside.
    let documents = clerk.of(&layer.database("db").await.unwrap());
    plain.put(edit("_design/d", DESIGN)).await.unwrap();
    for round in 0..8 {
        plain.set_security(json(open)).await.unwrap();
        let by_function = round % 2 == 1;
        match by_function {
            true => clerk.meanwhile(&plain, edit("_design/e", r#"{"validate_doc_update":"none"}"#)),
            false => clerk.meanwhile_secured(&plain, r#"{"closed":true}"#),
        }
        let forbidden = ErrorKind::Forbidden("closed".to_owned());
        match round {
            0..4 => assert_eq!(documents.put(edit("a", "{}")).await.unwrap_err().kind(), &forbidden, "{round}"),
            4 | 5 => {
                let batch = vec![replicated("a", "1-a", "{}"), replicated("b", "1-b", "{}")];
                for refused in documents.write(batch, WriteMode::Replicated).await.unwrap() {
                    assert_eq!(refused.unwrap_err().kind(), &forbidden, "{round}");
                }
            }
            _ => {
                let written = layer.transact(async |edits: Edits<_>| edits.put(&documents, edit("a", "{}")));
                let refused = written.await.unwrap_err();
                let ErrorKind::Refused(all) = refused.kind() else { panic!("{refused:?}") };
                assert_eq!((all.len(), all[0].error.kind()), (1, &forbidden), "{round}");
            }
        }
        let asked = clerk.take();
        let (first, last) = (&asked[0], &asked[asked.len() - 1]);
        assert_eq!((function(first).as_str(), first.security.as_str()), ("first", open), "{round}");
        match by_function {
            true => assert_eq!(function(last), "none", "{round}"),
            false => assert_eq!(last.security.as_str(), r#"{"closed":true}"#, "{round}"),
        }
        assert!(is_missing(&plain, "a").await && is_missing(&plain, "b").await, "{round}");
        if by_function {
            let rev = get(&plain, "_design/e").await.rev;
            plain.put(edit("_design/e", "{}").over(rev).deleting()).await.unwrap();
        }
    }
    plain.set_security(json(open)).await.unwrap();
    documents.put(edit("a", "{}")).await.unwrap();
    assert_sound(&plain).await;
}

pub(crate) async fn a_verdict_holds_for_the_parent_and_the_functions_at_the_commit(stage: Stage) {
    let (clerk, layer) = (Clerk::default(), stage.layer().await);
    let plain = layer.create_database("db", CreateOptions::default()).await.unwrap();
    plain.put(edit("_design/d", DESIGN)).await.unwrap();
    // Functions are asked inside the transaction at first, and before it once the handle knows that they exist.
    for (before, after) in [("first", "second"), ("second", "third")] {
        let rev = get(&plain, "_design/d").await.rev;
        let change = edit("_design/d", &format!(r#"{{"validate_doc_update":"{after}"}}"#)).over(rev);
        let documents = clerk.of(&layer.database("db").await.unwrap());
        if before == "second" {
            documents.put(edit("seen", "{}")).await.unwrap();
            clerk.take();
        }
        clerk.meanwhile(&plain, change);
        documents.put(edit(before, "{}")).await.unwrap();
        let functions: Vec<String> = clerk.take().iter().map(function).collect();
        assert_eq!(functions, [before, after]);
    }
    let documents = clerk.of(&plain);
    documents.put(edit("seen again", "{}")).await.unwrap();
    clerk.take();
    // The parent moves: a replicated edit finds another one.
    merge(&documents, replicated("r", "1-a", r#"{"n":1}"#)).await;
    clerk.take();
    clerk.meanwhile(&plain, replicated("r", "2-b a", r#"{"n":2}"#));
    merge(&documents, replicated("r", "3-c b a", r#"{"n":3}"#)).await;
    let olds: Vec<String> =
        clerk.take().iter().map(|one| one.old.as_ref().unwrap().get("_rev").unwrap().text().to_owned()).collect();
    assert_eq!(olds, [r#""1-a""#, r#""2-b""#]);
    // The function is added while no other function refuses the edit. It refuses edits from before its own commit.
    clerk.meanwhile(&plain, edit("_design/e", r#"{"validate_doc_update":"more"}"#));
    documents.put(edit("e", "{}")).await.unwrap();
    assert_eq!(clerk.take().iter().map(function).collect::<Vec<_>>(), ["third", "third", "more"]);
    // Edits whose parent did not change are not asked about again.
    clerk.meanwhile(&plain, edit("_design/f", r#"{"language":"query"}"#));
    documents.put(edit("b", "{}")).await.unwrap();
    assert_eq!(clerk.take().len(), 2);
    // An interactive edit whose parent is gone conflicts.
    let first = documents.put(edit("c", "{}")).await.unwrap();
    clerk.meanwhile(&plain, edit("c", r#"{"n":1}"#).over(first.clone()));
    let refused = documents.put(edit("c", r#"{"n":2}"#).over(first)).await.unwrap_err();
    assert_eq!(refused.kind(), &ErrorKind::Conflict);
    assert_sound(&plain).await;
}

pub(crate) async fn no_edit_gets_past_a_function_that_was_there_before_it(stage: Stage) {
    for seed in 0..4 {
        let chaos = Chaos::new(stage.engine(), seed, Rates::retryable(0.05));
        let layer = layer(chaos).await;
        let name = format!("db{seed}");
        let documents = layer.create_database(&name, CreateOptions::default()).await.unwrap();
        let documents = documents.validated_by(Arc::new(judge));
        let (written, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let writers = (0..6).map(|writer| {
            let (documents, written, refused) = (&documents, &written, &refused);
            async move {
                for n in 0..8 {
                    let id = format!("{writer}-{n}");
                    let edit = match writer % 2 {
                        0 => edit(&id, r#"{"bad":"x"}"#),
                        _ => replicated(&id, "1-a", r#"{"bad":"x"}"#),
                    };
                    let mode = if writer % 2 == 0 { WriteMode::Interactive } else { WriteMode::Replicated };
                    if writer == 0 && n == 3 {
                        documents.put(self::edit("_design/d", DESIGN)).await.unwrap();
                    }
                    match documents.write(vec![edit], mode).await.unwrap().remove(0) {
                        Ok(_) => written.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert_eq!(error.kind(), &ErrorKind::Forbidden("x".into()), "seed {seed}");
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            }
        });
        join_all(writers).await;
        let changes = feed(&documents, ChangesRequest::default()).await;
        assert_eq!(changes.last().unwrap().id, "_design/d", "seed {seed}: nothing came behind the function");
        assert_eq!(changes.len(), written.into_inner() + 1, "seed {seed}");
        assert!(refused.into_inner() >= 5, "seed {seed}");
        let sound = self::layer(stage.engine()).await.database(&name).await.unwrap();
        assert_sound(&sound).await;
    }
}

pub(crate) async fn a_write_of_unknown_result_is_validated_and_done_once(stage: Stage) {
    let (clerk, plain) = (Clerk::default(), stage.documents().await);
    plain.put(edit("_design/d", DESIGN)).await.unwrap();
    for (n, fault) in [Fault::UnknownCommitted, Fault::UnknownNotCommitted].into_iter().enumerate() {
        let chaos = Chaos::scripted(stage.engine(), [fault, fault, Fault::NotCommitted, fault].map(Some));
        let documents = layer(chaos).await.database("db").await.unwrap().validated_by(Arc::new(clerk.clone()));
        let made = documents.put(edit(&format!("doc{n}"), "{}")).await.unwrap();
        assert_eq!((made.position(), get(&plain, &format!("doc{n}")).await.rev), (1, made.clone()));
        assert_eq!(clerk.take().len(), 1, "the verdict holds for all attempts");
        let refused = documents.put(edit("bad", r#"{"bad":"x"}"#)).await.unwrap_err();
        assert_eq!(refused.kind(), &ErrorKind::Forbidden("x".into()));
        clerk.take();
    }
    assert!(is_missing(&plain, "bad").await);
    assert_eq!(feed(&plain, ChangesRequest::default()).await.len(), 3);
}

pub(crate) async fn databases_without_functions_pay_nothing(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let plain = database(counted.clone()).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let documents = plain.clone().validated_by(Arc::new(move |_: &Question| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }));
    let costs = async |documents: &Documents<_>, id: &str| {
        counted.take();
        let first = documents.put(edit(id, r#"{"n":1}"#)).await.unwrap();
        documents.put(edit(id, r#"{"n":2}"#).over(first)).await.unwrap();
        // Bytes differ: transaction ids are random, and their zeros take two bytes.
        let counts = counted.take().into_iter().map(|counts| Counts { bytes_written: 0, ..counts });
        counts.collect::<Vec<_>>()
    };
    costs(&plain, "warm").await;
    let without = costs(&plain, "a").await;
    assert_eq!(costs(&documents, "b").await, without);
    let design = plain.put(edit("_design/d", DESIGN)).await.unwrap();
    assert_ne!(costs(&documents, "c").await, without, "the parent is read");
    assert_eq!(asked.swap(0, Ordering::Relaxed), 2);
    // A list that is empty again costs its few bytes in the row that is read anyway.
    plain.put(edit("_design/d", "{}").over(design).deleting()).await.unwrap();
    costs(&documents, "warm again").await;
    let after = costs(&documents, "e").await;
    assert_eq!(after.len(), without.len());
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

pub(crate) async fn the_list_of_functions_is_checked_and_mended_and_moves_along(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    let plain = source.create_database("db", CreateOptions::default()).await.unwrap();
    let key = [b"a", &[0x15, 4, 0x14, 0x14][..]].concat();
    let row = || async { engine.begin().unwrap().get(&key, Read::Snapshot).await.unwrap().unwrap() };
    let before = row().await;
    plain.put(edit("_design/d", DESIGN)).await.unwrap();
    plain.put(edit("_design/e", DESIGN)).await.unwrap();
    assert_ne!(row().await, before);
    // The state that a program without validation leaves.
    let transaction = engine.begin().unwrap();
    transaction.set(&key, before);
    transaction.commit().await.unwrap();
    plain.put(edit("a", r#"{"bad":"x"}"#)).await.unwrap();
    let report = plain.check(|_| ()).await.unwrap();
    let found: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains(r#""_design/d""#) && found[0].contains(VALIDATE), "{found:?}");
    plain.repair(|_| ()).await.unwrap();
    assert_sound(&plain).await;
    assert_eq!(plain.put(edit("b", "{}")).await.unwrap_err().kind(), &ErrorKind::NotValidated);

    relocating::run(&source, &target, relocating::options(true), relocating::go_on).await.unwrap();
    let moved = target.database("db").await.unwrap();
    assert_eq!(moved.put(edit("b", "{}")).await.unwrap_err().kind(), &ErrorKind::NotValidated);
    moved.clone().validated_by(Arc::new(judge)).put(edit("b", "{}")).await.unwrap();
    assert_sound(&moved).await;
}

/// The list is in one value, and FoundationDB's have 100,000 bytes at most.
pub(crate) async fn ids_of_functions_have_a_bound(stage: Stage) {
    let documents = stage.documents().await;
    let id = |n: usize| format!("_design/{n:02}{}", "x".repeat(2_000 - 10));
    let fit = model::MAX_VALIDATING_BYTES / 2_000;
    for n in 0..fit {
        documents.put(edit(&id(n), DESIGN)).await.unwrap();
    }
    let refused = documents.put(edit(&id(fit), DESIGN)).await.unwrap_err();
    assert_eq!((refused.status(), refused.error()), (400, "bad_request"));
    let copied = replicated(&id(fit), "1-a", DESIGN);
    let refused = documents.write(vec![copied], WriteMode::Replicated).await.unwrap().remove(0).unwrap_err();
    assert_eq!((refused.status(), refused.error()), (400, "bad_request"));
    let first = get(&documents, &id(0)).await.rev;
    let first = documents.put(edit(&id(0), DESIGN).over(first)).await.unwrap();
    documents.put(edit(&id(0), "{}").over(first)).await.unwrap();
    documents.put(edit(&id(fit), DESIGN)).await.unwrap();
    assert_sound(&documents).await;
}

pub(crate) async fn where_the_last_write_wins_the_function_sees_what_is_replaced(stage: Stage) {
    let clerk = Clerk::default();
    let options = CreateOptions { conflicts: ConflictPolicy::LastWriteWins, ..CreateOptions::default() };
    let plain = stage.layer().await.create_database("db", options).await.unwrap();
    let documents = clerk.of(&plain);
    documents.put(edit("_design/d", DESIGN)).await.unwrap();
    merge(&documents, replicated("r", "1-a", r#"{"n":1}"#)).await;
    assert_eq!(old(&clerk.take_one()), "null");
    // It shares no history with the leaf that it replaces.
    merge(&documents, replicated("r", "3-x", r#"{"n":2}"#)).await;
    assert!(old(&clerk.take_one()).contains(r#""_rev":"1-a""#));
    let options = GetOptions::default();
    assert_eq!(plain.get("r", &options).await.unwrap().rev, rev("3-x"));
    assert_sound(&plain).await;
}
