//! The configuration that requests read: a snapshot of the store's settings, parsed once.
//!
//! ```text
//!  flags, environment ─┐
//!                      ├─► Settings ──► requests
//!  rows of the store ──┘      ▲
//!        └── watched ─────────┘
//! ```
//!
//! The store's rows override the rest, as in CouchDB, where settings of clients override files.

use std::collections::HashMap;

use hyper::header::HeaderValue;
use model::{JsonText, Setting};

use crate::http::authn::bearer::Tokens;
use crate::http::authn::lockout::Rules;
use crate::http::authn::passwords::{Prf, Verifier};
use crate::http::authn::policy::Policy;
use crate::http::authn::proxy::Proxy;
use crate::http::config::auto_purge::AutoPurge;
use crate::http::config::cors::Cors;
use crate::http::config::forwarded::Forwarded;
use crate::http::config::known::{self, AUTH};
use crate::http::config::peruser::PerUser;
use crate::http::config::quotas::{self, Quotas};
use crate::http::config::rotation::Rotation;
use crate::http::config::rows::{SettingRows, truth};
use crate::http::config::sandbox::Policies;
use crate::http::config::unkept::Unkept;
use crate::http::ids::Algorithm;
use crate::http::jobs::replicator::requested::RequestedReplication;
use crate::units::{self, Unit};

/// The section of the administrators.
pub(crate) const ADMINS: &str = "admins";

/// Which clients must log in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Required {
    #[default]
    Nobody,
    Everybody,
    /// Except for `/_up`.
    ExceptForUp,
}

/// Who may use a new database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DefaultSecurity {
    /// Server administrators, as in CouchDB 3.
    #[default]
    Administrators,
    /// Everyone, as in CouchDB 2.
    Everyone,
}

/// The options that a server was started with, where settings may replace them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The options and the store, under the names of settings: defaults that the table of settings does not have.
    pub(crate) started: Vec<Setting>,
    /// Whether the listener speaks TLS. No setting replaces it.
    pub(crate) speaks_tls: bool,
    /// The file's settings. Those in the store override them.
    pub(crate) settings: Vec<Setting>,
}

/// A snapshot of the configuration.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The rows of the store. They hold secrets, so they have a type that shows none.
    pub(crate) rows: SettingRows,
    /// The administrators in the store.
    pub(crate) admins: HashMap<String, Verifier>,
    pub(crate) required: Required,
    pub(crate) default_security: DefaultSecurity,
    pub(crate) users_security_editable: bool,
    /// The members that members of `_users` may see in others' documents.
    pub(crate) public_fields: Vec<String>,
    pub(crate) passwords: Policy,
    pub(crate) session: Session,
    pub(crate) lockout: Rules,
    /// `None` where tokens prove nothing.
    pub(crate) tokens: Option<Tokens>,
    /// `None` if proxies are not trusted.
    pub(crate) proxy: Option<Proxy>,
    /// `None` if users have no databases of their own.
    pub(crate) per_user: Option<PerUser>,
    pub(crate) quotas: Quotas,
    /// `None` if old tombstones are kept.
    pub(crate) auto_purge: Option<AutoPurge>,
    /// The challenge of a 401 (`WWW-Authenticate`); `None` for no challenge, so that browsers open no dialog.
    pub(crate) challenge: Option<HeaderValue>,
    pub(crate) cors: Cors,
    /// What a proxy before the server reports about the client.
    pub(crate) forwarded: Forwarded,
    /// How new ids are made.
    pub(crate) ids: Algorithm,
    /// Maximum number of ids in one answer of `_uuids`.
    pub(crate) max_ids: usize,
    /// Whether `+` is a space in a path.
    pub(crate) has_plus_as_space: bool,
    /// Whether only server administrators list the databases.
    pub(crate) admin_only_all_dbs: bool,
    /// Restrictions on users' content in browsers.
    pub(crate) policies: Policies,
    pub(crate) max_request_size: usize,
    /// Maximum number of documents that one request writes.
    pub(crate) max_bulk_docs: usize,
    /// Maximum number of documents that one request reads.
    pub(crate) max_bulk_get: usize,
    pub(crate) max_document_size: usize,
    pub(crate) max_attachment_size: u64,
}

/// How sessions are made.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) seconds: u64,
    /// Whether a cookie survives the browser.
    pub(crate) is_persistent: bool,
    pub(crate) domain: Option<String>,
    pub(crate) same_site: Option<&'static str>,
    /// The functions that sign cookies. The first one signs new ones.
    pub(crate) algorithms: Vec<Prf>,
}

