//! One page with all figures and the conditions of their measurement.
//!
//! [`measured`] holds the figures, [`page`] writes them. Growth is measured in a separate process for each engine,
//! so that the memory is that engine's.

mod machine;
mod measured;
mod page;
mod plot;

use std::path::PathBuf;

use anyhow::{Context, Result};
use benches::engines::{Engine, Mem};
use benches::figures::Figures;
use benches::work::{Work, documents, kv};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::process::Command;

use crate::growth::{Step, What};
use crate::http::client::Address;
use crate::http::server::Spawned;
use crate::http::work::WORKS;
use measured::{Curve, Growth, MeasuredWork, Report};

#[derive(Args)]
pub(crate) struct Options {
    /// Where the page goes
    #[arg(long, default_value = "report.html")]
    out: PathBuf,
    /// The figures as JSON, for machines
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Engines to measure, among those compiled in
    #[arg(long, value_delimiter = ',', default_value = "mem,lsm,sled")]
    engines: Vec<String>,
    /// Only works whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Rounds of each work; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How much work in a round, as a factor
    #[arg(long, default_value_t = 0.5)]
    scale: f64,
    /// Another CouchDB-compatible server, running already, as http://HOST:PORT
    #[arg(long, value_name = "URL")]
    rival: Option<Address>,
    /// Our server, for the works over HTTP
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// Leave out the works over HTTP
    #[arg(long)]
    no_http: bool,
    /// Documents at which growth ends; 0 leaves growth out
    #[arg(long, default_value_t = 100_000)]
    growth: usize,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let works = works(&options);
    let http: Vec<_> = WORKS.iter().filter(|work| wanted(&options, work.name)).collect();
    let http_engines: &[String] = if options.no_http { &[] } else { &options.engines };
    let growths = if options.growth == 0 { 0 } else { options.engines.len() * What::ALL.len() };
    let bar = ProgressBar::new((works.len() + http.len() * http_engines.len() + growths) as u64);
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {wide_msg}")?);

    let mut report =
        Report { machine: machine::describe(), rounds: options.rounds, scale: options.scale, ..Report::default() };
    for work in works {
        bar.set_message(format!("{} on {}", work.name, work.engine));
        let row = measure(&work, &options).with_context(|| format!("{} on {}", work.name, work.engine))?;
        report.table(work.group.title(), work.group.explanation()).rows.push(row);
        bar.inc(1);
    }
    for engine in http_engines {
        let server = Spawned::start(&options.binary, engine).await?;
        for work in &http {
            bar.set_message(format!("{} over HTTP on {engine}", work.name));
            let formats = &["exploded", "packed"];
            let (rounds, scale) = (options.rounds, options.scale);
            let rates =
                crate::http::measure(work, &server.address, formats, options.rival.as_ref(), rounds, scale).await?;
            let table = report.table(
                "Over HTTP",
                "Requests to the server, each write synced before it is acknowledged, beside another server where one \
                 was given.",
            );
            for (format, ours) in rates.ours {
                table.rows.push(MeasuredWork {
                    work: work.name.into(),
                    unit: work.unit.into(),
                    engine: engine.clone(),
                    format: Some(format.into()),
                    ours,
                    baseline: rates.rival.clone().map(|rival| ("other server".into(), rival)),
                });
            }
            bar.inc(1);
        }
        server.stop().await?;
    }
    if growths > 0 {
        for what in What::ALL {
            let mut growth = Growth { what: what.name().into(), curves: Vec::new() };
            for engine in &options.engines {
                bar.set_message(format!("growing {} on {engine}", what.name()));
                growth.curves.push(Curve { engine: engine.clone(), steps: grow(what, engine, &options).await? });
                bar.inc(1);
            }
            report.growths.push(growth);
        }
    }
    bar.finish_and_clear();

    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?).with_context(|| path.display().to_string())?;
    }
    std::fs::write(&options.out, page::html(&report)?).with_context(|| options.out.display().to_string())?;
    println!("{} tables, {} plots: {}", report.tables.len(), report.growths.len(), options.out.display());
    Ok(())
}

fn wanted(options: &Options, name: &str) -> bool {
    options.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
}

fn works(options: &Options) -> Vec<Work> {
    let mut works = Vec::new();
    if options.engines.iter().any(|engine| engine == Mem::NAME) {
        works.extend(of::<Mem>());
    }
    #[cfg(feature = "lsm")]
    if options.engines.iter().any(|engine| engine == benches::engines::Lsm::NAME) {
        works.extend(of::<benches::engines::Lsm>());
    }
    #[cfg(feature = "sled")]
    if options.engines.iter().any(|engine| engine == benches::engines::Sled::NAME) {
        works.extend(of::<benches::engines::Sled>());
    }
    works.retain(|work| wanted(options, &work.name));
    works.sort_by_key(|work| work.group);
    works
}

fn of<E: Engine + 'static>() -> impl Iterator<Item = Work> {
    kv::works::<E>().into_iter().chain(documents::works::<E>())
}

/// Measures both sides of a work in turns.
fn measure(work: &Work, options: &Options) -> Result<MeasuredWork> {
    let (mut ours, mut baseline) = (Figures::default(), Figures::default());
    for round in 0..options.rounds {
        if round % 2 == 0 {
            ours.push((work.ours)(options.scale)?);
        }
        if let Some((_, side)) = &work.baseline {
            baseline.push(side(options.scale)?);
        }
        if round % 2 == 1 {
            ours.push((work.ours)(options.scale)?);
        }
    }
    Ok(MeasuredWork {
        work: work.name.clone(),
        unit: work.unit.into(),
        engine: work.engine.into(),
        format: work.format.map(Into::into),
        ours,
        baseline: work.baseline.as_ref().map(|(name, _)| ((*name).into(), baseline)),
    })
}

async fn grow(what: What, engine: &str, options: &Options) -> Result<Vec<Step>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["growth", what.name(), "--engine", engine, "--json"]);
    if let What::Documents = what {
        command.args(["--until", &options.growth.to_string()]);
    }
    let output = command.stderr(std::process::Stdio::inherit()).output().await?;
    anyhow::ensure!(output.status.success(), "growing {} on {engine} failed", what.name());
    let lines = String::from_utf8(output.stdout)?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
