//! The measured figures.

use benches::figures::Figures;
use serde::Serialize;

use super::machine::Machine;
use crate::growth::Step;

/// Everything on the page.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    pub(crate) scale: f64,
    pub(crate) tables: Vec<Table>,
    pub(crate) growths: Vec<Growth>,
}

impl Report {
    /// The table with this title, created if needed.
    pub(crate) fn table(&mut self, title: &str, explanation: &str) -> &mut Table {
        let at = self.tables.iter().position(|table| table.title == title).unwrap_or_else(|| {
            self.tables.push(Table { title: title.into(), explanation: explanation.into(), rows: Vec::new() });
            self.tables.len() - 1
        });
        &mut self.tables[at]
    }
}

#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) explanation: String,
    pub(crate) rows: Vec<MeasuredWork>,
}

/// One kind of work on one engine.
#[derive(Serialize)]
pub(crate) struct MeasuredWork {
    pub(crate) work: String,
    pub(crate) unit: String,
    pub(crate) engine: String,
    pub(crate) format: Option<String>,
    /// Rates, one for each round.
    pub(crate) ours: Figures,
    /// Name and rates of the comparison.
    pub(crate) baseline: Option<(String, Figures)>,
}

impl MeasuredWork {
    /// Factor between our rate and the other side's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.baseline.as_ref().map(|(_, baseline)| self.ours.median() / baseline.median())
    }

    /// The greater of the two sides' spreads.
    pub(crate) fn spread(&self) -> f64 {
        self.baseline.as_ref().map_or(1.0, |(_, baseline)| baseline.spread()).max(self.ours.spread())
    }
}

/// An engine's figures over the growth of one size.
#[derive(Serialize)]
pub(crate) struct Growth {
    pub(crate) what: String,
    pub(crate) curves: Vec<Curve>,
}

#[derive(Serialize)]
pub(crate) struct Curve {
    pub(crate) engine: String,
    pub(crate) steps: Vec<Step>,
}
