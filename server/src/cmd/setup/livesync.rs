//! `couch-layer setup livesync`: everything that Obsidian's plugin Self-hosted LiveSync needs, and its setup link.
//!
//! ```text
//!   settings of the plugin ── JSON ── sealed by a passphrase ── obsidian://setuplivesync?settings=…
//! ```
//!
//! Sources, in vrtmrz/obsidian-livesync: `SetupWizard/dialogs/utilCheckCouchDB.ts` for the settings of the server, and
//! `utils/setup/generate_setup_uri.ts` for those of the plugin and for the link.

use std::path::PathBuf;

use chunks::seal_settings;
use clap::Args;
use console::Term;
use model::SystemEnvironment;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::account::{Account, AccountArgs};
use super::wanted::Wanted;
use super::{qr, secret};
use crate::cmd::progress::{print, remark};
use crate::cmd::{Failure, failure};
use crate::passphrase;

/// Obsidian on computers, on iOS, and on Android.
const ORIGINS: [&str; 3] = ["app://obsidian.md", "capacitor://localhost", "http://localhost"];

/// The link without the sealed settings.
const LINK: &str = "obsidian://setuplivesync?settings=";

/// Prepare a server for a vault of Obsidian's plugin Self-hosted LiveSync, and print the plugin's setup link
///
/// It creates the user, the database and the settings that the plugin's check looks for, as far as they are missing.
/// Whoever has the link and its passphrase has the user's password.
#[derive(Debug, Args)]
pub(super) struct Livesync {
    /// The vault's database
    #[arg(long, value_name = "NAME", value_parser = vault_name)]
    vault: String,
    /// Encrypt a new vault end to end, by a random passphrase that is printed: the server sees neither notes nor names
    #[arg(long, conflicts_with = "passphrase_file")]
    encrypt: bool,
    /// A file with the passphrase of a vault that is encrypted end to end; a line break at its end is ignored
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Print the link as a QR code, also if standard output is no terminal
    #[arg(long, conflicts_with = "json")]
    qr: bool,
    #[command(flatten)]
    account: AccountArgs,
}

/// The plugin puts the name into URLs as it is.
fn vault_name(name: &str) -> Result<String, String> {
    let is_right = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_$()+-".contains(letter);
    match name.starts_with(|letter: char| letter.is_ascii_lowercase()) && name.chars().all(is_right) {
        true => Ok(name.to_owned()),
        false => Err("write a small letter, then small letters, digits and any of _$()+-".to_owned()),
    }
}

/// What the plugin's check looks for.
fn settings() -> Vec<(&'static str, &'static str, Wanted)> {
    vec![
        ("chttpd", "require_valid_user", Wanted::Exactly("true")),
        // Probes have no user.
        ("chttpd", "require_valid_user_except_for_up", Wanted::Exactly("true")),
        ("httpd", "WWW-Authenticate", Wanted::Any("Basic realm=\"couchdb\"")),
        ("chttpd", "max_http_request_size", Wanted::AtLeast(4_294_967_296)),
        ("couchdb", "max_document_size", Wanted::AtLeast(50_000_000)),
        ("cors", "origins", Wanted::Listed(ORIGINS.map(str::to_owned).to_vec())),
        ("cors", "credentials", Wanted::Exactly("true")),
        // Last, when the server is closed to strangers.
        ("chttpd", "enable_cors", Wanted::Exactly("true")),
    ]
}

impl Livesync {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let given = self.passphrase_file.as_deref().map(passphrase::read_text).transpose().map_err(failure)?;
        // The plugin compacts the database, which only its administrators may do.
        let account = self.account.prepare(&self.vault, true, &settings()).await?;
        // Another passphrase would let a device write what the others cannot read.
        let is_unknown = self.encrypt && !account.is_new;
        let passphrase = if self.encrypt && account.is_new { Some(secret::random()?) } else { given };
        let link = match &account.password {
            Some(password) if !is_unknown => {
                let settings = plugin_settings(&account, password, passphrase.as_deref()).to_string();
                let of_link = secret::random()?;
                Some((link(&settings, &of_link)?, of_link))
            }
            _ => None,
        };
        if self.account.json {
            let mut outcome = account.to_json();
            outcome["passphrase"] = passphrase.into();
            (outcome["link"], outcome["link_passphrase"]) =
                link.map_or((Value::Null, Value::Null), |(link, of_link)| (link.into(), of_link.into()));
            return Ok(print(&outcome.to_string())?);
        }
        account.print()?;
        if is_unknown {
            remark("the vault's passphrase is not known here: give it by --passphrase-file");
        }
        let Some((link, of_link)) = link else { return Ok(()) };
        if !account.is_new && passphrase.is_none() {
            remark(
                "if the vault is encrypted end to end, this link is of no use: give the passphrase by --passphrase-file",
            );
        }
        print(&format!("\nThe plugin's setup link, and its passphrase: {of_link}\n\n{link}\n"))?;
        self.print_code(&link)?;
        if let Some(passphrase) = passphrase.filter(|_| self.encrypt) {
            print(&format!("The vault's passphrase, which nobody can recover: {passphrase}"))?;
        }
        if account.is_loopback() {
            remark("only this machine reaches the address in the link: other devices need --public-url");
        } else if !account.url.starts_with("https://") {
            remark("phones connect by https:// only: other devices need --public-url");
        }
        Ok(())
    }

    fn print_code(&self, link: &str) -> Result<(), Failure> {
        let terminal = Term::stdout();
        if !self.qr && !terminal.is_term() {
            return Ok(());
        }
        let Some(code) = qr::code(link) else {
            remark("the link is too long for a QR code");
            return Ok(());
        };
        if !terminal.is_term() {
            return Ok(print(&code)?);
        }
        match qr::for_terminal(&code, &terminal) {
            Ok(code) => print(&code)?,
            Err(columns) => remark(&format!("the link as a QR code needs a terminal with {columns} columns")),
        }
        Ok(())
    }
}

/// The settings that the plugin imports; all others keep the plugin's defaults.
///
/// An empty `remoteConfigurations` makes the plugin build its list of servers from the members before it.
fn plugin_settings(account: &Account, password: &str, passphrase: Option<&str>) -> Value {
    let mut settings = json!({
        "couchDB_URI": account.url,
        "couchDB_USER": account.user,
        "couchDB_PASSWORD": password,
        "couchDB_DBNAME": account.database,
        "remoteType": "",
        "remoteConfigurations": {},
        "isConfigured": true,
        "liveSync": true,
        // The plugin's own choices for a server like this one.
        "usePluginSyncV2": true,
        "handleFilenameCaseSensitive": false,
        "chunkSplitterVersion": "v3-rabin-karp",
        "customChunkSize": 60,
        "concurrencyOfReadChunksOnline": 30,
        "minimumIntervalOfReadChunksOnline": 25,
    });
    if let Some(passphrase) = passphrase {
        settings["encrypt"] = true.into();
        settings["passphrase"] = passphrase.into();
        settings["usePathObfuscation"] = true.into();
        settings["E2EEAlgorithm"] = "v2".into();
    }
    settings
}

/// The link with these settings.
fn link(settings: &str, passphrase: &str) -> Result<String, Failure> {
    let sealed = seal_settings(settings, passphrase, &SystemEnvironment)?;
    Ok(format!("{LINK}{}", utf8_percent_encode(&sealed, NON_ALPHANUMERIC)))
}
