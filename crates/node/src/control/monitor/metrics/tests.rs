//! Tests of metrics: their names keep to the rules of Prometheus, and the documentation lists them all.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The page about operations, which lists the metrics.
const PAGE: &str = include_str!("../../../../../../docs/operations.md");

/// Units that are not base units, and words that belong into the type: those that `promtool check metrics`
/// complains of.
const WRONG: [&str; 14] = [
    "milliseconds",
    "ms",
    "us",
    "minutes",
    "hours",
    "kb",
    "kib",
    "mb",
    "mib",
    "gb",
    "percent",
    "gauge",
    "counter",
    "summary",
];

fn report() -> Status {
    let mut status = Status { node: "0123".into(), version: "1.2.3".into(), ..Status::default() };
    status.objects.primary = 3;
    status.objects.evicted = 4;
    status.memory.capacity = 1 << 40;
    let protocol = ProtocolStatus { fetched: 5, fetched_bytes: 6, ..ProtocolStatus::default() };
    status.transfer.protocols.insert("read".into(), protocol);
    status
}

/// Parses metrics: types by name, and samples as they are written.
fn parse(text: &str) -> (BTreeMap<&str, &str>, BTreeMap<&str, f64>) {
    let (mut types, mut samples) = (BTreeMap::new(), BTreeMap::new());
    let (mut helps, mut ended) = (BTreeSet::new(), false);
    for line in text.lines() {
        assert!(!ended, "nothing follows the end: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("there is a text");
            assert!(!help.is_empty() && helps.insert(name), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("there is a type");
            assert!(types.insert(name, kind).is_none(), "{line}");
        } else if line == "# EOF" {
            ended = true;
        } else {
            let (name, value) = line.rsplit_once(' ').expect("there is a value");
            assert!(samples.insert(name, value.parse().expect("it is a number")).is_none(), "{line}");
        }
    }
    assert!(ended, "the text is whole");
    assert!(helps.iter().eq(types.keys()), "every metric has a help");
    (types, samples)
}

#[test]
fn values_arrive() {
    let text = text(report());
    let (types, samples) = parse(&text);
    assert_eq!(types["plasmon_objects_evicted"], "counter");
    assert_eq!(samples["plasmon_objects_evicted_total"], 4.0);
    assert_eq!(samples["plasmon_objects{role=\"primary\"}"], 3.0);
    assert_eq!(samples["plasmon_memory_capacity_bytes"], (1u64 << 40) as f64);
    assert_eq!(samples["plasmon_fetched_bytes_total{protocol=\"read\"}"], 6.0);
    assert!(text.contains("plasmon_node_info{node=\"0123\",version=\"1.2.3\",provider=\"\"} 1"), "{text}");
}

#[test]
fn names_keep_to_the_rules() {
    let text = text(report());
    let (types, samples) = parse(&text);
    for (name, kind) in &types {
        let words: Vec<_> = name.split('_').collect();
        assert_eq!(words[0], "plasmon", "{name}");
        assert!(name.chars().all(|char| char.is_ascii_lowercase() || char == '_'), "{name}");
        assert!(!words.iter().any(|word| WRONG.contains(word)), "{name}");
        assert!(!["_total", "_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{name}");
        let unit = words.iter().position(|word| ["bytes", "seconds"].contains(word));
        assert!(unit.is_none_or(|at| at + 1 == words.len()), "the unit comes last: {name}");
        assert!(["gauge", "counter"].contains(kind), "{name} is a {kind}");
    }
    for sample in samples.keys() {
        let name = sample.split('{').next().unwrap_or_default();
        let family = name.strip_suffix("_total").unwrap_or(name);
        let kind = types.get(family).unwrap_or_else(|| panic!("{sample} has no type"));
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{sample} is a {kind}");
    }
}

#[test]
fn the_page_lists_them_all() {
    let text = text(report());
    let (types, _) = parse(&text);
    let total = |(name, kind): (&&str, &&str)| match *kind {
        "counter" => format!("{name}_total"),
        _ => (*name).to_owned(),
    };
    let exist: BTreeSet<_> = types.iter().map(total).collect();
    let row =
        |line: &str| Some(line.strip_prefix("| `plasmon_")?.split('`').next()?.split('{').next()?.to_owned());
    let listed: BTreeSet<_> = PAGE.lines().filter_map(row).map(|name| format!("plasmon_{name}")).collect();
    assert_eq!(listed, exist, "docs/operations.md and the metrics are the same");
}
