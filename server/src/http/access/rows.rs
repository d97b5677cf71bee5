//! The settings of the store as they are stored: text by section and name.

use std::collections::BTreeMap;

use model::Setting;

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

    pub(crate) fn get(&self, section: &str, name: &str) -> Option<&str> {
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
        self.get("chttpd_auth", name).or_else(|| self.get("couch_httpd_auth", name))
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
