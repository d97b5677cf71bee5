//! The settings of the old server that mean something here.

use crate::cmd::Failure;
use crate::cmd::target::{Configuration, Target};
use crate::http::{ADMINS, KNOWN_SETTINGS, is_password_hash};

/// Settings that are copied, as sections with their keys: none of them can give anybody a right, a longer session or
/// more of this server's memory. `require_valid_user` and `allow_persistent_cookies` differ from our defaults in the
/// strict direction only.
const COPIED: &[(&str, &[&str])] = &[
    ("chttpd", &["decode_plus_to_space", "require_valid_user"]),
    ("chttpd_auth", &["allow_persistent_cookies", "password_regexp", "require_valid_user"]),
    ("couch_peruser", &["database_prefix", "enable"]),
    ("couchdb", &["max_attachment_size"]),
    ("uuids", &["algorithm", "utc_id_suffix"]),
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

/// Copies those of [`COPIED`], and administrators if they are asked for.
pub(super) async fn copy(old: Configuration, target: &Target, with_admins: bool) -> Result<Outcome, Failure> {
    let here = target.configuration().await?.unwrap_or_default();
    let mut outcome = Outcome::default();
    let (admins, others): (Vec<_>, Vec<_>) = old.into_iter().partition(|((section, _), _)| section == ADMINS);
    let mut not_copied = Vec::new();
    for ((section, key), value) in others {
        // CouchDB before 3.2.
        let section = if section == "couch_httpd_auth" { "chttpd_auth".to_owned() } else { section };
        let Some(usual) = usual(&section, &key).filter(|_| !value.is_empty()) else { continue };
        let own = here.get(&(section.clone(), key.clone())).map(String::as_str);
        let name = format!("{section}/{key}");
        if value == own.unwrap_or(usual) {
            continue;
        }
        if !is_copied(&section, &key) {
            // Without its value, which may be a secret.
            not_copied.push(name);
        } else if own.is_some_and(|own| own != usual) {
            outcome.left.push(format!("{name} is another one here, and stays"));
        } else {
            set(target, &section, &key, &value, &mut outcome).await;
        }
    }
    if !not_copied.is_empty() {
        outcome.left.push(format!(
            "these settings are other ones on the old server, and are not copied, since they could weaken this one: {}",
            not_copied.join(", ")
        ));
    }
    copy_admins(admins, &here, target, with_admins, &mut outcome).await?;
    Ok(outcome)
}

async fn set(target: &Target, section: &str, key: &str, value: &str, outcome: &mut Outcome) {
    let name = format!("{section}/{key}");
    match target.configure(section, key, value).await {
        Ok(()) => outcome.set.push(name),
        Err(error) => outcome.failed.push(format!("{name} was not set: {error}")),
    }
}

/// Copies administrators with their hashed passwords, if that is asked for. An old password must not become the
/// password of an administrator or a user of this server.
async fn copy_admins(
    admins: Vec<((String, String), String)>,
    here: &Configuration,
    target: &Target,
    with_admins: bool,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let names: Vec<&str> = admins.iter().map(|((_, name), _)| name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let refused = if !with_admins {
        Some("--admins copies them, with the passwords of the old server")
    } else if target.is_server() && !here.keys().any(|(section, _)| section == ADMINS) {
        // After the first one the server would refuse whoever moves the others.
        Some("the new server has no administrator yet; set one, and name it in --url")
    } else {
        None
    };
    if let Some(why) = refused {
        outcome.left.push(format!("administrators of the old server are not copied: {}; {why}", names.join(", ")));
        return Ok(());
    }
    let are_users = target.are_users(&names).await?;
    // `serve` would take it for its own administrator.
    let of_environment = std::env::var("COUCHDB_USER").ok();
    for (((section, name), value), is_user) in admins.iter().zip(are_users) {
        let why = if here.contains_key(&(section.clone(), name.clone())) || of_environment.as_ref() == Some(name) {
            "is another one here, and stays"
        } else if is_user {
            "is not copied: a user here has this name"
        } else if !is_password_hash(value) {
            "has a password that is not hashed as here; set it again"
        } else {
            set(target, section, name, value, outcome).await;
            continue;
        };
        outcome.left.push(format!("{section}/{name} {why}"));
    }
    Ok(())
}

fn is_copied(section: &str, key: &str) -> bool {
    COPIED.iter().any(|(copied, keys)| *copied == section && keys.contains(&key))
}

/// The default of a setting that means something here, which may be empty. `None` for others.
fn usual(section: &str, key: &str) -> Option<&'static str> {
    let names = KNOWN_SETTINGS.iter().filter(|(known, _)| *known == section).flat_map(|(_, names)| *names);
    let is_it = |known: &str| known == key || known.ends_with(':') && key.starts_with(known);
    names.copied().find(|(known, _)| is_it(known)).map(|(_, usual)| usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_a_setting_that_means_something_here() {
        for (section, keys) in COPIED {
            assert!(keys.iter().all(|key| usual(section, key).is_some()), "{section}");
        }
        assert_eq!(usual("jwt_keys", "hmac:_default"), Some(""));
        assert_eq!(usual("query_servers", "javascript"), None);
        for (section, key) in
            [("cors", "origins"), ("chttpd", "enable_cors"), ("httpd", "enable_cors"), ("chttpd_auth", "secret")]
        {
            assert!(usual(section, key).is_some() && !is_copied(section, key), "{section}/{key}");
        }
    }
}
