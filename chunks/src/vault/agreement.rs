//! The clients' agreement on how files are cut: the member `cutting` of a database's settings.
//!
//! ```json
//! {"_id":"chunks:settings","format":1,…,"cutting":"fastcdc-2020-a"}
//! ```
//!
//! Different cuts are not wrong: any file can be read, however it was cut. But clients with different cuts would share
//! no chunks, and would store each pushed version completely. So the first push records its way of cutting. A program
//! that does not know that way refuses to push.

use serde_json::Value;

use super::cutting::CUTTING;
use crate::ChunkStore;
use crate::database::refused;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::placement::SETTINGS_ID;
use crate::settings::Settings;
use crate::store::Edit;

const MEMBER: &str = "cutting";

impl ChunkStore {
    /// Makes sure that the database's files are cut as this program cuts them.
    ///
    /// # Errors
    /// [`Error::Cutting`] if they are cut differently; the errors of reading and writing the settings.
    pub(crate) async fn agree_on_cutting(&self) -> Result<()> {
        let ids = [SETTINGS_ID.to_owned()];
        for attempt in 0..self.attempts {
            let leaves = self.store.leaves(&ids, false).await?.pop().unwrap_or_default();
            if Settings::legible(&leaves)?.is_none() {
                self.grow(0).await?;
                continue;
            }
            let live = || leaves.iter().filter(|leaf| !leaf.deleted);
            match live().find_map(|leaf| leaf.body.get(MEMBER)) {
                Some(Value::String(name)) if name == CUTTING => return Ok(()),
                Some(other) => return Err(Error::Cutting { found: other.to_string(), known: CUTTING }),
                None => {}
            }
            let Some(winner) = live().next() else { continue };
            let mut body = winner.body.clone();
            body.insert(MEMBER.into(), CUTTING.into());
            let edit = Edit { id: SETTINGS_ID.to_owned(), rev: Some(winner.rev.clone()), deleted: false, body };
            match self.store.write(vec![edit]).await?.pop() {
                Some(written) if !refused(SETTINGS_ID, &written, &mut None)? => return Ok(()),
                _ => pause(&*self.environment, attempt).await,
            }
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }
}
