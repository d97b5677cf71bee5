//! Compares the server with a rival: the same requests to both, in turns.
//!
//! Each row of the table is one kind of work. A round does the work once on each server, in alternating order, so
//! that a slow phase of the machine slows both. The figure is the median of the rounds, the ratio is that of the
//! medians.

pub(crate) mod attachments;
pub(crate) mod client;
pub(crate) mod databases;
pub(crate) mod large;
pub(crate) mod logins;
pub(crate) mod queries;
pub(crate) mod replications;
pub(crate) mod server;
pub(crate) mod slow;
pub(crate) mod work;

use anyhow::{Context, Result};
use benches::figures::Figures;
use clap::Args;

use client::Address;
use server::Spawned;
use work::{Target, WORKS, Work};

/// Layouts of documents to measure.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Format {
    Exploded,
    Packed,
    Both,
}

impl Format {
    fn names(self) -> &'static [&'static str] {
        match self {
            Format::Exploded => &["exploded"],
            Format::Packed => &["packed"],
            Format::Both => &["exploded", "packed"],
        }
    }
}

#[derive(Args)]
pub(crate) struct Options {
    /// The other server, running already, as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT
    #[arg(long, value_name = "URL")]
    rival: Option<Address>,
    /// Our server, running already; by default the binary below is started on a new folder
    #[arg(long, value_name = "URL")]
    ours: Option<Address>,
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: std::path::PathBuf,
    /// The engine of the server to start: `sled`, say, on a fresh temporary folder, or a whole URL
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// The layout of our databases' documents
    #[arg(long, value_enum, default_value_t = Format::Both)]
    format: Format,
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

/// Rates of one work on each side.
pub(crate) struct Rates {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Ours, by the layout of bodies.
    pub(crate) ours: Vec<(&'static str, Figures)>,
    pub(crate) rival: Option<Figures>,
}

impl Rates {
    /// Factor between one of our rates and the rival's.
    pub(crate) fn ratio(&self, ours: &Figures) -> Option<f64> {
        self.rival.as_ref().map(|rival| ours.median() / rival.median())
    }

    /// The greatest spread of any side.
    pub(crate) fn spread(&self) -> f64 {
        let ours = self.ours.iter().map(|(_, figures)| figures.spread());
        ours.chain(self.rival.as_ref().map(Figures::spread)).fold(1.0, f64::max)
    }
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
    let formats = options.format.names();
    if !options.json {
        print_head(formats);
    }
    for work in WORKS.iter().filter(|work| options.only.as_ref().is_none_or(|only| work.name.contains(only))) {
        let row = measure(work, &ours, formats, options.rival.as_ref(), options.rounds, options.scale).await?;
        print_row(&row, options.json);
    }
    if let Some(spawned) = spawned {
        spawned.stop().await?;
    }
    Ok(())
}

/// Runs a work on ours in each layout and on the rival, in turns.
pub(crate) async fn measure(
    work: &Work,
    ours: &Address,
    formats: &[&'static str],
    rival: Option<&Address>,
    rounds: u32,
    scale: f64,
) -> Result<Rates> {
    let target = |address: &Address, format| Target { address: address.clone(), format };
    let mut sides: Vec<Target> = formats.iter().map(|format| target(ours, Some(*format))).collect();
    sides.extend(rival.map(|rival| target(rival, None)));
    let mut figures = vec![Figures::default(); sides.len()];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            // Every other round is backwards, so that a slow phase of the machine slows all sides equally.
            let side = if round % 2 == 0 { turn } else { sides.len() - 1 - turn };
            let rate = work.run(&sides[side], scale).await;
            figures[side].push(rate.with_context(|| format!("{} on {}", work.name, sides[side].address))?);
        }
    }
    let rival = rival.and_then(|_| figures.pop());
    Ok(Rates { name: work.name, unit: work.unit, ours: formats.iter().copied().zip(figures).collect(), rival })
}

fn print_head(formats: &[&str]) {
    print!("{:<38}", "work");
    for format in formats {
        print!(" {:>12}", format!("{format} /s"));
    }
    print!(" {:>12}", "rival /s");
    for format in formats {
        print!(" {format:>9}");
    }
    println!("  spread");
}

fn print_row(row: &Rates, json: bool) {
    if json {
        let mut line = serde_json::json!({ "work": row.name, "unit": row.unit });
        for (format, figures) in &row.ours {
            line[*format] = serde_json::json!({ "rates": figures.rounds(), "ratio": row.ratio(figures) });
        }
        line["rival"] = serde_json::json!(row.rival.as_ref().map(Figures::rounds));
        println!("{line}");
        return;
    }
    print!("{:<38}", format!("{} ({})", row.name, row.unit));
    for (_, figures) in &row.ours {
        print!(" {:>12}", short(figures.median()));
    }
    print!(" {:>12}", row.rival.as_ref().map_or("-".to_owned(), |rival| short(rival.median())));
    for (_, figures) in &row.ours {
        print!(" {:>9}", row.ratio(figures).map_or("-".to_owned(), |ratio| format!("{ratio:.1}")));
    }
    println!("  {:.2}", row.spread());
}

/// A rate in few digits.
fn short(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.2}") } else { format!("{rate:.0}") }
}
