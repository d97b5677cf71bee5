//! Thousands of logins: their cost for users who are logged in, and the time until they are answered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::client::{Address, Client};
use super::server::Spawned;
use benches::figures::Figures;

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// The engine, on a new temporary folder
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// Login attempts a second
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Connections that try to log in
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    attackers: u32,
    /// Users whose passwords are guessed
    #[arg(long, default_value_t = 200)]
    users: u32,
    /// Rounds with and without logins, in turns; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of a round
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// The answers to logins: how many of each status, and the slowest.
#[derive(Default)]
struct Logins {
    answers: BTreeMap<u16, u64>,
    slowest: Duration,
}

const ADMIN: &str = "adm:pass";

pub(crate) async fn run(options: Options) -> Result<()> {
    let server = Spawned::start(&options.binary, &options.engine).await?;
    let mut client = Client::connect(&server.address).await?;
    // Users whose documents an administrator wrote: no request waits for their hashes.
    client.request("PUT", "/_users", "").await?;
    for number in 0..options.users {
        let user = json!({"type": "user", "name": format!("user{number}"), "roles": [], "password_scheme": "pbkdf2",
            "pbkdf2_prf": "sha256", "salt": format!("{number:032x}"), "iterations": 600_000, "derived_key": "00".repeat(32)});
        client.request("PUT", &format!("/_users/org.couchdb.user:user{number}"), user.to_string()).await?;
    }
    client.request("PUT", "/db", "").await?;
    client.request("PUT", "/db/doc", r#"{"a":1}"#).await?;
    client.request("PUT", "/_node/_local/_config/admins/adm", r#""pass""#).await?;
    let address: Address = format!("http://{ADMIN}@{}", server.address.host()).parse()?;
    println!("{:<26} {:>12} {:>12} {:>8}  spread", "proven requests a second", "alone", "with logins", "kept");
    let mut logins = Logins::default();
    for clients in [1, 16] {
        let (mut alone, mut beside) = (Figures::default(), Figures::default());
        for _ in 0..options.rounds {
            alone.push(requests(&address, clients, options.seconds).await?);
            let over = Arc::new(AtomicBool::new(false));
            let attackers: Vec<_> = (0..options.attackers)
                .map(|attacker| {
                    let (address, over) = (server.address.clone(), over.clone());
                    let pause = Duration::from_secs(1) * options.attackers / options.rate.max(1);
                    tokio::spawn(attack(address, attacker, options.users, pause, over))
                })
                .collect();
            // The queue fills first.
            tokio::time::sleep(Duration::from_secs(1)).await;
            beside.push(requests(&address, clients, options.seconds).await?);
            over.store(true, Ordering::Relaxed);
            for attacker in attackers {
                let seen = attacker.await??;
                logins.slowest = logins.slowest.max(seen.slowest);
                seen.answers
                    .into_iter()
                    .for_each(|(status, count)| *logins.answers.entry(status).or_default() += count);
            }
        }
        println!(
            "{:<26} {:>12.0} {:>12.0} {:>6.0} %  {:.2}",
            format!("{clients} clients"),
            alone.median(),
            beside.median(),
            100.0 * beside.median() / alone.median(),
            alone.spread().max(beside.spread())
        );
    }
    let tries: u64 = logins.answers.values().sum();
    let seconds = 2 * u64::from(options.rounds) * (options.seconds + 1);
    println!("{} logins a second, answers {:?}, the slowest {:?}", tries / seconds, logins.answers, logins.slowest);
    server.stop().await
}

/// Reads a document with a proven password for some seconds. Returns the rate.
async fn requests(address: &Address, clients: u32, seconds: u64) -> Result<f64> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let clients = (0..clients).map(|_| {
        let address = address.clone();
        tokio::spawn(async move {
            let mut client = Client::connect(&address).await?;
            let mut count = 0u64;
            while Instant::now() < until {
                client.request("GET", "/db/doc", "").await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut count = 0;
    for client in clients {
        count += client.await??;
    }
    Ok(count as f64 / seconds as f64)
}

/// Guesses passwords, one after another, each after a pause.
async fn attack(address: Address, attacker: u32, users: u32, pause: Duration, over: Arc<AtomicBool>) -> Result<Logins> {
    let mut client = Client::connect(&address).await?;
    let mut seen = Logins::default();
    let mut ticks = tokio::time::interval(pause);
    let mut guess = attacker;
    while !over.load(Ordering::Relaxed) {
        ticks.tick().await;
        guess = guess.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let name = format!("user{}", (guess >> 8) % users.max(1));
        let login = json!({"name": name, "password": format!("guess {guess}")}).to_string();
        let began = Instant::now();
        let (status, _) = client.answer_to("POST", "/_session", login).await?;
        seen.slowest = seen.slowest.max(began.elapsed());
        *seen.answers.entry(status).or_default() += 1;
    }
    Ok(seen)
}
