//! A peer in a process of its own: this binary, started again.
//!
//! The peer registers memory with a known content and prints its address and its region. From then on the
//! peer *sleeps*, without any time-out, on its wait descriptor and on its standard input, and only polls when
//! it wakes. It answers every message: the first bytes of a message are the address to answer to, and the
//! answer carries the number of the peer's wake-ups. The peer ends when its standard input does.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use plasmon_fabric::{Access, Domain, Event, Op, Peer, Provider, RemoteRegion};
use rustix::event::{PollFd, PollFlags, poll};

use super::support::{Node, pattern, source, whole};

/// Environment variable that makes a process of this binary a peer.
const ROLE: &str = "PLASMON_TEST_PEER";
/// Length of the peer's region in bytes.
pub(crate) const LEN: usize = 8 << 20;
/// Seed of the pattern in the peer's region.
pub(crate) const SEED: u64 = 42;

/// Whether this process is to be a peer.
pub(crate) fn is_peer() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Peer process that runs. It is killed when dropped.
pub(crate) struct Remote {
    child: Child,
    pub(crate) small: Vec<u8>,
    pub(crate) bulk: Vec<u8>,
    pub(crate) region: RemoteRegion,
}

impl Remote {
    pub(crate) fn start(provider: &Provider) -> Remote {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .env(ROLE, provider.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the peer");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("the peer's greeting");
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("a complete greeting");
        let (small, bulk) = (from_hex(word()), from_hex(word()));
        let mut number = || word().parse().expect("a number");
        let region = RemoteRegion { base: number(), key: number(), len: number() };
        Remote { child, small, bulk, region }
    }

    /// Kills the peer with SIGKILL, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill the peer");
        self.child.wait().expect("the peer's end");
    }

    /// Lets the peer end by itself, and checks that it ended cleanly.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("the peer's end");
        assert!(status.success(), "the peer failed: {status}");
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Fails if it has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the peer until its standard input ends.
pub(crate) fn serve() {
    let name = std::env::var(ROLE).expect("the provider's name");
    let provider = plasmon_fabric::choose(Some(&name), Some(&source())).expect("provider");
    let node = Node::new(&provider);
    let region = node.memory(LEN, Access::REMOTE_READ_WRITE);
    whole(&region, LEN).copy_from_slice(&pattern(LEN, SEED)).expect("fits");
    for lane in [&node.small, &node.bulk] {
        for _ in 0..16 {
            lane.receive(node.empty(64 << 10)).expect("receive");
        }
    }
    let remote = region.remote();
    let (small, bulk) = (to_hex(&node.small.address()), to_hex(&node.bulk.address()));
    println!("{small} {bulk} {} {} {}", remote.base, remote.key, remote.len);

    let mut known: HashMap<Vec<u8>, Peer> = HashMap::new();
    let mut answers: Vec<Op> = Vec::new();
    let mut events = Vec::new();
    let mut wakes: u64 = 0;
    loop {
        while node.domain.poll(&mut events).expect("poll") > 0 {}
        for event in events.drain(..) {
            let Event::Received { endpoint, slice, len, .. } = event else { continue };
            let lane = if endpoint == node.small.id() { &node.small } else { &node.bulk };
            let mut address = slice.to_vec();
            address.truncate(len);
            let peer =
                *known.entry(address).or_insert_with_key(|address| lane.connect(address).expect("connect"));
            answers.retain(|op| op.result().is_none());
            answers.push(lane.send(peer, node.holding(&wakes.to_le_bytes())));
            lane.receive(slice).expect("receive again");
        }
        if sleep(&node.domain) {
            wakes += 1;
        }
        if input_ended() {
            return;
        }
    }
}

/// Sleeps until the fabric or the standard input has something. Returns false if the domain was not ready to
/// sleep.
pub(crate) fn sleep(domain: &Domain) -> bool {
    let Some(descriptor) = domain.wait_descriptor() else { return false };
    if !domain.try_wait() {
        return false;
    }
    let input = std::io::stdin();
    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
    let limit = domain.sleep_limit().map(|limit| limit.try_into().expect("a short time"));
    poll(&mut descriptors, limit.as_ref()).expect("poll(2)");
    true
}

/// Whether the standard input is readable. A peer's standard input is readable when it is closed.
fn input_ended() -> bool {
    let input = std::io::stdin();
    let mut descriptors = [PollFd::new(&input, PollFlags::IN)];
    let now = std::time::Duration::ZERO.try_into().expect("zero");
    poll(&mut descriptors, Some(&now)).expect("poll(2)") > 0
        && input.lock().read(&mut [0]).expect("standard input") == 0
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}
