//! Figures in the text format of Prometheus, as the server writes them.

use std::collections::BTreeMap;

use kv_api::figures::Distribution;

/// A figure with its labels, in their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Series {
    name: String,
    labels: Vec<(String, String)>,
}

impl Series {
    /// The value of a label; empty if there is none.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| label == name).map_or("", |(_, value)| value)
    }
}

/// All figures of a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures(BTreeMap<Series, f64>);

impl Figures {
    /// Reads them. Lines that are none are left out.
    pub(super) fn parse(text: &str) -> Figures {
        Figures(text.lines().filter(|line| !line.starts_with('#')).filter_map(parse_line).collect())
    }

    /// The figures with this name, one for each combination of labels.
    pub(super) fn named<'f>(&'f self, name: &'f str) -> impl Iterator<Item = (&'f Series, f64)> {
        self.0.iter().filter(move |(series, _)| series.name == name).map(|(series, value)| (series, *value))
    }

    /// The sum of the figures with this name; `None` if the server has none.
    pub(super) fn sum(&self, name: &str) -> Option<f64> {
        self.named(name).map(|(_, value)| value).reduce(|one, other| one + other)
    }

    fn get(&self, series: &Series) -> f64 {
        self.0.get(series).copied().unwrap_or(0.0)
    }
}

/// `name{label="value",…} number`
fn parse_line(line: &str) -> Option<(Series, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = (line[..end].to_owned(), &line[end..]);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"")?;
            let (value, after) = parse_quoted(quoted)?;
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some((Series { name, labels }, value))
}

/// A label's value up to its closing quote, and the rest.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// Two samples of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Between<'f> {
    pub(super) before: &'f Figures,
    pub(super) after: &'f Figures,
    pub(super) seconds: f64,
}

impl Between<'_> {
    /// What the counters with this name and these labels grew by, a second; `None` if the server has none. Counters
    /// begin with zero when a server starts.
    pub(super) fn rate(&self, name: &str, keep: impl Fn(&Series) -> bool) -> Option<f64> {
        let grown =
            self.after.named(name).filter(|(series, _)| keep(series)).map(|(series, after)| self.grown(series, after));
        Some(grown.reduce(|one, other| one + other)? / self.seconds)
    }

    /// The times of a histogram that were added between the samples.
    pub(super) fn times(&self, name: &str, keep: impl Fn(&Series) -> bool) -> Distribution {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (series, after) in self.after.named(&format!("{name}_bucket")).filter(|(series, _)| keep(series)) {
            let Ok(bound) = series.label("le").parse::<f64>() else { continue };
            let grown = self.grown(series, after);
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += grown,
                None => buckets.push((bound, grown)),
            }
        }
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let counts = buckets.iter().map(|(_, count)| *count as u64).collect();
        let bounds = buckets.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite()).collect();
        Distribution { bounds, counts, sum: 0.0 }
    }

    fn grown(&self, series: &Series, after: f64) -> f64 {
        let before = self.before.get(series);
        if after < before { after } else { after - before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_server_writes_them() {
        let text = concat!(
            "# HELP a of a\n# TYPE a counter\na 3\n",
            "b{name=\"x\\\"\\\\\\n}\",more=\"y\"} 1.5\n",
            "c_bucket{le=\"+Inf\"} 2 1700000000\n",
            "broken{name=\"x 1\nno number\n\nc nothing\n",
        );
        let figures = Figures::parse(text);
        assert_eq!((figures.sum("a"), figures.sum("c_bucket"), figures.0.len()), (Some(3.0), Some(2.0), 3));
        let (series, value) = figures.named("b").next().unwrap();
        assert_eq!(
            (series.label("name"), series.label("more"), series.label("none"), value),
            ("x\"\\\n}", "y", "", 1.5)
        );
        assert_eq!(figures.sum("none"), None);
    }

    #[test]
    fn counters_grow_and_begin_again_when_a_server_does() {
        let [before, after] =
            ["a{x=\"1\"} 5\na{x=\"2\"} 7\n", "a{x=\"1\"} 9\na{x=\"2\"} 2\na{x=\"3\"} 1\n"].map(Figures::parse);
        let between = Between { before: &before, after: &after, seconds: 2.0 };
        assert_eq!(between.rate("a", |_| true), Some((4.0 + 2.0 + 1.0) / 2.0));
        assert_eq!(between.rate("a", |series| series.label("x") == "1"), Some(2.0));
        assert_eq!(between.rate("b", |_| true), None);
    }

    #[test]
    fn times_are_those_between_the_samples() {
        let of = |small: u32, all: u32, other: u32| {
            Figures::parse(&format!(
                "t_bucket{{r=\"a\",le=\"0.1\"}} {small}\nt_bucket{{r=\"a\",le=\"+Inf\"}} {all}\n\
                 t_bucket{{r=\"b\",le=\"0.1\"}} {other}\nt_bucket{{r=\"b\",le=\"+Inf\"}} {other}\n"
            ))
        };
        let (before, after) = (of(1_000, 1_000, 5), of(1_000, 1_010, 8));
        let between = Between { before: &before, after: &after, seconds: 1.0 };
        let all = between.times("t", |_| true);
        assert_eq!((&all.bounds[..], &all.counts[..]), (&[0.1][..], &[3, 13][..]));
        // Those before count for nothing: all of the new ones were slow.
        assert_eq!(between.times("t", |series| series.label("r") == "a").quantile(0.5), Some(0.1));
        assert_eq!(between.times("none", |_| true).quantile(0.5), None);
    }
}
