//! Settings that apply at this server until it ends: a client sets them with `X-Couch-Persist: false`.
//!
//! They override the settings of the store. Other servers of the store do not know them.

use std::collections::BTreeMap;

use model::{MAX_SETTINGS, Setting, check_setting};
use parking_lot::Mutex;

use crate::http::error::{ApiError, Result};

/// Settings by section and name; `None` for one that was removed. It has no `Debug`, since they hold secrets.
#[derive(Default)]
pub(crate) struct Unkept(Mutex<BTreeMap<(String, String), Option<String>>>);

impl Unkept {
    /// Sets a setting, or removes it with `None`. Their number and size are limited as in the store.
    pub(crate) fn set(&self, section: &str, name: &str, value: Option<&str>) -> Result<()> {
        check_setting(section, name, value)?;
        let mut settings = self.0.lock();
        let key = (section.to_owned(), name.to_owned());
        if settings.len() >= MAX_SETTINGS && !settings.contains_key(&key) {
            return Err(ApiError::bad_request(format!("There are {MAX_SETTINGS} such settings already.")));
        }
        settings.insert(key, value.map(str::to_owned));
        Ok(())
    }

    /// Lets the setting of the store apply again. Returns whether one was overridden here.
    pub(crate) fn forget(&self, section: &str, name: &str) -> bool {
        self.0.lock().remove(&(section.to_owned(), name.to_owned())).is_some()
    }

    /// Lets all settings of the store apply again.
    pub(crate) fn forget_all(&self) {
        self.0.lock().clear();
    }

    /// The effective settings: `stored` has those in the store and in the server's file.
    pub(super) fn over(&self, mut stored: Vec<Setting>) -> Vec<Setting> {
        for ((section, name), value) in self.0.lock().iter() {
            stored.retain(|setting| (&setting.section, &setting.name) != (section, name));
            if let Some(value) = value {
                stored.push(Setting { section: section.clone(), name: name.clone(), value: value.clone() });
            }
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::settings_of;

    #[test]
    fn they_precede_the_store_until_they_are_forgotten() {
        let stored = || settings_of(&[("a", "x", "1"), ("a", "y", "2")]);
        let unkept = Unkept::default();
        unkept.set("a", "x", Some("3")).unwrap();
        unkept.set("a", "y", None).unwrap();
        unkept.set("b", "z", Some("4")).unwrap();
        let shown = |unkept: &Unkept| {
            let settings = unkept.over(stored()).into_iter();
            settings
                .map(|setting| format!("{}/{}={}", setting.section, setting.name, setting.value))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(&unkept), ["a/x=3", "b/z=4"]);
        assert!(unkept.forget("a", "y") && !unkept.forget("a", "y"));
        assert_eq!(shown(&unkept), ["a/y=2", "a/x=3", "b/z=4"]);
        unkept.forget_all();
        assert_eq!(shown(&unkept), ["a/x=1", "a/y=2"]);
        for number in 0..MAX_SETTINGS {
            unkept.set("a", &number.to_string(), Some("")).unwrap();
        }
        assert_eq!(unkept.set("a", "more", None).unwrap_err().status(), 400);
        unkept.set("a", "0", None).unwrap();
        // As in the store.
        let long = "x".repeat(20_001);
        for (section, name, value) in [("a", "0", long.as_str()), ("", "x", ""), ("a", &long, "")] {
            assert_eq!(unkept.set(section, name, Some(value)).unwrap_err().status(), 400);
        }
    }
}
