//! Measurements of a TCP connection without any store: a request of 64 bytes, and an answer of as many bytes
//! as it asks for, copied from present memory to present memory. `fetch` reads one place again and again, in
//! huge pages and soon in the processor's caches. `fetch_places` reads as many places as a store has objects,
//! in memory like that of a store.
//!
//! [`Tcp`] is the asking side, a worker. [`answer`] is the answering side, `plasmon-bench tcp-serve`, with a
//! thread a connection, which waits in the kernel.

use std::io::{Read, Write, stdout};
use std::net::{TcpListener, TcpStream};
use std::thread;

use plasmon_bench::Result;
use plasmon_bench::content::{is_at, value};
use plasmon_bench::memory::{Mapping, Places};
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

/// Size in bytes of a request: the wanted length, the offset, and which memory; eight bytes each.
const REQUEST: usize = 64;
/// Largest length in bytes that may be asked for.
const LARGEST: usize = 256 << 20;

/// Asking side.
pub(crate) struct Tcp {
    stream: TcpStream,
    one: Option<Mapping>,
    many: Option<Mapping>,
}

impl Tcp {
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, one: None, many: None })
    }
}

impl Peer for Tcp {
    fn greeting(&self) -> Greeting {
        Greeting { version: "", in_place: false, shared: true, operations: &["fetch", "fetch_places"] }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        numbers: Numbers,
        _batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let Self { stream, one, many } = self;
        let (as_a_store, places, target) = match operation {
            "fetch" => (false, Places::one(size), one),
            "fetch_places" => (true, Places::many(size, numbers.count(), LARGEST), many),
            _ => return Err(format!("there is no operation {operation:?}").into()),
        };
        let len = places.len();
        if len > LARGEST {
            return Err(format!("{len} bytes are more than there are").into());
        }
        if target.as_ref().is_none_or(|target| target.len() < len) {
            // The old connection is closed first.
            *target = None;
            *target = Some(if as_a_store { Mapping::new(len, true)? } else { Mapping::huge(len.max(1))? });
        }
        let target = target.as_mut().ok_or("there is no memory")?;
        Ok(Box::new(Fetch { stream, target: &mut target.bytes()[..len], places, as_a_store }))
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

struct Fetch<'a> {
    stream: &'a mut TcpStream,
    target: &'a mut [u8],
    places: Places,
    as_a_store: bool,
}

impl Call for Fetch<'_> {
    fn units(&self) -> usize {
        self.places.count()
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let place = self.places.range(index);
        let mut request = [0; REQUEST];
        let numbers = [place.len() as u64, place.start as u64, self.as_a_store.into()];
        request[..24].copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
        self.stream.write_all(&request)?;
        self.stream.read_exact(&mut self.target[place])?;
        Ok(())
    }

    fn check(&mut self, index: usize) -> Result<()> {
        let place = self.places.range(index);
        if !is_at(place.start, &self.target[place]) {
            return Err("other bytes came than were sent".into());
        }
        Ok(())
    }
}

/// Runs the answering side: prints its address, and serves until it is killed.
pub(crate) fn answer(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    let sources = [filled(Mapping::huge(LARGEST)?), filled(Mapping::new(LARGEST, true)?)];
    writeln!(stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        thread::spawn(move || {
            if let Err(error) = give(stream, sources) {
                eprintln!("plasmon-bench: a connection ended: {error}");
            }
        });
    }
}

/// Fills memory that is never unmapped: connections read it as long as the process lives.
fn filled(memory: Mapping) -> &'static [u8] {
    let source = Box::leak(Box::new(memory)).bytes();
    source.copy_from_slice(&value(LARGEST));
    source
}

fn give(mut stream: TcpStream, [one, many]: [&[u8]; 2]) -> Result<()> {
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).is_ok() {
        let mut numbers = request.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize);
        let [wanted, start, as_a_store] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        let source = if as_a_store == 0 { one } else { many };
        let bytes = start.checked_add(wanted).and_then(|end| source.get(start..end));
        stream.write_all(bytes.ok_or_else(|| format!("{wanted} bytes at {start} are not there"))?)?;
    }
    Ok(())
}
