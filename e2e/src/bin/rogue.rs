//! A member of a cluster that sends whatever a test wants, for tests of how the other members react.
//!
//! `plasmon-e2e-rogue CONTROL SOURCE PROVIDER NODE INCARNATION` joins the cluster whose coordinator listens
//! at CONTROL, with a fabric on the interface of SOURCE, and prints these lines:
//!
//!     self BASE KEY LENGTH                          its region that all may read, of pattern 7
//!     view JSON                                     the members, again and again
//!     frame HEX                                     a message came
//!     read HEX | read refused                       the first bytes of what was read
//!     write done | write refused
//!     sent | unsent                                 the outcome of a message that was waited for
//!
//! It obeys the lines of its stdin, and ends when its stdin does:
//!
//!     send NODE HEX...                              sends messages, and waits for none
//!     long NODE COUNT LENGTH                        sends COUNT messages of LENGTH bytes, and waits for none
//!     message NODE LENGTH                           sends a message, and waits for it
//!     read NODE BASE KEY OFFSET LENGTH              reads on the bulk lane
//!     write NODE BASE KEY OFFSET LENGTH             writes on the bulk lane
//!     leave                                         leaves the cluster, and keeps the fabric
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::env;
use std::error::Error;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plasmon_e2e::{Pattern, SECRET};
use plasmon_fabric::{Access, Domain, Endpoint, Event, Op, Peer, Region, RemoteRegion};
use plasmon_node::memory::{Arena, ArenaConfig, HugePages};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::{Value, json};

/// Result of anything that may go wrong here.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of each segment.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Bytes of the longest message that other members send.
const BLOCK_BYTES: usize = 16 << 10;
/// Number of bytes that are shown of each read.
const SHOWN_BYTES: usize = 16;
/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(200);

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [control, source, provider, node, incarnation, protocol] = &words[..] else {
        return Err("usage: CONTROL SOURCE PROVIDER NODE INCARNATION PROTOCOL".into());
    };
    let fabric = Fabric::open(provider, source)?;
    let member = json!({
        "node": node, "incarnation": incarnation.parse::<u64>()?, "listen": format!("{source}:1"),
        "token": 0x1234_5678,
        "fabrics": [{
            "provider": fabric.provider.0, "protocol": fabric.provider.1,
            "small_address": fabric.small.address(), "bulk_addresses": [fabric.bulk.address()],
        }],
    });
    let mut control = Control::connect(control)?;
    let protocol: u32 = protocol.parse()?;
    control.send(&json!({ "Join": { "protocol": protocol, "member": member } }))?;
    let welcome = control.receive()?;
    let view = welcome.pointer("/Welcome/view").ok_or(format!("not let in: {welcome}"))?.clone();
    let RemoteRegion { base, key, len } = fabric.open.remote();
    say(&format!("self {base} {key} {len}"));
    say(&format!("view {view}"));
    let view = Arc::new(Mutex::new(view));
    let member = control.attend(Arc::clone(&view));
    fabric.serve(&view, member)
}

