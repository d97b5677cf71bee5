//! The public keys of tokens: RSA and elliptic curves, as `openssl` writes them.
//!
//! ```text
//!  -----BEGIN PUBLIC KEY-----          base64 of   SEQUENCE
//!  MIIBIjANBgkqhkiG9w0B…                           ├ SEQUENCE  algorithm, and the curve if there is one
//!  -----END PUBLIC KEY-----                        └ BIT STRING  the key
//! ```
//!
//! The algorithm is read from the key and must fit the token's: a key is never used for another one. Line ends may be
//! written as `\n`, since a setting has one line.
//!
//! Sources: RFC 5280 (`SubjectPublicKeyInfo`), RFC 7518 (sections 3.3 and 3.4).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p521::ecdsa::signature::Verifier;
use p521::ecdsa::{Signature, VerifyingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, UnparsedPublicKey, VerificationAlgorithm,
};

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const BIT_STRING: u8 = 0x03;

/// 1.2.840.113549.1.1.1
const RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
/// 1.2.840.10045.2.1
const EC: &[u8] = b"\x2a\x86\x48\xce\x3d\x02\x01";
/// 1.2.840.10045.3.1.7
const P256: &[u8] = b"\x2a\x86\x48\xce\x3d\x03\x01\x07";
/// 1.3.132.0.34
const P384: &[u8] = b"\x2b\x81\x04\x00\x22";
/// 1.3.132.0.35
const P521: &[u8] = b"\x2b\x81\x04\x00\x23";

/// An algorithm of tokens signed with a private key.
#[derive(Clone, Copy)]
pub(crate) struct Algorithm {
    /// The prefix of the names of its keys in `jwt_keys`.
    pub(crate) family: &'static str,
    verification: Verification,
    key: Kind,
}

#[derive(Clone, Copy)]
enum Verification {
    Ring(&'static dyn VerificationAlgorithm),
    /// The curve that `ring` lacks.
    P521,
}

/// A kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    P521,
}

impl Algorithm {
    /// The algorithm with this name in the heads of tokens.
    pub(crate) fn named(name: &str) -> Option<Algorithm> {
        let (family, verification, key): (_, &'static dyn VerificationAlgorithm, _) = match name {
            "ES512" => return Some(Algorithm { family: "ec", verification: Verification::P521, key: Kind::P521 }),
            "RS256" => ("rsa", &RSA_PKCS1_2048_8192_SHA256, Kind::Rsa),
            "RS384" => ("rsa", &RSA_PKCS1_2048_8192_SHA384, Kind::Rsa),
            "RS512" => ("rsa", &RSA_PKCS1_2048_8192_SHA512, Kind::Rsa),
            "ES256" => ("ec", &ECDSA_P256_SHA256_FIXED, Kind::P256),
            "ES384" => ("ec", &ECDSA_P384_SHA384_FIXED, Kind::P384),
            _ => return None,
        };
        Some(Algorithm { family, verification: Verification::Ring(verification), key })
    }

    /// Whether the owner of a configured key signed this. `None` if the key is malformed, or of another algorithm.
    pub(crate) fn verify(self, pem: &str, signed: &[u8], signature: &[u8]) -> Option<bool> {
        let (kind, key) = read(pem)?;
        if kind != self.key {
            return None;
        }
        match self.verification {
            Verification::Ring(verification) => {
                Some(UnparsedPublicKey::new(verification, key).verify(signed, signature).is_ok())
            }
            Verification::P521 => {
                let key = VerifyingKey::from_sec1_bytes(&key).ok()?;
                Some(Signature::from_slice(signature).is_ok_and(|signature| key.verify(signed, &signature).is_ok()))
            }
        }
    }
}

/// The kind and the bytes of a public key.
fn read(pem: &str) -> Option<(Kind, Vec<u8>)> {
    let text = pem.replace("\\n", "\n");
    let (label, rest) = text.trim().strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let base64 = rest.trim_end().strip_suffix(&format!("-----END {label}-----"))?;
    let base64: String = base64.split_whitespace().collect();
    let der = STANDARD.decode(base64).ok()?;
    match label {
        "RSA PUBLIC KEY" => Some((Kind::Rsa, der)),
        "PUBLIC KEY" => read_info(&der),
        // Other PEM types, such as private keys and certificates.
        _ => None,
    }
}

