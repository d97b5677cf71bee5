use std::fs;
use std::path::Path;
use std::sync::Arc;

use peer::Trust;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsConnector;

use super::challenges::CHALLENGE_PROTOCOL;
use super::order::proof;
use super::*;
use crate::http::tls::{Origin, Tls, self_signed};

const DIRECTORY: &str = "https://ca.example:14000/dir/";

fn options(folder: &Path, domains: &[&str]) -> AcmeOptions {
    let domains = domains.iter().map(|&domain| domain.to_owned()).collect();
    let (directory, folder) = (DIRECTORY.to_owned(), folder.to_owned());
    AcmeOptions { domains, email: None, directory, folder, trust: Trust::default() }
}

#[test]
fn a_certificate_is_read_from_its_folder_if_it_is_for_all_domains() {
    let root = tempfile::tempdir().unwrap();
    let opened = |domains: &[&str]| Acme::open(options(root.path(), domains)).unwrap();
    let (acme, none) = opened(&["a.example"]);
    assert!(none.is_none());
    let path = root.path().join("ca.example-14000-dir/certificate.pem");
    assert_eq!(acme.orders.folder.certificate_path(), path);
    let made = self_signed::make(&["a.example".to_owned(), "b.example".to_owned()]).unwrap();
    // A file that a crash left.
    fs::write(path.with_added_extension("new"), "half").unwrap();
    acme.orders.folder.write_certificate((made.key.clone() + &made.certificate).as_bytes()).unwrap();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    assert!(opened(&["a.example"]).1.is_some());
    assert!(opened(&["b.example", "a.example"]).1.is_some());
    assert!(opened(&["a.example", "c.example"]).1.is_none(), "another one is ordered");
    // Another ACME server's is another certificate.
    let elsewhere =
        AcmeOptions { directory: "https://staging.example".to_owned(), ..options(root.path(), &["a.example"]) };
    assert!(Acme::open(elsewhere).unwrap().1.is_none());

    let other = self_signed::make(&["a.example".to_owned()]).unwrap();
    for damaged in [String::new(), made.certificate.clone(), other.key.clone() + &made.certificate, "noise".into()] {
        fs::write(&path, &damaged).unwrap();
        assert!(opened(&["a.example"]).1.is_none(), "{damaged}");
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged, "kept until there is a new one");
    }
}

#[cfg(unix)]
#[test]
fn keys_are_for_their_owner_only_and_a_folder_that_cannot_be_written_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = root.path().join("acme");
    let (acme, _) = Acme::open(options(&folder, &["a.example"])).unwrap();
    acme.orders.folder.write_certificate(b"a key").unwrap();
    assert_eq!(mode(&acme.orders.folder.certificate_path()), 0o600);
    assert_eq!([mode(&folder), mode(acme.orders.folder.certificate_path().parent().unwrap())], [0o700; 2]);
    let own = acme.orders.folder.certificate_path();
    assert!(acme.orders.folder.open_to_others().is_empty());
    fs::set_permissions(&own, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(acme.orders.folder.open_to_others(), [own]);
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Acme::open(options(&file, &["a.example"])).unwrap_err();
    assert!(error.to_string().contains("file/ca.example-14000-dir cannot be written"), "{error}");
}

