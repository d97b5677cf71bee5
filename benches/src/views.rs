//! Measures views as they grow: the build, a range, a grouped reduction, an update after one edit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use benches::engines::{Engine, Mem, Syncing};
use benches::work::documents::create;
use benches::work::{disk, folder, rate};
use clap::Args;
use futures_executor::block_on;
use kv_api::Database;
use model::{
    BodyFormat, Documents, Edit, Emit, FunctionError, Grouping, JsonText, Reduce, RustView, ViewGroup, ViewRequest,
    WriteMode,
};

/// Number of queries of each kind at each step.
const QUERIES: usize = 20;

/// Number of groups: the years of the documents.
const YEARS: usize = 20;

#[derive(Args)]
pub(crate) struct Options {
    /// The engine: mem, lsm or sled
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// Number of documents at the end; views are measured at each power of ten from 1,000
    #[arg(long, default_value_t = 100_000)]
    until: usize,
}

pub(crate) fn run(options: Options) -> Result<()> {
    println!(
        "{:>10} {:>10} {:>10} {:>12} {:>12} {:>12} {:>12} {:>10}",
        "documents", "written/s", "built/s", "range ms", "all ms", "by year ms", "update ms", "disk MB"
    );
    match options.engine.as_str() {
        "mem" => grow::<Mem>(options.until, print),
        #[cfg(feature = "lsm")]
        "lsm" => grow::<benches::engines::Lsm>(options.until, print),
        #[cfg(feature = "sled")]
        "sled" => grow::<benches::engines::Sled>(options.until, print),
        other => bail!("there is no engine {other} in this build"),
    }
}

/// The figures at one size.
struct Step {
    documents: usize,
    written: f64,
    built: f64,
    /// Mean times of a query: a hundred rows, the sum of all, the sums of each year.
    range: Duration,
    all: Duration,
    by_year: Duration,
    /// Mean of an edit's update.
    update: Duration,
    disk: u64,
}

fn print(step: &Step) {
    let ms = |time: Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
    println!(
        "{:>10} {:>10.0} {:>10.0} {:>12} {:>12} {:>12} {:>12} {:>10.1}",
        step.documents,
        step.written,
        step.built,
        ms(step.range),
        ms(step.all),
        ms(step.by_year),
        ms(step.update),
        step.disk as f64 / 1e6
    );
}

/// Rows `[year, day]: amount`, summed.
fn group() -> ViewGroup {
    let map = |document: &JsonText, emit: &mut Emit| -> Result<(), FunctionError> {
        if let (Some(day), Some(amount)) = (document.get("day"), document.get("amount")) {
            emit.row(document.slice_ref(day), document.slice_ref(amount));
        }
        Ok(())
    };
    ViewGroup::of_closures("benches", 1, vec![RustView::new("by_day", map).reduced(Reduce::Sum)])
}

fn edit(n: usize) -> Result<Edit> {
    // Days in random order, like documents from clients.
    let day = n.wrapping_mul(7_919) % 100_003;
    let body =
        format!(r#"{{"day":[{},{day}],"amount":{},"text":"{}"}}"#, 2000 + day % YEARS, n % 1_000, "lorem ".repeat(20));
    Ok(Edit::new(format!("{n:09}"), JsonText::parse(body.as_bytes())?))
}

fn mean(count: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    (0..count).try_for_each(&mut work)?;
    Ok(begun.elapsed() / count as u32)
}

fn grow<E: Engine>(until: usize, mut each: impl FnMut(&Step)) -> Result<()> {
    let folder = folder()?;
    let documents = create(E::database(folder.path(), Syncing::Synced), BodyFormat::Packed)?;
    let group = group();
    let (mut before, mut sizes) = (0, Vec::new());
    let mut size = 1_000;
    while size < until {
        sizes.push(size);
        size *= 10;
    }
    sizes.push(until);
    for size in sizes {
        let begun = Instant::now();
        for first in (before..size).step_by(1_000) {
            let edits: Vec<Edit> = (first..size.min(first + 1_000)).map(edit).collect::<Result<_>>()?;
            for written in block_on(documents.write(edits, WriteMode::Interactive))? {
                written?;
            }
        }
        let written = rate(size - before, begun.elapsed());
        let begun = Instant::now();
        block_on(documents.update_views(&group))?;
        let built = rate(size - before, begun.elapsed());
        let key = |year: usize| JsonText::parse(format!("[{}]", 2000 + year % YEARS).as_bytes());
        let range = mean(QUERIES, |n| {
            let request = ViewRequest { start: Some(key(n)?), limit: Some(100), ..ViewRequest::default() };
            block_on(documents.query_view(&group, "by_day", &request))?;
            Ok(())
        })?;
        let all = mean(QUERIES, |_| reduce(&documents, &group, Grouping::None, 1))?;
        let by_year = mean(QUERIES, |_| reduce(&documents, &group, Grouping::Level(1), YEARS.min(size)))?;
        let update = mean(QUERIES, |n| {
            block_on(documents.put(Edit::new(format!("one {size} {n}"), edit(n)?.body)))?;
            Ok(block_on(documents.update_views(&group))?)
        })?;
        let disk = disk(folder.path())?;
        each(&Step { documents: size, written, built, range, all, by_year, update, disk });
        before = size;
    }
    Ok(())
}

fn reduce<D: Database>(documents: &Documents<D>, group: &ViewGroup, grouping: Grouping, rows: usize) -> Result<()> {
    let page = block_on(documents.reduce_view(group, "by_day", &ViewRequest::default(), grouping))?;
    if page.rows.len() != rows {
        bail!("{} groups instead of {rows}", page.rows.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_measured() {
        let mut sizes = Vec::new();
        grow::<Mem>(1_200, |step| {
            assert!(step.built > 0.0 && step.by_year > Duration::ZERO);
            sizes.push(step.documents);
        })
        .unwrap();
        assert_eq!(sizes, [1_000, 1_200]);
    }
}
