//! Checks the list of design documents that validate edits against the design documents.

use std::collections::BTreeSet;

use kv_api::{Database, Read, Transaction};

use super::report::CheckReport;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::instance::Instance;
use crate::keys::{DatabaseKey, Leaf};
use crate::read::{Tree, body_of};
use crate::revid::RevId;
use crate::txids::Outcome;
use crate::validation::VALIDATE;

impl<D: Database> Documents<D> {
    /// Checks that exactly those design documents are listed that have `validate_doc_update`, at their winners. Returns the
    /// others. A program that did not know the list may have left them out.
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

    /// Lists the design documents that validate edits and that a program which did not know the list left out, however many.
    /// A server does it with each database that it opens, so that no edit misses their functions. Returns false if the
    /// database is moving: then it is done at the database's new place.
    ///
    /// It mends nothing else. A design document that cannot be read is left to a repair.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn list_validating(&self) -> Result<bool> {
        let list = async || {
            let instance = self.read(|transaction| self.instance(&transaction, Read::Snapshot)).await?;
            for id in self.check_validation(&instance, &mut CheckReport::default()).await? {
                // What cannot be listed because of damage is damage that refuses edits by itself.
                drop(alone(self.list_design(&id).await)?);
            }
            Ok(true)
        };
        match list().await {
            Err(error) if matches!(Error::kind(&error), ErrorKind::Moving | ErrorKind::Moved(_)) => Ok(false),
            listed => listed,
        }
    }

    /// Lists a design document as it stands. Nothing else of it is indexed anew.
    async fn list_design(&self, id: &str) -> Result<()> {
        self.shared
            .guard
            .run(|transaction| async move {
                let (mut instance, winner) = self.instance_and_winner(&transaction, id).await?;
                let validates = self.validates(&transaction, id, winner.as_ref().map(|(_, leaf)| leaf)).await?;
                instance.validation.set(id, validates);
                transaction.set(self.keys().key(DatabaseKey::Instance), instance.write());
                Ok(Outcome::Write(()))
            })
            .await
    }

    async fn is_listed_rightly(&self, transaction: &D::Transaction, id: &str) -> Result<bool> {
        let instance = self.instance(transaction, Read::Snapshot);
        let winner = Tree::Winner.read(transaction, self.keys(), id).await?;
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
