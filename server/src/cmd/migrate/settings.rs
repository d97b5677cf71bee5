//! The settings of the old server that mean something here.

use super::old::Configuration;
use super::target::Target;
use crate::cmd::Failure;
use crate::http::{ADMINS, KNOWN_SETTINGS, is_password_hash};

/// Settings that are not copied: section and key; an empty key stands for all of the section.
///
/// Old servers list their defaults among what was set, and some of those are weaker than ours, or would begin to delete.
const LEFT: &[(&str, &str)] = &[
    // How passwords are hashed: CouchDB's default was ten iterations for years.
    ("chttpd_auth", "hash_algorithms"),
    ("chttpd_auth", "iterations"),
    ("chttpd_auth", "max_iterations"),
    ("chttpd_auth", "min_iterations"),
    ("chttpd_auth", "password_scheme"),
    ("chttpd_auth", "pbkdf2_prf"),
    ("chttpd_auth", "upgrade_hash_on_auth"),
    // Who is let in, and who may see what. `require_valid_user` is copied, since only `true` differs from ours.
    ("chttpd", "admin_only_all_dbs"),
    ("chttpd", "authentication_handlers"),
    ("chttpd", "require_valid_user_except_for_up"),
    ("chttpd_auth", "proxy_use_secret"),
    ("chttpd_auth_lockout", ""),
    ("couchdb", "default_security"),
    ("couchdb", "users_db_security_editable"),
    ("csp", ""),
    // What deletes documents or databases.
    ("couch_auto_purge_plugin", ""),
    ("couch_peruser", "delete_dbs"),
    ("couch_scanner_plugins", ""),
    // What depends on the machine.
    ("chttpd", "max_http_request_size"),
    ("couchdb", "max_document_size"),
    ("replicator", ""),
];

/// What became of them.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Those that were set here, as `section/key`.
    pub(super) set: Vec<String>,
    /// Those that the old server has otherwise, and that were not set, each as a sentence.
    pub(super) left: Vec<String>,
    /// Those that were refused here, each as a sentence.
    pub(super) failed: Vec<String>,
}

/// Copies them. Administrators come last: a server without one would not know whoever asks any more.
pub(super) async fn copy(old: Configuration, target: &Target) -> Result<Outcome, Failure> {
    let here = target.configuration().await?;
    let mut outcome = Outcome::default();
    let (admins, others): (Vec<_>, Vec<_>) = old.into_iter().partition(|((section, _), _)| section == ADMINS);
    for ((section, key), value) in others.into_iter().chain(admins) {
        // CouchDB before 3.2.
        let section = if section == "couch_httpd_auth" { "chttpd_auth".to_owned() } else { section };
        let Some(usual) = usual(&section, &key).filter(|_| !value.is_empty()) else { continue };
        let own = here.get(&(section.clone(), key.clone())).map(String::as_str);
        let name = format!("{section}/{key}");
        if value == own.unwrap_or(usual) {
            continue;
        }
        if LEFT.iter().any(|(left, of)| *left == section && (of.is_empty() || *of == key)) {
            outcome.left.push(format!("{name} is not copied; the old server has {value:?}"));
        } else if own.is_some_and(|own| own != usual) {
            outcome.left.push(format!("{name} is another one here, and stays"));
        } else if section == ADMINS && !is_password_hash(&value) {
            outcome.left.push(format!("{name} has a password that is not hashed as here; set it again"));
        } else {
            match target.configure(&section, &key, &value).await {
                Ok(()) => outcome.set.push(name),
                Err(error) => outcome.failed.push(format!("{name} was not set: {error}")),
            }
        }
    }
    Ok(outcome)
}

/// The default of a setting that means something here, which may be empty. `None` for others.
fn usual(section: &str, key: &str) -> Option<&'static str> {
    if section == ADMINS {
        return Some("");
    }
    let names = KNOWN_SETTINGS.iter().filter(|(known, _)| *known == section).flat_map(|(_, names)| *names);
    let is_it = |known: &str| known == key || known.ends_with(':') && key.starts_with(known);
    names.copied().find(|(known, _)| is_it(known)).map(|(_, usual)| usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_a_setting_and_what_is_secret_is_copied() {
        for (section, key) in LEFT {
            let names: Vec<_> = KNOWN_SETTINGS.iter().filter(|(known, _)| known == section).collect();
            assert!(names.iter().any(|(_, names)| key.is_empty() || names.iter().any(|(name, _)| name == key)));
        }
        assert_eq!(usual("chttpd_auth", "secret"), Some(""));
        assert_eq!(usual("jwt_keys", "hmac:_default"), Some(""));
        assert_eq!(usual("cors", "origins"), Some(""));
        assert_eq!(usual("admins", "anna"), Some(""));
        assert_eq!(usual("query_servers", "javascript"), None);
    }
}