fn read_info(der: &[u8]) -> Option<(Kind, Vec<u8>)> {
    let info = whole(element(SEQUENCE, der)?)?;
    let (algorithm, rest) = element(SEQUENCE, info)?;
    let bits = whole(element(BIT_STRING, rest)?)?;
    let (name, parameters) = element(OBJECT_ID, algorithm)?;
    let kind = match name {
        // The parameters are NULL.
        RSA if parameters == [5, 0] => Kind::Rsa,
        EC => match whole(element(OBJECT_ID, parameters)?)? {
            P256 => Kind::P256,
            P384 => Kind::P384,
            P521 => Kind::P521,
            _ => return None,
        },
        _ => return None,
    };
    // The first byte is the number of unused bits in the last byte.
    Some((kind, bits.strip_prefix(&[0])?.to_vec()))
}

/// The contents of a DER element of this type, and what follows it.
fn element(kind: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[kind])?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// The contents, if nothing follows them.
fn whole<'a>((contents, rest): (&'a [u8], &'a [u8])) -> Option<&'a [u8]> {
    rest.is_empty().then_some(contents)
}

/// Keys, and tokens of `{"sub":"anna","exp":1700000001}`, made with Python's `cryptography`. The private keys are gone.
#[cfg(test)]
pub(crate) mod vectors {
    /// The key of the tokens by RSA.
    pub(crate) const RSA_KEY: &str = "\
        -----BEGIN PUBLIC KEY-----\\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAujIisSZVGeQp4qZcFbcF\\nvKM2\
        oxxgQ4Z9WhZTpuDzeLdY4YqM6gaitXb44UQxqP2iQTh2qKWlhmKNewyAEzAe\\nnBweZOlqT0UnvUiU/fS2qsJFfalj+UmhnG7hb\
        wrcdW+WNVod727iQR8U/Ue44jFX\\n/qWuDItXOW3UvpPGNNwdSadD5QYX6mmTFeB1oAUSKt6xoqU5DnexJ6f2Y6XzH36y\\nKz/\
        wzTvv3G8LquhPAKLBha3a+J0UOR6vW9Pz5FntmLIjkTVSvFacxhCN8HgziAid\\nV2NCWPznFHxdP16sz5wdbgMZZpKIkTJcQfTh\
        Z4cn6v5bL8/SxDP6YX3CdG2waZca\\n5QIDAQAB\\n-----END PUBLIC KEY-----";
    /// The same, in the older form.
    pub(crate) const RSA_KEY_OLD: &str = "\
        -----BEGIN RSA PUBLIC KEY-----\\nMIIBCgKCAQEAujIisSZVGeQp4qZcFbcFvKM2oxxgQ4Z9WhZTpuDzeLdY4YqM6gai\\n\
        tXb44UQxqP2iQTh2qKWlhmKNewyAEzAenBweZOlqT0UnvUiU/fS2qsJFfalj+Umh\\nnG7hbwrcdW+WNVod727iQR8U/Ue44jFX/\
        qWuDItXOW3UvpPGNNwdSadD5QYX6mmT\\nFeB1oAUSKt6xoqU5DnexJ6f2Y6XzH36yKz/wzTvv3G8LquhPAKLBha3a+J0UOR6v\
        \\nW9Pz5FntmLIjkTVSvFacxhCN8HgziAidV2NCWPznFHxdP16sz5wdbgMZZpKIkTJc\\nQfThZ4cn6v5bL8/SxDP6YX3CdG2waZ\
        ca5QIDAQAB\\n-----END RSA PUBLIC KEY-----";
    pub(crate) const RS256: &str = "\
        eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.SBY79HFKE6TJtNsG2lt22bgcJqUle7TzP9-5\
        RCXg1nAqGlx0Vhrb9MeeK8sKwNnOQBAOkmi3oNIqjwa2KrJDpA1bqB4slEE2aZH56lZc4LA5VXV09z31a5HzToVjFGD8TVSpU_XH\
        KW2UBkvBh0rS0tBY5pW4iR0ihfNnQO0iSUB3wqhTO_acHNs5su_vWeBTOngevHGvC06dK7haNwQQXYepjZjtgmiXnNPqpM8nr6D5\
        oJ5v1nESoK_SjAdnqt08F1UI2Km2zqQFowtVqRadAeYQhhS0z0wzMNV20REyHEY2R1rfj1UI4id_wko1vUAWHpT-jviHfI9UgYQG\
        wmfQUg";
    pub(crate) const RS384: &str = "\
        eyJhbGciOiJSUzM4NCJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.BgluvrzPMK8iwgf_-WqBRJrG6xxefie595Zq\
        un1rhMIMO-ooDo-pDsb5TzhIcYDWlnLkuzc79WueKa8wcw9Evg3u1P4Dvn8DJ_EYSzbqa8HEqzJStfqugbFwAv5sahi_sZzO9BgA\
        JD_5DVNYlSfcnfUYRC-L6-UCGCmK07tmIl-Js8UB9CswzTALg0O345MfSRGu1Du1Tl6HDe2dN99cWIheQaJsLe4zaN9JalZLT7Ac\
        NNUoQ9JZvVeay_iZCy8B9I5A0IIHTac3DJCuSKlxKwWjAu6RYYd6JMLSwqurhwlCRyv0tLYysnVR5RTTa-yxOug4FzM4piQANYFX\
        EmcSCw";
    pub(crate) const RS512: &str = "\
        eyJhbGciOiJSUzUxMiJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.MVNgRtgX_Vf_NYL1kfJgGDDWNvlvy4C7oRaJ\
        rIZUtY0qKREurUETJ7lGcLNe-GR-yWIKl0ysApoUAez5oBxJvrq8kQUiNMjYQGGshD5g4W2OuQaPMTTqoyzBYcG_wQsgIC51Nguk\
        Kvj_UIlmTTHBp6Wd7zZVrJvaydxQ4-tUQJHrwt36S1FJ0s1eixdFoG4wbh08QCclDqGxZ9iaehtIGePvEmuSxpvGDe18CfzXfTEx\
        wCdZdLEhGlqR-1qycauHyiGTfshRQdfFGjEFYgGzmNA-KgsPa6MuEL8m5qJYRs2bAdh-UoxyVq_xpWSnWi-N2MBQUevpoWqZDJji\
        hPh8iw";
    /// An RSA key of 1024 bits.
    pub(crate) const SMALL_KEY: &str = "\
        -----BEGIN PUBLIC KEY-----\\nMIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDC6A8/352DVcbd+c5ahvgVLtjT\\n8pmB\
        UgWXrDc8Yr6YUO73z+2Tvr3B4ImPNXpbZrHcVBi1jBPCBRoLUo2y67PGUWJY\\ngE3jeccod6gmc8Ug4H6DC5uBliIdmVM9anSby\
        bEiQW4x8SKezAqNXUDCsyIG92kO\\n4WUY/FccYq8MikcZRwIDAQAB\\n-----END PUBLIC KEY-----";
    /// A token by it.
    pub(crate) const BY_SMALL_KEY: &str = "\
        eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.A5D8_lW8e_W1ycANufCUEtQLBYLfV2GC9UgO\
        4J_2ZE3wkeFPuZ1ZVA2TDNjMzSK2iw-MQJMyPMz8K0j91GzP3P-JzAMS2ko2T3BtD8hdVkg5tq4zaBJOXPyrZcWjXXtNHyvbbbS1\
        mD9OgkrjZ-CrJ6pv-IMerXHgwA1k0lAqzrQ";
    pub(crate) const EC_KEY_256: &str = "\
        -----BEGIN PUBLIC KEY-----\\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEczlzlBldSfdJvjy10QCOBS6SD4z4\\nzjMF\
        nWr14TlX2tZOxnvK6K2yCjmAmbSLqylwdj0bt/v7ZfhoK5t4C79Kww==\\n-----END PUBLIC KEY-----";
    pub(crate) const ES256: &str = "\
        eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.D3cjOasYlN1YN354D5PZHjB71ax5311CmFY5\
        MECFGA4cgRAvg_NpJjxODz25Qsp1At6FnTbdAeHw4IZf4aWMqg";
    /// A token that claims ES384, signed by SHA-384 with the key of ES256.
    pub(crate) const CROSSED: &str = "\
        eyJhbGciOiJFUzM4NCJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ._WCM0LDwinWWEcF_qdDUapLHsXAEJRnw13oA\
        35GwU2yjOLHKy6r_u37PWqn4QC46-hFv6lgkOA0ObMnb1A3K7A";
    pub(crate) const EC_KEY_384: &str = "\
        -----BEGIN PUBLIC KEY-----\\nMHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEXe3INlrf3Mz41xpL5xgDh+yTbTJCGGpn\\n2eM3\
        t2bh2tw/PXgkmm0n8kv2MnU4oLit++cdk+ifG4SN9DQeckAvMhKaupJ2Cp2n\\nGnIFRO4W9MEZSe/hoAPspasEsLKNRxvz\\n--\
        ---END PUBLIC KEY-----";
    pub(crate) const ES384: &str = "\
        eyJhbGciOiJFUzM4NCJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.67KisZXzizZRjUvphSkUX0HJHcYio4xpbC4x\
        1yK9jHZZSt_Md60ukuknOc5TZXKqIKl2wQLI2NRBR6p8MUkogigWTnXlsGW9zQwlHN1sOpB16tvewKdrMdoX_Fl0kh7M";
    pub(crate) const EC_KEY_521: &str = "\
        -----BEGIN PUBLIC KEY-----\nMIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQBjECtPxD9pO7MkZpnbVGDXU5kI94Y\n5Gea5x\
        Dg5Rng5x4qfedir1098QxgqTJWzAMQ/LP5l/x80tYZj/DhcYHhHOMB4jbN\nW0hTfQQIErbA7YoyTmHlk18yMiSP4rMz3oaye6Mh\
        TQns3RmEkBDI6UaDB+MtZvDS\nCCtWlMalHsAoNGngWwA=\n-----END PUBLIC KEY-----";
    /// Made with `openssl`.
    pub(crate) const ES512: &str = "\
        eyJhbGciOiJFUzUxMiJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjoxNzAwMDAwMDAxfQ.AWj1oivGJl4UYJrLUuSQvO5B3sSrNplLVzUw\
        bvPuLAlyECT2KUJEn13s0UxSkdpKV0tVOr5jOJw21fmW7m1Bk1KtAEdb4XS_EJkePvpfFqLauELBDlie8ZL7I22fhqw83KnbMBI9\
        Xy6kfa7RP3g893Pm7cue4J09NTyY5YVzX39nBV70";
    /// The key of the example of RFC 7515, A.4.
    pub(crate) const RFC_KEY_521: &str = "\
        -----BEGIN PUBLIC KEY-----\nMIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQB6SkFDxJPxrxVx9U5M2Xfne9KsMIs\nsleY+T\
        TrBOPGuuNwGlenkQ6dgb82MVno68sVXWNJ9L22zPipTFxZx6rBAaQANKZE\nDjdnUNI3H9G9wsjztx0vTuXqNDLIFcyjFWD+XZOH\
        7HdLVYOGMOXLv1qMvgqR3QBk\nxpmaH25uZ/rd7eTIyPY=\n-----END PUBLIC KEY-----";
    /// That example. Its payload is not an object.
    pub(crate) const RFC_ES512: &str = "\
        eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA.AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2\
        SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXo\
        lLzeO_Jn";
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::vectors::*;
    use super::*;

