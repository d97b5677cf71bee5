//! Figures in the text format of Prometheus, version 0.0.4.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>. CouchDB's names do not fit OpenMetrics,
//! whose counters all end in `_total`, nor the crates that write it.

use std::collections::BTreeMap;
use std::fmt::Write;

use kv_api::figures::{Figure, Value};

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes figures. Those with the same name must be adjacent.
pub(crate) fn text(figures: &[Figure]) -> String {
    let mut families: BTreeMap<&str, Vec<&Figure>> = BTreeMap::new();
    for figure in figures {
        families.entry(&figure.name).or_default().push(figure);
    }
    let mut text = String::with_capacity(64 * figures.len());
    for (name, family) in families {
        let kind = match family[0].value {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
            Value::Summary(..) => "summary",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family[0].help);
        family.iter().for_each(|figure| write_figure(figure, &mut text));
    }
    text
}

fn write_figure(figure: &Figure, text: &mut String) {
    let mut line = |suffix: &str, more: Option<(&str, String)>, value: f64| {
        text.push_str(&figure.name);
        text.push_str(suffix);
        let labels =
            figure.labels.iter().map(|(name, value)| (*name, value)).chain(more.as_ref().map(|(n, v)| (*n, v)));
        for (at, (name, value)) in labels.enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(text, "{}{name}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        if more.is_some() || !figure.labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    };
    match &figure.value {
        Value::Counter(value) | Value::Gauge(value) => line("", None, *value),
        Value::Histogram(values) => {
            let bounds = values.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(&values.counts) {
                line("_bucket", Some(("le", bound)), *count as f64);
            }
            line("_sum", None, values.sum);
            line("_count", None, values.count() as f64);
        }
        Value::Summary(quantiles, sum, count) => {
            for (part, value) in quantiles {
                line("", Some(("quantile", part.to_string())), *value);
            }
            line("_sum", None, *sum);
            line("_count", None, *count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_api::figures::Histogram;

    use super::*;

    #[test]
    fn figures_are_written_as_prometheus_reads_them() {
        let histogram = Histogram::new(&[500, 1_000_000]);
        histogram.observe(100);
        histogram.observe(2_000_000);
        let figures = [
            Figure::gauge("b", "of b", 1.5).with("name", "x\"\\\n"),
            Figure::counter("a_total", "of a", 3),
            Figure::gauge("b", "of b", 2.0),
            Figure::histogram("c_seconds", "of c", histogram.seconds()).with("x", "y"),
            Figure::new("d", "of d", Value::Summary(vec![(0.5, 0.25)], 1.0, 4)),
        ];
        let expected = concat!(
            "# HELP a_total of a\n# TYPE a_total counter\na_total 3\n",
            "# HELP b of b\n# TYPE b gauge\nb{name=\"x\\\"\\\\\\n\"} 1.5\nb 2\n",
            "# HELP c_seconds of c\n# TYPE c_seconds histogram\n",
            "c_seconds_bucket{x=\"y\",le=\"0.0005\"} 1\nc_seconds_bucket{x=\"y\",le=\"1\"} 1\n",
            "c_seconds_bucket{x=\"y\",le=\"+Inf\"} 2\nc_seconds_sum{x=\"y\"} 2.0001\nc_seconds_count{x=\"y\"} 2\n",
            "# HELP d of d\n# TYPE d summary\nd{quantile=\"0.5\"} 0.25\nd_sum 1\nd_count 4\n",
        );
        assert_eq!(text(&figures), expected);
    }
}
