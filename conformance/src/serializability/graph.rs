//! The graph of dependencies between transactions, and its shortest cycles.

use std::collections::VecDeque;
use std::fmt;

/// The reason why the first of two transactions comes before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Dependency {
    /// The second overwrote a write of the first.
    WriteWrite,
    /// The second read a write of the first.
    WriteRead,
    /// The second overwrote something that the first had read.
    ReadWrite,
    /// The first ended before the second began.
    RealTime,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dependency::WriteWrite => "wrote before",
            Dependency::WriteRead => "was read by",
            Dependency::ReadWrite => "read what was then written by",
            Dependency::RealTime => "ended before the start of",
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) to: usize,
    pub(super) why: Dependency,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    edges: Vec<Vec<Edge>>,
}

impl Graph {
    pub(super) fn with_nodes(nodes: usize) -> Self {
        Graph { edges: vec![Vec::new(); nodes] }
    }

    pub(super) fn add_node(&mut self) -> usize {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    pub(super) fn add(&mut self, from: usize, to: usize, why: Dependency) {
        if from != to && !self.edges[from].iter().any(|edge| edge.to == to && edge.why == why) {
            self.edges[from].push(Edge { to, why });
        }
    }

    /// A cycle in which all edges satisfy `allowed` and at least one satisfies `required`; with `once`, exactly
    /// one. It is the shortest cycle through the first such edge that closes one.
    pub(super) fn cycle(
        &self,
        allowed: impl Fn(Dependency) -> bool,
        required: impl Fn(Dependency) -> bool,
        once: bool,
    ) -> Option<Vec<(usize, Dependency)>> {
        let component = self.components(&allowed);
        for (from, edges) in self.edges.iter().enumerate() {
            for edge in edges {
                let closes = component[from] == component[edge.to];
                if !closes || !allowed(edge.why) || !required(edge.why) {
                    continue;
                }
                let step = |why| allowed(why) && !(once && required(why));
                if let Some(mut path) = self.shortest(edge.to, from, &component, step) {
                    path.insert(0, (from, edge.why));
                    return Some(path);
                }
            }
        }
        None
    }

    /// The shortest path within one component, as (node, dependency on the next).
    fn shortest(
        &self,
        from: usize,
        to: usize,
        component: &[usize],
        allowed: impl Fn(Dependency) -> bool,
    ) -> Option<Vec<(usize, Dependency)>> {
        let mut came: Vec<Option<(usize, Dependency)>> = vec![None; self.edges.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            if node == to {
                let mut path = Vec::new();
                let mut at = to;
                while at != from {
                    let (before, why) = came[at]?;
                    path.push((before, why));
                    at = before;
                }
                path.reverse();
                return Some(path);
            }
            for edge in &self.edges[node] {
                if allowed(edge.why)
                    && component[edge.to] == component[from]
                    && edge.to != from
                    && came[edge.to].is_none()
                {
                    came[edge.to] = Some((node, edge.why));
                    queue.push_back(edge.to);
                }
            }
        }
        None
    }

    /// The strongly connected component of each node: Tarjan's algorithm with an explicit stack, since a history
    /// may be one long chain.
    fn components(&self, allowed: impl Fn(Dependency) -> bool) -> Vec<usize> {
        const UNSEEN: usize = usize::MAX;
        let nodes = self.edges.len();
        let (mut index, mut low) = (vec![UNSEEN; nodes], vec![0; nodes]);
        let (mut component, mut on_stack) = (vec![UNSEEN; nodes], vec![false; nodes]);
        let (mut stack, mut next_index, mut next_component) = (Vec::new(), 0, 0);
        for root in 0..nodes {
            if index[root] != UNSEEN {
                continue;
            }
            let mut calls = vec![(root, 0)];
            while let Some(&mut (node, ref mut edge)) = calls.last_mut() {
                if *edge == 0 {
                    index[node] = next_index;
                    low[node] = next_index;
                    next_index += 1;
                    stack.push(node);
                    on_stack[node] = true;
                }
                let descend = self.edges[node][*edge..].iter().position(|edge| allowed(edge.why));
                match descend {
                    Some(skipped) => {
                        let to = self.edges[node][*edge + skipped].to;
                        *edge += skipped + 1;
                        if index[to] == UNSEEN {
                            calls.push((to, 0));
                        } else if on_stack[to] {
                            low[node] = low[node].min(index[to]);
                        }
                    }
                    None => {
                        calls.pop();
                        if let Some(&(caller, _)) = calls.last() {
                            low[caller] = low[caller].min(low[node]);
                        }
                        if low[node] == index[node] {
                            while let Some(member) = stack.pop() {
                                on_stack[member] = false;
                                component[member] = next_component;
                                if member == node {
                                    break;
                                }
                            }
                            next_component += 1;
                        }
                    }
                }
            }
        }
        component
    }
}

#[cfg(test)]
mod tests {
    use super::Dependency::{ReadWrite, RealTime, WriteRead, WriteWrite};
    use super::*;

    fn graph(nodes: usize, edges: &[(usize, usize, Dependency)]) -> Graph {
        let mut graph = Graph::with_nodes(nodes);
        for &(from, to, why) in edges {
            graph.add(from, to, why);
        }
        graph
    }

    #[test]
    fn a_chain_has_no_cycle_however_long() {
        let mut chain = Graph::with_nodes(100_000);
        for node in 1..100_000 {
            chain.add(node - 1, node, WriteWrite);
        }
        assert_eq!(chain.cycle(|_| true, |_| true, false), None);
    }

    #[test]
    fn the_kind_of_edges_decides() {
        let graph = graph(3, &[(0, 1, WriteRead), (1, 2, ReadWrite), (2, 0, ReadWrite), (1, 0, RealTime)]);
        assert_eq!(graph.cycle(|why| why != ReadWrite && why != RealTime, |_| true, false), None);
        let only_one = graph.cycle(|why| why != RealTime, |why| why == ReadWrite, true);
        assert_eq!(only_one, None, "the cycle has two anti-dependencies");
        let two = graph.cycle(|why| why != RealTime, |why| why == ReadWrite, false).unwrap();
        assert_eq!(two.len(), 3);
        let timed = graph.cycle(|_| true, |why| why == RealTime, true).unwrap();
        assert_eq!(timed, vec![(1, RealTime), (0, WriteRead)]);
    }
}
