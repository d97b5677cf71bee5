//! The page: one file that loads nothing else.

use std::fmt::Write as _;

use anyhow::Result;

use super::measured::{Growth, Report, Table};
use super::plot;
use crate::growth::Step;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:left}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.plots{display:flex;flex-wrap:wrap;gap:1rem}\
.bar{display:inline-block;height:.6rem;background:#1f77b4;vertical-align:middle}p{max-width:60rem}";

/// The whole report as HTML.
pub(crate) fn html(report: &Report) -> Result<String> {
    let mut page = String::new();
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>couch-layer: measured</title>\
         <style>{STYLE}</style></head><body><h1>couch-layer, measured</h1><p>Every figure is the median of {} rounds, \
         taken in turns with what it is measured beside, in one run on one machine; works at scale {}. The ratio \
         travels to other machines, the figures do not. Spread is the greatest over the least of a side's rounds: 1.0 \
         is a quiet machine.</p>",
        report.rounds, report.scale
    )?;
    page.push_str("<h2>On what</h2><table>");
    for (name, value) in &report.machine.facts {
        write!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value))?;
    }
    page.push_str("</table>");
    for table in &report.tables {
        write_table(&mut page, table)?;
    }
    for growth in &report.growths {
        write_growth(&mut page, growth)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn write_table(page: &mut String, table: &Table) -> Result<()> {
    write!(page, "<h2>{}</h2><p>{}</p>", escape(&table.title), escape(&table.explanation))?;
    page.push_str(
        "<table><tr><th>work</th><th>engine</th><th>layout</th><th class=n>a second</th><th>baseline</th>\
         <th class=n>a second</th><th class=n>ratio</th><th></th><th class=n>spread</th></tr>",
    );
    let widest = table.rows.iter().filter_map(|row| row.ratio()).fold(0.0, f64::max);
    for row in &table.rows {
        write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=n>{} {}</td>",
            escape(&row.work),
            escape(&row.engine),
            escape(row.format.as_deref().unwrap_or("")),
            grouped(row.ours.median()),
            escape(&row.unit),
        )?;
        match (&row.baseline, row.ratio()) {
            (Some((name, baseline)), Some(ratio)) => write!(
                page,
                "<td>{}</td><td class=n>{}</td><td class=n>{ratio:.2}</td><td><span class=bar style=\"width:{:.0}px\">\
                 </span></td>",
                escape(name),
                grouped(baseline.median()),
                (ratio / widest * 160.0).max(1.0),
            )?,
            _ => page.push_str("<td></td><td></td><td></td><td></td>"),
        }
        write!(page, "<td class=n>{:.2}</td></tr>", row.spread())?;
    }
    page.push_str("</table>");
    Ok(())
}

/// A column of a growth table: its heading and its figure.
type Column = (&'static str, fn(&Step) -> Option<f64>);

const COLUMNS: [Column; 4] = [
    ("writes/s", |step| Some(step.writes)),
    ("reads/s", |step| Some(step.reads)),
    ("resident MB", |step| step.resident.map(|bytes| bytes as f64 / 1e6)),
    ("disk MB", |step| (step.disk > 0).then_some(step.disk as f64 / 1e6)),
];

fn write_growth(page: &mut String, growth: &Growth) -> Result<()> {
    write!(page, "<h2>Growth: {}</h2><div class=plots>", escape(&growth.what))?;
    for (heading, figure) in COLUMNS {
        let series: Vec<plot::Series> = growth
            .curves
            .iter()
            .map(|curve| {
                let points = curve.steps.iter().filter_map(|step| Some((step.size as f64, figure(step)?)));
                (curve.engine.clone(), points.collect())
            })
            .collect();
        if let Some(svg) = plot::lines(heading, &growth.what, heading, &series)? {
            page.push_str(&svg);
        }
    }
    write!(page, "</div><table><tr><th>engine</th><th class=n>{}</th>", escape(&growth.what))?;
    for (heading, _) in COLUMNS {
        write!(page, "<th class=n>{heading}</th>")?;
    }
    page.push_str("</tr>");
    for curve in &growth.curves {
        for step in &curve.steps {
            write!(page, "<tr><td>{}</td><td class=n>{}</td>", escape(&curve.engine), grouped(step.size as f64))?;
            for (_, figure) in COLUMNS {
                write!(page, "<td class=n>{}</td>", figure(step).map_or(String::new(), grouped))?;
            }
            page.push_str("</tr>");
        }
    }
    page.push_str("</table>");
    Ok(())
}

/// 1234567.8 as 1,234,568; small figures keep a decimal.
fn grouped(number: f64) -> String {
    if !number.is_finite() {
        return "-".into();
    }
    if number < 100.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::machine::Machine;
    use super::super::measured::{Curve, MeasuredWork};
    use super::*;
    use benches::figures::Figures;

    fn figures(rounds: &[f64]) -> Figures {
        let mut figures = Figures::default();
        rounds.iter().for_each(|round| figures.push(*round));
        figures
    }

    #[test]
    fn the_page_holds_every_figure_and_loads_nothing() {
        let mut report = Report {
            machine: Machine { facts: vec![("processor".into(), "a < b & \"c\"".into())] },
            rounds: 3,
            scale: 0.5,
            ..Report::default()
        };
        report.table("Documents", "explained").rows.push(MeasuredWork {
            work: "insert".into(),
            unit: "documents".into(),
            engine: "lsm".into(),
            format: Some("packed".into()),
            ours: figures(&[9_000.0, 12_345.0, 13_000.0]),
            baseline: Some(("raw store".into(), figures(&[20_000.0, 24_690.0, 25_000.0]))),
        });
        let step = Step { size: 10_000, writes: 7_654.0, reads: 1.0, resident: Some(12_000_000), disk: 0 };
        report
            .growths
            .push(Growth { what: "documents".into(), curves: vec![Curve { engine: "lsm".into(), steps: vec![step] }] });
        let page = html(&report).unwrap();
        for text in
            ["12,345", "24,690", "0.50", "1.44", "a &lt; b &amp; &quot;c&quot;", "7,654", "10,000", "12.0", "<svg"]
        {
            assert!(page.contains(text), "{text}");
        }
        for outside in ["src=", "href=", "@import", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [grouped(12.34), grouped(999.6), grouped(1_234_567.8), grouped(f64::NAN)],
            ["12.3", "1,000", "1,234,568", "-"]
        );
    }
}
