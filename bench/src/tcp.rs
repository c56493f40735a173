//! What a TCP connection can do without any store: a request of 64 bytes, and an answer of as many bytes as it asks
//! for, from memory that is there to memory that is there.
//!
//! [`Tcp`] is the asking side, a worker; [`answer`] the other one, `plasmon-bench tcp-serve`: a thread a connection,
//! which waits in the kernel.

use std::io::{Read, Write, stdout};
use std::net::{TcpListener, TcpStream};
use std::thread;

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::{Mapping, ready};
use plasmon_bench::protocol::{Call, Greeting, Limit, Numbers, Peer};

/// Bytes of a request; the first eight say how many are wanted.
const REQUEST: usize = 64;
/// The most that may be wanted.
const LARGEST: usize = 256 << 20;

/// The asking side.
pub(crate) struct Tcp {
    stream: TcpStream,
    target: Option<Mapping>,
}

impl Tcp {
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, target: None })
    }
}

impl Peer for Tcp {
    fn greeting(&self) -> Greeting {
        Greeting { version: "", in_place: false, shared: true, operations: &["fetch"] }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        _numbers: Numbers,
        _batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        if operation != "fetch" || size > LARGEST {
            return Err(format!("there is no {operation:?} of {size} bytes").into());
        }
        let target = ready(&mut self.target, size)?;
        Ok(Box::new(Fetch { stream: &mut self.stream, target: &mut target.bytes()[..size] }))
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

struct Fetch<'a> {
    stream: &'a mut TcpStream,
    target: &'a mut [u8],
}

impl Limit for Fetch<'_> {
    fn call(&mut self) -> Result<()> {
        let mut request = [0; REQUEST];
        request[..8].copy_from_slice(&(self.target.len() as u64).to_le_bytes());
        self.stream.write_all(&request)?;
        self.stream.read_exact(self.target)?;
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        if *self.target != value(self.target.len()) {
            return Err("other bytes came than were sent".into());
        }
        Ok(())
    }
}

/// The answering side: says where it listens, and serves until it is ended.
pub(crate) fn answer(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    // Never let go of: connections read it for as long as the process lives.
    let source = Box::leak(Box::new(Mapping::huge(LARGEST)?)).bytes();
    source.copy_from_slice(&value(LARGEST));
    let source: &'static [u8] = source;
    writeln!(stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        thread::spawn(move || {
            if let Err(error) = give(stream, source) {
                eprintln!("plasmon-bench: a connection ended: {error}");
            }
        });
    }
}

fn give(mut stream: TcpStream, source: &[u8]) -> Result<()> {
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).is_ok() {
        let wanted = u64::from_le_bytes(request[..8].try_into()?);
        let bytes = usize::try_from(wanted).ok().and_then(|wanted| source.get(..wanted));
        stream.write_all(bytes.ok_or_else(|| format!("{wanted} bytes are more than there are"))?)?;
    }
    Ok(())
}
