//! A peer in a process of its own: this binary, started again. In a memory network it is a host of its own.
//!
//! The peer process registers memory with a known content and prints its address and its region. From then on
//! the peer *sleeps*, without any time-out, on its wait descriptor and on its standard input, and only polls
//! when it wakes. It answers every message: the first bytes of a message are the address to answer to, and
//! the answer carries the number of the peer's wake-ups. The peer ends when its standard input does.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use plasmon_fabric::{Access, Domain, Event, MemoryNetwork, Op, Peer, Provider, Region, RemoteRegion};
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

/// Host of the peer in a memory network.
const PEER_HOST: u32 = 1;

/// Peer that runs. It is killed when dropped.
pub(crate) struct Remote {
    life: Life,
    pub(crate) small: Vec<u8>,
    pub(crate) bulk: Vec<u8>,
    pub(crate) region: RemoteRegion,
}

/// Whatever makes a peer run.
enum Life {
    Process(Child),
    /// Host of a memory network, with what it serves. It answers no messages.
    Host {
        network: MemoryNetwork,
        _served: Box<(Node, Rc<Region>)>,
    },
}

impl Remote {
    pub(crate) fn start(provider: &Provider) -> Remote {
        match provider.memory_network() {
            Some(network) => Remote::start_host(network),
            None => Remote::start_process(provider),
        }
    }

    fn start_host(network: &MemoryNetwork) -> Remote {
        let node = Node::new(&network.provider(PEER_HOST));
        let memory = prepare(&node);
        let (small, bulk, region) = (node.small.address(), node.bulk.address(), memory.remote());
        let life = Life::Host { network: network.clone(), _served: Box::new((node, memory)) };
        Remote { life, small, bulk, region }
    }

    fn start_process(provider: &Provider) -> Remote {
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
        Remote { life: Life::Process(child), small, bulk, region }
    }

    /// Kills the peer, a process with SIGKILL, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        match &mut self.life {
            Life::Process(child) => {
                child.kill().expect("kill the peer");
                child.wait().expect("the peer's end");
            }
            Life::Host { network, .. } => network.kill(PEER_HOST),
        }
    }

    /// Lets the peer end by itself, and checks that it ended cleanly.
    pub(crate) fn finish(mut self) {
        if let Life::Process(child) = &mut self.life {
            drop(child.stdin.take());
            let status = child.wait().expect("the peer's end");
            assert!(status.success(), "the peer failed: {status}");
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Life::Process(child) = &mut self.life {
            // Fails if it has ended, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Gives a peer its memory and its receive buffers.
fn prepare(node: &Node) -> Rc<Region> {
    let region = node.memory(LEN, Access::REMOTE_READ_WRITE);
    whole(&region, LEN).copy_from_slice(&pattern(LEN, SEED)).expect("fits");
    for lane in [&node.small, &node.bulk] {
        for _ in 0..16 {
            lane.receive(node.empty(64 << 10)).expect("receive");
        }
    }
    region
}

/// Runs the peer until its standard input ends.
pub(crate) fn serve() {
    let name = std::env::var(ROLE).expect("the provider's name");
    let provider = plasmon_fabric::choose(Some(&name), Some(&source())).expect("provider");
    let node = Node::new(&provider);
    let region = prepare(&node);
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