#[test]
fn an_account_that_cannot_be_read_is_kept_and_not_shown() {
    let root = tempfile::tempdir().unwrap();
    let (acme, _) = Acme::open(options(root.path(), &["a.example"])).unwrap();
    assert!(acme.orders.folder.account().unwrap().is_none());
    let path = root.path().join("ca.example-14000-dir/account.json");
    for damaged in ["", "{\"id\":\"x\",\"key_pkcs8\":\"geheim\"}", "{\"id\":\"x\",\"key_pkcs8\":\"geheim"] {
        fs::write(&path, damaged).unwrap();
        let error = acme.orders.folder.account().err().unwrap();
        let said = format!("{error} {error:?}");
        assert!(said.contains("account.json") && said.contains("move it away") && !said.contains("geheim"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    }
}

#[test]
fn failures_are_kept_over_a_restart_until_a_success() {
    let root = tempfile::tempdir().unwrap();
    let opened = || Acme::open(options(root.path(), &["a.example"])).unwrap().0.orders.folder;
    assert!(opened().failed().is_none());
    let failed = Failed::default().again(false).again(false);
    opened().write_failed(&failed).unwrap();
    assert_eq!(opened().failed(), failed);
    let path = root.path().join("ca.example-14000-dir/failed.json");
    for damaged in ["", "{}", "{\"count\":-1}", "noise"] {
        fs::write(&path, damaged).unwrap();
        assert!(!opened().failed().rest().is_zero(), "{damaged}");
    }
    opened().write_failed(&Failed::default()).unwrap();
    assert!(!path.exists() && opened().failed().is_none());
    opened().write_failed(&Failed::default()).unwrap();
}

#[test]
fn a_certificate_that_is_due_when_it_is_issued_is_not_ordered_again_at_once() {
    let made = |from, until| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(until, 1, 1));
        let pem = (key.serialize_pem() + &params.self_signed(&key).unwrap().pem()).into_bytes();
        let pair = Pair { certificate: pem.clone(), key: pem };
        Current::new(Some(pair.certified("".as_ref(), "".as_ref()).unwrap()))
    };
    assert!(matches!(due_later(&made(2001, 2002)), Err(OrderError::Clock)));
    assert!(until_renewal(&made(2020, 3020)) > LOOK);
    assert_eq!(until_renewal(&Current::new(None)), Duration::ZERO);
}

/// Takes any certificate, and keeps it.
#[derive(Debug, Default)]
struct Any(parking_lot::Mutex<Option<CertificateDer<'static>>>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock() = Some(certificate.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test]
async fn a_challenge_is_answered_for_its_domain_and_its_protocol_only() {
    let root = tempfile::tempdir().unwrap();
    let tls = Tls::by_acme(options(root.path(), &["a.example"])).unwrap();
    assert!(matches!(tls.origin, Origin::Acme(_)));
    let digest = [7; 32];
    tls.current.challenges.set("a.example".to_owned(), proof("a.example".to_owned(), &digest).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Whether a client got something, and the certificate that it was shown.
    let shown = async |domain: &'static str, protocols: &[&[u8]]| {
        let seen = Arc::new(Any::default());
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().dangerous();
        let mut config = builder.with_custom_certificate_verifier(seen.clone()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let client = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from(domain).unwrap();
            let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
            // An orderly end, without a byte.
            stream.read_to_end(&mut Vec::new()).await
        };
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            // Dropped here, so that the client's connection ends.
            tls.accept(Box::pin(TimeoutStream::new(stream))).await.map(|stream| stream.is_some())
        };
        let (client, server) = tokio::join!(client, server);
        let certificate = seen.0.lock().take();
        (client.is_ok(), server.ok(), certificate)
    };
    let (is_answered, served, certificate) = shown("A.example", &[CHALLENGE_PROTOCOL]).await;
    assert!(is_answered);
    assert_eq!(served, Some(false), "no requests are served");
    let certificate = certificate.unwrap();
    let extension = [&[0x2b, 6, 1, 5, 5, 7, 1, 31, 1, 1, 0xff, 4, 34, 4, 32][1..], &digest].concat();
    assert!(certificate.windows(extension.len()).any(|bytes| bytes == extension), "{certificate:?}");
    // There is no certificate yet, so all others are refused.
    for (domain, protocols) in [
        ("b.example", &[CHALLENGE_PROTOCOL][..]),
        ("a.example", &[b"h2"]),
        ("a.example", &[]),
        ("a.example", &[CHALLENGE_PROTOCOL, b"http/1.1"]),
    ] {
        assert_eq!(shown(domain, protocols).await, (false, None, None), "{domain} {protocols:?}");
    }
    let made = self_signed::make(&["a.example".to_owned()]).unwrap();
    let pem = (made.key + &made.certificate).into_bytes();
    let pair = Pair { certificate: pem.clone(), key: pem };
    tls.current.set(pair.certified("".as_ref(), "".as_ref()).unwrap());
    let (_, served, certificate) = shown("a.example", &[CHALLENGE_PROTOCOL, b"http/1.1"]).await;
    assert_eq!(served, Some(true), "a browser that knows the protocol too");
    assert_eq!(certificate.as_ref(), Some(&tls.current.certified.read().as_ref().unwrap().cert[0]));
    tls.current.challenges.clear();
    assert_eq!(shown("a.example", &[CHALLENGE_PROTOCOL]).await, (false, None, None), "the check is over");
}
