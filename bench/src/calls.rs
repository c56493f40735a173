//! Calls of functions as a peer, from Rust.
//!
//! Owns a server at one node, whose threads end with the process, and clients of another node that call it.
//! The two may be one node. Runs on the worker's only thread, except for those that serve, and those that
//! call at a [`pace`](crate::pace).

use std::thread;
use std::time::Duration;

use plasmon::service::{Reply, ServeOptions};
use plasmon::{Client, Server, Service};
use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

use crate::pace::{Facebook, Paced, value_of};

/// Number of threads that serve: one more than cores are in use while a call is made.
const SERVING: usize = 3;
/// Number of bytes that a call brings which is held against its reply.
const LITTLE: usize = 64;
/// Longest time for a call.
pub(crate) const CALL_PATIENCE: Duration = Duration::from_secs(20);

const OPERATIONS: &[&str] = &["call", "call_reply", "call_begun", "call_phases", "paced", "facebook"];

/// Functions that are served, by their places: the first returns what it is given, the second as many bytes
/// as it is told, the third the value of a key.
pub(crate) const FUNCTIONS: [&str; 3] = ["echo", "give", "get"];

/// Service with its server, at a node, and a handle to it at another.
pub(crate) struct Calls {
    service: Service,
}

impl Calls {
    /// Serves at the node `home`, and connects to the node of this host.
    pub(crate) fn connect(socket: &str, home: &str) -> Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let server = Client::connect(home)?.serve(&name, &FUNCTIONS, &ServeOptions::default())?;
        let server: &'static Server = Box::leak(Box::new(server));
        for _ in 0..SERVING {
            thread::spawn(move || serve(server));
        }
        let service = Client::connect(socket)?.service(&name, Some(CALL_PATIENCE))?;
        Ok(Self { service })
    }
}

fn serve(server: &Server) {
    let mut answered: Option<(plasmon::service::Call, Vec<u8>)> = None;
    loop {
        let received = match answered.take() {
            Some((call, reply)) => server.reply_and_receive(call, &reply, None),
            None => server.receive(None),
        };
        // The server ends with its node.
        let Ok(Some(call)) = received else { return };
        let reply = match call.function() {
            0 => call.data().to_vec(),
            2 => value_of(call.data()),
            _ => vec![7; call.data().first_chunk().map_or(0, |len| u64::from_le_bytes(*len) as usize)],
        };
        answered = Some((call, reply));
    }
}

impl Peer for Calls {
    fn greeting(&self) -> Greeting {
        Greeting { version: env!("CARGO_PKG_VERSION"), in_place: false, shared: true, operations: OPERATIONS }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        _numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let mut data = value(size);
        if operation == "call_reply" {
            data = value(LITTLE);
            data[..8].copy_from_slice(&(size as u64).to_le_bytes());
        }
        let (service, last) = (&self.service, Vec::new());
        Ok(match operation {
            "call" | "call_reply" | "call_begun" | "call_phases" => {
                let function = FUNCTIONS[usize::from(operation == "call_reply")];
                let begun = operation == "call_begun";
                let phase = (operation == "call_phases").then_some(Duration::ZERO);
                Box::new(Made { service, function, data, size, batch, begun, last, phase })
            }
            "paced" => Box::new(Paced { service, data, calls: batch }),
            // The size of these calls says how many times longer the gaps are.
            "facebook" => Box::new(Facebook::new(service, batch, size)),
            other => return Err(format!("there is no operation {other:?}").into()),
        })
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Calls one after the other, or begun together, `batch` of them.
struct Made<'a> {
    service: &'a Service,
    function: &'static str,
    data: Vec<u8>,
    /// Number of bytes of a reply.
    size: usize,
    batch: usize,
    begun: bool,
    last: Vec<u8>,
    /// Time between the nodes of the last call, if that is what is measured.
    phase: Option<Duration>,
}

impl Made<'_> {
    fn note(&mut self, reply: Reply) {
        if let Some(phase) = &mut self.phase {
            *phase = reply.times().wire;
        }
        self.last = reply.into_vec();
    }
}

impl Call for Made<'_> {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let begin = |it: &Self| it.service.begin(it.function, &it.data, CALL_PATIENCE);
        if self.begun {
            let begun = (0..self.batch).map(|_| begin(self)).collect::<plasmon::Result<Vec<_>>>()?;
            for call in begun {
                let reply = call.wait()?;
                self.note(reply);
            }
            return Ok(());
        }
        for _ in 0..self.batch {
            let reply = begin(self)?.wait()?;
            self.note(reply);
        }
        Ok(())
    }

    fn took(&self) -> Option<Duration> {
        self.phase
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        let right = match self.function {
            "echo" => self.last == self.data,
            _ => self.last.len() == self.size && self.last.iter().all(|byte| *byte == 7),
        };
        if right { Ok(()) } else { Err("a reply of other bytes came".into()) }
    }
}
