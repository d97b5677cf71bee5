//! HTTP clients that many peers share: a client has a pool of connections, and memory of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use budget::{Budget, Owner, Part};
use parking_lot::Mutex;
use reqwest::Client;
use reqwest::redirect::Policy;

use super::exchange::Line;
use super::{Address, Http, Trust};
use crate::error::{Error, Result};

/// Maximum time to connect.
const CONNECTING: Duration = Duration::from_secs(10);
/// Time after which an idle connection is probed.
const PROBING: Duration = Duration::from_secs(60);
/// Number of connections to a host that are kept for later requests. More may be in use.
const IDLE: usize = 64;

/// How a peer reaches its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connecting {
    /// Maximum time without a byte from the server.
    pub silence: Duration,
    /// Maximum number of requests at the same time; at least two, since one waits for changes.
    pub connections: usize,
    /// Whether small writes are sent at once (`TCP_NODELAY`).
    pub is_nodelay: bool,
    /// Whether idle connections are probed (`SO_KEEPALIVE`).
    pub is_kept_alive: bool,
}

impl Default for Connecting {
    fn default() -> Self {
        Connecting { silence: Duration::from_secs(120), connections: 20, is_nodelay: true, is_kept_alive: true }
    }
}

/// The settings of a client. Credentials are in each request, so they are not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Settings {
    is_secure: bool,
    silence: Duration,
    is_nodelay: bool,
    is_kept_alive: bool,
}

/// Number of bytes of answers that a program keeps in memory, if it has no budget of its own.
const MEMORY: usize = 512 << 20;

/// HTTP clients of one program, made when they are first needed. Peers whose settings are equal share one.
///
/// A connection belongs to the runtime in which it was opened. So all peers must be used in runtimes that live as long
/// as these clients.
#[derive(Clone)]
pub struct Clients(Arc<Parts>);

struct Parts {
    trust: Trust,
    made: Mutex<HashMap<Settings, Client>>,
    /// The part of the budget for all answers in memory.
    memory: Part,
}

impl Clients {
    /// Clients that trust these servers.
    pub fn new(trust: Trust) -> Self {
        Clients::within(trust, Budget::new(MEMORY).part(Owner::Work("answers")))
    }

    /// The same, with memory for answers out of this budget.
    pub fn within(trust: Trust, memory: Part) -> Self {
        Clients(Arc::new(Parts { trust, made: Mutex::default(), memory }))
    }

    /// The database at this address. Sends nothing yet.
    ///
    /// # Errors
    /// [`Refused`](crate::ErrorKind::Refused) if the system provides no HTTP client, or no roots.
    pub fn database(&self, address: Address) -> Result<Http> {
        self.connecting(address, Connecting::default())
    }

    /// The database at this address, reached with these settings. Sends nothing yet.
    ///
    /// # Errors
    /// As [`database`](Self::database).
    pub fn connecting(&self, address: Address, connecting: Connecting) -> Result<Http> {
        let Connecting { silence, connections, is_nodelay, is_kept_alive } = connecting;
        let settings = Settings { is_secure: address.is_secure(), silence, is_nodelay, is_kept_alive };
        let mut made = self.0.made.lock();
        let client = match made.get(&settings) {
            Some(client) => client.clone(),
            None => {
                let client = make(settings, &self.0.trust)?;
                made.insert(settings, client.clone());
                client
            }
        };
        let line = Line::new(client, silence, connections.max(2), self.0.memory.clone());
        Ok(Http::through(line, address))
    }
}

impl Http {
    /// The database at this address. Sends nothing yet. A server behind `https://` is trusted by the system's roots.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) if the system provides no HTTP client, or no roots.
    pub fn new(address: Address) -> Result<Self> {
        Self::trusting(address, &Trust::default())
    }

    /// The same, with additional roots.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn trusting(address: Address, trust: &Trust) -> Result<Self> {
        Clients::new(trust.clone()).database(address)
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("trust", &self.0.trust).finish_non_exhaustive()
    }
}

fn make(settings: Settings, trust: &Trust) -> Result<Client> {
    let tls = if settings.is_secure { trust.config()? } else { Trust::unused()? };
    let Settings { silence, is_nodelay, is_kept_alive, .. } = settings;
    let client = Client::builder().no_proxy().connect_timeout(CONNECTING.min(silence)).read_timeout(silence);
    let client = client.tcp_nodelay(is_nodelay).tcp_keepalive(is_kept_alive.then_some(PROBING));
    // Redirects are followed by the code that adds credentials. Bodies are counted as received, so they are not
    // decompressed here.
    let client = client.pool_max_idle_per_host(IDLE).redirect(Policy::none());
    let client = client.no_gzip().no_brotli().no_zstd().no_deflate();
    client.tls_backend_preconfigured(tls).build().map_err(|error| Error::refused(error.to_string()))
}