impl Settings {
    pub(crate) fn new(stored: Vec<Setting>, unkept: &Unkept, flags: &Flags) -> Settings {
        let under = flags.settings.iter().filter(|setting| setting.section != ADMINS).cloned();
        let rows = SettingRows::new(unkept.over(under.chain(stored).collect()), flags.started.iter().cloned());
        let admins = rows.sections().get(ADMINS).into_iter().flatten().filter_map(|(name, value)| {
            let verifier = Verifier::of_admin(value);
            if verifier.is_none() {
                tracing::warn!(name, "the stored password of an administrator cannot be read");
            }
            Some((name.clone(), verifier?))
        });
        let requires_user = requires_user(&rows);
        // With both, `/_up` is free too, as in CouchDB.
        let required = if rows.flag("chttpd", "require_valid_user_except_for_up") {
            Required::ExceptForUp
        } else if requires_user {
            Required::Everybody
        } else {
            Required::Nobody
        };
        let fields = rows.auth("public_fields", Some).unwrap_or_default().split(',').map(str::trim);
        let seconds: u64 = rows.auth("timeout", |time| units::number(Unit::Seconds, time)).unwrap_or_default();
        let known = |text: &str| ["None", "Lax", "Strict"].into_iter().find(|known| known.eq_ignore_ascii_case(text));
        let same_site = rows.auth("same_site", known);
        let cors = Cors::read(&rows);
        let per_user = PerUser::read(&rows);
        // A page of any origin must send a password: a browser does not add a `Lax` cookie to its requests.
        let same_site = same_site.or(cors.trusts_every_page().then_some("Lax"));
        Settings {
            admins: admins.collect(),
            required,
            default_security: rows
                .read("couchdb", "default_security", |text| match text {
                    // The two differ only for CouchDB's shards, which are databases of their own there.
                    "everyone" | "admin_local" => Some(DefaultSecurity::Everyone),
                    "admin_only" => Some(DefaultSecurity::Administrators),
                    _ => None,
                })
                .unwrap_or(DefaultSecurity::Administrators),
            users_security_editable: rows.flag("couchdb", "users_db_security_editable"),
            public_fields: fields.filter(|field| !field.is_empty()).map(str::to_owned).collect(),
            passwords: Policy::read(&rows),
            session: Session {
                seconds: seconds.clamp(1, 10 * 365 * 86_400),
                is_persistent: rows.auth("allow_persistent_cookies", truth) == Some(true),
                domain: rows.auth("cookie_domain", Some).filter(|domain| !domain.is_empty()).map(str::to_owned),
                same_site,
                algorithms: Prf::of_signatures(&rows),
            },
            lockout: Rules::read(&rows),
            tokens: Tokens::read(&rows),
            proxy: Proxy::read(&rows),
            quotas: Quotas::read(&rows, per_user.as_ref()),
            per_user,
            auto_purge: AutoPurge::read(&rows),
            challenge: challenge(&rows),
            cors,
            forwarded: Forwarded::read(&rows),
            ids: Algorithm::read(&rows),
            max_ids: rows.count("uuids", "max_count"),
            has_plus_as_space: rows.flag("chttpd", "decode_plus_to_space"),
            admin_only_all_dbs: rows.flag("chttpd", "admin_only_all_dbs"),
            policies: Policies::read(&rows),
            max_bulk_docs: rows.count("couchdb", "max_bulk_docs_count"),
            max_bulk_get: rows.count("couchdb", "max_bulk_get_count"),
            max_request_size: rows.count("chttpd", "max_http_request_size"),
            max_document_size: rows.count("couchdb", "max_document_size"),
            max_attachment_size: rows.read("couchdb", "max_attachment_size", attachment_size).unwrap_or(u64::MAX),
            rows,
        }
    }

    /// Whether the store names an administrator. Even with an unreadable password, the server is then not open to
    /// everyone.
    pub(crate) fn has_admins(&self) -> bool {
        self.rows.sections().get(ADMINS).is_some_and(|admins| !admins.is_empty())
    }
}

