//! Tests of a rogue member: whatever it sends and does, the other members go on. Invalid frames are dropped
//! and counted, it gets nothing that it may not have, and its offers are checked.
//!
//! The rogue is a program with a fabric of its own that was admitted like any other member. [`nonsense`] has
//! invalid messages, [`offers`] false offers, [`damaged`] wrong bytes, [`leases`] uses of what is not its
//! own, [`feeds`] too many questions for events, [`regions`] and [`region_moves`] regions that are not as
//! their homes say, [`calls`] calls and replies that are none, [`locks`] locks and barriers of others.

mod call_frames;
mod calls;
mod damaged;
mod feeds;
mod frames;
mod leases;
mod locks;
mod nonsense;
mod offers;
mod region_frames;
mod region_moves;
mod regions;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until};
use serde_json::Value;

use self::frames::{Frame, Head, MESSAGE_HEADER_LEN, Message, VERSION, body, opcode, protocol};
use crate::support::{MIB, bytes, get, keepers, try_put};

/// Starts three nodes, and a rogue on the host of the last.
fn cluster() -> (Cluster, Rogue) {
    let cluster = Cluster::builder().nodes(3).start();
    let rogue = Rogue::join(&cluster, 2);
    (cluster, rogue)
}

fn dropped(cluster: &Cluster, node: usize) -> u64 {
    cluster.status(node).transfer.frames_dropped
}

/// Checks that all nodes are members, and bring each other objects of which the rogue keeps nothing.
fn the_others_go_on(cluster: &Cluster, rogue: &mut Rogue) {
    for node in 0..3 {
        let status = cluster.status(node);
        assert_eq!(status.cluster.members.len(), 4, "node {node}");
        for len in [100, MIB] {
            let (id, pattern) = (rogue.foreign_id(), Pattern(node as u64));
            rogue.letting_go(|| {
                try_put(&cluster.client(node), id, pattern, len).expect("put");
                for reader in 0..3 {
                    pattern.check(get(&cluster.client(reader), id).data());
                }
                cluster.client(node).delete(&[id]).expect("delete");
            });
        }
    }
    for node in 0..3 {
        eventually("nothing is left", || {
            let status = cluster.status(node);
            (status.memory.used, status.transfer.leases, status.transfer.fetching) == (0, 0, 0)
        });
    }
}

/// Waits until a node has handled all that the rogue sent before: a valid request sent afterwards is
/// answered.
fn heard(rogue: &mut Rogue, to: &str) {
    rogue.send(to, &rogue.frame(to, opcode::LOCATE, ObjectId::random().as_bytes().to_vec()));
    rogue.next("an answer", |frame| frame.opcode == opcode::LOCATED);
}

/// Program of the rogue, with the lines that it printed.
struct Rogue {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    host: usize,
    node: [u8; 16],
    incarnation: u64,
    /// Base, key and length of the region that all may read, which has pattern 7.
    region: (u64, u64, u64),
    view: Value,
    frames: VecDeque<Frame>,
    provider: String,
    /// Number and stream of the last message of each member.
    received: HashMap<[u8; 16], (u64, u32)>,
    /// Whether the rogue tells other members that their messages have come.
    tells_what_came: bool,
}

impl Rogue {
    /// Starts the rogue on the host of a node and makes it join the cluster.
    fn join(cluster: &Cluster, host: usize) -> Self {
        Self::join_as(cluster, host, *NodeId::random().as_bytes(), 1)
    }

    /// Kills the rogue and starts it anew, as the same node.
    fn join_again(self, cluster: &Cluster) -> Self {
        let (host, node, incarnation) = (self.host, self.node, self.incarnation + 1);
        let members = cluster.nodes();
        self.kill();
        let gone = |other| cluster.status(other).cluster.members.len() == members;
        until("its end is known", || (0..cluster.nodes()).all(gone).then_some(()));
        Self::join_as(cluster, host, node, incarnation)
    }

    /// The command of a rogue whose frames have a version.
    fn command(cluster: &Cluster, host: usize, node: [u8; 16], incarnation: u64, frames: u8) -> Command {
        let mut command = cluster.command(host, Path::new(env!("CARGO_BIN_EXE_plasmon-e2e-rogue")));
        let provider = cluster.status(host).fabric.provider;
        command.args([cluster.listen(0).to_string(), cluster.address(host).to_string(), provider]);
        command.args([hex(&node), incarnation.to_string(), protocol(frames).to_string()]);
        // Libraries that would handle signals are told not to, as `plasmon serve` does.
        command.env("IPATH_NO_BACKTRACE", "1");
        command
    }

