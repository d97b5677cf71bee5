//! Functions of design documents, run by [QuickJS](https://quickjs-ng.github.io/quickjs/) in a sandbox.
//!
//! JSON text goes in and JSON text comes out. The crate does not know databases, only ids that distinguish them.
//!
//! # Sandboxes
//! A [`Sandbox`] holds one design document and its compiled functions, with its own heap and built-in objects: if a
//! function changes `Array.prototype`, no other design document sees it. There are no files, no network, no timers.
//! Functions of views have no current time, and their `Math.random` starts again with each document, so that a view
//! depends only on its documents. Documents are frozen, as in CouchDB, so that a function cannot change the document
//! for the next one.
//!
//! A [`Pool`] has sandboxes on separate threads, for programs whose threads must not block. Databases never share a
//! sandbox there, even if they have the same design document.
//!
//! # Limits
//! [`Limits`] apply to each call of a function. Time means processor time, so no document fails because the machine is
//! busy. A call that exceeds a limit ends with an [`Error`] that names the function and the document, and the sandbox
//! stays usable. QuickJS checks the time in loops of a script and of a regular expression, but not in every iteration.
//! So allocations check it too (`heap`), and so do built-in functions that may take long (`prelude.js`).
//!
//! # Results
//! Results are those of CouchDB's query server: `JSON.stringify` with `undefined` as `null`. Numbers are doubles, so an
//! integer beyond 2^53 loses digits as it does in CouchDB.

mod deadline;
mod design;
mod error;
mod heap;
mod limits;
mod pool;
mod sandbox;
mod state;
mod turns;
mod views;

pub use design::{Edit, Refusal};
pub use error::{Error, ErrorKind};
pub use limits::Limits;
pub use pool::{Design, Pool};
pub use sandbox::Sandbox;
pub use state::EmittedRow;