    fn verify(algorithm: &str, key: &str, token: &str) -> Option<bool> {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        Algorithm::named(algorithm).unwrap().verify(key, signed.as_bytes(), &signature)
    }

    #[test]
    fn signatures_of_each_algorithm_are_known() {
        for (name, key, token) in [
            ("RS256", RSA_KEY, RS256),
            ("RS256", RSA_KEY_OLD, RS256),
            ("RS384", RSA_KEY, RS384),
            ("RS512", RSA_KEY, RS512),
            ("ES256", EC_KEY_256, ES256),
            ("ES384", EC_KEY_384, ES384),
            ("ES512", EC_KEY_521, ES512),
            ("ES512", RFC_KEY_521, RFC_ES512),
        ] {
            assert_eq!(verify(name, key, token), Some(true), "{name}");
            assert_eq!(verify(name, &key.replace("\\n", "\r\n"), token), Some(true), "{name}");
            assert_eq!(verify(name, key, &token.replacen("eyJ", "eyK", 1)), Some(false), "{name}");
        }
        for none in ["none", "HS256", "rs256", "es512", "PS256", "ES256K", ""] {
            assert!(Algorithm::named(none).is_none(), "{none}");
        }
    }

    #[test]
    fn a_key_is_for_its_own_algorithm() {
        assert_eq!(verify("RS384", RSA_KEY, RS256), Some(false), "another hash");
        assert_eq!(verify("RS256", EC_KEY_256, RS256), None);
        assert_eq!(verify("ES256", RSA_KEY, ES256), None);
        assert_eq!(verify("ES384", EC_KEY_256, CROSSED), None, "another curve");
        assert_eq!(verify("ES512", EC_KEY_384, ES512), None, "another curve");
        assert_eq!(verify("ES384", EC_KEY_521, ES384), None, "another curve");
        assert_eq!(verify("ES512", RFC_KEY_521, ES512), Some(false), "another key");
        assert_eq!(verify("RS256", SMALL_KEY, BY_SMALL_KEY), Some(false), "too short to be safe");
    }

