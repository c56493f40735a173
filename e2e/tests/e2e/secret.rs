//! Tests of the cluster's secret: only nodes with the secret may join, and others learn nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use plasmon_e2e::{Cluster, Daemon, EtcdOptions, Pattern, Refused, SECRET_FILE, eventually, own_namespaces};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::support::{MIB, get, put};

/// Command for a further daemon on the host of the first node.
fn serve(cluster: &Cluster, name: &str, arguments: &[String]) -> Command {
    let mut command = cluster.serve_at(0, &cluster.folder().join(format!("{name}.sock")));
    command.args(arguments);
    command
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Arguments of a node that listens on the host of the first one and joins it.
fn join(cluster: &Cluster) -> Vec<String> {
    words(&["--listen", &format!("{}:0", cluster.address(0)), "--join", &cluster.listen(0).to_string()])
}

fn refused(cluster: &Cluster, command: Command) -> String {
    match cluster.launch(0, command) {
        Ok(daemon) => panic!("it serves:\n{}", daemon.log()),
        Err(Refused { status, log }) => {
            assert_eq!(status.code(), Some(1), "{log}");
            log
        }
    }
}

fn file(cluster: &Cluster, name: &str, content: &[u8], mode: u32) -> PathBuf {
    let path = cluster.folder().join(name);
    fs::write(&path, content).expect("the folder is ours");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("the file is ours");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

#[test]
fn without_a_secret_a_node_is_for_its_own_host_alone() {
    let cluster = Cluster::builder().start();
    let alone = |name: &str, arguments: &[&str]| {
        let mut command = serve(&cluster, name, &words(arguments));
        command.env_remove(SECRET_FILE);
        command
    };
    let own = alone("own", &["--listen", "127.0.0.1:0"]);
    let daemon = cluster.launch(0, own).expect("its own host may connect");
    // A start without fault has nothing to say but where the node serves.
    assert_eq!(daemon.log(), "");
    let mut armed = serve(&cluster, "armed", &words(&["--listen", "127.0.0.1:0", "--join", daemon.listen()]));
    let secret = file(&cluster, "a-secret", b"a secret, as long as it should be", 0o600);
    armed.env(SECRET_FILE, &secret);
    let log = refused(&cluster, armed);
    assert!(log.contains("this node uses a secret, and the cluster at"), "{log}");
    eventually("the node says so, too", || {
        daemon.log().contains("it uses a secret, and this cluster does not")
    });
    if !own_namespaces() {
        return eprintln!("skipped the rest: all hosts are this one");
    }
    for address in [format!("{}:0", cluster.address(0)), "0.0.0.0:0".to_owned()] {
        // A node that joins makes no secret.
        let listen = cluster.listen(0).to_string();
        let log = refused(&cluster, alone("open", &["--listen", &address, "--join", &listen]));
        let said = ["will not listen on", "plasmon secret", "--secret-file"];
        assert!(said.iter().all(|words| log.contains(words)), "{log}");
    }
    let listen = cluster.listen(0).to_string();
    let log = refused(&cluster, alone("joining", &["--listen", "127.0.0.1:0", "--join", &listen]));
    assert!(log.contains("the node that listens there uses a secret, and this one does not"), "{log}");
    eventually("the cluster says so, too", || {
        cluster.log(0).contains("it uses no secret, and this cluster does")
    });
}

#[test]
fn who_has_another_secret_does_not_join() {
    let cluster = Cluster::builder().start();
    let other = file(&cluster, "other", b"another secret, as long as it should be", 0o600);
    let mut command = serve(&cluster, "stranger", &join(&cluster));
    command.env(SECRET_FILE, &other);
    let log = refused(&cluster, command);
    assert!(log.contains("has another secret than this node"), "{log}");
    eventually("the cluster says so, too", || {
        cluster.log(0).contains("it has another secret than this cluster")
    });
    assert_eq!(cluster.status(0).cluster.members.len(), 1);
    Daemon::start(serve(&cluster, "member", &join(&cluster)), cluster.folder(), "member")
        .expect("it may join");
}

#[test]
fn a_secret_that_is_none_is_refused() {
    let cluster = Cluster::builder().start();
    let absent = cluster.folder().join("absent");
    for (path, why) in [
        (absent.clone(), "cannot read the cluster's secret"),
        (file(&cluster, "short", b"short\n", 0o600), "has 5 bytes"),
        (file(&cluster, "read", b"long enough to be a secret", 0o644), "chmod 0600"),
    ] {
        let arguments = words(&["--listen", "127.0.0.1:0", "--secret-file", text(&path)]);
        let log = refused(&cluster, serve(&cluster, "refused", &arguments));
        assert!(log.contains(why) && log.contains(text(&path)), "{log}");
    }
    let make = || {
        let mut command = Command::new(plasmon_e2e::binary());
        command.args(["secret", text(&absent)]).output().expect("plasmon runs")
    };
    assert!(make().status.success());
    let made = fs::read_to_string(&absent).expect("it was made");
    assert_eq!(made.trim().len(), 64);
    let again = make();
    assert_eq!(again.status.code(), Some(1), "one that is there stays");
    assert_eq!(fs::read_to_string(&absent).expect("it is there"), made);
    let arguments =
        words(&["--listen", &format!("{}:0", cluster.address(0)), "--secret-file", text(&absent)]);
    cluster.launch(0, serve(&cluster, "made", &arguments)).expect("a made one is taken");
}

/// Certificates of an authority and of a node that it signed.
fn certificates(cluster: &Cluster, name: &str) -> Vec<String> {
    let key = || KeyPair::generate().expect("there are random numbers");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = key();
    let ca = authority.self_signed(&authority_key).expect("it can be signed").pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = key();
    let params = CertificateParams::new(vec![cluster.address(0).to_string()]).expect("an address");
    let cert = params.signed_by(&key, &issuer).expect("it can be signed").pem();
    let write = |part: &str, content: String| {
        let path = file(cluster, &format!("{name}-{part}"), content.as_bytes(), 0o600);
        [format!("--tls-{part}"), text(&path).to_owned()]
    };
    [write("ca", ca), write("cert", cert), write("key", key.serialize_pem())].concat()
}

#[test]
fn certificates_that_are_given_are_looked_at_beside_the_secret() {
    let cluster = Cluster::builder().start();
    let (ours, theirs) = (certificates(&cluster, "ours"), certificates(&cluster, "theirs"));
    let listen = words(&["--listen", &format!("{}:0", cluster.address(0))]);
    let first = cluster.launch(0, serve(&cluster, "first", &[listen.clone(), ours.clone()].concat()));
    let first = first.expect("it serves");
    let join = [listen, words(&["--join", first.listen()])].concat();
    let member = cluster.launch(0, serve(&cluster, "member", &[join.clone(), ours].concat()));
    let member = member.expect("it is vouched for");
    assert_ne!(member.listen(), first.listen());
    for (stranger, why) in [
        (join.clone(), "it wants a certificate: start this node with --tls-cert"),
        ([join, theirs].concat(), "this node's --tls-ca does not vouch for its certificate"),
    ] {
        let said_within = |seconds: &str| {
            let mut command = Command::new("timeout");
            let serve = serve(&cluster, "stranger", &stranger);
            command.args(["--preserve-status", seconds]).arg(serve.get_program()).args(serve.get_args());
            for (name, value) in serve.get_envs().filter_map(|(name, value)| Some((name, value?))) {
                command.env(name, value);
            }
            match cluster.launch(0, command) {
                Ok(daemon) => panic!("it serves:\n{}", daemon.log()),
                Err(Refused { log, .. }) => log,
            }
        };
        // The node tries for as long as it lives, and says why in the end: a busy machine takes longer.
        let mut logs = ["3", "10", "30"].into_iter().map(said_within);
        assert!(logs.any(|log| log.contains(why)), "nothing was said of: {why}");
    }
    eventually("the cluster says so, too", || first.log().contains("not let in"));
}

#[test]
fn what_stands_in_etcd_tells_nothing_and_adds_nobody() {
    let cluster = Cluster::builder().nodes(2).etcd(EtcdOptions::default()).start();
    let id = put(&cluster.client(0), Pattern(1), MIB);
    let records = cluster.etcdctl(&["get", "--prefix", "/plasmon/members/", "--print-value-only"]);
    assert!(records.contains("sealed"), "{records}");
    for told in [cluster.listen(0).to_string(), "token".to_owned(), "small_address".to_owned()] {
        assert!(!records.contains(&told), "{told} in {records}");
    }
    let other = file(&cluster, "other", b"another secret, as long as it should be", 0o600);
    let listen = words(&["--listen", &format!("{}:0", cluster.address(0))]);
    let mut command = serve(&cluster, "stranger", &[listen, cluster.etcd_arguments()].concat());
    command.env(SECRET_FILE, &other);
    let log = refused(&cluster, command);
    assert!(log.contains("has another secret than this one"), "{log}");
    // A record of a member, under the key of another node.
    let keys = cluster.etcdctl(&["get", "--prefix", "/plasmon/members/", "--keys-only"]);
    let key = keys.lines().find(|line| !line.is_empty()).expect("there are two");
    let record = cluster.etcdctl(&["get", key, "--print-value-only"]);
    let copy = format!("/plasmon/members/{}", "0".repeat(32));
    cluster.etcdctl(&["put", &copy, record.trim()]);
    eventually("it is left out, and that is said", || cluster.log(0).contains("is left out"));
    assert_eq!(cluster.status(0).cluster.members.len(), 2);
    Pattern(1).check(get(&cluster.client(1), id).data());
}
