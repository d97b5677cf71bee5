//! The settings that the server reads, except administrators, and their defaults.
//!
//! `_config` lists them, requests read them, and `docs/configuration.md` must list each with its default. So a new
//! setting starts here. Its value comes from the first of these places that has a readable one: the store, the server's
//! file, the server's options, this table.

use crate::units::Unit;

/// Sections, each with its settings: name and default. An empty default means that the setting is not set. A name that
/// ends with a colon stands for all names that begin with it.
///
/// Reading another setting fails in builds with assertions. Clients may set others, which have no effect.
pub const KNOWN_SETTINGS: &[(&str, &[(&str, &str)])] = &[
    (
        "chttpd",
        &[
            ("WWW-Authenticate", ""),
            ("admin_only_all_dbs", "true"),
            (
                "authentication_handlers",
                "{chttpd_auth, cookie_authentication_handler}, {chttpd_auth, default_authentication_handler}",
            ),
            ("decode_plus_to_space", "true"),
            // The server's options give the defaults of this and of `max_http_request_size`.
            ("enable_cors", "false"),
            ("max_db_number_for_dbs_info_req", "100"),
            ("max_http_request_size", ""),
            ("peer_header", ""),
            ("require_valid_user", "false"),
            ("require_valid_user_except_for_up", "false"),
            ("x_forwarded_host", "X-Forwarded-Host"),
            ("x_forwarded_proto", "X-Forwarded-Proto"),
            ("x_forwarded_ssl", "X-Forwarded-Ssl"),
        ],
    ),
    (
        AUTH,
        &[
            ("proxy_use_secret", "true"),
            ("require_valid_user", "false"),
            ("secret", ""),
            ("upgrade_hash_on_auth", "true"),
            ("x_auth_roles", "X-Auth-CouchDB-Roles"),
            ("x_auth_token", "X-Auth-CouchDB-Token"),
            ("x_auth_username", "X-Auth-CouchDB-UserName"),
        ],
    ),
    (AUTH, OF_AUTH),
    (EARLIER_AUTH, OF_AUTH),
    ("chttpd_auth_lockout", &[("max_lifetime", "300000"), ("mode", "enforce"), ("threshold", "5")]),
    (
        "cors",
        &[
            ("credentials", "false"),
            (
                "exposed_headers",
                "accept-ranges, etag, location, server, x-couch-request-id, x-couch-update-newrev, x-couchdb-body-time",
            ),
            (
                "headers",
                "accept, accept-language, authorization, content-encoding, content-length, content-range, content-type, \
                 destination, expires, if-match, if-none-match, last-event-id, last-modified, origin, pragma, \
                 x-couch-full-commit, x-couch-id, x-couch-persist, x-couch-request-id, x-couchdb-vhost-path, \
                 x-couchdb-www-authenticate, x-http-method-override, x-requested-with",
            ),
            ("max_age", "600"),
            ("methods", "GET, HEAD, POST, PUT, DELETE, COPY, PATCH, OPTIONS"),
            ("origins", ""),
        ],
    ),
    ("couch_peruser", &[("database_prefix", "userdb-"), ("delete_dbs", "false"), ("enable", "false"), ("quota", "")]),
    ("couch_auto_purge_plugin", &[("deleted_document_ttl", ""), ("dry_run", "false"), ("repeat", "1_day")]),
    ("couch_scanner_plugins", &[("couch_auto_purge_plugin", "false")]),
    (
        "couchdb",
        &[
            ("default_security", "admin_only"),
            ("max_attachment_size", "infinity"),
            ("max_bulk_docs_count", "10000"),
            ("max_bulk_get_count", "10000"),
            ("max_document_size", "8000000"),
            ("users_db_security_editable", "false"),
        ],
    ),
    (
        "csp",
        &[
            ("attachments_enable", "true"),
            ("attachments_header_value", "sandbox"),
            ("showlist_enable", "true"),
            ("showlist_header_value", "sandbox"),
            ("utils_enable", "true"),
            (
                "utils_header_value",
                "child-src 'self' data: blob:; default-src 'self'; img-src 'self' data:; font-src 'self'; \
                 script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline';",
            ),
        ],
    ),
    ("httpd", &[("WWW-Authenticate", ""), ("enable_cors", "")]),
    ("jwt_auth", &[("required_claims", "exp"), ("roles_claim_name", "_couchdb.roles"), ("roles_claim_path", "")]),
    ("jwt_keys", &[("ec:", ""), ("hmac:", ""), ("rsa:", "")]),
    (
        "replicator",
        &[
            ("checkpoint_interval", "30000"),
            ("connection_timeout", "120000"),
            ("http_connections", "20"),
            ("interval", "60000"),
            ("max_churn", "20"),
            ("max_jobs", "2000"),
            ("retries_per_request", ""),
            ("socket_options", "[{keepalive, true}, {nodelay, true}]"),
            ("use_checkpoints", "true"),
            ("worker_batch_size", "500"),
            ("worker_processes", "4"),
        ],
    ),
    ("uuids", &[("algorithm", "sequential"), ("max_count", "1000"), ("utc_id_suffix", "")]),
];

pub(super) const AUTH: &str = "chttpd_auth";

/// The section of [`OF_AUTH`] before CouchDB 3.2. It has no defaults.
pub(super) const EARLIER_AUTH: &str = "couch_httpd_auth";