/// Checks settings of a file. The error has the index of the first wrong one, and why it is wrong.
///
/// Clients may set anything, as in CouchDB. In a file, a setting without an effect is a mistake.
pub(crate) fn check(file: &[Setting]) -> Result<(), (usize, String)> {
    for (at, Setting { section, name, value }) in file.iter().enumerate() {
        if section == quotas::SECTION {
            quotas::bytes(value).ok_or((at, "it must be a number of bytes, for example 500MB".to_owned()))?;
        } else if !known::KNOWN_SETTINGS.iter().any(|(known, _)| known == section) {
            let why = "there is no such section; docs/configuration.md lists the sections that have an effect";
            return Err((at, why.to_owned()));
        } else if !known::is_known(section, name) {
            let why = "there is no such setting; docs/configuration.md lists the settings that have an effect";
            return Err((at, why.to_owned()));
        }
    }
    let flags = Flags { settings: file.to_vec(), ..Flags::default() };
    let rows = Settings::new(Vec::new(), &Unkept::default(), &flags).rows;
    // The following settings are otherwise read only when they are needed.
    for (section, names) in known::KNOWN_SETTINGS {
        for (name, usual) in names.iter().filter(|(name, usual)| !name.ends_with(':') && !usual.is_empty()) {
            match *usual {
                "true" | "false" => drop(rows.flag(section, name)),
                usual if usual.bytes().all(|byte| byte.is_ascii_digit()) => drop(rows.number(section, name)),
                _ => {}
            }
        }
    }
    Rotation::read(&rows);
    if let Ok(usual) = JsonText::parse(br#"{"source":"a","target":"b"}"#) {
        drop(RequestedReplication::read_with(&usual, &rows));
    }
    let unread = rows.unread();
    let wrong = |setting: &Setting| unread.contains(&(setting.section.clone(), setting.name.clone()));
    match file.iter().position(wrong) {
        Some(at) => Err((at, format!("\"{}\" is not a valid value of this setting", file[at].value))),
        None => Ok(()),
    }
}

/// Whether every client must log in. Set-up scripts, such as LiveSync's, write the setting to either section.
fn requires_user(rows: &SettingRows) -> bool {
    ["chttpd", AUTH].into_iter().any(|section| rows.flag(section, "require_valid_user"))
}

fn attachment_size(text: &str) -> Option<u64> {
    if text == "infinity" { Some(u64::MAX) } else { units::number(Unit::Bytes, text) }
}

