//! The scenarios, one file for each subject.

pub(crate) mod attachments;
pub(crate) mod bulk;
pub(crate) mod catalog;
pub(crate) mod changes;
pub(crate) mod checking;
pub(crate) mod conflicts;
pub(crate) mod contents;
pub(crate) mod costs;
pub(crate) mod damage;
pub(crate) mod feed;
pub(crate) mod indexes;
pub(crate) mod job_races;
pub(crate) mod jobs;
pub(crate) mod listing;
pub(crate) mod local;
pub(crate) mod merging;
pub(crate) mod parts;
pub(crate) mod patching;
pub(crate) mod policies;
pub(crate) mod purging;
pub(crate) mod reading;
pub(crate) mod relocating;
pub(crate) mod sizes;
mod trees;
pub(crate) mod unknown;
pub(crate) mod uploads;
pub(crate) mod writing;
