//! The configuration: its settings, and how single subjects read theirs.
//!
//! ```text
//!   settings ─── the configuration, parsed: what requests read
//!     ├─ rows ─────── the settings as text, over their defaults
//!     │    └─ known ───── the settings that have an effect, and the defaults
//!     ├─ unkept ───── settings of this process only
//!     ├─ cors ─────── pages of other origins
//!     ├─ sandbox ──── what browsers may do with content of users
//!     ├─ forwarded ── what a proxy reports about the client
//!     └─ quotas ───── the size limits of databases
//!   peruser ────── the option of a database for each user
//!   auto_purge ─── the option that purges old tombstones
//!   rotation ───── how many replications run at once, and for how long
//! ```
//!
//! The settings of logins are read in [`authn`](crate::http::authn).

pub(crate) mod auto_purge;
pub(crate) mod cors;
pub(crate) mod forwarded;
pub(crate) mod known;
pub(crate) mod peruser;
pub(crate) mod quotas;
pub(crate) mod rotation;
pub(crate) mod rows;
pub(crate) mod sandbox;
pub(crate) mod settings;
pub(crate) mod unkept;
