//! Tests of what operators rely on: metrics, health, the state of the cluster, logs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use plasmon_e2e::{Cluster, Daemon, PATIENCE, Pattern, binary, eventually};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::progress::Terminal;
use crate::support::{LONG_LEASE, MIB, get, may_open, put};

/// Cluster whose nodes serve metrics on their own hosts.
fn cluster(nodes: usize, args: &[&str]) -> Cluster {
    Cluster::builder().nodes(nodes).args(&["--metrics", "0.0.0.0:0"]).args(args).start()
}

/// Port at which a node serves metrics.
pub(crate) fn port(daemon: &Daemon) -> u16 {
    let address = daemon.announced("metrics");
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("it is an address")
}

/// Status code and text of the answer to an HTTP request.
fn fetch(cluster: &Cluster, node: usize, request: &str) -> (u16, String) {
    ask(cluster.connect_to(node, port(cluster.daemon(node))), request)
}

/// Status code and text of the answer to an HTTP request on an open connection.
pub(crate) fn ask(stream: TcpStream, request: &str) -> (u16, String) {
    ask_with(stream, request, "")
}

/// Status code and text of the answer to an HTTP request with further headers.
fn ask_with(mut stream: TcpStream, request: &str, headers: &str) -> (u16, String) {
    write!(stream, "{request} HTTP/1.1\r\nHost: node\r\n{headers}\r\n").expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("it is HTTP");
    (code, answer)
}

/// Has Prometheus' own tool look at an answer with metrics, where it is installed.
fn check_metrics(answer: &str) {
    let (head, text) = answer.split_once("\r\n\r\n").expect("it is HTTP");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut tool) = command.spawn() else {
        return eprintln!("skipped: there is no promtool here (Debian's package prometheus)");
    };
    tool.stdin.take().expect("it is a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = tool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Value of a metric's sample.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_tell_what_a_node_does() {
    let cluster = cluster(2, &[]);
    let id = put(&cluster.client(0), Pattern(1), MIB);
    drop(get(&cluster.client(1), id));
    eventually("the object is counted on both", || {
        let texts = [0, 1].map(|node| fetch(&cluster, node, "GET /metrics").1);
        sample(&texts[0], "plasmon_objects{role=\"primary\"}") == Some(1.0)
            && sample(&texts[1], "plasmon_objects{role=\"cached\"}") == Some(1.0)
            && sample(&texts[1], "plasmon_fetched_bytes_total{protocol=\"read\"}") == Some(MIB as f64)
            && sample(&texts[1], "plasmon_cluster_members") == Some(2.0)
    });
    // Gets without the daemon are counted, also those of a client that has gone.
    let reader = cluster.client(1);
    (0..500).for_each(|_| drop(get(&reader, id)));
    drop(reader);
    let counted = |node, name| sample(&fetch(&cluster, node, "GET /metrics").1, name);
    eventually("all gets are counted", || {
        counted(1, "plasmon_gets_total{result=\"hit\"}") == Some(500.0)
            && counted(1, "plasmon_gets_total{result=\"miss\"}") == Some(1.0)
    });
    assert_eq!(counted(0, "plasmon_puts_total"), Some(1.0));
    assert_eq!(counted(0, "plasmon_put_bytes_total"), Some(MIB as f64));
    assert_eq!(counted(0, "plasmon_served_objects_total{protocol=\"socket\"}"), Some(0.0));
    check_metrics(&fetch(&cluster, 1, "GET /metrics").1);
    let stream = cluster.connect_to(0, port(cluster.daemon(0)));
    let (code, text) = ask_with(stream, "GET /metrics", "Accept: application/openmetrics-text\r\n");
    assert_eq!(code, 200);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(text.contains(kind) && text.trim_end().ends_with("# EOF"), "{text}");
    assert_eq!(sample(&text, "plasmon_memory_capacity_bytes"), Some((64 * MIB) as f64));
    assert_eq!(fetch(&cluster, 0, "GET /nothing").0, 404);
    assert_eq!(fetch(&cluster, 0, "POST /metrics").0, 405);
    assert_eq!(fetch(&cluster, 0, "HEAD /metrics").0, 200);
}

#[test]
fn nobody_serves_metrics_unasked() {
    let cluster = Cluster::builder().start();
    assert!(!cluster.daemon(0).announces("metrics"));
}

#[test]
fn those_who_send_nonsense_for_metrics_cost_nothing() {
    let cluster = cluster(1, &[]);
    let port = port(cluster.daemon(0));
    // More than may be connected at a time, silent ones among them.
    let mut streams: Vec<_> = (0..100).map(|_| cluster.connect_to(0, port)).collect();
    for (number, stream) in streams.iter_mut().enumerate().skip(50) {
        // The node may have hung up already.
        let _ = stream.write_all(&Pattern(number as u64).bytes(100_000));
    }
    drop(streams);
    eventually("it serves as before", || fetch(&cluster, 0, "GET /healthz").0 == 200);
    put(&cluster.client(0), Pattern(1), MIB);
}

#[test]
fn those_who_connect_and_ask_nothing_do_not_keep_health_from_being_told() {
    // The connections are so many that a wait for the end of each would take longer than a probe waits.
    const SILENT: usize = 1500;
    if !may_open(4000) {
        return;
    }
    let cluster = cluster(1, &[]);
    let silent: Vec<_> = (0..SILENT).map(|_| cluster.connect_to(0, port(cluster.daemon(0)))).collect();
    for path in ["/livez", "/healthz", "/metrics"] {
        assert_eq!(fetch(&cluster, 0, &format!("GET {path}")).0, 200);
    }
    drop(silent);
}

