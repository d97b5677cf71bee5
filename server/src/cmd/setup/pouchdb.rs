//! `couch-layer setup pouchdb`: a database for an application with PouchDB, and the lines that connect it.

use clap::Args;
use peer::{Address, Url};
use serde_json::json;

use super::account::{Account, AccountArgs};
use super::wanted::Wanted;
use crate::cmd::Failure;
use crate::cmd::progress::{print, remark};

/// Prepare a server for an application with PouchDB, and print the lines of JavaScript that connect it
///
/// It creates the user and the database, and lets the application's pages use the server, as far as that is missing.
#[derive(Debug, Args)]
pub(super) struct Pouchdb {
    /// The application's database
    #[arg(long, value_name = "NAME")]
    database: String,
    /// The origin of the application's pages, such as `https://app.example`; several are separated by commas
    #[arg(long, value_name = "ORIGIN", required = true, value_delimiter = ',', value_parser = origin)]
    origin: Vec<String>,
    #[command(flatten)]
    account: AccountArgs,
}

/// An origin as browsers send it: a scheme, a host, and a port unless it is the scheme's own.
fn origin(text: &str) -> Result<String, String> {
    let url = Url::parse(text).map_err(|error| format!("{error}; write https://HOST"))?;
    let origin = match url.scheme() {
        "http" | "https" => url.origin().ascii_serialization(),
        // Of applications in a shell, such as app://name.
        scheme => match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{scheme}://{host}:{port}"),
            (Some(host), None) => format!("{scheme}://{host}"),
            (None, _) => return Err("it has no host; write https://HOST".to_owned()),
        },
    };
    match origin == text {
        true => Ok(origin),
        false => Err(format!("browsers compare every letter, and send no path; write {origin}")),
    }
}

impl Pouchdb {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let settings = [
            ("cors", "origins", Wanted::Listed(self.origin.clone())),
            // PouchDB sends its password with every request.
            ("cors", "credentials", Wanted::Exactly("true")),
            ("chttpd", "enable_cors", Wanted::Exactly("true")),
        ];
        let account = self.account.prepare(&self.database, false, &settings).await?;
        let code = account.password.as_deref().map(|password| javascript(&account, password)).transpose()?;
        if self.account.json {
            let mut outcome = account.to_json();
            outcome["javascript"] = code.into();
            return Ok(print(&outcome.to_string())?);
        }
        account.print()?;
        if let Some(code) = code {
            print(&format!("\n{code}"))?;
        }
        if account.is_loopback() {
            remark("only this machine reaches the address: other devices need --public-url");
        }
        Ok(())
    }
}

/// The lines that connect. Texts of JSON are texts of JavaScript.
fn javascript(account: &Account, password: &str) -> Result<String, Failure> {
    let there = account.url.parse::<Address>()?.database(&account.database)?;
    let (here, there) = (json!(account.database), json!(there.to_string()));
    Ok(format!(
        "import PouchDB from 'pouchdb';\n\
         \n\
         const here = new PouchDB({here});\n\
         const there = new PouchDB({there}, {{ auth: {{ username: {}, password: {} }} }});\n\
         PouchDB.sync(here, there, {{ live: true, retry: true }});",
        json!(account.user),
        json!(password),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_that_browsers_send() {
        for right in ["https://app.example", "http://localhost:8080", "http://[::1]:1", "app://obsidian.md"] {
            assert_eq!(origin(right).as_deref(), Ok(right));
        }
        for (wrong, advice) in [
            ("https://app.example/", "write https://app.example"),
            ("https://App.example", "write https://app.example"),
            ("https://app.example:443", "write https://app.example"),
            ("https://app.example/page", "write https://app.example"),
            ("app.example", "write https://HOST"),
            ("mailto:anna", "write https://HOST"),
            ("*", "write https://HOST"),
        ] {
            let error = origin(wrong).unwrap_err();
            assert!(error.contains(advice), "{wrong}: {error}");
        }
    }
}
