//! Ships a store in a folder while it is in use: its tables, and its log as it becomes durable. So the store can be
//! restored as it was at any second.
//!
//! ```text
//!   ship/store              whose log it is
//!   ship/log/NUMBER         segments: what became durable between two cuts, with the time of the second
//!   ship/base/NUMBER        which tables, and the segment that completes them
//!   ship/tables/NAME        tables
//!
//!   log       │ 1 begins │ 2 │ 3 │ 4 │ 5 │ 6 begins │ 7 │ 8        numbered by all shippers together
//!   versions  0          10  14  20  31  40   (lost)  55  60  62
//!   bases        1: tables up to 8        5: up to 36   6: up to 55
//!
//!   restore at a time in 4:  base 1, segments 1 to 4         in 8:  base 6, segments 6 to 8
//! ```
//!
//! A **cut** takes everything that is durable, and the time, under one lock. So the state of a segment has what was
//! acknowledged up to its time, and nothing that began to be committed later. A **base** has the tables of a flush. It is
//! complete with the first segment that ends at the flush or behind it, and has its number and time. A restore takes
//! the newest base that is not later than the time asked for, and applies segments up to the last one that is not.
//!
//! Invariants:
//!
//! * Files are created and deleted, never changed. A base is written after its tables and its segment.
//! * Each record names the one before it. So what is missing is noticed, and a segment that does not continue the one
//!   before it **begins**: after a start, after records were lost to a slow place, after the clock went back. It has
//!   all that is not in the tables of its base.
//! * Shippers never share a number: a segment is created, never replaced. Who finds its next number taken by another
//!   shipper is fenced, and stops. A new shipper begins at the next free number, so the newest wins.
//! * A base has the number of its segment, so it belongs to one shipper too.
//! * Only the shipper removes what is old, between two of its bases: see [`prune`].

mod follower;
mod form;
mod prune;
mod restore;
mod shipper;
mod standby;
mod verify;

pub use follower::{Followed, Follower};
pub use restore::RestoredShip;
pub use shipper::{ShipOptions, Shipped, Shipper};
pub use standby::{StandbyFolder, promote_standby, replace_standby, standby_folder};
pub use verify::ShippedSpan;