#[test]
fn health_tells_why_a_node_is_not_fit() {
    let mut cluster = cluster(2, &["--lease", "1"]);
    for node in [0, 1] {
        assert_eq!(fetch(&cluster, node, "GET /healthz").0, 200);
        assert_eq!(fetch(&cluster, node, "GET /livez").0, 200);
    }
    cluster.kill(0);
    eventually("the coordinator is missed", || fetch(&cluster, 1, "GET /healthz").0 == 503);
    let (_, text) = fetch(&cluster, 1, "GET /healthz");
    assert!(text.contains("the coordinator ("), "{text}");
    assert_eq!(fetch(&cluster, 1, "GET /livez").0, 200, "a restart would not help");
    assert_eq!(sample(&fetch(&cluster, 1, "GET /metrics").1, "plasmon_unfit"), Some(1.0));
    assert!(cluster.status(1).unfit.contains("the coordinator ("));
}

/// Runs `plasmon` at node 0.
fn plasmon(cluster: &Cluster, words: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(words).arg("--socket").arg(cluster.socket(0));
    let output = command.output().expect("plasmon runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

#[test]
fn the_whole_cluster_is_shown_and_who_is_silent() {
    let cluster = cluster(3, &LONG_LEASE);
    put(&cluster.client(1), Pattern(1), MIB);
    eventually("the object is seen from elsewhere", || {
        let overview = cluster.client(0).overview().expect("the node answers");
        overview.nodes.iter().filter_map(|node| node.summary.as_ref()).any(|node| node.primary_objects == 1)
    });
    cluster.pause(2);
    let overview: Value =
        serde_json::from_str(&plasmon(&cluster, &["status", "--cluster", "--json"])).expect("it is JSON");
    let nodes = overview["nodes"].as_array().expect("it is a list");
    assert_eq!(nodes.len(), 3);
    assert_eq!((&nodes[0]["this"], &nodes[0]["node"]), (&true.into(), &cluster.status(0).node.into()));
    let silent: Vec<_> = nodes.iter().filter(|node| node["summary"].is_null()).collect();
    assert_eq!(silent.len(), 1, "{overview}");
    assert!(silent[0]["failure"].as_str().is_some_and(|why| why.contains("did not answer")), "{overview}");
    let text = plasmon(&cluster, &["status", "--cluster"]);
    assert!(text.starts_with("3 nodes, 1 of them silent, epoch"), "{text}");
    assert!(text.contains("1 (1.0 MiB)") && text.contains("no answer: node "), "{text}");
    cluster.resume(2);
    eventually("it answers again", || {
        plasmon(&cluster, &["status", "--cluster"]).starts_with("3 nodes, epoch")
    });
}

#[test]
fn top_without_a_terminal_is_one_look() {
    let cluster = Cluster::builder().nodes(2).start();
    let text = plasmon(&cluster, &["top"]);
    assert!(text.starts_with("2 nodes, epoch") && text.contains("this node"), "{text}");
}

#[test]
fn top_at_a_terminal_goes_on_until_it_is_ended() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let terminal = Terminal::new();
    let size = |columns, rows| Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal.end.as_fd(), size(180, 20)).expect("it is a terminal");
    let end = || terminal.end.as_fd().try_clone_to_owned().expect("there are descriptors");
    let mut command = Command::new(binary());
    command.args(["top", "--interval", "0.1", "--socket"]).arg(cluster.socket(0)).env("TERM", "xterm");
    let mut top = command.stdin(end()).stdout(end()).stderr(Stdio::null()).spawn().expect("plasmon runs");
    let shows = |what: &str| eventually(what, || terminal.shown().contains(what));
    // Only what changed is written, so that words with spaces come in pieces.
    shows("nodes,");
    shows(&cluster.status(1).node[..8]);
    tcsetwinsize(terminal.end.as_fd(), size(60, 10)).expect("it is a terminal");
    cluster.kill(0);
    shows("updated:");
    terminal.types("q");
    eventually("it ends", || top.try_wait().expect("it is our child").is_some());
    assert!(top.wait().expect("it is our child").success());
}

#[test]
fn logs_are_json_when_asked() {
    let mut cluster = cluster(1, &["--log-format", "json", "--log", "info"]);
    cluster.add_node();
    cluster.kill(1);
    let left =
        |line: &Value| line["node"].is_string() && line["listen"].is_string() && line["level"] == "WARN";
    eventually("the death is logged", || {
        let log = cluster.log(0);
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")));
        lines.collect::<Vec<Value>>().iter().any(left)
    });
}

#[test]
fn systemd_is_told_when_the_node_serves() {
    let cluster = Cluster::builder().start();
    let path = cluster.folder().join("notify");
    let manager = UnixDatagram::bind(&path).expect("the folder is ours");
    manager.set_read_timeout(Some(PATIENCE)).expect("it is not zero");
    let mut command = cluster.command(0, &binary());
    command.args([
        "serve",
        "--json",
        "--exit-with-parent",
        "--memory",
        "16MiB",
        "--listen",
        "127.0.0.1:0",
        "--socket",
    ]);
    command.arg(cluster.folder().join("other.sock")).env("NOTIFY_SOCKET", &path);
    let daemon = cluster.launch(0, command).expect("it serves");
    let mut message = [0; 100];
    let len = manager.recv(&mut message).expect("it says so");
    assert_eq!(String::from_utf8_lossy(&message[..len]).trim(), "READY=1");
    drop(daemon);
}
