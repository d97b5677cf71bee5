//! Finds violations of strict serializability in a history, and names them.

use std::collections::HashMap;
use std::fmt;

use super::graph::{Dependency, Graph};
use super::history::{Element, History, Operation, Outcome, TransactionId};

/// Anomalies, named as in the literature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnomalyKind {
    /// A transaction did not see its own writes.
    ReadYourWritesBroken,
    /// A read saw a write of a failed transaction (G1a).
    DirtyRead,
    /// A read saw a state from the middle of another transaction (G1b).
    IntermediateRead,
    /// Two reads saw the same writes in different orders.
    IncompatibleOrder,
    /// An element appears twice in a list, or was never written.
    Garbage,
    /// A committed write is missing at the end, or a failed one is there.
    LostUpdate,
    /// Writes of two transactions interleave (G0).
    DirtyWrite,
    /// Transactions read from each other in a circle (G1c).
    CircularInformation,
    /// One anti-dependency closes a circle: a transaction saw another one in part (G-single).
    ReadSkew,
    /// Several adjacent anti-dependencies close a circle: write skew (G2).
    WriteSkew,
    /// Several separate anti-dependencies close a circle: readers disagree on the order of writers.
    LongFork,
    /// A serial order exists, but it contradicts real time.
    StaleRead,
}

/// An anomaly with its evidence.
#[derive(Clone, Debug)]
pub struct Anomaly {
    /// Name of the anomaly.
    pub kind: AnomalyKind,
    /// The transactions and elements that show it, for people.
    pub explanation: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.explanation)
    }
}

/// Checks that a history is strictly serializable. Returns the first anomaly found.
pub fn check(history: &History) -> Result<(), Anomaly> {
    let writers = Writers::of(history)?;
    check_own_writes(history)?;
    let orders = writers.orders(history)?;
    check_reads(history, &writers)?;
    check_last(history, &writers)?;
    check_cycles(history, &writers, &orders)
}

fn anomaly(kind: AnomalyKind, explanation: String) -> Anomaly {
    Anomaly { kind, explanation }
}

/// The writer of each element.
struct Writers {
    by_element: HashMap<(u32, Element), TransactionId>,
}

/// For each key, the order in which its elements were written.
type Orders = HashMap<u32, Vec<Element>>;

impl Writers {
    fn of(history: &History) -> Result<Self, Anomaly> {
        let mut by_element = HashMap::new();
        for (id, transaction) in history.transactions.iter().enumerate() {
            for operation in &transaction.operations {
                if let Operation::Append { key, element } = *operation
                    && by_element.insert((key, element), id).is_some()
                {
                    let explanation = format!("the history itself appends {element} to {key} twice");
                    return Err(anomaly(AnomalyKind::Garbage, explanation));
                }
            }
        }
        Ok(Writers { by_element })
    }

    fn of_element(&self, key: u32, element: Element) -> Option<TransactionId> {
        self.by_element.get(&(key, element)).copied()
    }

    /// The longest list of each key. Every other list of the key must be a prefix of it.
    fn orders(&self, history: &History) -> Result<Orders, Anomaly> {
        let mut orders: Orders = HashMap::new();
        let lists = history.last.iter().map(|(&key, list)| (key, list)).chain(committed_reads(history));
        for (key, list) in lists {
            for (at, &element) in list.iter().enumerate() {
                if self.of_element(key, element).is_none() || list[..at].contains(&element) {
                    let explanation = format!("{element} in the list of {key}: {list:?}");
                    return Err(anomaly(AnomalyKind::Garbage, explanation));
                }
            }
            let longest = orders.entry(key).or_default();
            let (short, long) = if list.len() < longest.len() { (list, &*longest) } else { (&*longest, list) };
            if !long.starts_with(short) {
                let explanation = format!("key {key} was read as {short:?} and as {long:?}");
                return Err(anomaly(AnomalyKind::IncompatibleOrder, explanation));
            }
            if list.len() > longest.len() {
                *longest = list.clone();
            }
        }
        Ok(orders)
    }
}

/// The reads of committed transactions, each without the reader's own elements at its end.
fn committed_reads(history: &History) -> impl Iterator<Item = (u32, &Vec<Element>)> {
    let committed = history.transactions.iter().filter(|transaction| transaction.outcome == Outcome::Committed);
    committed.flat_map(|transaction| &transaction.operations).filter_map(|operation| match operation {
        Operation::Read { key, list } => Some((*key, list)),
        Operation::Append { .. } => None,
    })
}

