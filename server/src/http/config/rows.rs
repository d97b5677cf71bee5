//! The settings as text, by section and name, with the defaults beneath them.

use std::collections::{BTreeMap, BTreeSet};

use model::Setting;
use parking_lot::Mutex;

use crate::http::config::known::{AUTH, EARLIER_AUTH, defaults, is_known, unit_of};
use crate::units;

/// Values by section and name.
type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Settings by section and name.
#[derive(Default)]
pub(crate) struct SettingRows {
    /// Settings in the store or in the server's file.
    set: Sections,
    /// The defaults.
    usual: Sections,
    /// Section and name of settings whose values could not be read.
    unread: Mutex<BTreeSet<(String, String)>>,
}

impl std::fmt::Debug for SettingRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.set.keys()).finish()
    }
}

fn insert(sections: &mut Sections, Setting { section, name, value }: Setting) {
    sections.entry(section).or_default().insert(name, value);
}

fn find<'a>(sections: &'a Sections, section: &str, name: &str) -> Option<&'a str> {
    sections.get(section)?.get(name).map(String::as_str)
}

impl SettingRows {
    /// `started`: the server's options. They override the defaults of the table.
    pub(crate) fn new(set: Vec<Setting>, started: impl IntoIterator<Item = Setting>) -> SettingRows {
        let mut rows = SettingRows::default();
        set.into_iter().for_each(|setting| insert(&mut rows.set, setting));
        for (section, name, value) in defaults() {
            insert(&mut rows.usual, Setting { section: section.into(), name: name.into(), value: value.into() });
        }
        started.into_iter().for_each(|setting| insert(&mut rows.usual, setting));
        rows
    }

    /// The settings in the store or in the server's file.
    pub(crate) fn sections(&self) -> &Sections {
        &self.set
    }

    /// The effective settings of one section or of all, as `_config` lists them, including settings without an effect.
    pub(crate) fn listed(&self) -> BTreeMap<&str, BTreeMap<&str, &str>> {
        let mut listed: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
        for (section, values) in self.usual.iter().chain(&self.set) {
            let values = values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            listed.entry(section).or_default().extend(values);
        }
        listed
    }

    /// A value of [`Self::listed`].
    pub(crate) fn listed_value(&self, section: &str, name: &str) -> Option<&str> {
        self.stored(section, name).or_else(|| find(&self.usual, section, name))
    }

    /// A setting that has an effect, or its default.
    pub(crate) fn get(&self, section: &str, name: &str) -> Option<&str> {
        self.read(section, name, Some)
    }

    /// The setting as `read` reads it. An unreadable value counts as the default.
    pub(crate) fn read<'a, T>(&'a self, section: &str, name: &str, read: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        debug_assert!(is_known(section, name), "{section}/{name} is missing in KNOWN_SETTINGS");
        let [set, usual] = [&self.set, &self.usual].map(|sections| find(sections, section, name));
        set.and_then(|text| self.noted(section, name, read(text))).or_else(|| usual.and_then(&read))
    }

    /// Notes a setting that could not be read.
    fn noted<T>(&self, section: &str, name: &str, read: Option<T>) -> Option<T> {
        if read.is_none() {
            self.unread.lock().insert((section.to_owned(), name.to_owned()));
        }
        read
    }

    /// Section and name of the settings read so far whose values are invalid, and so count as their defaults.
    pub(crate) fn unread(&self) -> BTreeSet<(String, String)> {
        self.unread.lock().clone()
    }

    /// Any setting in the store or in the file, even one without an effect, or an administrator.
    pub(crate) fn stored(&self, section: &str, name: &str) -> Option<&str> {
        find(&self.set, section, name)
    }

    /// `false` also if neither the setting nor its default is a truth value.
    pub(crate) fn flag(&self, section: &str, name: &str) -> bool {
        self.read(section, name, truth) == Some(true)
    }

    pub(crate) fn number(&self, section: &str, name: &str) -> Option<u64> {
        let unit = unit_of(section, name);
        self.read(section, name, |text| units::number(unit, text))
    }

    /// A number above 0.
    pub(crate) fn positive(&self, section: &str, name: &str) -> Option<u64> {
        let unit = unit_of(section, name);
        self.read(section, name, |text| units::number(unit, text).filter(|number| *number > 0))
    }

    /// The setting as `read` reads it, without a default.
    pub(crate) fn read_set<'a, T>(
        &'a self,
        section: &str,
        name: &str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Option<T> {
        self.stored(section, name).and_then(|text| self.noted(section, name, read(text)))
    }

    /// A number of things in memory; 0 if the setting has neither a number nor a default.
    pub(crate) fn count(&self, section: &str, name: &str) -> usize {
        usize::try_from(self.number(section, name).unwrap_or(0)).unwrap_or(usize::MAX)
    }

    /// A setting of authentication, from the section of CouchDB 3 or the earlier one, or its default.
    pub(crate) fn auth<'a, T>(&'a self, name: &str, read: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        let set = |section| self.read_set(section, name, &read);
        set(AUTH).or_else(|| set(EARLIER_AUTH)).or_else(|| self.read(AUTH, name, read))
    }
}

/// `true` or `false`.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Settings of tests: section, name, value.
#[cfg(test)]
pub(crate) fn settings_of(rows: &[(&str, &str, &str)]) -> Vec<Setting> {
    let setting = |&(section, name, value): &(&str, &str, &str)| {
        let (section, name, value) = (section.to_owned(), name.to_owned(), value.to_owned());
        Setting { section, name, value }
    };
    rows.iter().map(setting).collect()
}

/// Rows of tests.
#[cfg(test)]
pub(crate) fn rows_of(rows: &[(&str, &str, &str)]) -> SettingRows {
    SettingRows::new(settings_of(rows), [])
}

#[cfg(test)]
#[test]
fn what_cannot_be_read_counts_as_its_default() {
    let rows = rows_of(&[
        ("replicator", "max_churn", "x"),
        ("chttpd_auth", "timeout", "x"),
        ("couch_httpd_auth", "timeout", "60"),
        ("couch_httpd_auth", "iterations", "7"),
        ("couch_peruser", "enable", "maybe"),
    ]);
    assert_eq!((rows.number("replicator", "max_churn"), rows.number("replicator", "max_jobs")), (Some(20), Some(2000)));
    let number = |name: &str| rows.auth(name, |text| text.parse().ok());
    assert_eq!((number("timeout"), number("iterations"), number("min_iterations")), (Some(60), Some(7), Some(1)));
    assert!(!rows.flag("couch_peruser", "enable") && rows.flag("csp", "attachments_enable"));
    assert_eq!(rows.number("replicator", "retries_per_request"), None);
    assert_eq!(rows.listed_value("replicator", "max_churn"), Some("x"), "what is listed is what was set");
    assert_eq!(rows.listed()["couch_httpd_auth"].len(), 2);
    assert_eq!((rows.listed()["replicator"]["max_jobs"], rows.stored("replicator", "max_jobs")), ("2000", None));
}