/// Settings of authentication that either section may have.
const OF_AUTH: &[(&str, &str)] = &[
    ("allow_persistent_cookies", "true"),
    ("cookie_domain", ""),
    ("hash_algorithms", "sha256, sha"),
    ("iterations", "600000"),
    ("max_iterations", "2000000"),
    ("min_iterations", "1"),
    ("password_regexp", ""),
    ("password_scheme", "pbkdf2"),
    ("pbkdf2_prf", "sha256"),
    ("public_fields", ""),
    ("same_site", ""),
    ("timeout", "600"),
];

/// The sections that CouchDB closes to `_config`: they name programs to run, and what its nodes can do.
pub(crate) const CLOSED_SECTIONS: &[&str] = &[
    "daemons",
    "external",
    "feature_flags",
    "httpd_db_handlers",
    "httpd_design_handlers",
    "httpd_global_handlers",
    "native_query_servers",
    "os_daemons",
    "query_servers",
];

/// All settings with a default: section, name and default.
pub(super) fn defaults() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let sections = KNOWN_SETTINGS.iter().filter(|(section, _)| *section != EARLIER_AUTH);
    let settings = sections.flat_map(|(section, names)| names.iter().map(|&(name, default)| (*section, name, default)));
    settings.filter(|(_, _, default)| !default.is_empty())
}

/// The unit of this setting's number.
pub(super) fn unit_of(section: &str, name: &str) -> Unit {
    match (section, name) {
        ("chttpd", "max_http_request_size") | ("couchdb", "max_document_size" | "max_attachment_size") => Unit::Bytes,
        ("chttpd_auth_lockout", "max_lifetime")
        | ("replicator", "checkpoint_interval" | "connection_timeout" | "interval") => Unit::Milliseconds,
        (AUTH | EARLIER_AUTH, "timeout") | ("cors", "max_age") => Unit::Seconds,
        _ => Unit::Things,
    }
}

pub(super) fn is_known(section: &str, name: &str) -> bool {
    let is_name = |known: &str| name == known || known.ends_with(':') && name.starts_with(known);
    KNOWN_SETTINGS.iter().any(|(known, names)| *known == section && names.iter().any(|(known, _)| is_name(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of tables: cells without their marks.
    fn cells(line: &str) -> Vec<String> {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        cells.collect()
    }

    #[test]
    fn settings_are_documented_with_their_defaults() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with('|')).map(cells).collect();
        for (section, names) in KNOWN_SETTINGS {
            // The page says which keys the earlier section may have.
            let section = if *section == EARLIER_AUTH { AUTH } else { *section };
            for &(name, default) in *names {
                let of_section = |row: &&Vec<String>| row.len() >= 4 && row[0].contains(&format!("`{section}`"));
                let of_other = |row: &&Vec<String>| row.len() >= 4 && row[2].contains(&format!("`{section}/{name}`"));
                let row = rows.iter().find(|row| of_section(row) && row[1].contains(&format!("`{name}")));
                let row = row.or_else(|| rows.iter().find(of_other)).unwrap_or_else(|| panic!("{section}/{name}"));
                // A number is written with commas.
                let (shown, default) = (row[3].replace(',', ""), default.replace(',', ""));
                let is_told_in_words =
                    matches!(name, "authentication_handlers" | "exposed_headers" | "headers" | "methods");
                assert!(is_told_in_words || shown.contains(&default), "{section}/{name}: {default:?} in {shown:?}");
            }
        }
    }

    /// The page's tables name no setting that is not read, and none that is read as one without an effect.
    #[test]
    fn the_tables_of_keys_are_right() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
        let (effect, rest) = page.split_once("## Keys without an effect").unwrap();
        let (none, rest) = rest.split_once("## TLS").unwrap();
        let (_, replications) = rest.split_once("## Replications").unwrap();
        let spans = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let tables = |text: &str| {
            let rows = text.lines().filter(|line| line.starts_with("| `")).map(cells);
            rows.map(|row| (spans(&row[0]), spans(&row[1]), row[1] == "all")).collect::<Vec<_>>()
        };
        let mut read = tables(effect);
        read.extend(tables(replications));
        assert!(read.len() > 50, "the tables were not read");
        for (sections, names, _) in read {
            for name in names {
                // `hmac:KID` is one of `hmac:`; `…:_default` is one of any.
                let known = |section: &String| is_known(section, &name) || name.starts_with('…');
                assert!(sections.iter().any(known), "nothing reads {sections:?} {name}");
            }
        }
        let (none, mut keys) = (tables(none), 0);
        for (sections, names, all) in none {
            assert!(all || !names.is_empty(), "{sections:?}");
            for section in &sections {
                keys += names.len();
                let wrong = KNOWN_SETTINGS.iter().any(|(known, _)| all && known == section);
                assert!(!wrong, "{section} is read");
                for name in &names {
                    assert!(!is_known(section, name), "{section}/{name} is read");
                }
            }
        }
        assert!(keys > 50, "the table of keys without an effect was not read");
    }

    #[test]
    fn a_setting_is_named_once() {
        let mut all: Vec<_> = defaults().map(|(section, name, _)| (section, name)).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
        assert!(all.contains(&("chttpd_auth", "timeout")) && !all.iter().any(|(section, _)| *section == EARLIER_AUTH));
    }
}
