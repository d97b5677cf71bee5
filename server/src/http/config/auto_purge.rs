//! The option `couch_auto_purge_plugin`: whether, when and how often old tombstones are purged.
//!
//! Source: CouchDB's `couch_auto_purge_plugin.erl` and `couch_scanner_util.erl`.

use std::time::Duration;

use crate::http::config::rows::SettingRows;

/// The section of the option.
const SECTION: &str = "couch_auto_purge_plugin";

/// The option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AutoPurge {
    /// For databases without a setting of their own.
    pub(crate) ttl: Ttl,
    /// Whether tombstones are only counted.
    pub(crate) dry_run: bool,
    /// Time between two rounds.
    pub(crate) repeat: Duration,
}

impl AutoPurge {
    /// `None` unless the configuration enables it.
    pub(crate) fn read(rows: &SettingRows) -> Option<AutoPurge> {
        let option = AutoPurge {
            // An unreadable value purges nothing.
            ttl: rows.read(SECTION, "deleted_document_ttl", Ttl::parse).unwrap_or(Ttl::Infinity),
            dry_run: rows.flag(SECTION, "dry_run"),
            repeat: rows.read(SECTION, "repeat", period).unwrap_or_default().max(Duration::from_secs(1)),
        };
        // Read in any case, so that a file is checked before somebody enables it.
        rows.flag("couch_scanner_plugins", SECTION).then_some(option)
    }
}

/// How long tombstones are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    Infinity,
    Of(Duration),
}

impl Ttl {
    /// `3_mon`, `1000_sec` or `infinity`.
    pub(crate) fn parse(text: &str) -> Option<Ttl> {
        if text == "infinity" { Some(Ttl::Infinity) } else { period(text).map(Ttl::Of) }
    }
}

/// A period as CouchDB writes it: a number above 0, and a unit.
fn period(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_once('_')?;
    let seconds: u64 = match unit {
        "s" | "sec" | "second" | "seconds" => 1,
        "min" | "minute" | "minutes" => 60,
        "h" | "hrs" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        "mon" | "month" | "months" => 30 * 86_400,
        "y" | "year" | "years" => 365 * 86_400,
        _ => return None,
    };
    let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
    Some(Duration::from_secs(number.saturating_mul(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    #[test]
    fn periods_are_those_of_couchdb() {
        let of = |seconds| Some(Ttl::Of(Duration::from_secs(seconds)));
        for (text, ttl) in [
            ("1000_sec", of(1_000)),
            ("30_min", of(1_800)),
            ("8_hours", of(28_800)),
            ("2_days", of(172_800)),
            ("3_weeks", of(1_814_400)),
            ("3_mon", of(7_776_000)),
            ("2_years", of(63_072_000)),
            ("99999999999999999_y", of(u64::MAX)),
            ("infinity", Some(Ttl::Infinity)),
            ("", None),
            ("3", None),
            ("_mon", None),
            ("0_mon", None),
            ("-1_mon", None),
            ("3_moons", None),
            ("3_mon_", None),
            ("monday", None),
        ] {
            assert_eq!(Ttl::parse(text), ttl, "{text}");
        }
    }

    #[test]
    fn nothing_is_purged_unless_both_are_set() {
        let enabled = ("couch_scanner_plugins", SECTION, "true");
        assert_eq!(AutoPurge::read(&rows_of(&[(SECTION, "deleted_document_ttl", "3_mon")])), None);
        let read = |more: &[_]| AutoPurge::read(&rows_of(&[&[enabled], more].concat())).unwrap();
        let day = Duration::from_secs(86_400);
        assert_eq!(read(&[]), AutoPurge { ttl: Ttl::Infinity, dry_run: false, repeat: day });
        let set = [(SECTION, "deleted_document_ttl", "1_d"), (SECTION, "repeat", "1_h"), (SECTION, "dry_run", "true")];
        assert_eq!(read(&set), AutoPurge { ttl: Ttl::Of(day), dry_run: true, repeat: day / 24 });
        assert_eq!(read(&[(SECTION, "deleted_document_ttl", "1 day")]).ttl, Ttl::Infinity);
        assert_eq!(read(&[(SECTION, "repeat", "monday")]).repeat, day, "the default");
    }
}
