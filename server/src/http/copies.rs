//! Figures of this server's copies: its backups, what it ships, and how far it follows as a standby. Those of shipping
//! and of following are there only if the server does it.

use std::sync::atomic::Ordering;

use kv_api::figures::Figure;
use model::{Environment, SystemEnvironment};

use crate::backup_state::{BackupState, Progress};
use crate::http::app::App;
use crate::ship_state::{Outcome, ShipState};
use crate::standby_state::{FollowOutcome, StandbyState};

/// Adds these figures.
pub(crate) fn add(app: &App, figures: &mut Vec<Figure>) {
    of_backups(&app.backup, figures);
    if let Some(ship) = &app.options.ship {
        of_ship(ship, figures);
    }
    if let Some(standby) = &app.options.standby {
        of_standby(standby, figures);
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// Seconds since a time, in milliseconds since 1970.
fn since(ms: u64) -> f64 {
    seconds(SystemEnvironment.now_ms().saturating_sub(ms))
}

/// One figure for each state: 1 for that of now, 0 for the others.
fn states(name: &'static str, help: &'static str, all: &[&'static str], now: &str, figures: &mut Vec<Figure>) {
    figures.extend(all.iter().map(|state| {
        let is_now = f64::from(u8::from(*state == now));
        Figure::gauge(name, help, is_now).with("state", *state)
    }));
}

fn of_backups(backups: &BackupState, figures: &mut Vec<Figure>) {
    let is_running = matches!(backups.backup.lock().progress, Progress::Running(_));
    let counts = &backups.counts;
    let running = f64::from(u8::from(is_running));
    figures.push(Figure::gauge("couch_layer_backup_running", "1 while this server makes a backup", running));
    let mut counter = |name, help, value| figures.push(Figure::counter(name, help, value));
    let ended = "backups of this server that have everything";
    counter("couch_layer_backups_total", ended, counts.ended.value());
    let failed = "backups of this server that failed, or lack a database or a document";
    counter("couch_layer_backup_failures_total", failed, counts.failed.value());
    counter("couch_layer_backup_bytes_total", "bytes that backups of this server wrote", counts.bytes.value());
    let last_ms = counts.last_ms.load(Ordering::Relaxed);
    if last_ms > 0 {
        let last = "end of the last backup of this server that has everything, in seconds since 1970";
        figures.push(Figure::gauge("couch_layer_backup_last_seconds", last, seconds(last_ms)));
    }
}

fn of_ship(ship: &ShipState, figures: &mut Vec<Figure>) {
    let outcome = ship.outcome.lock().clone();
    let shipped = outcome.shipped;
    states("couch_layer_ship_state", "1 for the state of shipping", &Outcome::STATES, outcome.state(), figures);
    let until = "everything acknowledged until then is in the place, in seconds since 1970; 0 until tables are there";
    figures.push(Figure::gauge("couch_layer_ship_until_seconds", until, seconds(shipped.until_ms)));
    let behind = "time since couch_layer_ship_until_seconds, or since shipping began if that is later";
    let behind_seconds = since(shipped.until_ms.max(ship.began_ms));
    figures.push(Figure::gauge("couch_layer_ship_behind_seconds", behind, behind_seconds));
    let mut counter = |name, help, value| figures.push(Figure::counter(name, help, value));
    counter("couch_layer_ship_segments_total", "segments of the log that were shipped", shipped.segments);
    counter("couch_layer_ship_bytes_total", "bytes of segments and tables that were shipped", shipped.bytes);
    counter("couch_layer_ship_bases_total", "sets of tables that were shipped", shipped.bases);
    counter("couch_layer_ship_begun_total", "times that shipping began with all tables", shipped.begun);
    counter("couch_layer_ship_failures_total", "attempts to ship that failed", outcome.failures);
}

fn of_standby(standby: &StandbyState, figures: &mut Vec<Figure>) {
    let outcome = standby.outcome.lock().clone();
    let states_of = "1 for the state of this standby";
    states("couch_layer_standby_state", states_of, &FollowOutcome::STATES, outcome.state(), figures);
    let until = "time of the last segment that this standby has, by the first server's clock, in seconds since 1970";
    figures.push(Figure::gauge("couch_layer_standby_until_seconds", until, seconds(outcome.until_ms)));
    let behind = "time since this standby last had everything in the place, or since it began to follow";
    let behind_seconds = since(outcome.looked_ms.max(standby.began_ms));
    figures.push(Figure::gauge("couch_layer_standby_behind_seconds", behind, behind_seconds));
    let mut counter = |name, help, value| figures.push(Figure::counter(name, help, value));
    counter("couch_layer_standby_segments_total", "segments that this standby applied", outcome.segments);
    counter("couch_layer_standby_failures_total", "steps of this standby that failed", outcome.failures);
    counter("couch_layer_standby_restores_total", "times that this standby's store was restored", standby.restores);
}

#[cfg(test)]
mod tests {
    use kv_api::figures::Value;
    use tokio::sync::mpsc;

    use super::*;

    fn value(figures: &[Figure], name: &str, state: Option<&str>) -> f64 {
        let is_asked =
            |figure: &&Figure| figure.name == name && figure.labels.iter().map(|(_, value)| value.as_str()).eq(state);
        match figures.iter().find(is_asked).map(|figure| &figure.value) {
            Some(Value::Gauge(value) | Value::Counter(value)) => *value,
            other => panic!("{name} {state:?}: {other:?}"),
        }
    }

    #[test]
    fn a_ship_that_fails_or_never_begins_falls_behind() {
        let ship = ShipState { began_ms: SystemEnvironment.now_ms() - 90_000, ..ShipState::new("there") };
        let figures = || {
            let mut figures = Vec::new();
            of_ship(&ship, &mut figures);
            figures
        };
        let behind = || value(&figures(), "couch_layer_ship_behind_seconds", None);
        let state = |state| value(&figures(), "couch_layer_ship_state", Some(state));
        assert_eq!((state("starting"), state("running")), (1.0, 0.0));
        assert!((90.0..600.0).contains(&behind()), "no tables are there: {}", behind());
        ship.outcome.lock().shipped.until_ms = SystemEnvironment.now_ms() - 5_000;
        assert_eq!((state("starting"), state("running")), (0.0, 1.0));
        assert!((5.0..60.0).contains(&behind()), "{}", behind());
        ship.outcome.lock().failed[1] = Some("planted".to_owned());
        assert_eq!((state("failing"), state("running")), (1.0, 0.0));
        ship.outcome.lock().is_fenced = true;
        assert_eq!((state("fenced"), state("failing")), (1.0, 0.0));
    }

    #[test]
    fn a_standby_that_does_not_reach_the_place_falls_behind() {
        let (promotions, _asked) = mpsc::unbounded_channel();
        let began_ms = SystemEnvironment.now_ms() - 90_000;
        let (from, outcome) = ("there".to_owned(), Default::default());
        let standby = StandbyState { from, began_ms, restores: 3, outcome, promotions };
        let figures = || {
            let mut figures = Vec::new();
            of_standby(&standby, &mut figures);
            figures
        };
        let behind = || value(&figures(), "couch_layer_standby_behind_seconds", None);
        assert!((90.0..600.0).contains(&behind()), "{}", behind());
        assert_eq!(value(&figures(), "couch_layer_standby_restores_total", None), 3.0);
        standby.outcome.lock().looked_ms = SystemEnvironment.now_ms() - 5_000;
        assert!((5.0..60.0).contains(&behind()), "{}", behind());
        assert_eq!(value(&figures(), "couch_layer_standby_state", Some("following")), 1.0);
        standby.outcome.lock().failed = Some("planted".to_owned());
        assert_eq!(value(&figures(), "couch_layer_standby_state", Some("failing")), 1.0);
    }
}
