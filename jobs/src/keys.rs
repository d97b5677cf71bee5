//! The keys of a registry, which are tuples in FoundationDB's encoding.

use bytes::Bytes;
use foundationdb_tuple::{TuplePack, pack, pack_into};
use kv_api::RangeRequest;

use crate::error::{Error, Result};
use crate::job::{JobId, Priority, Token};
use crate::row::{LeaseId, Reader};

const JOB: u64 = 0;
const DATA: u64 = 1;
const PROGRESS: u64 = 2;
const QUEUE: u64 = 3;
const NEWS: u64 = 4;
const LEASE: u64 = 5;
const HELD: u64 = 6;
const NAME: u64 = 7;

/// The keys of a registry, under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys(Bytes);

impl Keys {
    pub(crate) fn new(prefix: Bytes) -> Self {
        Keys(prefix)
    }

    fn key(&self, tuple: &impl TuplePack) -> Vec<u8> {
        let mut key = self.0.to_vec();
        pack_into(tuple, &mut key);
        key
    }

    pub(crate) fn job(&self, id: &JobId) -> Vec<u8> {
        self.key(&(JOB, &id.kind, &id.id))
    }

    pub(crate) fn data(&self, id: &JobId) -> Vec<u8> {
        self.key(&(DATA, &id.kind, &id.id))
    }

    pub(crate) fn progress(&self, id: &JobId) -> Vec<u8> {
        self.key(&(PROGRESS, &id.kind, &id.id))
    }

    pub(crate) fn queued(&self, id: &JobId, priority: Priority, scheduled_ms: u64) -> Vec<u8> {
        self.key(&(QUEUE, &id.kind, priority.number(), scheduled_ms, &id.id))
    }

    pub(crate) fn news(&self, kind: &str) -> Vec<u8> {
        self.key(&(NEWS, kind))
    }

    pub(crate) fn lease(&self, lease: &LeaseId) -> Vec<u8> {
        self.key(&(LEASE, bytes(lease)))
    }

    pub(crate) fn held(&self, token: &Token) -> Vec<u8> {
        self.key(&(HELD, bytes(&token.lease), token.number))
    }

    pub(crate) fn name(&self, kind: &str, name: &str) -> Vec<u8> {
        self.key(&(NAME, kind, name))
    }

    /// All jobs of a kind, sorted by id.
    pub(crate) fn jobs(&self, kind: &str) -> RangeRequest {
        // Not `prefix`: the encoding of a kind that continues with a NUL starts with the same bytes.
        let begin = self.key(&(JOB, kind));
        let end = [&begin[..], &[0xff]].concat();
        RangeRequest::keys(begin, end)
    }

    /// The pending jobs of a kind and priority, in the order of their schedule.
    pub(crate) fn queue(&self, kind: &str, priority: Priority) -> RangeRequest {
        RangeRequest::prefix(&self.key(&(QUEUE, kind, priority.number())))
    }

    /// All leases.
    pub(crate) fn leases(&self) -> RangeRequest {
        RangeRequest::prefix(&self.key(&(LEASE,)))
    }

    /// The held rows under a lease, or under any.
    pub(crate) fn held_under(&self, lease: Option<&LeaseId>) -> RangeRequest {
        RangeRequest::prefix(&match lease {
            Some(lease) => self.key(&(HELD, bytes(lease))),
            None => self.key(&(HELD,)),
        })
    }

