//! Plots as SVG, in the page itself.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// The line of an engine: its name, and its points.
pub(crate) type Series = (String, Vec<(f64, f64)>);

const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(214, 90, 30), RGBColor(44, 140, 60), RGBColor(120, 80, 160)];

/// A plot of lines over logarithmic axes, as an `<svg>` element; `None` without data.
pub(crate) fn lines(title: &str, across: &str, up: &str, series: &[Series]) -> Result<Option<String>> {
    let points = || series.iter().flat_map(|(_, points)| points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let least = |axis: fn(&(f64, f64)) -> f64| points().map(axis).fold(f64::INFINITY, f64::min);
    let greatest = |axis: fn(&(f64, f64)) -> f64| points().map(axis).fold(0.0, f64::max);
    if points().next().is_none() {
        return Ok(None);
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (560, 300)).into_drawing_area();
        // A single point or a level line needs a range around it.
        let xs = (least(|point| point.0) * 0.9..greatest(|point| point.0) * 1.1).log_scale();
        let ys = (least(|point| point.1) * 0.7..greatest(|point| point.1) * 1.4).log_scale();
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(xs, ys)
            .map_err(|error| anyhow!("{error}"))?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(across)
            .y_desc(up)
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| short(*y))
            .draw()
            .map_err(|error| anyhow!("{error}"))?;
        for ((name, points), colour) in series.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<_> = points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
            let colour = *colour;
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))
                .map_err(|error| anyhow!("{error}"))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(|error| anyhow!("{error}"))?;
        area.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(Some(svg))
}

/// 1,500,000 as 1.5M, since axes are short.
fn short(number: f64) -> String {
    let (scaled, unit) = match number {
        millions if millions >= 1e6 => (number / 1e6, "M"),
        thousands if thousands >= 1e3 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let digits = if scaled < 10.0 && scaled.fract() > 0.05 { 1 } else { 0 };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_names_its_series_and_axes() {
        let series = [("lsm".to_owned(), vec![(10.0, 5.0), (100.0, 7.0)]), ("sled".to_owned(), vec![(10.0, 3.0)])];
        let svg = lines("Growth", "documents", "writes/s", &series).unwrap().unwrap();
        for text in ["<svg", "Growth", "documents", "writes/s", "lsm", "sled"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn nothing_to_draw_is_no_plot() {
        assert!(lines("Growth", "x", "y", &[("lsm".to_owned(), vec![(0.0, 0.0)])]).unwrap().is_none());
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [short(1.0), short(999.0), short(1_500.0), short(20_000.0), short(1e6)],
            ["1", "999", "1.5k", "20k", "1M"]
        );
    }
}