fn check_own_writes(history: &History) -> Result<(), Anomaly> {
    for (id, transaction) in history.transactions.iter().enumerate() {
        let mut own: HashMap<u32, Vec<Element>> = HashMap::new();
        let mut seen: HashMap<u32, Vec<Element>> = HashMap::new();
        for operation in &transaction.operations {
            match operation {
                Operation::Append { key, element } => {
                    own.entry(*key).or_default().push(*element);
                    seen.entry(*key).and_modify(|list| list.push(*element));
                }
                Operation::Read { key, list } => {
                    let ends_in_own = own.get(key).is_none_or(|own| list.ends_with(own));
                    let repeats = seen.get(key).is_none_or(|before| before == list);
                    if !ends_in_own || !repeats {
                        let explanation = format!("T{id} read {list:?} from {key}: {:?}", transaction.operations);
                        return Err(anomaly(AnomalyKind::ReadYourWritesBroken, explanation));
                    }
                    seen.insert(*key, list.clone());
                }
            }
        }
    }
    Ok(())
}

fn check_reads(history: &History, writers: &Writers) -> Result<(), Anomaly> {
    let mut final_elements: HashMap<(TransactionId, u32), Element> = HashMap::new();
    for (id, transaction) in history.transactions.iter().enumerate() {
        for operation in &transaction.operations {
            if let Operation::Append { key, element } = *operation {
                final_elements.insert((id, key), element);
            }
        }
    }
    for (reader, transaction) in history.transactions.iter().enumerate() {
        for operation in &transaction.operations {
            let Operation::Read { key, list } = operation else { continue };
            for &element in list {
                let Some(writer) = writers.of_element(*key, element) else { continue };
                if writer != reader && history.transactions[writer].outcome == Outcome::Failed {
                    let explanation =
                        format!("T{reader} read {element} of key {key}, which T{writer} wrote and failed");
                    return Err(anomaly(AnomalyKind::DirtyRead, explanation));
                }
            }
            let Some(&last) = list.last() else { continue };
            let Some(writer) = writers.of_element(*key, last) else { continue };
            if writer != reader && final_elements.get(&(writer, *key)) != Some(&last) {
                let explanation = format!("T{reader} read key {key} up to {last}, after which T{writer} wrote more");
                return Err(anomaly(AnomalyKind::IntermediateRead, explanation));
            }
        }
    }
    Ok(())
}

fn check_last(history: &History, writers: &Writers) -> Result<(), Anomaly> {
    for (&(key, element), &writer) in &writers.by_element {
        let there = history.last.get(&key).is_some_and(|list| list.contains(&element));
        let wrong = match history.transactions[writer].outcome {
            Outcome::Committed => !there,
            Outcome::Failed => there,
            Outcome::Unknown => false,
        };
        if wrong {
            let (outcome, place) = (history.transactions[writer].outcome, if there { "there" } else { "not there" });
            let explanation =
                format!("{element}, which T{writer} ({outcome:?}) appended to {key}, is {place} at the end");
            return Err(anomaly(AnomalyKind::LostUpdate, explanation));
        }
    }
    Ok(())
}

fn check_cycles(history: &History, writers: &Writers, orders: &Orders) -> Result<(), Anomaly> {
    let mut graph = Graph::with_nodes(history.transactions.len());
    add_data_dependencies(&mut graph, history, writers, orders);
    add_real_time(&mut graph, history);

    use Dependency::{ReadWrite, RealTime, WriteRead, WriteWrite};
    let data = |why| why != RealTime;
    let found = graph
        .cycle(|why| why == WriteWrite, |_| true, false)
        .map(|cycle| (AnomalyKind::DirtyWrite, cycle))
        .or_else(|| {
            let cycle = graph.cycle(|why| matches!(why, WriteWrite | WriteRead), |why| why == WriteRead, false);
            cycle.map(|cycle| (AnomalyKind::CircularInformation, cycle))
        })
        .or_else(|| {
            let cycle = graph.cycle(data, |why| why == ReadWrite, true);
            cycle.map(|cycle| (AnomalyKind::ReadSkew, cycle))
        })
        .or_else(|| {
            let cycle = graph.cycle(data, |why| why == ReadWrite, false);
            cycle.map(|cycle| (if all_apart(&cycle) { AnomalyKind::LongFork } else { AnomalyKind::WriteSkew }, cycle))
        })
        .or_else(|| graph.cycle(|_| true, |_| true, false).map(|cycle| (AnomalyKind::StaleRead, cycle)));
    match found {
        None => Ok(()),
        Some((kind, cycle)) => Err(anomaly(kind, explain(history, &cycle))),
    }
}

/// Whether no two anti-dependencies of the cycle are adjacent.
fn all_apart(cycle: &[(usize, Dependency)]) -> bool {
    let anti = |at: usize| cycle[at % cycle.len()].1 == Dependency::ReadWrite;
    (0..cycle.len()).all(|at| !(anti(at) && anti(at + 1)))
}

