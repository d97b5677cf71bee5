//! A client that follows a database, through kills of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use reqwest::Method;
use serde_json::Value;

use crate::client::{Lie, Run};
use crate::writer::{DOCUMENTS, generation};

pub(crate) struct Feed {
    pub(crate) number: usize,
    pub(crate) database: String,
    /// Number of databases: writer `n` writes in database `n % databases`.
    databases: usize,
    /// The newest generation that it was shown, by [`Feed::place`].
    seen: Vec<AtomicU32>,
}

impl Feed {
    pub(crate) fn new(number: usize, database: String, databases: usize, writers: usize) -> Feed {
        let places = writers.div_ceil(databases) * DOCUMENTS;
        let seen = std::iter::repeat_with(AtomicU32::default).take(places).collect();
        Feed { number, database, databases, seen }
    }

    fn place(&self, writer: usize, document: usize) -> usize {
        writer / self.databases * DOCUMENTS + document
    }

    pub(crate) fn seen(&self, writer: usize, document: usize) -> u32 {
        self.seen[self.place(writer, document)].load(Ordering::Relaxed)
    }

    /// Follows the database for ever. Every fourth feed is a long poll.
    pub(crate) async fn follow(self: Arc<Self>, run: Arc<Run>) {
        let mut since = "0".to_owned();
        let is_long_poll = self.number % 4 == 3;
        let (kind, feed) = if is_long_poll { ("long poll", "longpoll") } else { ("feed", "continuous") };
        loop {
            let (epoch, begun) = (run.epoch(), Instant::now());
            let path = format!("/{}/_changes?feed={feed}&heartbeat=10000&since={since}", self.database);
            let Some(mut answer) = run.begin(kind, epoch, run.request(Method::GET, &path)).await else { continue };
            if answer.status() != 200 {
                return run.problem(format!("{kind} {path}: {}", answer.status()));
            }
            if !is_long_poll {
                run.answered(kind, begun);
            }
            let mut read = Vec::new();
            let ended = loop {
                match answer.chunk().await {
                    Ok(Some(chunk)) => read.extend_from_slice(&chunk),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
                let Some(end) = memchr::memrchr(b'\n', &read).filter(|_| !is_long_poll) else { continue };
                for line in read.drain(..=end).as_slice().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    match serde_json::from_slice::<Value>(line) {
                        Ok(row) => self.row(&run, &row, &mut since),
                        Err(error) => run.problem(format!("{kind} of {}: {error}", self.database)),
                    }
                }
            };
            match (ended, is_long_poll) {
                (Err(error), _) => run.broken(kind, epoch, &format!("{error:?}")),
                (Ok(()), false) => run.broken(kind, epoch, "it ended"),
                (Ok(()), true) => match serde_json::from_slice::<Value>(&read) {
                    Ok(answer) => {
                        answer["results"]
                            .as_array()
                            .into_iter()
                            .flatten()
                            .for_each(|row| self.row(&run, row, &mut since));
                        run.answered(kind, begun);
                    }
                    Err(error) => run.problem(format!("{kind} of {}: {error}", self.database)),
                },
            }
        }
    }

    fn row(&self, run: &Run, row: &Value, since: &mut String) {
        let (Some(id), Some(rev), Some(seq)) =
            (row["id"].as_str(), row["changes"][0]["rev"].as_str(), row["seq"].as_str())
        else {
            return run.problem(format!("a row of a feed of {}: {row}", self.database));
        };
        seq.clone_into(since);
        run.rows.fetch_add(1, Ordering::Relaxed);
        // All others are design documents.
        let Some((writer, document)) = id.strip_prefix('w').and_then(|rest| rest.split_once('-')) else { return };
        let (Ok(writer), Ok(document)) = (writer.parse(), document.parse()) else { return };
        if run.lie == Some(Lie::DroppedRows) && self.number == 0 && document == 0 {
            return;
        }
        // A crash takes nothing back that a feed was shown.
        let before = self.seen[self.place(writer, document)].swap(generation(rev), Ordering::Relaxed);
        if before > generation(rev) {
            run.problem(format!("feed {} of {}: {id} went back from {before} to {rev}", self.number, self.database));
        }
    }
}
