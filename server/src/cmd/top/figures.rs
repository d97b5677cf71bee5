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
    pub(super) fn named<'f>(&'f self, name: &str) -> impl Iterator<Item = (&'f Series, f64)> {
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

impl<'f> Between<'f> {
    /// What the counters with this name grew by, a second, for each key that is made of their labels. Counters begin
    /// with zero when a server starts.
    pub(super) fn rates<K: Ord>(&self, name: &str, key: impl Fn(&'f Series) -> K) -> BTreeMap<K, f64> {
        let mut rates = BTreeMap::new();
        for (series, after) in self.after.named(name) {
            *rates.entry(key(series)).or_default() += self.grown(series, after) / self.seconds;
        }
        rates
    }

    /// The sum of these; `None` if the server has none.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        self.rates(name, |_| ()).remove(&())
    }

    /// The times of the histograms with this name that were added between the samples, for each such key.
    pub(super) fn times<K: Ord>(&self, name: &str, key: impl Fn(&'f Series) -> K) -> BTreeMap<K, Distribution> {
        let mut buckets: BTreeMap<K, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, after) in self.after.named(&format!("{name}_bucket")) {
            if let Ok(bound) = series.label("le").parse::<f64>()
                && bound > f64::NEG_INFINITY
            {
                buckets.entry(key(series)).or_default().push((bound, self.grown(series, after)));
            }
        }
        buckets.into_iter().map(|(key, buckets)| (key, distribution(buckets))).collect()
    }

    /// The same of all of them together.
    pub(super) fn all_times(&self, name: &str) -> Distribution {
        self.times(name, |_| ()).remove(&()).unwrap_or_default()
    }

    fn grown(&self, series: &Series, after: f64) -> f64 {
        let before = self.before.get(series);
        if after < before { after } else { after - before }
    }
}

/// The distribution of buckets, each a bound and the number of values up to it. Bounds may come several times.
fn distribution(mut buckets: Vec<(f64, f64)>) -> Distribution {
    buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let mut summed: Vec<(f64, f64)> = Vec::new();
    for (bound, count) in buckets {
        match summed.last_mut() {
            Some((last, sum)) if *last == bound => *sum += count,
            _ => summed.push((bound, count)),
        }
    }
    let counts = summed.iter().map(|(_, count)| *count as u64).collect();
    let bounds = summed.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite()).collect();
    Distribution { bounds, counts, sum: 0.0 }
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
        assert_eq!(between.rate("a"), Some((4.0 + 2.0 + 1.0) / 2.0));
        let by_label = BTreeMap::from([("1", 2.0), ("2", 1.0), ("3", 0.5)]);
        assert_eq!(between.rates("a", |series| series.label("x")), by_label);
        assert_eq!(between.rate("b"), None);
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
        let all = between.all_times("t");
        assert_eq!((&all.bounds[..], &all.counts[..]), (&[0.1][..], &[3, 13][..]));
        // Those before count for nothing: all of the new ones were slow.
        assert_eq!(between.times("t", |series| series.label("r"))["a"].quantile(0.5), Some(0.1));
        assert_eq!(between.all_times("none").quantile(0.5), None);
    }

    /// What a server sends is not trusted: bounds that are no numbers, in any order, of any number.
    #[test]
    fn buckets_may_come_in_any_order() {
        let text = "t_bucket{le=\"+Inf\"} 9\nt_bucket{le=\"0.2\"} 4\nt_bucket{le=\"x\"} 7\nt_bucket{le=\"0.1\"} 4\nt_bucket 1\n";
        let (before, after) = (Figures::default(), Figures::parse(text));
        let times = Between { before: &before, after: &after, seconds: 1.0 }.all_times("t");
        assert_eq!((&times.bounds[..], &times.counts[..]), (&[0.1, 0.2][..], &[4, 4, 9][..]));
        assert_eq!(times.quantile(0.99), Some(0.2));
        let bound = |bound: &str, count: u32| format!("t_bucket{{le=\"{bound}\"}} {count}\n");
        let broken = [bound("+Inf", 9), bound("NaN", 99), bound("-Inf", 8), bound("-1", 5), bound("0.1", 2)].concat();
        let broken = Figures::parse(&broken);
        let times = Between { before: &before, after: &broken, seconds: 1.0 }.all_times("t");
        assert_eq!((&times.bounds[..], &times.counts[..]), (&[-1.0, 0.1][..], &[5, 2, 9][..]));
        assert!([0.0, 0.5, 1.0].into_iter().all(|part| times.quantile(part).is_some()));
    }
}