/// Prints a line for the test. The process ends when the test does not read its output any more.
fn say(line: &str) {
    if writeln!(io::stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}

/// Connection to the coordinator. A message is JSON behind a 32-bit length, in TLS.
struct Control {
    stream: StreamOwned<ClientConnection, TcpStream>,
    received: Vec<u8>,
}

impl Control {
    /// Connects, and proves knowledge of the secret, as `docs/security.md` says.
    fn connect(address: &str) -> Result<Self> {
        let socket = TcpStream::connect(address)?;
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        let connection = ClientConnection::new(Arc::new(config), "plasmon".try_into()?)?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let bound = stream.conn.export_keying_material([0; 32], b"EXPORTER-plasmon-control", None)?;
        let key = "plasmon 2026-11 cluster secret: proof on a control connection";
        let mut proof = blake3::Hasher::new_keyed(&blake3::derive_key(key, SECRET.as_bytes()));
        proof.update(b"asking").update(&bound);
        stream.write_all(proof.finalize().as_bytes())?;
        let mut answer = [0; 33];
        stream.read_exact(&mut answer)?;
        if answer[0] != 1 {
            return Err("its proof was not taken".into());
        }
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends a message.
    fn send(&mut self, message: &Value) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        self.stream.write_all(&[&(text.len() as u32).to_be_bytes()[..], &text].concat())?;
        Ok(())
    }

    /// Receives the next message. Returns `None` if none comes within the socket's time-out.
    fn poll(&mut self) -> Result<Option<Value>> {
        if let Some((len, rest)) = self.received.split_first_chunk()
            && let Some(text) = rest.get(..u32::from_be_bytes(*len) as usize)
        {
            let message = serde_json::from_slice(text)?;
            self.received.drain(..len.len() + text.len());
            return Ok(Some(message));
        }
        let mut some = [0; 4096];
        match self.stream.read(&mut some) {
            Ok(0) => Err("the coordinator has gone".into()),
            Ok(count) => {
                self.received.extend_from_slice(&some[..count]);
                self.poll()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives the next message, and waits for it.
    fn receive(&mut self) -> Result<Value> {
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
        }
    }

    /// Stays a member, and follows the view of the members in `view`, until the returned sender is dropped.
    fn attend(mut self, view: Arc<Mutex<Value>>) -> Sender<()> {
        let (member, leaves) = mpsc::channel();
        self.stream.sock.set_read_timeout(Some(BEAT)).expect("sockets have time-outs");
        thread::spawn(move || {
            let mut beaten = Instant::now();
            while let (Ok(message), Err(TryRecvError::Empty)) = (self.poll(), leaves.try_recv()) {
                if let Some(change) = message.as_ref().and_then(|message| message.get("Changed")) {
                    let mut view = view.lock().expect("no holder panics");
                    follow(&mut view, change);
                    say(&format!("view {view}"));
                }
                if beaten.elapsed() >= BEAT {
                    beaten = Instant::now();
                    if self.send(&json!("Heartbeat")).is_err() {
                        return;
                    }
                }
            }
        });
        member
    }
}

/// Applies a change to a view.
fn follow(view: &mut Value, change: &Value) {
    let list = |key: &str| change[key].as_array().cloned().unwrap_or_default();
    let gone = list("gone");
    let same = |member: &Value| {
        gone.iter().any(|gone| ["node", "incarnation"].iter().all(|key| gone[*key] == member[*key]))
    };
    if let Some(members) = view["members"].as_array_mut() {
        members.retain(|member| !same(member));
        members.extend(list("joined"));
    }
    view["epoch"] = change["epoch"].clone();
}

/// Verifier that takes every certificate.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Fabric of this member, with its regions and lanes.
struct Fabric {
    domain: Domain,
    small: Endpoint,
    bulk: Endpoint,
    provider: (String, (u32, u32)),
    /// Region that all members may read.
    open: Rc<Region>,
    /// Region that messages come into, and that they are sent from.
    blocks: Rc<Region>,
    /// Region that reads fill, and that writes take their bytes from.
    scratch: Rc<Region>,
    sent: Cell<usize>,
}

impl Fabric {
    /// Opens the fabric, and posts buffers for messages.
    fn open(provider: &str, source: &str) -> Result<Self> {
        let provider = plasmon_fabric::choose(Some(provider), Some(source))?;
        let domain = Domain::open(&provider)?;
        let (small, bulk) = (domain.endpoint()?, domain.endpoint()?);
        let arena = Arena::new(&ArenaConfig {
            capacity: 3 * SEGMENT_BYTES,
            segment_size: Some(SEGMENT_BYTES),
            huge_pages: HugePages::Never,
            prefault: false,
            near: None,
            huge_allowance: None,
        })?;
        let open = domain.register(arena.memory(0), Access::REMOTE_READ)?;
        open.slice(0, open.len())?.copy_from_slice(&Pattern(7).bytes(open.len()))?;
        let blocks = domain.register(arena.memory(1), Access::LOCAL)?;
        for at in (0..blocks.len() / 2).step_by(BLOCK_BYTES) {
            small.receive(blocks.slice(at, BLOCK_BYTES)?)?;
        }
        let scratch = domain.register(arena.memory(2), Access::LOCAL)?;
        let provider = (provider.name().to_owned(), (provider.protocol(), provider.protocol_version()));
        Ok(Self { domain, small, bulk, provider, open, blocks, scratch, sent: Cell::new(0) })
    }

    /// Prints the messages that come, and obeys the lines of stdin until stdin ends.
    fn serve(&self, view: &Mutex<Value>, member: Sender<()>) -> Result<()> {
        let mut member = Some(member);
        let lines = lines();
        let mut peers = HashMap::new();
        let mut sending = VecDeque::new();
        loop {
            let mut idle = self.poll()? == 0;
            match lines.try_recv() {
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {}
                Ok(line) if line == "leave" => drop(member.take()),
                Ok(line) => {
                    idle = false;
                    self.obey(&line, &mut peers, view, &mut sending)?;
                }
            }
            if idle {
                thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Obeys a line of stdin.
    fn obey(
        &self,
        line: &str,
        peers: &mut HashMap<String, (Peer, Peer)>,
        view: &Mutex<Value>,
        sending: &mut VecDeque<Op>,
    ) -> Result<()> {
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or(format!("too short: {line}"));
        let (verb, node) = (word()?, word()?);
        let (small, bulk) = match peers.get(node) {
            Some(known) => *known,
            None => {
                let view = view.lock().expect("no holder panics").clone();
                let lanes = self.connect(&view, node)?;
                peers.insert(node.to_owned(), lanes);
                lanes
            }
        };
        if verb == "send" {
            for text in words {
                // Blocks go round.
                let half = self.blocks.len() / 2;
                if sending.len() == half / BLOCK_BYTES {
                    self.outcome(&sending.pop_front().expect("it is full"))?;
                }
                let block = self.blocks.slice(half + self.sent.get() * BLOCK_BYTES % half, text.len() / 2)?;
                self.sent.set(self.sent.get() + 1);
                block.copy_from_slice(&bytes(text))?;
                sending.push_back(self.small.send(small, block));
            }
            return Ok(());
        }
        let mut number = || word()?.parse::<u64>().map_err(|error| format!("{line}: {error}"));
        if verb == "long" {
            let (count, len) = (number()?, number()? as usize);
            for _ in 0..count {
                sending.push_back(self.small.send(small, self.open.slice(0, len)?));
            }
            return Ok(());
        }
        if verb == "message" {
            let operation = self.small.send(small, self.open.slice(0, number()? as usize)?);
            say(if self.outcome(&operation)? { "sent" } else { "unsent" });
            return Ok(());
        }
        let region = RemoteRegion { base: number()?, key: number()?, len: u64::MAX };
        let (offset, len) = (number()?, number()? as usize);
        let slice = self.scratch.slice(0, len)?;
        if verb == "read" {
            let done = self.outcome(&self.bulk.read(bulk, slice.clone(), region, offset))?;
            let shown = &slice.to_vec()[..len.min(SHOWN_BYTES)];
            say(&if done { format!("read {}", hex(shown)) } else { "read refused".to_owned() });
        } else {
            let done = self.outcome(&self.bulk.write(bulk, slice, region, offset, None))?;
            say(if done { "write done" } else { "write refused" });
        }
        Ok(())
    }

    /// Waits for an operation, and tells whether it succeeded.
    fn outcome(&self, operation: &Op) -> Result<bool> {
        loop {
            if let Some(result) = operation.result() {
                return Ok(result.is_ok());
            }
            self.poll()?;
        }
    }

    /// Polls the fabric, and prints the messages that have come. Returns the number of things that happened.
    fn poll(&self) -> Result<usize> {
        let mut events = Vec::new();
        let happened = self.domain.poll(&mut events)?;
        for event in events {
            let Event::Received { slice, len, .. } = event else { continue };
            say(&format!("frame {}", hex(&slice.to_vec()[..len])));
            self.small.receive(slice)?;
        }
        Ok(happened)
    }

    /// Connects both lanes to a member of the view.
    fn connect(&self, view: &Value, node: &str) -> Result<(Peer, Peer)> {
        let members = view["members"].as_array().ok_or("a view without members")?;
        let member = members.iter().find(|member| member["node"] == node).ok_or(format!("no node {node}"))?;
        let reaches = member["fabrics"].as_array().ok_or("a member that cannot be reached")?;
        let reach = reaches.iter().find(|reach| reach["provider"] == self.provider.0.as_str());
        let reach = reach.ok_or(format!("node {node} has another provider"))?;
        let small: Vec<u8> = serde_json::from_value(reach["small_address"].clone())?;
        let bulk: Vec<u8> = serde_json::from_value(reach["bulk_addresses"][0].clone())?;
        Ok((self.small.connect(&small)?, self.bulk.connect(&bulk)?))
    }
}

/// Lines of stdin, read by a thread of their own.
fn lines() -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Hexadecimal digits of some bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of some hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("the test writes hexadecimal digits");
    (0..hex.len() / 2 * 2).step_by(2).map(digits).collect()
}