    fn join_as(cluster: &Cluster, host: usize, node: [u8; 16], incarnation: u64) -> Self {
        let mut command = Self::command(cluster, host, node, incarnation, VERSION);
        let provider = cluster.status(host).fabric.provider;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdin, out) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let greeting: String = lines.recv_timeout(PATIENCE).expect("it says who it is");
        let mut words = greeting.strip_prefix("self ").expect("it says who it is").split(' ');
        let mut number = || words.next().expect("a number").parse::<u64>().expect("a number");
        let region = (number(), number(), number());
        let (view, frames, received) = (Value::Null, VecDeque::new(), HashMap::new());
        #[rustfmt::skip]
        let mut rogue = Self {
            child, stdin, lines, host, node, incarnation, region, view, frames, provider, received,
            tells_what_came: true,
        };
        until("it is told who the members are", || {
            rogue.listen(Duration::from_millis(10));
            (!rogue.view.is_null()).then_some(())
        });
        // Frames of a node that is no member yet are kept for later, not dropped.
        let id = rogue.id();
        let knows = |node| cluster.status(node).cluster.members.iter().any(|member| member.node == id);
        until("all know it", || (0..cluster.nodes()).all(knows).then_some(()));
        rogue
    }

    /// Node id of the rogue as text.
    fn id(&self) -> String {
        hex(&self.node)
    }

    fn member(&self, node: &str) -> &Value {
        let members = self.view["members"].as_array().expect("a view has members");
        members.iter().find(|member| member["node"] == node).unwrap_or_else(|| panic!("no member {node}"))
    }

    fn epoch(&self) -> u64 {
        self.view["epoch"].as_u64().expect("a view has an epoch")
    }

    /// Valid frame for a node.
    fn frame(&self, to: &str, opcode: u8, body: Vec<u8>) -> Frame {
        Frame {
            version: VERSION,
            opcode,
            flags: 0,
            body_len: None,
            token: self.member(to)["token"].as_u64().expect("a member has a token"),
            request: 0,
            from: self.node,
            reply_to: self.node,
            incarnation: self.incarnation,
            epoch: self.epoch(),
            user: 0,
            number: 0,
            stream: 1,
            received: self.received_from(to),
            body,
        }
    }

    /// Last message of a node that has come, and its stream, as far as the rogue tells it.
    fn received_from(&self, node: &str) -> (u64, u32) {
        let known = self.received.get(&bytes(node)[..]).filter(|_| self.tells_what_came);
        known.copied().unwrap_or_default()
    }

    /// Valid answer to a frame of a node.
    fn answer(&self, asked: &Frame, opcode: u8, body: Vec<u8>) -> Frame {
        let frame = self.frame(&hex(&asked.reply_to), opcode, body);
        Frame { request: asked.request, reply_to: asked.reply_to, ..frame }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it lives");
    }

    /// Sends each of some byte strings as a message.
    fn send_bytes(&mut self, to: &str, messages: &[Vec<u8>]) {
        for some in messages.chunks(64) {
            let words: Vec<_> = some.iter().map(|message| hex(message)).collect();
            self.tell(&format!("send {to} {}", words.join(" ")));
        }
    }

    /// Whether a message claims to be this member's, so that it counts against this member.
    fn stands_for(&self, to: &str, message: &[u8]) -> bool {
        let honest = self.frame(to, 0, Vec::new()).encode();
        let same = |field: std::ops::Range<usize>| message[field.clone()] == honest[field];
        message.len() >= MESSAGE_HEADER_LEN && same(0..1) && same(8..40)
    }

    fn send(&mut self, to: &str, frame: &Frame) {
        self.send_bytes(to, &[frame.encode()]);
    }

    /// Answers a frame.
    fn reply(&mut self, asked: &Frame, opcode: u8, body: Vec<u8>) {
        let frame = self.answer(asked, opcode, body);
        self.send(&hex(&asked.reply_to), &frame);
    }

    /// Says something to the node that asked: it is no answer.
    fn say(&mut self, asked: &Frame, opcode: u8, body: Vec<u8>) {
        let to = hex(&asked.reply_to);
        let frame = Frame { request: asked.request, ..self.frame(&to, opcode, body) };
        self.send(&to, &frame);
    }

    /// Sends long messages without waiting for them.
    fn send_many_long(&mut self, to: &str, count: usize, len: usize) {
        self.tell(&format!("long {to} {count} {len}"));
    }

    /// Sends a message of `len` bytes and waits until that has succeeded or failed.
    fn send_long(&mut self, to: &str, len: usize) {
        self.tell(&format!("message {to} {len}"));
        self.said("sent or unsent", |line| line.ends_with("sent").then_some(()));
    }

    /// Reads memory that a node has registered. `None` if the read is refused.
    fn read(&mut self, from: &str, (base, key): (u64, u64), offset: u64, len: u64) -> Option<Vec<u8>> {
        self.tell(&format!("read {from} {base} {key} {offset} {len}"));
        let line = self.said("what was read", |line| line.strip_prefix("read ").map(str::to_owned));
        (line != "refused").then(|| bytes(&line))
    }

    /// Writes into memory that a node has registered. Returns whether that succeeded.
    fn write(&mut self, to: &str, (base, key): (u64, u64), offset: u64, len: u64) -> bool {
        self.tell(&format!("write {to} {base} {key} {offset} {len}"));
        self.said("what was written", |line| line.strip_prefix("write ").map(|end| end == "done"))
    }

    fn said<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.lines.recv_timeout(deadline - Instant::now());
            let line = line.unwrap_or_else(|error| panic!("the rogue did not say {what}: {error}"));
            match find(&line) {
                Some(found) => return found,
                None => self.hear(&line),
            }
        }
    }

    fn hear(&mut self, line: &str) {
        if let Some(frame) = line.strip_prefix("frame ") {
            self.take(Message::decode(&bytes(frame)));
        } else if let Some(view) = line.strip_prefix("view ") {
            self.view = serde_json::from_str(view).expect("a view is JSON");
        }
    }

    /// Takes the frames of a message, unless it came before, and tells its sender that it has come.
    fn take(&mut self, message: Message) {
        let Message { from, stream, number, frames } = message;
        let last = self.received.entry(from).or_default();
        if number == 0 || (stream, number) > (last.1, last.0) {
            self.frames.extend(frames);
        }
        let to = hex(&from);
        let members = self.view["members"].as_array().cloned().unwrap_or_default();
        if number > 0 && members.iter().any(|member| member["node"] == to) {
            *last = if stream > last.1 { (number, stream) } else { (number.max(last.0), last.1) };
            let header = self.frame(&to, 0, Vec::new()).header();
            self.send_bytes(&to, &[header]);
        }
    }

    /// Takes the lines that the rogue prints for a while.
    fn listen(&mut self, span: Duration) {
        match self.lines.recv_timeout(span) {
            Ok(line) => self.hear(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("the rogue has ended: {:?}", self.child.try_wait()),
        }
    }

    /// Takes the first frame that came to the rogue and is `meant`. All other frames stay.
    fn next(&mut self, what: &str, meant: impl Fn(&Frame) -> bool) -> Frame {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.frames.iter().position(&meant).and_then(|at| self.frames.remove(at));
            if let Some(frame) = found {
                return frame;
            }
            assert!(Instant::now() < deadline, "the rogue waited in vain: {what}");
            self.listen(Duration::from_millis(100));
        }
    }

    /// Answers keepers that ask the rogue to hold or release objects while `work` runs: it holds nothing and
    /// releases everything.
    fn letting_go<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let work = scope.spawn(work);
            while !work.is_finished() {
                self.listen(Duration::from_millis(20));
                let asks = |frame: &Frame| {
                    [opcode::DROP, opcode::BURY, opcode::HOLD, opcode::ENLIST, opcode::GUARD]
                        .contains(&frame.opcode)
                };
                while let Some(at) = self.frames.iter().position(asks) {
                    let frame = self.frames.remove(at).expect("it is there");
                    let ids = u32::from_le_bytes(frame.body[..4].try_into().expect("4 bytes")) as usize;
                    let (answer, body) = match frame.opcode {
                        opcode::HOLD => (opcode::HELD, [frame.body[..4].to_vec(), vec![0; ids]].concat()),
                        opcode::ENLIST => (opcode::ENLISTED, vec![1, 0, 0, 0, 0]),
                        _ => (opcode::DONE, Vec::new()),
                    };
                    self.reply(&frame, answer, body);
                }
            }
            work.join().expect("no panic")
        })
    }

    /// Fetch of an object by a node, which comes through the object's keeper.
    fn asked_for(&mut self, id: ObjectId) -> Frame {
        self.next("a fetch", |frame| frame.opcode == opcode::FETCH && frame.body.starts_with(id.as_bytes()))
    }

    /// Tells the keepers of an object that the rogue holds it.
    fn publish(&mut self, head: &Head) {
        for keeper in self.keepers(&head.id) {
            let body = body::publish(std::slice::from_ref(head));
            self.send(&keeper, &self.frame(&keeper, opcode::PUBLISH, body));
        }
    }

    /// Number of frames that came to the rogue and are `meant`, counted until none has come for a while.
    fn count(&mut self, meant: impl Fn(&Frame) -> bool) -> usize {
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(500)) {
            self.hear(&line);
        }
        let before = self.frames.len();
        self.frames.retain(|frame| !meant(frame));
        before - self.frames.len()
    }

    /// Members that keep the directory entry of an object.
    fn keepers(&self, id: &ObjectId) -> Vec<String> {
        let members = self.view["members"].as_array().expect("a view has members");
        keepers(members.iter().map(|it| it["node"].as_str().expect("a node has an id").to_owned()), id).into()
    }

    /// Id of which the rogue is no keeper, so that its failures as a keeper do not matter.
    fn foreign_id(&self) -> ObjectId {
        let own = self.id();
        std::iter::repeat_with(ObjectId::random)
            .find(|id| !self.keepers(id).contains(&own))
            .expect("there are others")
    }

    /// Kills the rogue with SIGKILL.
    fn kill(mut self) {
        self.child.kill().expect("it is our child");
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        // The rogue may have been killed; that is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
