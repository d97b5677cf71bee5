//! An order of a certificate: the account, the challenges, and the certificate with its new key.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, Problem, RetryPolicy,
};
use peer::{MOST_TEXT, Trust, cut};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::CertifiedKey;

use super::super::pair::provider;
use super::challenges::Challenges;
use super::client::Client;
use super::error::OrderError;
use super::folder::Folder;

/// How often the state of an order is asked for, and for how long.
const POLLING: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(250)).backoff(1.5).timeout(Duration::from_secs(120));

/// The error of an account that the ACME server does not know.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// What a problem says, in one line of bounded length.
fn said(problem: &Problem) -> String {
    let mut said = problem.detail.clone().unwrap_or_default();
    for part in &problem.subproblems {
        said = format!("{said}; {}", part.detail.as_deref().unwrap_or_default());
    }
    let kind = problem.r#type.as_deref().unwrap_or("no type");
    line(&format!("{said} ({kind})"))
}

/// A text from outside in one line of bounded length.
fn line(text: &str) -> String {
    cut(text, MOST_TEXT).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// What is ordered, and where.
#[derive(Clone, Debug)]
pub struct AcmeOptions {
    /// The DNS names of the certificate, in lower case; at least one.
    pub domains: Vec<String>,
    /// The address of the account's owner.
    pub email: Option<String>,
    /// The URL of the ACME server's directory, behind `https://`.
    pub directory: String,
    /// The folder of accounts, keys and certificates.
    pub folder: PathBuf,
    /// By which certificates the ACME server is trusted.
    pub trust: Trust,
}

/// Orders what these options name.
pub(super) struct Orders {
    pub(super) options: AcmeOptions,
    pub(super) folder: Folder,
}

impl Orders {
    /// Orders a certificate. Returns its key, itself and its intermediate certificates in PEM. Sets `is_issued` when
    /// the ACME server has taken the request for it, and so counts the certificate.
    pub(super) async fn order(&self, challenges: &Challenges, is_issued: &AtomicBool) -> Result<String, OrderError> {
        let account = self.account().await?;
        let domains: Vec<_> = self.options.domains.iter().cloned().map(Identifier::Dns).collect();
        let failed = |error| self.failed(error);
        let mut order = account.new_order(&NewOrder::new(&domains)).await.map_err(failed)?;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(failed)?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let domain = authorization.identifier().to_string();
            let Some(mut challenge) = authorization.challenge(ChallengeType::TlsAlpn01) else {
                return Err(OrderError::NoChallenge { server: self.server(), domain });
            };
            let digest = challenge.key_authorization().digest();
            challenges.set(domain.clone(), proof(domain, digest.as_ref())?);
            challenge.set_ready().await.map_err(failed)?;
        }
        match order.poll_ready(&POLLING).await {
            Ok(OrderStatus::Ready) => {}
            ended => {
                // The order itself says less than the check that failed.
                if let Some(error) = self.not_proved(&mut order).await {
                    return Err(error);
                }
                ended.map_err(failed)?;
                return Err(OrderError::Failed { server: self.server(), why: "the order was refused".to_owned() });
            }
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(self.options.domains.clone())?;
        params.distinguished_name = DistinguishedName::new();
        order.finalize_csr(params.serialize_request(&key)?.der()).await.map_err(failed)?;
        is_issued.store(true, Ordering::Relaxed);
        let chain = order.poll_certificate(&POLLING).await.map_err(failed)?;
        Ok(key.serialize_pem() + &chain)
    }

    /// The account in the folder, or a new one.
    async fn account(&self) -> Result<Account, OrderError> {
        let failed = |error| self.failed(error);
        let contact = self.options.email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<_> = contact.iter().map(String::as_str).collect();
        if let Some(credentials) = self.folder.account()? {
            let account = self.builder()?.from_credentials(credentials).await.map_err(failed)?;
            // Tells the address, and whether the account is known: a private server may have been set up anew.
            match account.update_contacts(&contact).await {
                Ok(()) => return Ok(account),
                Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
                    tracing::warn!("{} does not know this server's account, so another one is created", self.server());
                    self.folder.set_account_aside()?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let account = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let created = self.builder()?.create(&account, self.options.directory.clone(), None).await;
        let (account, credentials) = created.map_err(failed)?;
        self.folder.write_account(&credentials)?;
        Ok(account)
    }

    fn builder(&self) -> Result<AccountBuilder, OrderError> {
        let client = Client::new(&self.options.trust).map_err(OrderError::Client)?;
        Ok(Account::builder_with_http(Box::new(client)))
    }

    /// The check of a domain that failed.
    async fn not_proved(&self, order: &mut Order) -> Option<OrderError> {
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            authorization.refresh().await.ok()?;
            let domain = authorization.identifier().to_string();
            if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
                return Some(OrderError::NotProved { server: self.server(), domain, why: said(problem) });
            }
        }
        None
    }

    fn failed(&self, error: Error) -> OrderError {
        let why = match &error {
            Error::Api(problem) => said(problem),
            error => line(&error.to_string()),
        };
        OrderError::Failed { server: self.server(), why }
    }

    fn server(&self) -> String {
        format!("the ACME server {}", self.options.directory)
    }
}

/// The certificate that answers a challenge (RFC 8737, section 3).
pub(super) fn proof(domain: String, digest: &[u8]) -> Result<CertifiedKey, OrderError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([domain])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?.der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let key = provider().key_provider.load_private_key(key);
    let key = key.map_err(|error| OrderError::Unusable(error.to_string()))?;
    // Not `from_der`, which refuses a critical extension that it does not know.
    Ok(CertifiedKey::new(vec![certificate], key))
}
