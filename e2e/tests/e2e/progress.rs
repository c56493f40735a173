//! Tests of the progress of an object on its way, as the node reports it and as a terminal shows it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use plasmon::transfer::Arriving;
use plasmon_e2e::{Cluster, Pattern, binary, eventually};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{MIB, put, stop_a_fetch};

const BIG: usize = 256 * MIB;

/// Two nodes that do not count each other as dead although one is stopped for a while.
fn cluster(protocol: &str) -> Cluster {
    Cluster::builder().nodes(2).memory("320MiB").args(&["--lease", "60", "--protocol", protocol]).start()
}

#[test]
fn a_fetch_under_way_says_how_far_it_has_come() {
    for (protocol, name) in
        [("auto", "read"), ("socket", "socket"), ("send", "send"), ("read-register", "read-register")]
    {
        let cluster = cluster(protocol);
        let standing = stop_a_fetch(&cluster, &[1], BIG, |cluster| put(&cluster.client(1), Pattern(1), BIG));
        let client = cluster.client(0);
        let arriving = || client.explain(standing.id).expect("the node answers").arriving;
        let first = arriving().expect("it is on its way");
        assert_eq!((first.protocol.as_str(), first.bytes), (name, BIG as u64));
        assert!(first.arrived_bytes < first.bytes, "{first:?}");
        cluster.resume(standing.holder);
        let mut seen: Vec<Arriving> = vec![first];
        while !standing.fetch.is_finished() {
            seen.extend(arriving());
        }
        Pattern(1).check(standing.fetch.join().expect("no panic").expect("it came").data());
        let bytes: Vec<u64> = seen.iter().map(|it| it.arrived_bytes).collect();
        assert!(bytes.is_sorted() && bytes.last() > Some(&0), "{protocol}: {bytes:?}");
        assert!(bytes.iter().all(|bytes| *bytes <= BIG as u64), "{protocol}: {bytes:?}");
        let explanation = client.explain(standing.id).expect("the node answers");
        assert!(explanation.arriving.is_none() && explanation.fetched.is_some(), "{explanation:?}");
    }
}

/// Terminal with the text that was written to it.
pub(crate) struct Terminal {
    pub(crate) end: OwnedFd,
    control: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals");
        grantpt(&control).expect("it is ours");
        unlockpt(&control).expect("it is ours");
        let name = ptsname(&control, Vec::new()).expect("it has a name");
        let end = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it is ours");
        let shown = Arc::new(Mutex::new(String::new()));
        let control = File::from(control);
        let (mut reading, written) =
            (control.try_clone().expect("there are descriptors"), Arc::clone(&shown));
        // The thread ends when the last process that could write has gone.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(some @ 1..) = reading.read(&mut bytes) {
                written.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..some]));
            }
        });
        Self { end, control, shown }
    }

    /// Types keys at the terminal.
    pub(crate) fn types(&self, keys: &str) {
        (&self.control).write_all(keys.as_bytes()).expect("it is a terminal");
    }

    pub(crate) fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }
}

/// Command `plasmon` with these words on node 0, its standard error at a terminal.
fn at_terminal(cluster: &Cluster, terminal: &Terminal, words: &[&str]) -> Child {
    let end = terminal.end.as_fd().try_clone_to_owned().expect("there are descriptors");
    let mut command = Command::new(binary());
    command.args(words).arg("--socket").arg(cluster.socket(0)).current_dir(cluster.folder());
    // indicatif draws nothing on a dumb terminal.
    command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(end);
    command.spawn().expect("plasmon runs")
}

#[test]
fn a_get_at_a_terminal_shows_how_far_it_is() {
    let cluster = cluster("auto");
    let standing = stop_a_fetch(&cluster, &[1], BIG, |cluster| put(&cluster.client(1), Pattern(1), BIG));
    let id = standing.id.to_string();
    let (seen, quiet, json) = (Terminal::new(), Terminal::new(), Terminal::new());
    // All of them join the fetch that stands.
    let child = at_terminal(&cluster, &seen, &["get", &id]);
    let others = [
        at_terminal(&cluster, &quiet, &["get", "--quiet", &id, "-o", "quiet"]),
        at_terminal(&cluster, &json, &["get", "--json", &id, "-o", "json"]),
    ];
    let ended = thread::spawn(move || child.wait_with_output().expect("it ends"));
    eventually("it is shown how far the object is", || {
        let shown = seen.shown();
        ["getting", "/256.00 MiB", "/s", "to go"].iter().all(|word| shown.contains(word))
    });
    cluster.resume(standing.holder);
    let output = ended.join().expect("no panic");
    assert!(output.status.success());
    Pattern(1).check(&output.stdout);
    for other in others {
        assert!(other.wait_with_output().expect("it ends").status.success());
    }
    assert_eq!((quiet.shown(), json.shown()), (String::new(), String::new()));
    Pattern(1).check(standing.fetch.join().expect("no panic").expect("it came").data());
}