fn explain(history: &History, cycle: &[(usize, Dependency)]) -> String {
    let mut text = String::new();
    // Nodes beyond the transactions are moments of time, which do not interest a reader.
    let is_transaction = |&&(node, _): &&(usize, Dependency)| node < history.transactions.len();
    for &(node, why) in cycle.iter().filter(is_transaction) {
        text.push_str(&format!("T{node} {why} "));
    }
    if let Some((first, _)) = cycle.iter().find(is_transaction) {
        text.push_str(&format!("T{first}"));
    }
    for &(node, _) in cycle.iter().filter(is_transaction) {
        text.push_str(&format!("\n  T{node}: {:?}", history.transactions[node]));
    }
    text
}

fn add_data_dependencies(graph: &mut Graph, history: &History, writers: &Writers, orders: &Orders) {
    let next: HashMap<(u32, Option<Element>), Element> = orders
        .iter()
        .flat_map(|(&key, order)| {
            let before = std::iter::once(None).chain(order.iter().copied().map(Some));
            before.zip(order).map(move |(before, &element)| ((key, before), element))
        })
        .collect();
    for (&(key, before), &element) in &next {
        let earlier = before.and_then(|before| writers.of_element(key, before));
        if let (Some(earlier), Some(later)) = (earlier, writers.of_element(key, element)) {
            graph.add(earlier, later, Dependency::WriteWrite);
        }
    }
    for (reader, transaction) in history.transactions.iter().enumerate() {
        if transaction.outcome != Outcome::Committed {
            continue;
        }
        for operation in &transaction.operations {
            let Operation::Read { key, list } = operation else { continue };
            let last = list.last().copied();
            if let Some(writer) = last.and_then(|last| writers.of_element(*key, last)) {
                graph.add(writer, reader, Dependency::WriteRead);
            }
            let overwriter = next.get(&(*key, last)).and_then(|&element| writers.of_element(*key, element));
            if let Some(overwriter) = overwriter {
                graph.add(reader, overwriter, Dependency::ReadWrite);
            }
        }
    }
}

