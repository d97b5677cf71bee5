//! `couch-layer promote`: a server that follows another one (`serve --follow`) takes its place.

use std::time::Duration;

use clap::Args;
use model::JsonWriter;
use peer::{Address, Http, Method};

use super::progress;
use super::source::with_own_user;
use super::tls_args::TrustArgs;
use crate::cmd::{Failure, failure};

/// Time for the server to take the store into use.
const TAKES_WRITES: Duration = Duration::from_secs(600);

const PAUSE: Duration = Duration::from_millis(200);

/// Let a standby (`serve --follow`) take writes, in place of the server that it followed: stop that one first
#[derive(Debug, Args)]
pub(crate) struct Promote {
    /// The standby: http://HOST:PORT or https://HOST, with USER:PASSWORD@ before HOST. Without a user in the URL,
    /// COUCHDB_USER and COUCHDB_PASSWORD are sent if they are set
    #[arg(long, value_name = "URL")]
    url: Address,
    /// Promote it even if it may not have everything that was shipped, for example because the place does not answer
    #[arg(long)]
    anyway: bool,
    #[command(flatten)]
    trust: TrustArgs,
}

impl Promote {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let place = self.url.to_string();
        let server = Http::trusting(with_own_user(self.url).database("_couch_layer")?, &self.trust.read()?)?;
        let mut body = Vec::new();
        JsonWriter::new(&mut body).begin_object().name("anyway").bool(self.anyway).end_object();
        server.ask(Method::POST, &["promote"], &[], Some(body)).await?;
        progress::print(&format!("{place}: promoted; waiting until it takes writes"))?;
        // It starts again meanwhile, and does not answer.
        let takes_writes = async {
            loop {
                if let Ok(state) = server.ask(Method::GET, &["ship"], &[], None).await
                    && state.get("standby").and_then(|standby| standby.as_bool()) != Some(true)
                {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        match tokio::time::timeout(TAKES_WRITES, takes_writes).await {
            Ok(()) => Ok(progress::print(&format!("{place}: it takes writes"))?),
            Err(_) => Err(failure(format!("{place} is promoted, but does not take writes yet: look into its log"))),
        }
    }
}
