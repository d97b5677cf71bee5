//! What a store says of the server that serves it: the `uuid` at `/` and the secret that signs
//! cookies. Both are drawn once and kept in the store, so that sessions survive a restart.

use kv_api::AnyDatabase;
use model::{IDENTITY_BYTES, Layer};

use super::auth::SECRET_BYTES;
use super::state::Identity;
use super::uuids::hex;

const UUID_BYTES: usize = IDENTITY_BYTES - SECRET_BYTES;

/// Reads the store's identity, or draws one for a store that has none.
pub(crate) async fn load(layer: &Layer<AnyDatabase>) -> model::Result<Identity> {
    let bytes = layer.identity().await?;
    let mut secret = [0; SECRET_BYTES];
    secret.copy_from_slice(&bytes[UUID_BYTES..]);
    Ok(Identity { uuid: hex(&bytes[..UUID_BYTES]), secret })
}
