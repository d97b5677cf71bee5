//! The dates of a certificate (RFC 5280, section 4.1), which rustls checks but does not show.

use std::time::SystemTime;

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode, Reader, SliceReader, Tag, Tagged};

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    from: SystemTime,
    until: SystemTime,
}

impl Validity {
    /// The dates of a certificate in DER; `None` if it cannot be read.
    pub(super) fn of(certificate: &[u8]) -> Option<Validity> {
        read(certificate).ok()
    }

    /// When a third of its time is left, as Let's Encrypt advises.
    pub(super) fn renewal(&self) -> SystemTime {
        let lasts = self.until.duration_since(self.from).unwrap_or_default();
        self.from + lasts / 3 * 2
    }
}

fn read(certificate: &[u8]) -> der::Result<Validity> {
    let mut certificate = inside(AnyRef::from_der(certificate)?)?;
    let mut fields = inside(certificate.decode()?)?;
    // A version, which may be missing, then the serial number, the algorithm, the issuer, and the dates.
    if Tag::peek(&fields)?.is_context_specific() {
        AnyRef::decode(&mut fields)?;
    }
    for _ in 0..3 {
        AnyRef::decode(&mut fields)?;
    }
    let mut dates = inside(fields.decode()?)?;
    Ok(Validity { from: date(dates.decode()?)?, until: date(dates.decode()?)? })
}

/// What a sequence consists of.
fn inside(sequence: AnyRef<'_>) -> der::Result<SliceReader<'_>> {
    SliceReader::new(sequence.value())
}

fn date(date: AnyRef<'_>) -> der::Result<SystemTime> {
    let since_1970 = match date.tag() {
        Tag::UtcTime => date.decode_as::<UtcTime>()?.to_unix_duration(),
        _ => date.decode_as::<GeneralizedTime>()?.to_unix_duration(),
    };
    Ok(SystemTime::UNIX_EPOCH + since_1970)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn both_forms_of_dates_are_read_and_damage_is_not() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        // Dates from 2050 on have another form.
        for (to, until) in [(2030, 1_893_456_000), (2060, 2_840_140_800)] {
            let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(to, 1, 1));
            let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let read = Validity::of(made.der()).unwrap();
            assert_eq!(read, Validity { from: at(1_767_225_600), until: at(until) });
            for length in 0..made.der().len() {
                assert_eq!(Validity::of(&made.der()[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn a_third_of_the_time_is_left_for_renewals() {
        let at = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400);
        assert_eq!(Validity { from: at(100), until: at(190) }.renewal(), at(160));
        assert_eq!(Validity { from: at(100), until: at(100) }.renewal(), at(100));
        assert_eq!(Validity { from: at(100), until: at(90) }.renewal(), at(100), "a nonsensical one at once");
    }
}
