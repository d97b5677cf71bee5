//! Functions of design documents, run by [QuickJS](https://quickjs-ng.github.io/quickjs/) in a sandbox.
//!
//! JSON text goes in and JSON text comes out. The crate knows no database, only ids that tell databases apart.
//!
//! # Sandboxes
//! A [`Sandbox`] holds one design document and its compiled functions, in a heap and with built-in objects of its own:
//! what a function does to `Array.prototype` never reaches another design document. There are no files, no network, no
//! timers. Functions of views have no current time, and their `Math.random` begins anew with each document, so that a
//! view depends on its documents alone. Documents are frozen, as in CouchDB, so that a function changes nothing that the
//! next one sees.
//!
//! A [`Pool`] has sandboxes on threads of their own, for programs whose threads must not block. Databases share no sandbox
//! there, also where they have the same design document.
//!
//! # Limits
//! [`Limits`] apply to each call of a function. Time is that of the processor, so a busy machine breaks no document. A call
//! that exceeds a limit ends with an [`Error`] that names the function and the document, and the sandbox stays usable.
//! QuickJS checks the time in loops of a script and of a regular expression, but not in every iteration. So allocations
//! check it too (`heap`), and so do built-in functions that may take long (`prelude.js`).
//!
//! # Results
//! They are what CouchDB's query server writes: `JSON.stringify` with `undefined` as `null`. Numbers are doubles, so an
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
pub use state::Row;
pub use views::Rows;
