//! Regions of Plasmon as a peer, from Rust.
//!
//! Owns a client of the node of this host, through which regions are used, and one of the node on which they
//! live, which makes them. The two may be clients of one node. Runs on the worker's only thread, except for
//! the thread of `wake` that changes a word. Every operation of a size has a region of its own, which stays.

use std::collections::HashMap;
use std::process;
use std::time::Duration;

use plasmon::region::{RegionOptions, Rights};
use plasmon::{Client, CreateOptions, Creation, ObjectId, Region, Scratch};
use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::Places;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

use crate::region_calls::{Access, Begun, Bulk, Crowd, Held, Kind, Move, Named, Over, Wake};

/// Size in bytes of the memory in which the places of an operation lie.
const ROOM: usize = 32 << 20;
/// Number of bytes after which the content of a region repeats.
pub(crate) const BLOCK: usize = 1 << 20;
/// Size in bytes from which an operation uses memory that the node lends.
const LENT_FROM: usize = 64 << 10;
/// Number of pieces of a region that lies in several.
const PIECES: usize = 32;
/// Size in bytes of a page, of which pieces are made.
const PAGE: usize = 4096;
/// Size in bytes of the largest object whose memory is the node's own, and leaves no gap for regions.
const INLINE_MAX_BYTES: usize = 64 << 10;
/// Longest time for an operation on a region.
const OPERATION_PATIENCE: Duration = Duration::from_secs(60);

const OPERATIONS: &[&str] = &[
    "read",
    "write",
    "read_whole",
    "write_whole",
    "read_pieces",
    "write_pieces",
    "fetch_add",
    "read_begun",
    "add_begun",
    "wake",
    "fill",
    "copy",
    "copy_between",
    "move",
    "make",
    "map",
    "hold",
    "crowd",
    "read_held",
    "read_over",
    "write_over",
];

/// Client of a node, with a client of the node on which its regions live.
pub(crate) struct Regions {
    client: Client,
    home: Client,
    /// Path of the socket of this host's node.
    socket: String,
    /// Whether processes of the home may map the regions.
    mappable: bool,
    /// Regions by name: the handle of the home's client, and that of this host's.
    made: HashMap<String, (Region, Region)>,
    /// Handles that `hold` has made.
    held: Vec<Region>,
}

impl Regions {
    /// Connects to the node of this host and to the home of the regions, which are "mapped" or "called".
    pub(crate) fn connect(socket: &str, home: &str, kind: &str) -> Result<Self> {
        let mappable = match kind {
            "mapped" => true,
            "called" => false,
            other => return Err(format!("regions are mapped or called, and not {other:?}").into()),
        };
        let (client, home) = (Client::connect(socket)?, Client::connect(home)?);
        let socket = socket.to_owned();
        Ok(Self { client, home, socket, mappable, made: HashMap::new(), held: Vec::new() })
    }

    /// Region of an operation, which is made and filled when it is first needed: the handle of the home's
    /// client, and that of this host's.
    fn region(&mut self, operation: &str, len: usize) -> Result<(Region, Region)> {
        let name = format!("{}-{operation}-{len}", process::id());
        if let Some((there, here)) = self.made.get(&name) {
            return Ok((there.clone(), here.clone()));
        }
        let options = RegionOptions { mappable: self.mappable, ..Default::default() };
        let there = match operation {
            "read_pieces" | "write_pieces" => in_pieces(&self.home, &name, len, &options)?,
            _ => self.home.create_region(&name, len as u64, &options)?,
        };
        let there = there.with_timeout(OPERATION_PATIENCE);
        let content = value(BLOCK);
        for offset in (0..len).step_by(BLOCK) {
            there.write(offset as u64, &content[..BLOCK.min(len - offset)])?;
        }
        let here = self.client.map_region(&name, Rights::ALL, None)?.with_timeout(OPERATION_PATIENCE);
        let wanted = self.mappable && self.client.node() == self.home.node();
        if here.is_mapped() != wanted {
            return Err(
                format!("region '{name}' is mapped in this process, or is not: {wanted} is right").into()
            );
        }
        self.made.insert(name, (there.clone(), here.clone()));
        Ok((there, here))
    }

    /// Memory for the bytes of an operation: lent by the node if they are many.
    fn bytes(&self, size: usize) -> Result<Bytes> {
        if size < LENT_FROM {
            return Ok(Bytes::Own(value(size)));
        }
        let mut lent = self.client.buffer(size, false, None)?;
        lent.as_mut_slice().copy_from_slice(&value(size));
        Ok(Bytes::Lent(lent))
    }
}

