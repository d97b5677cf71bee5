//! Quotas of databases: the section `quotas`, and `couch_peruser/quota` for the databases of users.

use std::collections::BTreeMap;

use crate::http::config::peruser::PerUser;
use crate::http::config::rows::SettingRows;
use crate::units::{self, Unit};

/// The section with the quota of each database.
pub(crate) const SECTION: &str = "quotas";

/// The quotas of databases, in bytes. By default, databases have no quota.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    named: BTreeMap<String, u64>,
    /// The quota of each user's database.
    of_users: Option<(PerUser, u64)>,
}

impl Quotas {
    pub(crate) fn read(rows: &SettingRows, per_user: Option<&PerUser>) -> Quotas {
        let named = rows.sections().get(SECTION).into_iter().flatten().filter_map(|(database, value)| {
            let bytes = bytes(value);
            if bytes.is_none() {
                tracing::warn!(database, value, "a quota is not a number of bytes, and has no effect");
            }
            Some((database.clone(), bytes?))
        });
        let of_users = rows.read("couch_peruser", "quota", bytes);
        Quotas { named: named.collect(), of_users: per_user.cloned().zip(of_users) }
    }

    /// The quota of a database. Its own quota overrides the one for users' databases.
    pub(crate) fn of(&self, database: &str) -> Option<u64> {
        let of_users = self.of_users.as_ref().filter(|(per_user, _)| per_user.is_of_a_user(database));
        self.named.get(database).or(of_users.map(|(_, bytes)| bytes)).copied()
    }
}

/// A quota as a number of bytes.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    units::number(Unit::Bytes, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    #[test]
    fn a_database_has_its_own_quota_or_that_of_users() {
        let rows = rows_of(&[
            ("quotas", "notes", "1000"),
            ("quotas", "userdb-61", "7"),
            ("quotas", "odd", "much"),
            ("couch_peruser", "enable", "true"),
            ("couch_peruser", "quota", "500"),
        ]);
        let quotas = Quotas::read(&rows, PerUser::read(&rows).as_ref());
        let of = |database: &str| quotas.of(database);
        assert_eq!((of("notes"), of("odd"), of("others")), (Some(1000), None, None));
        assert_eq!((of("userdb-61"), of("userdb-62"), of("userdb-x"), of("userdb-")), (Some(7), Some(500), None, None));
        assert_eq!(Quotas::read(&rows, None).of("userdb-62"), None, "users have no databases");
    }
}
