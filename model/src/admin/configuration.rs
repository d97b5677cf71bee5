//! The configuration of the servers of a store: texts by section and name, as clients set them in CouchDB's `_config`.
//!
//! ```text
//!  (9)                 versionstamp of the last change, which servers watch
//!  (9, Section, Name)  = (Format, Value)
//! ```
//!
//! The rows are in the store, so all servers of a store have the same configuration, also after a restart. A store
//! whose configuration was never set has no such row.

use std::fmt;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use kv_api::{Database, MutationType, RangeRequest, Read, Transaction, TransactionExt};

use crate::error::{Error, Result};
use crate::keys::Key;
use crate::layer::Layer;
use crate::read::reading;
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::txids::Outcome;

const FORMAT: u64 = 1;

/// Maximum length of a section and of a name, in bytes.
pub const MAX_SETTING_NAME_BYTES: usize = 500;

/// Maximum length of a value, in bytes.
pub const MAX_SETTING_BYTES: usize = 20_000;

/// Maximum number of settings in a store. All are read at once.
pub const MAX_SETTINGS: usize = 300;

/// A setting of the servers of a store.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    /// The section, for example `chttpd`.
    pub section: String,
    /// The name in the section.
    pub name: String,
    /// The value.
    pub value: String,
}

impl fmt::Debug for Setting {
    /// Does not show the value: it may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting").field("section", &self.section).field("name", &self.name).finish_non_exhaustive()
    }
}

impl<D: Database> Layer<D> {
    /// All settings, by section and name, and a future that completes when one of them changes afterwards.
    ///
    /// # Errors
    /// The store's errors. Those of the watch come from the future.
    pub async fn configuration(&self) -> Result<(Vec<Setting>, BoxFuture<'static, kv_api::Result<()>>)> {
        let root = &self.guard().root;
        let changed = Key::Configuration.under(root);
        let (begin, end) = Key::settings(root);
        reading::run(self.engine(), |transaction| {
            let rows = transaction.get_all(RangeRequest::keys(begin.clone(), end.clone()), Read::Snapshot);
            let watch = transaction.watch(&changed).boxed();
            async move {
                let read = rows.await?.into_iter().map(|row| {
                    let (section, name) = Key::read_setting(root, &row.key)?;
                    Ok(Setting { section, name, value: read_value(&row.value)? })
                });
                let settings = read.collect::<Result<_>>()?;
                // A watch begins with the commit.
                transaction.commit().await?;
                Ok((settings, watch))
            }
        })
        .await
    }

    /// Sets a setting, or removes it with `None`. Returns the previous value.
    ///
    /// # Errors
    /// 400 for names and values that are empty or too long, and above [`MAX_SETTINGS`].
    pub async fn configure(&self, section: &str, name: &str, value: Option<&str>) -> Result<Option<String>> {
        Ok(self.configure_if(section, name, value, false).await?.flatten())
    }

    /// Sets the first setting of a section. Returns whether the section had none: of several that are set at the same
    /// time, one is the first.
    ///
    /// # Errors
    /// As [`configure`](Self::configure).
    pub async fn configure_first(&self, section: &str, name: &str, value: &str) -> Result<bool> {
        Ok(self.configure_if(section, name, Some(value), true).await?.is_some())
    }

    /// `None` if the setting must be the first of its section, and is not.
    async fn configure_if(
        &self,
        section: &str,
        name: &str,
        value: Option<&str>,
        is_first: bool,
    ) -> Result<Option<Option<String>>> {
        check_setting(section, name, value)?;
        let guard = self.guard();
        let root = &guard.root;
        let key = Key::Setting(section, name).under(root);
        let changed = Key::Configuration.under(root);
        let (begin, end) = Key::settings(root);
        guard
            .run(|transaction| {
                let all = RangeRequest::keys(begin.clone(), end.clone()).limit(MAX_SETTINGS);
                let (old, all) =
                    (transaction.get(&key, Read::Serializable), transaction.get_range(&all, Read::Snapshot));
                // Serializable, so that settings of the section that others write conflict.
                let others = is_first.then(|| {
                    let (begin, end) = Key::section(root, section);
                    transaction.get_range(&RangeRequest::keys(begin, end).limit(1), Read::Serializable)
                });
                let (key, changed) = (&key, &changed);
                async move {
                    if let Some(others) = others
                        && !others.await?.rows.is_empty()
                    {
                        return Ok(Outcome::ReadOnly(None));
                    }
                    let old = old.await?.map(|old| read_value(&old)).transpose()?;
                    match value {
                        None if old.is_none() => return Ok(Outcome::ReadOnly(Some(None))),
                        None => transaction.clear(key),
                        Some(_) if old.is_none() && all.await?.rows.len() >= MAX_SETTINGS => {
                            let reason = format!("There are {MAX_SETTINGS} settings already.");
                            return Err(Error::bad_request(reason));
                        }
                        Some(value) => {
                            let mut row = Vec::with_capacity(value.len() + 8);
                            tuple::append_u64(&mut row, FORMAT);
                            tuple::append_str(&mut row, value);
                            transaction.set(key, &row);
                        }
                    }
                    // The versionstamp, and its place in the value.
                    transaction.atomic_op(MutationType::SetVersionstampedValue, changed, &[0; 14]);
                    Ok(Outcome::Write(Some(old)))
                }
            })
            .await
    }
}

/// Checks the lengths of a setting.
///
/// # Errors
/// 400 for names that are empty or too long, and for values that are too long.
pub fn check_setting(section: &str, name: &str, value: Option<&str>) -> Result<()> {
    let is_name = |text: &str| (1..=MAX_SETTING_NAME_BYTES).contains(&text.len());
    if !is_name(section) || !is_name(name) {
        let reason = format!("Sections and keys have 1 to {MAX_SETTING_NAME_BYTES} bytes.");
        return Err(Error::bad_request(reason));
    }
    if value.is_some_and(|value| value.len() > MAX_SETTING_BYTES) {
        return Err(Error::bad_request(format!("A value has at most {MAX_SETTING_BYTES} bytes.")));
    }
    Ok(())
}

fn read_value(row: &[u8]) -> Result<String> {
    let mut reader = Reader::new(row);
    match reader.int()? {
        FORMAT => {}
        other => return Err(Error::unknown_format(format!("a setting in format {other}"))),
    }
    let value = reader.str()?.into_owned();
    reader.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_value() {
        let (section, name, value) = ("jwt_keys".to_owned(), "hmac:_default".to_owned(), "geheim".to_owned());
        let shown = format!("{:?}", Setting { section, name, value });
        assert_eq!(shown, r#"Setting { section: "jwt_keys", name: "hmac:_default", .. }"#);
    }
}
