//! A peer in a process of its own: this binary, started again. In a memory network the peer is a host of its
//! own.
//!
//! The peer process registers memory with a known content and prints its address and its region. From then on
//! the peer *sleeps*, without any time-out, on its wait descriptor and on its standard input, and only polls
//! when it wakes. It answers every message: the first bytes of a message are the address to answer to, and
//! the answer carries the number of the peer's wake-ups. If a region follows the address, the peer writes the
//! content of its own region there again and again. The peer ends when its standard input does.

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

/// Number of writes that a writing peer has under way.
const WRITES: usize = 4;

/// Whether this process is to be a peer.
pub(crate) fn is_peer() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Host of the peer in a memory network.
const PEER_HOST: u32 = 1;

/// Peer that runs. Dropping the value kills the peer.
pub(crate) struct Remote {
    life: Life,
    pub(crate) small: Vec<u8>,
    pub(crate) bulk: Vec<u8>,
    pub(crate) region: RemoteRegion,
}

/// Process or host that runs a peer.
enum Life {
    Process(Child),
    /// Host of a memory network, with its node and region. The host answers no messages.
    Host {
        network: MemoryNetwork,
        served: Box<(Node, Rc<Region>)>,
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
        let life = Life::Host { network: network.clone(), served: Box::new((node, memory)) };
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

    /// Has the peer write its content to the first [`LEN`] bytes of the region `to` of `node`. A process
    /// writes without an end, a host of a memory network some times. Returns operations to keep meanwhile.
    pub(crate) fn write_to(&self, node: &Node, to: RemoteRegion) -> Vec<Op> {
        if let Life::Host { served, .. } = &self.life {
            let (host, content) = &**served;
            let peer = host.small.connect(&node.small.address()).expect("connect");
            let write = |_| host.small.write(peer, whole(content, LEN), to, 0, None);
            return (0..16 * WRITES).map(write).collect();
        }
        let mut message = node.small.address();
        for word in [to.base, to.key, to.len] {
            message.extend_from_slice(&word.to_le_bytes());
        }
        node.small.receive(node.empty(8)).expect("receive");
        let peer = node.small.connect(&self.small).expect("connect");
        vec![node.small.send(peer, node.holding(&message))]
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
            // The kill fails only if the process has ended already.
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
    let (mut answers, mut writer): (Vec<Op>, Option<Writer>) = (Vec::new(), None);
    let mut events = Vec::new();
    let mut wakes: u64 = 0;
    loop {
        while node.domain.poll(&mut events).expect("poll") > 0 {}
        for event in events.drain(..) {
            let Event::Received { endpoint, slice, len, .. } = event else { continue };
            let lane = if endpoint == node.small.id() { &node.small } else { &node.bulk };
            let mut address = slice.to_vec();
            address.truncate(len);
            let words = address.split_off(lane.address().len().min(len));
            let peer =
                *known.entry(address).or_insert_with_key(|address| lane.connect(address).expect("connect"));
            answers.retain(|op| op.result().is_none());
            answers.push(lane.send(peer, node.holding(&wakes.to_le_bytes())));
            lane.receive(slice).expect("receive again");
            if let Some(to) = region_in(&words) {
                writer = Some(Writer { peer, to, writes: Vec::new() });
            }
        }
        if let Some(writer) = &mut writer {
            writer.go_on(&node, &region);
        }
        if await_news(&node.domain) {
            wakes += 1;
        }
        if input_ended() {
            return;
        }
    }
}

/// Writes without a pause.
struct Writer {
    peer: Peer,
    to: RemoteRegion,
    writes: Vec<Op>,
}

impl Writer {
    /// Makes as many writes of `content` as have ended.
    fn go_on(&mut self, node: &Node, content: &Rc<Region>) {
        self.writes.retain(|op| op.result().is_none());
        while self.writes.len() < WRITES {
            self.writes.push(node.small.write(self.peer, whole(content, LEN), self.to, 0, None));
        }
    }
}

/// Region that the words behind an address describe, if there are any.
fn region_in(words: &[u8]) -> Option<RemoteRegion> {
    let word = |at: usize| Some(u64::from_le_bytes(words.get(8 * at..8 * at + 8)?.try_into().ok()?));
    Some(RemoteRegion { base: word(0)?, key: word(1)?, len: word(2)? })
}

/// Sleeps until the fabric or the standard input has something to read. Returns false if the domain was not
/// ready to sleep.
fn await_news(domain: &Domain) -> bool {
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
