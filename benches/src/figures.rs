//! Figures of one kind of work: their median and spread.

/// Figures of the rounds of one kind of work on one side, in units of work a second.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// Adds a round's figure.
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// The figures, in the order of the rounds.
    pub fn rounds(&self) -> &[f64] {
        &self.0
    }

    /// The middle figure, or the mean of the two in the middle; NaN without a round.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Greatest over least: 1.0 is a quiet machine.
    pub fn spread(&self) -> f64 {
        let greatest = self.0.iter().copied().fold(f64::MIN, f64::max);
        let least = self.0.iter().copied().fold(f64::MAX, f64::min);
        greatest / least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rounds: &[f64]) -> Figures {
        Figures(rounds.to_vec())
    }

    #[test]
    fn the_median_is_the_middle_in_any_order() {
        assert_eq!(figures(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(figures(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(figures(&[]).median().is_nan());
    }

    #[test]
    fn the_spread_is_greatest_over_least() {
        assert_eq!(figures(&[2.0, 1.0, 4.0]).spread(), 4.0);
        assert_eq!(figures(&[2.0]).spread(), 1.0);
    }
}
