//! The job exists exactly as long as a database has an index to build.

use jobs::{Accepted, Hold, Job, JobState, Priority, Server};
use kv_api::Database;
use model::{BUILD_JOBS, CreateOptions, Documents, ErrorKind, WriteMode};

use super::index_oracle::{VIEWS, assert_agrees, design};
use super::jobs::server;
use crate::stage::*;

async fn job<D: Database>(documents: &Documents<D>) -> Option<Job> {
    documents.jobs().get(&documents.build_job()).await.unwrap()
}

async fn state<D: Database>(documents: &Documents<D>) -> Option<JobState> {
    job(documents).await.map(|job| job.state)
}

async fn accept<D: Database>(server: &mut Server<D>) -> (Job, Hold) {
    match server.accept(BUILD_JOBS, 0).await.unwrap() {
        Accepted::Job(job, hold) => (*job, hold),
        Accepted::Nothing { .. } => panic!("there is no job"),
    }
}

/// Writes documents `d0`, `d1` …
async fn fill<D: Database>(documents: &Documents<D>, count: usize) {
    let edits = (0..count).map(|n| edit(&format!("d{n}"), &format!(r#"{{"a":{n},"b":1}}"#))).collect();
    for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
}

pub(crate) async fn an_index_comes_with_its_job_and_the_job_ends_with_the_build(stage: Stage) {
    let documents = stage.documents().await;
    fill(&documents, 10).await;
    assert_eq!(job(&documents).await, None);
    documents.put(edit("_design/js", r#"{"views":{"v":{"map":"function(doc) {}"}}}"#)).await.unwrap();
    assert_eq!(job(&documents).await, None, "it has no index");
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let pending = job(&documents).await.unwrap();
    assert_eq!((pending.state, &pending.data[..]), (JobState::Pending, &br#"{"task":{"database":"db"}}"#[..]));

    // One server begins, and another one continues from there.
    let jobs = documents.jobs();
    let (mut here, mut there) = (server(&jobs, 1), server(&jobs, 2));
    let (found, first) = accept(&mut here).await;
    assert_eq!(found.id, documents.build_job());
    let progress = documents.build_indexes_batch(4, Some(&first)).await.unwrap().unwrap();
    assert_eq!((progress.documents, progress.done), (4, false));
    here.close().await.unwrap();
    let (_, second) = accept(&mut there).await;
    let late = documents.build_indexes_batch(4, Some(&first)).await.unwrap_err();
    assert_eq!(*late.kind(), ErrorKind::JobLost);
    let progress = documents.build_indexes_batch(4, Some(&second)).await.unwrap().unwrap();
    assert_eq!((progress.documents, progress.done), (8, false), "the late batch wrote nothing");
    assert_eq!(state(&documents).await, Some(JobState::Running));
    let progress = documents.build_indexes_batch(100, Some(&second)).await.unwrap().unwrap();
    assert_eq!((progress.documents, progress.done), (12, true));
    assert_eq!(job(&documents).await, None, "the last batch removed it");
    assert!(jobs.running().await.unwrap().is_empty());
    let over = documents.build_indexes_batch(4, Some(&second)).await.unwrap_err();
    assert_eq!(*over.kind(), ErrorKind::JobLost);
    assert_agrees(&documents, "built").await;
}

pub(crate) async fn the_job_goes_with_the_last_index_that_is_to_be_built(stage: Stage) {
    let documents = stage.documents().await;
    fill(&documents, 5).await;
    // A design document that comes by replication.
    merge(&documents, replicated("_design/x", "1-a", &design(&VIEWS[..1]))).await;
    assert_eq!(state(&documents).await, Some(JobState::Pending));
    documents.put(edit("_design/x", "{}").over(rev("1-a")).deleting()).await.unwrap();
    assert_eq!(job(&documents).await, None);

    let first = documents.put(edit("_design/x", &design(&VIEWS[1..3]))).await.unwrap();
    let mut server = server(&documents.jobs(), 1);
    let (_, hold) = accept(&mut server).await;
    documents.build_indexes_batch(2, Some(&hold)).await.unwrap();
    // One index is deleted: the run may continue. Another one is added: the job is requested again.
    let second = documents.put(edit("_design/x", &design(&VIEWS[2..3])).over(first)).await.unwrap();
    assert!(!job(&documents).await.unwrap().is_resubmitted);
    let third = documents.put(edit("_design/x", &design(&VIEWS[2..4])).over(second)).await.unwrap();
    assert!(job(&documents).await.unwrap().is_resubmitted);
    documents.jobs().finish_and_remove(&hold).await.unwrap();
    assert_eq!(state(&documents).await, Some(JobState::Pending));
    // A caller builds without the job.
    documents.build_indexes(|_| ()).await.unwrap();
    assert_eq!(job(&documents).await, None);

    documents.put(edit("_design/x", &design(&VIEWS[4..5])).over(third)).await.unwrap();
    let (_, hold) = accept(&mut server).await;
    let layer = stage.layer().await;
    layer.delete_database("db").await.unwrap();
    assert_eq!(job(&documents).await, None, "its database is dropped");
    let gone = documents.build_indexes_batch(1, Some(&hold)).await.unwrap_err();
    assert!(gone.status() == 404, "{gone}");
    let other = layer.create_database("db", CreateOptions::default()).await.unwrap();
    assert_eq!(job(&other).await, None);
}

pub(crate) async fn a_build_that_nobody_is_at_is_asked_for_once(stage: Stage) {
    let documents = stage.documents().await;
    documents.request_build().await.unwrap();
    assert_eq!(job(&documents).await, None, "there is nothing to build");
    fill(&documents, 3).await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let jobs = documents.jobs();
    // The state after a program removed the job.
    assert!(jobs.remove(&documents.build_job()).await.unwrap());
    documents.request_build().await.unwrap();
    let asked = job(&documents).await.unwrap();
    documents.request_build().await.unwrap();
    assert_eq!(job(&documents).await.unwrap(), asked);

    let mut server = server(&jobs, 1);
    let (running, hold) = accept(&mut server).await;
    documents.request_build().await.unwrap();
    assert_eq!(job(&documents).await.unwrap(), running, "somebody is at it");
    // It failed, and is scheduled for much later.
    jobs.resubmit(&hold, u64::MAX).await.unwrap();
    documents.request_build().await.unwrap();
    let (_, hold) = accept(&mut server).await;
    jobs.finish(&hold, None, 0).await.unwrap();
    documents.request_build().await.unwrap();
    let (_, hold) = accept(&mut server).await;
    assert!(documents.build_indexes_batch(9, Some(&hold)).await.unwrap().unwrap().done);
    documents.request_build().await.unwrap();
    assert_eq!(job(&documents).await, None);
}

pub(crate) async fn a_build_is_in_the_background_until_somebody_waits_for_it(stage: Stage) {
    let documents = stage.documents().await;
    fill(&documents, 3).await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let priority = async || job(&documents).await.unwrap().priority;
    documents.request_build().await.unwrap();
    assert_eq!(priority().await, Priority::Low);
    let jobs = documents.jobs();
    let mut server = server(&jobs, 1);
    let (_, hold) = accept(&mut server).await;
    assert!(!job(&documents).await.unwrap().is_resubmitted);

    // A run is told to stop, and the next one has the other priority.
    documents.request_build_soon().await.unwrap();
    let raised = job(&documents).await.unwrap();
    assert_eq!((raised.priority, raised.is_resubmitted), (Priority::Normal, true));
    documents.request_build().await.unwrap();
    assert_eq!(job(&documents).await.unwrap(), raised, "who does not wait changes nothing");
    jobs.resubmit(&hold, u64::MAX).await.unwrap();
    let (again, hold) = accept(&mut server).await;
    assert_eq!(again.priority, Priority::Normal);

    // Somebody may wait for an earlier index while another one is defined.
    let layer = stage.layer().await.in_background();
    let quiet = layer.database("db").await.unwrap();
    quiet.put(edit("_design/y", &design(&VIEWS[1..2]))).await.unwrap();
    assert_eq!(priority().await, Priority::Low);
    documents.request_build_soon().await.unwrap();
    assert_eq!(priority().await, Priority::Normal);
    jobs.resubmit(&hold, 0).await.unwrap();
    let (_, hold) = accept(&mut server).await;
    // The two handles see each other's work.
    while !quiet.build_indexes_batch(1, Some(&hold)).await.unwrap().is_none_or(|progress| progress.done) {}
    assert_eq!(job(&documents).await, None);
    assert!(documents.indexes().await.unwrap().iter().all(|index| index.active));
    assert_agrees(&documents, "built by two handles").await;
}