/// Makes a region in [`PIECES`] pieces: while memory is full but for gaps of the size of a piece.
fn in_pieces(home: &Client, name: &str, len: usize, options: &RegionOptions) -> Result<Region> {
    let piece = len / PIECES;
    if !piece.is_multiple_of(PAGE) || piece <= INLINE_MAX_BYTES {
        return Err(format!("a region of {len} bytes has no {PIECES} pieces of whole pages").into());
    }
    let private = CreateOptions { rights: plasmon::Rights::Private, ..Default::default() };
    let fill = |size| {
        let creation = || home.create(ObjectId::random(), size as u64, b"", &private);
        std::iter::repeat_with(creation).map_while(std::result::Result::ok).collect::<Vec<Creation>>()
    };
    let mut blocks = fill(2 * len);
    let rest = fill(piece);
    // Room for one region of gaps, and as much between them.
    blocks.pop();
    let comb = fill(piece);
    let between: Vec<_> =
        comb.into_iter().enumerate().filter(|(nth, _)| nth % 2 == 0).map(|(_, creation)| creation).collect();
    let region = home.create_region(name, len as u64, options)?;
    let pieces = region.info()?.pieces as usize;
    drop((blocks, rest, between));
    // Gaps that were left before may be longer.
    if pieces.abs_diff(PIECES) > 1 {
        return Err(format!("region '{name}' lies in {pieces} pieces, and {PIECES} are wanted").into());
    }
    Ok(region)
}

/// Memory of this process, or lent by its node.
pub(crate) enum Bytes {
    Own(Vec<u8>),
    Lent(Scratch),
}

impl Bytes {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Lent(bytes) => bytes.as_mut_slice(),
        }
    }
}

impl Peer for Regions {
    fn greeting(&self) -> Greeting {
        Greeting { version: env!("CARGO_PKG_VERSION"), in_place: false, shared: true, operations: OPERATIONS }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        owner: u64,
        numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let places = Places::many(size, numbers.count(), ROOM);
        let kind = match operation {
            "read" | "read_begun" | "read_whole" | "read_pieces" => Kind::Read,
            "write" | "write_whole" | "write_pieces" => Kind::Write,
            _ => Kind::Add,
        };
        Ok(match operation {
            "read" | "write" | "fetch_add" => {
                let region = self.region(operation, places.len())?.1;
                Box::new(Access::new(region, kind, self.bytes(size)?, places, batch)?)
            }
            "read_whole" | "write_whole" | "read_pieces" | "write_pieces" => {
                // Memory is lent before it is filled.
                let bytes = self.bytes(size)?;
                let len = places.len().next_multiple_of(PIECES * PAGE);
                let region = self.region(operation, len)?.1;
                Box::new(Access::new(region, kind, bytes, places, batch)?)
            }
            "read_begun" | "add_begun" => {
                let region = self.region(operation, places.len())?.1;
                Box::new(Begun::new(region, kind, places, batch))
            }
            "wake" => {
                let (there, here) = self.region(operation, size)?;
                Box::new(Wake::new(there, here)?)
            }
            "fill" => Box::new(Bulk::new(self.region(operation, size)?.1, None)),
            "copy" => {
                let source = self.region("read", size)?.1;
                Box::new(Bulk::new(self.region(operation, size)?.1, Some(source)))
            }
            "copy_between" => {
                let source = self.region("read", size)?.1;
                let name = format!("{}-{operation}-{size}", process::id());
                let options = RegionOptions { mappable: self.mappable, exist_ok: true, ..Default::default() };
                let target = self.client.create_region(&name, size as u64, &options)?;
                Box::new(Bulk::new(target.with_timeout(OPERATION_PATIENCE), Some(source)))
            }
            "move" => {
                let nodes = [self.home.node(), self.client.node()];
                Box::new(Move::new(self.region(operation, size)?.1, nodes))
            }
            "read_over" | "write_over" => {
                let kind = if operation == "read_over" { Kind::Read } else { Kind::Write };
                let region = Named::name(owner, 0);
                let region =
                    self.client.map_region(&region, Rights::ALL, None)?.with_timeout(OPERATION_PATIENCE);
                Box::new(Over::new(region, kind, size, numbers.count(), batch))
            }
            "crowd" => Box::new(Crowd::new(&self.socket, owner, numbers, &mut self.held)),
            "make" => Box::new(Named::make(&self.home, self.mappable, owner, numbers, size)),
            "map" => Box::new(Named::map(&self.client, owner, numbers, None)),
            "hold" => Box::new(Named::map(&self.client, owner, numbers, Some(&mut self.held))),
            "read_held" => Box::new(Held::new(&self.held, size)?),
            other => return Err(format!("there is no operation {other:?}").into()),
        })
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        self.held.clear();
        Ok(())
    }
}
