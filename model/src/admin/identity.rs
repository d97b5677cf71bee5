//! Random bytes that belong to a store: they identify a server, and sign its sessions.

use kv_api::{Database, Read, Transaction};

use crate::error::{Error, Result};
use crate::keys::Key;
use crate::layer::Layer;
use crate::read::reading;

/// Length of a store's identity in bytes.
pub const IDENTITY_BYTES: usize = 48;

impl<D: Database> Layer<D> {
    /// The store's identity. It is generated at the first call, and then stays the same for all processes. It is a
    /// secret.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn identity(&self) -> Result<[u8; IDENTITY_BYTES]> {
        let mut drawn = [0; IDENTITY_BYTES];
        self.guard().environment.random(&mut drawn);
        self.identity_or(drawn).await
    }

    /// The store's identity, if it has one already.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn known_identity(&self) -> Result<Option<[u8; IDENTITY_BYTES]>> {
        let key = Key::Identity.under(&self.guard().root);
        reading::run(self.engine(), |transaction| {
            let known = transaction.get(&key, Read::Snapshot);
            async move { known.await?.map(|known| read(&known)).transpose() }
        })
        .await
    }

    /// The store's identity, which becomes `drawn` if there is none.
    pub(crate) async fn identity_or(&self, drawn: [u8; IDENTITY_BYTES]) -> Result<[u8; IDENTITY_BYTES]> {
        let guard = self.guard();
        let key = Key::Identity.under(&guard.root);
        // Needs no transaction id: a second run finds what the first one wrote.
        kv_api::Runner::new(&guard.engine)
            .run(|transaction, _| {
                let known = transaction.get(&key, Read::Serializable);
                let key = &key;
                async move {
                    match known.await? {
                        Some(known) => read(&known),
                        None => {
                            transaction.set(key, &drawn);
                            Ok(drawn)
                        }
                    }
                }
            })
            .await
    }
}

fn read(known: &[u8]) -> Result<[u8; IDENTITY_BYTES]> {
    known.try_into().map_err(|_| Error::corrupt("a store's identity of wrong length"))
}
