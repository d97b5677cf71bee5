//! Who a client is: passwords, sessions, tokens. What it may do is in [`authz`](crate::http::authz).
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
//!     └─ policy ───── what the configuration says about passwords
//!   setup ─────── the token that names the first administrator
//!   principal ─── name and roles
//! ```

pub(crate) mod auth;
pub(crate) mod bearer;
mod hashing;
pub(crate) mod lockout;
pub(crate) mod passwords;
pub(crate) mod policy;
pub(crate) mod principal;
pub(crate) mod proxy;
mod public_key;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod users;
