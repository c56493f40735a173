//! Rates of nodes between two overviews, per second, by the nodes' own clocks.
//!
//! Owns the last overview and its rates. Main thread.

use std::collections::HashMap;

use plasmon::overview::{Overview, Summary};

/// Rates of a node per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) fetched_bytes: f64,
    pub(super) served_bytes: f64,
    /// Operations on regions that the node carried out.
    pub(super) operations: f64,
    /// Calls that functions of the node's processes replied to.
    pub(super) calls: f64,
    /// Requests of the node's clients for work of class high, and of class low.
    pub(super) high: f64,
    pub(super) low: f64,
    pub(super) messages: f64,
}

/// Last overview, and the rates up to it.
#[derive(Debug, Default)]
pub(super) struct Rates {
    last: HashMap<String, Summary>,
    rates: HashMap<String, Rate>,
}

impl Rates {
    /// Takes another overview. A node whose report has not changed keeps its rate. A node that was restarted
    /// has no rate until the next report.
    pub(super) fn take(&mut self, overview: &Overview) {
        let mut last = HashMap::new();
        let mut rates = HashMap::new();
        for node in &overview.nodes {
            let Some(now) = &node.summary else { continue };
            let before = self.last.get(&node.node);
            let seconds = before.map_or(0.0, |before| now.uptime_seconds - before.uptime_seconds);
            let rate = match before {
                Some(before) if seconds > 0.0 => {
                    let rate = |of: fn(&Summary) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
                    Some(Rate {
                        fetched_bytes: rate(|summary| summary.fetched_bytes),
                        served_bytes: rate(|summary| summary.served_bytes),
                        operations: rate(|summary| summary.region_operations),
                        calls: rate(|summary| summary.calls_served),
                        high: rate(|summary| summary.high_requests),
                        low: rate(|summary| summary.low_requests),
                        messages: rate(|summary| summary.messages_sent),
                    })
                }
                Some(_) if seconds == 0.0 => self.rates.get(&node.node).copied(),
                _ => None,
            };
            rates.extend(rate.map(|rate| (node.node.clone(), rate)));
            last.insert(node.node.clone(), now.clone());
        }
        (self.last, self.rates) = (last, rates);
    }

    /// Rates of a node. `None` until there are two reports of the node.
    pub(super) fn of(&self, node: &str) -> Option<Rate> {
        self.rates.get(node).copied()
    }
}

#[cfg(test)]
mod tests {
    use plasmon::overview::NodeOverview;

    use super::*;

    fn look(uptime_seconds: f64, fetched_bytes: u64) -> Overview {
        let (region_operations, calls_served) = (fetched_bytes / 2, fetched_bytes / 4);
        let (high_requests, low_requests) = (fetched_bytes / 8, fetched_bytes / 16);
        let summary = Summary {
            uptime_seconds,
            fetched_bytes,
            region_operations,
            calls_served,
            high_requests,
            low_requests,
            ..Summary::default()
        };
        let node = NodeOverview { node: "a".into(), summary: Some(summary), ..NodeOverview::default() };
        Overview { nodes: vec![node], ..Overview::default() }
    }

    #[test]
    fn rates_go_by_the_clock_of_the_node() {
        let mut rates = Rates::default();
        rates.take(&look(10.0, 100));
        assert_eq!(rates.of("a"), None, "one look tells nothing");
        rates.take(&look(12.0, 500));
        assert_eq!(rates.of("a").map(|rate| rate.fetched_bytes), Some(200.0));
        assert_eq!(rates.of("a").map(|rate| (rate.operations, rate.calls)), Some((100.0, 50.0)));
        assert_eq!(rates.of("a").map(|rate| (rate.high, rate.low)), Some((25.0, 12.5)));
        rates.take(&look(12.0, 500));
        assert_eq!(rates.of("a").map(|rate| rate.fetched_bytes), Some(200.0), "the same report again");
        rates.take(&look(1.0, 0));
        assert_eq!(rates.of("a"), None, "it started anew");
        rates.take(&Overview::default());
        rates.take(&look(2.0, 0));
        assert_eq!(rates.of("a"), None, "it was away");
    }
}
