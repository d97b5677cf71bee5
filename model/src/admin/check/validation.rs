//! Checks the list of design documents that validate edits against the design documents.

use std::collections::BTreeSet;

use kv_api::{Database, Read};

use super::report::CheckReport;
use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::keys::Leaf;
use crate::read::winner::{TreePart, body_of};
use crate::rows::instance::Instance;
use crate::rows::revid::RevId;
use crate::write::validation::VALIDATE;

impl<D: Database> Documents<D> {
    /// Checks that the list has exactly the design documents with `validate_doc_update`, at their winners. Returns the
    /// wrong ones.
    pub(super) async fn check_validation(&self, instance: &Instance, report: &mut CheckReport) -> Result<Vec<String>> {
        // A damaged listing is reported with its document.
        let live = alone(self.design_ids().await)?.unwrap_or_default();
        let listed = instance.validation.designs.iter().map(|(id, _)| id.clone());
        let ids: BTreeSet<String> = live.into_iter().chain(listed).collect();
        let mut wrong = Vec::new();
        for id in ids {
            let is_right = self.read(|transaction| {
                let id = &id;
                async move { self.is_listed_rightly(&transaction, id).await }
            });
            // Damage of the design document is reported with that document.
            if !alone(is_right.await)?.unwrap_or(true) {
                report.add(Some(&id), format!("its {VALIDATE} is not listed as it stands"));
                wrong.push(id);
            }
        }
        Ok(wrong)
    }

    async fn is_listed_rightly(&self, transaction: &D::Transaction, id: &str) -> Result<bool> {
        let instance = self.instance(transaction, Read::Snapshot);
        let winner = TreePart::Winner.read(transaction, self.keys(), id).await?;
        let instance = instance.await?;
        let listed = instance.validation.designs.iter().find(|(listed, _)| listed == id).map(|(_, rev)| rev);
        Ok(listed == self.validates(transaction, id, winner.first().map(|winner| &winner.leaf)).await?)
    }

    /// The revision of a design document, if it validates edits at this winner.
    async fn validates<'a>(
        &self,
        transaction: &D::Transaction,
        id: &str,
        winner: Option<&'a Leaf>,
    ) -> Result<Option<&'a RevId>> {
        let Some(leaf) = winner.filter(|leaf| leaf.not_deleted) else { return Ok(None) };
        let body = body_of(transaction, self.keys(), id, leaf).await?;
        Ok(body.filter(|body| body.text.get(VALIDATE).is_some()).map(|_| &leaf.rev))
    }
}
