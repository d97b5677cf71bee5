//! The server beside a rival: the same requests to both, in turns.
//!
//! Each row of the table is one kind of work. A round is the work done once on each server, ours and
//! the rival's in alternating order, so that a machine that slows down slows both; the figure is the
//! median over the rounds, the ratio that of the medians.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod work;

use anyhow::{Context, Result};
use benches::figures::Figures;
use clap::Args;

use client::Address;
use server::Spawned;
use work::{WORKS, Work};

#[derive(Args)]
pub(crate) struct Options {
    /// The other server, running already, as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT
    #[arg(long, value_name = "URL")]
    rival: Option<Address>,
    /// Ours, running already; without it the binary below is started on a fresh folder
    #[arg(long, value_name = "URL")]
    ours: Option<Address>,
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: std::path::PathBuf,
    /// The engine of the server to start: `sled`, say, on a fresh temporary folder, or a whole URL
    #[arg(long, default_value = "sled")]
    engine: String,
    /// Rounds of each work; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How much work in a round, as a factor
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Only works whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// One JSON object for each row instead of the table
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let spawned = match &options.ours {
        Some(_) => None,
        None => Some(Spawned::start(&options.binary, &options.engine).await?),
    };
    let ours = match (&options.ours, &spawned) {
        (Some(address), _) => address.clone(),
        (None, Some(spawned)) => spawned.address.clone(),
        (None, None) => unreachable!("started above"),
    };
    if !options.json {
        println!("{:<34} {:>12} {:>12} {:>8}  spread", "work", "ours /s", "rival /s", "ratio");
    }
    for work in WORKS.iter().filter(|work| options.only.as_ref().is_none_or(|only| work.name.contains(only))) {
        let (mine, theirs) = measure(work, &ours, options.rival.as_ref(), &options).await?;
        print_row(work, &mine, theirs.as_ref(), options.json);
    }
    if let Some(spawned) = spawned {
        spawned.stop().await?;
    }
    Ok(())
}

async fn measure(
    work: &Work,
    ours: &Address,
    rival: Option<&Address>,
    options: &Options,
) -> Result<(Figures, Option<Figures>)> {
    let mut mine = Figures::default();
    let mut theirs = Figures::default();
    for round in 0..options.rounds {
        let sides: &mut [(Option<&Address>, &mut Figures)] = &mut [(Some(ours), &mut mine), (rival, &mut theirs)];
        if round % 2 == 1 {
            sides.reverse();
        }
        for (address, figures) in sides {
            if let Some(address) = address {
                let figure = work.run(address, options.scale).await;
                figures.push(figure.with_context(|| format!("{} on {address}", work.name))?);
            }
        }
    }
    Ok((mine, rival.map(|_| theirs)))
}

fn print_row(work: &Work, mine: &Figures, theirs: Option<&Figures>, json: bool) {
    let ratio = theirs.map(|theirs| mine.median() / theirs.median());
    if json {
        let row = serde_json::json!({
            "work": work.name, "unit": work.unit, "ours": mine.rounds(), "rival": theirs.map(Figures::rounds), "ratio": ratio,
        });
        println!("{row}");
        return;
    }
    let name = format!("{} ({})", work.name, work.unit);
    let (rival, ratio) = match (theirs, ratio) {
        (Some(theirs), Some(ratio)) => (format!("{:.0}", theirs.median()), format!("{ratio:.1}")),
        _ => ("-".to_owned(), "-".to_owned()),
    };
    let spread = theirs.map_or(mine.spread(), |theirs| mine.spread().max(theirs.spread()));
    println!("{name:<34} {:>12.0} {rival:>12} {ratio:>8}  {spread:.2}", mine.median());
}
