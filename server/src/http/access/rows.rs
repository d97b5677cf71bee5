//! The settings of the store as they are stored: text by section and name.

use std::collections::BTreeMap;

use model::Setting;

/// The settings that the server reads, besides administrators: their sections and names. A name that ends with a colon is how
/// any number of names begin. Clients may set others, which have no effect.
///
/// Reading another one fails in builds with assertions, so a new setting has to be named here. Then random values are tried in
/// it, and `docs/configuration.md` must have it.
pub const KNOWN_SETTINGS: &[(&str, &[&str])] = &[
    (
        "chttpd",
        &[
            "WWW-Authenticate",
            "authentication_handlers",
            "enable_cors",
            "max_db_number_for_dbs_info_req",
            "max_http_request_size",
            "require_valid_user",
            "require_valid_user_except_for_up",
        ],
    ),
    (
        AUTH,
        &[
            "proxy_use_secret",
            "require_valid_user",
            "secret",
            "upgrade_hash_on_auth",
            "x_auth_roles",
            "x_auth_token",
            "x_auth_username",
        ],
    ),
    (AUTH, OF_AUTH),
    (EARLIER_AUTH, OF_AUTH),
    ("chttpd_auth_lockout", &["max_lifetime", "mode", "threshold"]),
    ("cors", &["credentials", "exposed_headers", "headers", "max_age", "methods", "origins"]),
    ("couch_peruser", &["database_prefix", "delete_dbs", "enable"]),
    (
        "couchdb",
        &[
            "default_security",
            "max_attachment_size",
            "max_bulk_docs_count",
            "max_bulk_get_count",
            "max_document_size",
            "users_db_security_editable",
        ],
    ),
    ("csp", &["attachments_enable", "attachments_header_value", "showlist_enable", "showlist_header_value"]),
    ("httpd", &["WWW-Authenticate", "enable_cors"]),
    ("jwt_auth", &["required_claims", "roles_claim_name", "roles_claim_path"]),
    ("jwt_keys", &["ec:", "hmac:", "rsa:"]),
    (
        "replicator",
        &[
            "checkpoint_interval",
            "connection_timeout",
            "http_connections",
            "interval",
            "max_churn",
            "max_jobs",
            "retries_per_request",
            "socket_options",
            "use_checkpoints",
            "worker_batch_size",
            "worker_processes",
        ],
    ),
];

pub(super) const AUTH: &str = "chttpd_auth";

/// The section of [`OF_AUTH`] before CouchDB 3.2.
const EARLIER_AUTH: &str = "couch_httpd_auth";

/// Settings of authentication that either section may have.
const OF_AUTH: &[&str] = &[
    "allow_persistent_cookies",
    "cookie_domain",
    "hash_algorithms",
    "iterations",
    "max_iterations",
    "min_iterations",
    "password_regexp",
    "password_scheme",
    "pbkdf2_prf",
    "public_fields",
    "same_site",
    "timeout",
];

fn is_known(section: &str, name: &str) -> bool {
    let is_name = |known: &str| name == known || known.ends_with(':') && name.starts_with(known);
    KNOWN_SETTINGS.iter().any(|(known, names)| *known == section && names.iter().any(|known| is_name(known)))
}

/// Settings by section and name.
#[derive(Default)]
pub(crate) struct Rows(BTreeMap<String, BTreeMap<String, String>>);

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Rows {
    pub(super) fn new(settings: Vec<Setting>) -> Rows {
        let mut rows = Rows::default();
        for Setting { section, name, value } in settings {
            rows.0.entry(section).or_default().insert(name, value);
        }
        rows
    }

    pub(crate) fn sections(&self) -> &BTreeMap<String, BTreeMap<String, String>> {
        &self.0
    }

    /// A setting that has an effect.
    pub(crate) fn get(&self, section: &str, name: &str) -> Option<&str> {
        debug_assert!(is_known(section, name), "{section}/{name} is missing in KNOWN_SETTINGS");
        self.stored(section, name)
    }

    /// Any setting, also one without an effect, and an administrator.
    pub(crate) fn stored(&self, section: &str, name: &str) -> Option<&str> {
        self.0.get(section)?.get(name).map(String::as_str)
    }

    pub(super) fn flag(&self, section: &str, name: &str) -> Option<bool> {
        match self.get(section, name)? {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    pub(crate) fn number(&self, section: &str, name: &str) -> Option<u64> {
        self.get(section, name)?.parse().ok()
    }

    /// A setting of authentication, in the section that CouchDB 3 has it in or the one before it.
    pub(super) fn auth(&self, name: &str) -> Option<&str> {
        self.get(AUTH, name).or_else(|| self.get(EARLIER_AUTH, name))
    }
}

/// Settings of tests: section, name, value.
#[cfg(test)]
pub(super) fn settings_of(rows: &[(&str, &str, &str)]) -> Vec<Setting> {
    let setting = |&(section, name, value): &(&str, &str, &str)| {
        let (section, name, value) = (section.to_owned(), name.to_owned(), value.to_owned());
        Setting { section, name, value }
    };
    rows.iter().map(setting).collect()
}

/// Rows of tests.
#[cfg(test)]
pub(crate) fn rows_of(rows: &[(&str, &str, &str)]) -> Rows {
    Rows::new(settings_of(rows))
}

#[cfg(test)]
#[test]
fn settings_are_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
    for (section, names) in KNOWN_SETTINGS {
        assert!(page.contains(&format!("`{section}`")), "{section}");
        for name in *names {
            // With or without its section before it.
            let is_there = ["`", "httpd/"].into_iter().any(|before| page.contains(&format!("{before}{name}")));
            assert!(is_there, "{section}/{name}");
        }
    }
}
