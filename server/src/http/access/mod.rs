//! Access control: passwords, sessions, rights, and requests from web pages.
//!
//! ```text
//!   auth ─────── who sends a request: cookie, Basic, token, proxy
//!     ├─ users ────── documents of `_users`
//!     ├─ session ──── cookies
//!     ├─ bearer ───── JSON Web Tokens
//!     │    └─ public_key  RSA and elliptic curves
//!     ├─ proxy ────── names that a proxy gives
//!     ├─ hashing ──── one thread that hashes passwords, and the proven ones
//!     │    └─ passwords   CouchDB's schemes
//!     ├─ lockout ──── failed logins
//!     └─ settings ─── the configuration, parsed
//!          ├─ policy ───── that of passwords
//!          ├─ sandbox ──── what browsers may do with content of users
//!          ├─ forwarded ── what a proxy says of the client
//!          ├─ rows ───── the configuration, as it is stored, over its defaults
//!          │    └─ known ───── the settings that have an effect, and the defaults
//!          └─ unkept ─── settings of this process only
//!   registration ─ the rules of `_users`: who may write and read what
//!     └─ admitted ─── the same for replications and the command line
//!   peruser ────── the option of a database for each user
//!   security ──── who may use a database
//!   principal ─── name and roles
//!   cors ──────── pages of other origins
//! ```

pub(crate) mod admitted;
pub(crate) mod auth;
mod bearer;
pub(crate) mod cors;
pub(crate) mod forwarded;
mod hashing;
pub(crate) mod known;
pub(crate) mod lockout;
pub(crate) mod passwords;
pub(crate) mod peruser;
mod policy;
pub(crate) mod principal;
mod proxy;
mod public_key;
pub(crate) mod registration;
pub(crate) mod rows;
pub(crate) mod sandbox;
pub(crate) mod security;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod unkept;
pub(crate) mod users;