    /// A reader of a key's elements after the subspace.
    fn elements<'a>(&self, key: &'a [u8]) -> Result<Reader<'a>> {
        let rest = key.strip_prefix(&self.0[..]).ok_or_else(|| Error::Corrupt("a key of somebody else".into()))?;
        let mut reader = Reader::new(rest);
        let _subspace: u64 = reader.take()?;
        Ok(reader)
    }

    pub(crate) fn read_job(&self, key: &[u8]) -> Result<JobId> {
        let mut reader = self.elements(key)?;
        let id = JobId { kind: reader.take()?, id: reader.take()? };
        reader.end()?;
        Ok(id)
    }

    /// The schedule and the job.
    pub(crate) fn read_queued(&self, key: &[u8]) -> Result<(u64, JobId)> {
        let mut reader = self.elements(key)?;
        let kind = reader.take()?;
        let _priority: u64 = reader.take()?;
        let scheduled_ms = reader.take()?;
        let id = JobId { kind, id: reader.take()? };
        reader.end()?;
        Ok((scheduled_ms, id))
    }

    pub(crate) fn read_lease(&self, key: &[u8]) -> Result<LeaseId> {
        let mut reader = self.elements(key)?;
        let lease = reader.lease()?;
        reader.end()?;
        Ok(lease)
    }

    pub(crate) fn read_held(&self, key: &[u8]) -> Result<Token> {
        let mut reader = self.elements(key)?;
        let token = Token { lease: reader.lease()?, number: reader.take()? };
        reader.end()?;
        Ok(token)
    }
}

/// The value of a held row and of a name: the job's id.
pub(crate) fn write_id(id: &JobId) -> Vec<u8> {
    pack(&(&id.kind, &id.id))
}

pub(crate) fn read_id(row: &[u8]) -> Result<JobId> {
    let mut reader = Reader::new(row);
    let id = JobId { kind: reader.take()?, id: reader.take()? };
    reader.end()?;
    Ok(id)
}

fn bytes(bytes: &[u8]) -> foundationdb_tuple::Bytes<'_> {
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        let keys = Keys::new(Bytes::from_static(b"\x15\x08"));
        let id = JobId::new("a\0kind", "");
        let token = Token { lease: [0; 24], number: 300 };
        assert_eq!(keys.read_job(&keys.job(&id)), Ok(id.clone()));
        assert_eq!(keys.read_queued(&keys.queued(&id, Priority::Low, 1 << 41)), Ok((1 << 41, id.clone())));
        assert_eq!(keys.read_lease(&keys.lease(&token.lease)), Ok(token.lease));
        assert_eq!(keys.read_held(&keys.held(&token)), Ok(token));
        assert_eq!(read_id(&write_id(&id)), Ok(id.clone()));
        assert!(keys.read_job(b"\x15\x07").is_err());
        let key = keys.job(&id);
        for cut in 0..key.len() {
            assert!(keys.read_job(&key[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_page_on_keys() {
        const DRAWN: &str = include_str!("../../docs/keyspace.md");
        let keys = Keys::new(Bytes::from_static(b"\x15\x08"));
        let id = JobId::new("relocation", "notes");
        assert_eq!(keys.job(&id), b"\x15\x08\x14\x02relocation\x00\x02notes\x00");
        let digits: String = keys.job(&id).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(DRAWN.lines().any(|line| line.split_whitespace().collect::<String>() == digits));
        assert_eq!(
            keys.queued(&id, Priority::Normal, 0),
            b"\x15\x08\x15\x03\x02relocation\x00\x15\x01\x14\x02notes\x00"
        );
    }

    #[test]
    fn the_queue_of_a_kind_holds_no_others() {
        let keys = Keys::new(Bytes::new());
        let begin = |kind| keys.queue(kind, Priority::Normal).begin.key.clone();
        let end = |kind| keys.queue(kind, Priority::Normal).end.key.clone();
        for (kind, other) in [("a", "a\0"), ("a", "ab"), ("a\0", "a"), ("", "a")] {
            let key = keys.queued(&JobId::new(other, "x"), Priority::Normal, 5);
            assert!(key[..] < begin(kind)[..] || key[..] >= end(kind)[..], "{kind:?} {other:?}");
            let key = keys.queued(&JobId::new(kind, "x"), Priority::Normal, u64::MAX);
            assert!(key[..] >= begin(kind)[..] && key[..] < end(kind)[..], "{kind:?}");
            let (jobs, key) = (keys.jobs(kind), keys.job(&JobId::new(other, "x")));
            assert!(key[..] < jobs.begin.key[..] || key[..] >= jobs.end.key[..], "{kind:?} {other:?}");
        }
    }
}
