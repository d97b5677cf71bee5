//! Sizes and times as people write them, on the command line and in settings: `64MB`, `1h`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The units of sizes.
const SIZES: [(&str, u64); 9] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// The unit of a setting's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Things,
    Bytes,
    Milliseconds,
    Seconds,
}

/// A number of bytes: `8000000`, `64MB`, `1.5 GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim().to_ascii_lowercase());
    let size = SIZES.iter().find(|(name, _)| *name == unit || unit.is_empty()).map(|(_, size)| *size);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let value = || {
        let size = size?;
        let part: f64 = format!("0.{part}").parse().ok()?;
        // Bytes have no fractions.
        let part = if size == 1 && part > 0.0 { return None } else { (part * size as f64) as u64 };
        whole.parse::<u64>().ok()?.checked_mul(size)?.checked_add(part)
    };
    value()
        .ok_or_else(|| "write a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB, for example 64MB".to_owned())
}

/// Reads a size that must be in this range.
pub(crate) fn bytes_in(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let size = bytes(text)?;
        match range.contains(&size) {
            true => Ok(size),
            false if *range.end() == u64::MAX => Err(format!("it must be at least {}", range.start())),
            false => Err(format!("it must be between {} and {}", range.start(), range.end())),
        }
    }
}

/// Reads a time that is at least this long.
pub(crate) fn time_from(least: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match humantime::parse_duration(text) {
        Ok(time) if time >= least => Ok(time),
        Ok(_) => Err(format!("it must be at least {}", humantime::format_duration(least))),
        Err(error) => Err(error.to_string()),
    }
}

/// A number of this unit.
pub(crate) fn number(unit: Unit, text: &str) -> Option<u64> {
    let time = || humantime::parse_duration(text).ok();
    text.parse().ok().or_else(|| match unit {
        Unit::Things => None,
        Unit::Bytes => bytes(text).ok(),
        Unit::Milliseconds => u64::try_from(time()?.as_millis()).ok(),
        Unit::Seconds => time().map(|time: Duration| time.as_secs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, size) in [
            ("0", 0),
            ("8000000", 8_000_000),
            ("64MB", 64_000_000),
            ("64 MiB", 64 << 20),
            ("1.5gib", 3 << 29),
            ("2kB", 2_000),
            ("7B", 7),
            ("3TB", 3_000_000_000_000),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for wrong in ["", "MB", "-1", "1.5", "1.5B", "64M", "1 1", "1e3", "many", "99999999999TB", ".5MB", "1..5MB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(bytes_in(1..=1_000)("1kB"), Ok(1_000));
        assert_eq!(bytes_in(1..=1_000)("2kB"), Err("it must be between 1 and 1000".to_owned()));
        assert_eq!(bytes_in(5..=u64::MAX)("2"), Err("it must be at least 5".to_owned()));
    }

    #[test]
    fn numbers_of_settings_may_have_units() {
        assert_eq!([Unit::Things, Unit::Bytes, Unit::Seconds].map(|unit| number(unit, "60")), [Some(60); 3]);
        assert_eq!(number(Unit::Seconds, "1h"), Some(3_600));
        assert_eq!(number(Unit::Milliseconds, "5min"), Some(300_000));
        assert_eq!(number(Unit::Bytes, "1MB"), Some(1_000_000));
        assert_eq!([number(Unit::Things, "1h"), number(Unit::Bytes, "1h"), number(Unit::Seconds, "1MB")], [None; 3]);
    }
}