/// Adds real-time order as a chain of moments, so that the number of edges is linear in the history: each end leads to
/// the moment after it, each moment to the starts that follow.
fn add_real_time(graph: &mut Graph, history: &History) {
    #[derive(Clone, Copy)]
    enum Event {
        Begin(TransactionId),
        End(TransactionId),
    }
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (id, transaction) in history.transactions.iter().enumerate() {
        events.push((transaction.begun, Event::Begin(id)));
        // A transaction with an unknown outcome may take effect long after its end.
        if transaction.outcome == Outcome::Committed {
            events.push((transaction.ended, Event::End(id)));
        }
    }
    events.sort_by_key(|&(moment, _)| moment);
    let mut now = None;
    for (_, event) in events {
        match event {
            Event::Begin(id) => {
                if let Some(now) = now {
                    graph.add(now, id, Dependency::RealTime);
                }
            }
            Event::End(id) => {
                let moment = graph.add_node();
                if let Some(before) = now {
                    graph.add(before, moment, Dependency::RealTime);
                }
                graph.add(id, moment, Dependency::RealTime);
                now = Some(moment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serializability::Recorded;

    fn append(key: u32, element: Element) -> Operation {
        Operation::Append { key, element }
    }

    fn read(key: u32, list: &[Element]) -> Operation {
        Operation::Read { key, list: list.to_vec() }
    }

    /// Transactions that all overlap in time.
    fn overlapping(transactions: &[(&[Operation], Outcome)], last: &[(u32, &[Element])]) -> History {
        let count = transactions.len() as u64;
        let recorded = transactions.iter().zip(0..).map(|((operations, outcome), at)| Recorded {
            operations: operations.to_vec(),
            outcome: *outcome,
            begun: at,
            ended: count + at,
        });
        History {
            transactions: recorded.collect(),
            last: last.iter().map(|&(key, list)| (key, list.to_vec())).collect(),
        }
    }

    fn kind_of(history: &History) -> Option<AnomalyKind> {
        check(history).err().map(|anomaly| anomaly.kind)
    }

    const OK: Outcome = Outcome::Committed;

    #[test]
    fn a_serial_history_passes() {
        let history = overlapping(
            &[
                (&[read(1, &[]), append(1, 10)], OK),
                (&[read(1, &[10]), append(1, 11), append(2, 20), read(2, &[20])], OK),
                (&[append(1, 99)], Outcome::Failed),
                (&[append(2, 21)], Outcome::Unknown),
                (&[read(2, &[20, 21]), read(1, &[10, 11])], OK),
            ],
            &[(1, &[10, 11]), (2, &[20, 21])],
        );
        assert_eq!(kind_of(&history), None, "{:?}", check(&history));
    }

    #[test]
    fn each_anomaly_has_its_name() {
        use AnomalyKind::*;
        let cases = [
            (ReadYourWritesBroken, overlapping(&[(&[append(1, 10), read(1, &[])], OK)], &[(1, &[10])])),
            (DirtyRead, overlapping(&[(&[append(1, 10)], Outcome::Failed), (&[read(1, &[10])], OK)], &[])),
            (
                IntermediateRead,
                overlapping(&[(&[append(1, 10), append(1, 11)], OK), (&[read(1, &[10])], OK)], &[(1, &[10, 11])]),
            ),
            (
                IncompatibleOrder,
                overlapping(
                    &[(&[append(1, 10)], OK), (&[append(1, 11)], OK), (&[read(1, &[11, 10])], OK)],
                    &[(1, &[10, 11])],
                ),
            ),
            (Garbage, overlapping(&[(&[append(1, 10)], OK)], &[(1, &[10, 10])])),
            (Garbage, overlapping(&[(&[read(1, &[77])], OK)], &[])),
            (
                LostUpdate,
                overlapping(
                    &[(&[read(1, &[]), append(1, 10)], OK), (&[read(1, &[]), append(1, 11)], OK)],
                    &[(1, &[11])],
                ),
            ),
            (LostUpdate, overlapping(&[(&[append(1, 10)], Outcome::Failed)], &[(1, &[10])])),
            (
                DirtyWrite,
                overlapping(
                    &[(&[append(1, 10), append(2, 20)], OK), (&[append(1, 11), append(2, 21)], OK)],
                    &[(1, &[10, 11]), (2, &[21, 20])],
                ),
            ),
            (
                CircularInformation,
                overlapping(
                    &[(&[append(1, 10), read(2, &[20])], OK), (&[append(2, 20), read(1, &[10])], OK)],
                    &[(1, &[10]), (2, &[20])],
                ),
            ),
            (
                ReadSkew,
                overlapping(
                    &[(&[append(1, 10), append(2, 20)], OK), (&[read(1, &[]), read(2, &[20])], OK)],
                    &[(1, &[10]), (2, &[20])],
                ),
            ),
            (
                WriteSkew,
                overlapping(
                    &[(&[read(1, &[]), append(2, 20)], OK), (&[read(2, &[]), append(1, 10)], OK)],
                    &[(1, &[10]), (2, &[20])],
                ),
            ),
            (
                LongFork,
                overlapping(
                    &[
                        (&[append(1, 10)], OK),
                        (&[append(2, 20)], OK),
                        (&[read(1, &[10]), read(2, &[])], OK),
                        (&[read(1, &[]), read(2, &[20])], OK),
                    ],
                    &[(1, &[10]), (2, &[20])],
                ),
            ),
        ];
        for (expected, history) in cases {
            assert_eq!(kind_of(&history), Some(expected), "{history:?}");
        }
    }

    #[test]
    fn a_read_that_is_behind_time_is_stale() {
        let mut history = overlapping(&[(&[append(1, 10)], OK), (&[read(1, &[])], OK)], &[(1, &[10])]);
        assert_eq!(kind_of(&history), None, "overlapping transactions may stand in either order");
        history.transactions[0].ended = 100;
        history.transactions[1].begun = 101;
        history.transactions[1].ended = 102;
        assert_eq!(kind_of(&history), Some(AnomalyKind::StaleRead));
        history.transactions[0].outcome = Outcome::Unknown;
        assert_eq!(kind_of(&history), None, "an unknown outcome may take effect late");
    }

    #[test]
    fn a_settled_transaction_is_there_as_a_whole_or_was_never_seen() {
        use AnomalyKind::{DirtyRead, LostUpdate};
        let settled = |transactions: &[(&[Operation], Outcome)], last| {
            let mut history = overlapping(transactions, last);
            history.settle();
            kind_of(&history)
        };
        let both: &[Operation] = &[append(1, 10), append(2, 20)];
        let unknown = (both, Outcome::Unknown);
        assert_eq!(settled(&[unknown], &[(1, &[10]), (2, &[20])]), None);
        assert_eq!(settled(&[unknown], &[]), None);
        assert_eq!(settled(&[unknown], &[(1, &[10])]), Some(LostUpdate), "a half");
        assert_eq!(settled(&[unknown, (&[read(1, &[10])], OK)], &[]), Some(DirtyRead), "seen, and gone");
    }
}