    #[test]
    fn damaged_signatures_of_the_largest_curve_prove_nothing() {
        let (signed, signature) = ES512.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let check =
            |signature: &[u8]| Algorithm::named("ES512").unwrap().verify(EC_KEY_521, signed.as_bytes(), signature);
        assert_eq!(check(&signature), Some(true));
        for at in (0..signature.len()).step_by(11) {
            let mut changed = signature.clone();
            changed[at] ^= 1;
            assert_eq!(check(&changed), Some(false), "changed at {at}");
            assert_eq!(check(&signature[..at]), Some(false), "cut at {at}");
        }
        assert_eq!(check(&[signature.as_slice(), &[0]].concat()), Some(false), "longer");
        // With these numbers, some verifiers accept everything (CVE-2022-21449), or divide by zero.
        let (zero, most) = ([0; 66], [0xff; 66]);
        let (r, s) = signature.split_at(66);
        for (r, s) in [(&zero[..], &zero[..]), (&zero, s), (r, &zero), (&most, &most), (r, &most), (&most, s)] {
            assert_eq!(check(&[r, s].concat()), Some(false));
        }
    }

    /// Keys are written by administrators, and may be anything.
    #[test]
    fn damaged_keys_verify_nothing_and_panic_never() {
        for (name, key, token) in
            [("RS256", RSA_KEY, RS256), ("ES256", EC_KEY_256, ES256), ("ES512", EC_KEY_521, ES512)]
        {
            for at in 0..key.len() {
                assert_ne!(verify(name, &key[..at], token), Some(true), "cut at {at}");
                let mut changed = key.as_bytes().to_vec();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(changed).unwrap();
                assert_ne!(verify(name, &changed, token), Some(true), "changed at {at}");
            }
            let private = key.replace("PUBLIC", "PRIVATE");
            assert_eq!(verify(name, &private, token), None);
        }
        let mut random = Bytes(7);
        for _ in 0..20_000 {
            let der: Vec<u8> = (0..random.next() % 40).map(|_| random.next()).collect();
            let pem = format!("-----BEGIN PUBLIC KEY-----{}-----END PUBLIC KEY-----", STANDARD.encode(der));
            assert_ne!(verify("ES256", &pem, ES256), Some(true));
        }
        for long in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x83, 0xff, 0xff, 0xff], &[0x30, 0x80]] {
            assert!(read_info(long).is_none());
        }
    }

    /// Random bytes, many of them typical of DER.
    struct Bytes(u64);

    impl Bytes {
        fn next(&mut self) -> u8 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (self.0 >> 33) as u8;
            match byte % 4 {
                0 => [SEQUENCE, OBJECT_ID, BIT_STRING, 0, 2, 4, 0x81, 0x82][usize::from(byte >> 5)],
                _ => byte,
            }
        }
    }
}
