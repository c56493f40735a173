//! Tests of metrics: their names keep to the rules of Prometheus, and the documentation lists them all.

use std::collections::{BTreeMap, BTreeSet};

use plasmon::status::TimedGets;

use super::*;

/// The page about operations, which lists the metrics.
const PAGE: &str = include_str!("../../../../../../docs/operations.md");

/// The alerts for operators.
const RULES: &str = include_str!("../../../../../../deploy/prometheus-rules.yml");

/// Units that are not base units, and words that belong into the type: `promtool check metrics` complains of
/// them.
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
    let mut status =
        Status { node: "0123".into(), host: "here".into(), version: "1.2.3".into(), ..Status::default() };
    status.objects.primary = 3;
    status.objects.evicted = 4;
    status.memory.capacity = 1 << 40;
    status.calls = CallsStatus { get_hits: 7, get_misses: 2, timed_gets_ns: 900, ..CallsStatus::default() };
    status.calls.timed_gets =
        [(512, 3), (1024, 1), (u64::MAX, 1)].map(|(most_ns, gets)| TimedGets { most_ns, gets }).to_vec();
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
    let text = text(report(), Format::Open);
    let (types, samples) = parse(&text);
    assert_eq!(types["plasmon_objects_evicted"], "counter");
    assert_eq!(samples["plasmon_objects_evicted_total"], 4.0);
    assert_eq!(samples["plasmon_objects{role=\"primary\"}"], 3.0);
    assert_eq!(samples["plasmon_memory_capacity_bytes"], (1u64 << 40) as f64);
    assert_eq!(samples["plasmon_fetched_bytes_total{protocol=\"read\"}"], 6.0);
    assert_eq!(samples["plasmon_gets_total{result=\"miss\"}"], 2.0);
    assert_eq!(types["plasmon_local_get_seconds"], "histogram");
    let bound = |name: &str| -> Option<f64> {
        name.strip_prefix("plasmon_local_get_seconds_bucket{le=\"")?.strip_suffix("\"}")?.parse().ok()
    };
    let buckets: Vec<_> = samples.iter().filter_map(|(name, count)| Some((bound(name)?, *count))).collect();
    for bucket in [(512e-9, 3.0), (1024e-9, 4.0), (f64::INFINITY, 5.0)] {
        assert!(buckets.contains(&bucket), "{bucket:?} in {buckets:?}");
    }
    assert_eq!(samples["plasmon_local_get_seconds_count"], 5.0);
    assert_eq!(samples["plasmon_local_get_seconds_sum"], 900e-9);
    assert!(
        text.contains("plasmon_node_info{node=\"0123\",host=\"here\",version=\"1.2.3\",provider=\"\"} 1"),
        "{text}"
    );
}

#[test]
fn names_keep_to_the_rules() {
    let text = text(report(), Format::Open);
    let (types, samples) = parse(&text);
    for (name, kind) in &types {
        let words: Vec<_> = name.split('_').collect();
        assert_eq!(words[0], "plasmon", "{name}");
        assert!(name.chars().all(|char| char.is_ascii_lowercase() || char == '_'), "{name}");
        assert!(!words.iter().any(|word| WRONG.contains(word)), "{name}");
        assert!(!["_total", "_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{name}");
        let unit = words.iter().position(|word| ["bytes", "seconds"].contains(word));
        assert!(unit.is_none_or(|at| at + 1 == words.len()), "the unit comes last: {name}");
        assert!(["gauge", "counter", "histogram"].contains(kind), "{name} is a {kind}");
    }
    for sample in samples.keys() {
        let name = sample.split('{').next().unwrap_or_default();
        let family = ["_total", "_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let family = family.unwrap_or(name);
        let kind = types.get(family).unwrap_or_else(|| panic!("{sample} has no type"));
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{sample} is a {kind}");
    }
}

#[test]
fn every_series_is_there_from_the_start() {
    let series = |status| {
        let text = text(status, Format::Open);
        parse(&text).1.into_keys().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let fresh =
        Status { node: "0123".into(), host: "here".into(), version: "1.2.3".into(), ..Status::default() };
    let later: BTreeSet<_> = series(report()).into_iter().filter(|name| !name.contains("_bucket{")).collect();
    assert!(later.is_subset(&series(fresh)), "some come later");
}

#[test]
fn readers_get_the_format_that_they_take() {
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (accept, format) in [
        (prometheus, Format::Open),
        ("application/openmetrics-text", Format::Open),
        ("text/plain, application/openmetrics-text;q=0.5", Format::Plain),
        ("application/openmetrics-text;q=0", Format::Plain),
        ("text/plain", Format::Plain),
        ("*/*", Format::Plain),
        ("", Format::Plain),
    ] {
        assert_eq!(Format::accepted(accept), format, "{accept}");
    }
    let text = text(report(), Format::Plain);
    assert!(text.contains("# TYPE plasmon_puts_total counter\nplasmon_puts_total 0\n"), "{text}");
    assert!(text.contains("# HELP plasmon_puts_total "), "{text}");
    assert!(text.contains("# TYPE plasmon_clients gauge\n") && !text.contains("# EOF"), "{text}");
}

/// Words of a text that are names of metrics.
fn named(text: &str) -> BTreeSet<String> {
    let letters = |char: char| !(char.is_ascii_alphanumeric() || char == '_');
    text.split(letters).filter(|word| word.starts_with("plasmon_")).map(str::to_owned).collect()
}

#[test]
fn the_rules_are_about_series_that_exist() {
    let text = text(report(), Format::Open);
    let exist: BTreeSet<_> = named(&text);
    let used = named(RULES);
    assert!(used.len() >= 10, "{used:?}");
    assert!(used.is_subset(&exist), "{:?}", used.difference(&exist));
}

#[test]
fn the_page_lists_them_all() {
    let text = text(report(), Format::Open);
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