/// As in CouchDB: what is configured, or a Basic challenge where every client must log in.
fn challenge(rows: &SettingRows) -> Option<HeaderValue> {
    let [own, earlier] = ["chttpd", "httpd"]
        .map(|section| rows.read(section, "WWW-Authenticate", |text| HeaderValue::from_str(text).ok()));
    let usual = requires_user(rows).then_some(HeaderValue::from_static("Basic realm=\"server\""));
    own.or(earlier).or(usual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::settings_of;

    const STARTED: [(&str, &str, &str); 1] = [("chttpd", "max_http_request_size", "7")];

    fn settings(rows: &[(&str, &str, &str)]) -> Settings {
        Settings::new(
            settings_of(rows),
            &Unkept::default(),
            &Flags { started: settings_of(&STARTED), ..Flags::default() },
        )
    }

    #[test]
    fn what_is_not_set_is_as_in_couchdb() {
        let settings = settings(&[]);
        assert_eq!(settings.required, Required::Nobody);
        assert_eq!(settings.passwords.iterations, 600_000);
        assert_eq!((settings.session.seconds, settings.session.is_persistent), (600, true));
        assert_eq!(
            (settings.max_request_size, settings.max_document_size, settings.has_admins()),
            (7, 8_000_000, false)
        );
        assert_eq!(settings.default_security, DefaultSecurity::Administrators);
        assert_eq!((settings.max_bulk_docs, settings.max_bulk_get), (10_000, 10_000));
        assert!(settings.tokens.is_none() && settings.proxy.is_none() && settings.challenge.is_none());
    }

    #[test]
    fn the_store_precedes_the_file() {
        let file = [("chttpd", "require_valid_user", "true"), ("chttpd_auth", "timeout", "7"), ("admins", "eve", "x")];
        let flags = Flags { settings: settings_of(&file), ..Flags::default() };
        let (stored, unkept) = (settings_of(&[("chttpd_auth", "timeout", "8")]), Unkept::default());
        let found = Settings::new(stored.clone(), &unkept, &flags);
        assert_eq!((found.required, found.session.seconds), (Required::Everybody, 8));
        assert!(!found.has_admins(), "administrators are in the store only");
        assert_eq!(found.rows.get("chttpd", "require_valid_user"), Some("true"));
        unkept.set("chttpd", "require_valid_user", None).unwrap();
        unkept.set("chttpd_auth", "timeout", None).unwrap();
        let found = Settings::new(stored, &unkept, &flags);
        assert_eq!((found.required, found.session.seconds), (Required::Nobody, 600), "both are removed");
    }

    #[test]
    fn a_value_that_no_reader_reads_is_refused() {
        for (section, name, value) in [
            ("replicator", "retries_per_request", "x"),
            ("replicator", "interval", "0"),
            ("replicator", "max_jobs", "1min"),
            ("replicator", "worker_batch_size", "0"),
            ("replicator", "socket_options", "keepalive"),
            ("httpd", "enable_cors", "yes"),
            ("httpd", "WWW-Authenticate", "a\nb"),
            ("chttpd_auth", "password_scheme", "pbkdf1"),
            ("chttpd_auth_lockout", "threshold", "99999999999"),
            ("couch_auto_purge_plugin", "deleted_document_ttl", "30min"),
            ("couch_auto_purge_plugin", "repeat", "monday"),
        ] {
            let wrong = check(&settings_of(&[("uuids", "max_count", "1"), (section, name, value)]));
            assert_eq!(wrong.map_err(|(at, _)| at), Err(1), "{section}/{name} = {value}");
        }
        // The same readers are used for checking and for use.
        let units = [("replicator", "interval", "1min"), ("replicator", "connection_timeout", "5s")];
        let file = settings_of(&[&units[..], &[("httpd", "enable_cors", "true"), ("cors", "origins", "a")]].concat());
        check(&file).unwrap();
        let rows = Settings::new(file, &Unkept::default(), &Flags::default());
        assert_eq!(rows.cors.allowed.origins, ["a"]);
        assert_eq!(Rotation::read(&rows.rows).interval, std::time::Duration::from_secs(60));
        assert_eq!(rows.rows.positive("replicator", "connection_timeout"), Some(5_000));
    }

    #[test]
    fn with_both_settings_only_up_is_free() {
        let both = [("chttpd", "require_valid_user", "true"), ("chttpd", "require_valid_user_except_for_up", "true")];
        let found = settings(&both);
        assert_eq!(found.required, Required::ExceptForUp);
        assert!(found.challenge.is_some());
        assert!(settings(&both[1..]).challenge.is_none());
    }

    #[test]
    fn either_section_requires_a_user() {
        for section in ["chttpd", "chttpd_auth"] {
            let found = settings(&[(section, "require_valid_user", "true")]);
            assert_eq!((found.required, found.challenge.is_some()), (Required::Everybody, true), "{section}");
        }
    }

    #[test]
    fn a_cookie_stays_on_its_site_where_every_page_is_trusted() {
        let open = [("chttpd", "enable_cors", "true"), ("cors", "origins", "*"), ("cors", "credentials", "true")];
        assert_eq!(settings(&open).session.same_site, Some("Lax"));
        assert_eq!(settings(&open[..2]).session.same_site, None, "without credentials as in CouchDB");
        let asked = [open.as_slice(), &[("chttpd_auth", "same_site", "none")]].concat();
        assert_eq!(settings(&asked).session.same_site, Some("None"));
    }

    #[test]
    fn rows_are_read_and_nonsense_is_not() {
        let found = settings(&[
            ("chttpd", "require_valid_user", "yes"),
            ("chttpd", "require_valid_user_except_for_up", "true"),
            ("chttpd_auth", "iterations", "7"),
            ("couch_httpd_auth", "timeout", "60"),
            ("chttpd_auth", "same_site", "strict"),
            ("chttpd_auth", "public_fields", "name, email,"),
            ("chttpd", "enable_cors", "true"),
            ("cors", "origins", "app://obsidian.md,http://localhost"),
            ("chttpd", "max_http_request_size", "-1"),
            ("couchdb", "default_security", "everyone"),
            ("couchdb", "max_document_size", "50000000"),
            ("couchdb", "max_attachment_size", "infinity"),
            ("couchdb", "max_bulk_docs_count", "7"),
            ("couchdb", "max_bulk_get_count", "-7"),
            ("admins", "anna", "plain"),
        ]);
        assert_eq!(found.required, Required::ExceptForUp);
        assert_eq!(found.passwords.iterations, 7);
        assert_eq!((found.session.seconds, found.session.same_site), (60, Some("Strict")));
        assert_eq!(found.public_fields, ["name", "email"]);
        assert_eq!(found.cors.allowed.origins, ["app://obsidian.md", "http://localhost"]);
        assert_eq!((found.max_request_size, found.default_security), (7, DefaultSecurity::Everyone));
        assert_eq!((found.max_document_size, found.max_attachment_size), (50_000_000, u64::MAX));
        assert_eq!((found.max_bulk_docs, found.max_bulk_get), (7, 10_000));
        assert!(found.admins.is_empty() && found.has_admins(), "nobody, but not everybody");
        assert!(!format!("{found:?}").contains("plain"));
    }
}
