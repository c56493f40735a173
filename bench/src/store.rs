//! Plasmon, from Rust.

use std::ops::Range;

use plasmon::{Client, CreateOptions, DeleteOutcome, ObjectId, Presence};

use crate::Result;
use crate::protocol::{Call, Greeting, Peer};

const DISCARDED_AT_ONCE: usize = 1000;
/// Values repeat themselves after as many bytes: that is quick to make, and no store looks for it.
const BLOCK: usize = 1 << 20;

/// A client of a Plasmon node.
pub(crate) struct Plasmon {
    client: Client,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
    Contains,
    Delete,
}

/// One operation on some objects.
struct Objects<'a> {
    client: &'a Client,
    operation: Operation,
    ids: Vec<ObjectId>,
    value: Vec<u8>,
    options: CreateOptions,
}

impl Plasmon {
    pub(crate) fn connect(socket: &str) -> Result<Self> {
        Ok(Self { client: Client::connect(socket)? })
    }
}

impl Peer for Plasmon {
    fn greeting(&self) -> Greeting {
        Greeting {
            version: env!("CARGO_PKG_VERSION"),
            in_place: true,
            shared: true,
            operations: &["put", "get", "contains", "delete"],
        }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        owner: u64,
        numbers: Range<u64>,
    ) -> Result<Box<dyn Call + '_>> {
        let operation = match operation {
            "put" => Operation::Put,
            "get" => Operation::Get,
            "contains" => Operation::Contains,
            "delete" => Operation::Delete,
            other => return Err(format!("there is no operation {other:?}").into()),
        };
        Ok(Box::new(Objects {
            client: &self.client,
            operation,
            ids: ids(owner, numbers),
            value: value(size),
            options: CreateOptions::default(),
        }))
    }

    fn discard(&mut self, owner: u64, numbers: Range<u64>) -> Result<()> {
        for ids in ids(owner, numbers).chunks(DISCARDED_AT_ONCE) {
            self.client.delete(ids)?;
        }
        Ok(())
    }
}

impl Call for Objects<'_> {
    fn objects(&self) -> usize {
        self.ids.len()
    }

    fn once(&self) -> bool {
        matches!(self.operation, Operation::Put | Operation::Delete)
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let id = self.ids[index];
        match self.operation {
            Operation::Put => self.client.put(id, &self.value, b"", &self.options)?,
            Operation::Get => {
                self.client.get(&[id], None)?.remove(0)?;
            }
            Operation::Contains => {
                if self.client.contains(&[id])?[..] == [Presence::Absent] {
                    return Err(format!("the store does not know {id}, which was put").into());
                }
            }
            Operation::Delete => {
                if self.client.delete(&[id])?[..] != [DeleteOutcome::Deleted] {
                    return Err(format!("{id}, which was put, could not be deleted").into());
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, index: usize) -> Result<()> {
        if self.operation == Operation::Delete {
            return Ok(());
        }
        let id = self.ids[index];
        if self.client.get(&[id], None)?.remove(0)?.data() != self.value {
            return Err(format!("{id} holds other bytes than were put").into());
        }
        Ok(())
    }
}

fn ids(owner: u64, numbers: Range<u64>) -> Vec<ObjectId> {
    numbers.map(|number| ObjectId::from_name(&format!("{owner}/{number}"))).collect()
}

/// The bytes of every object of a size.
pub(crate) fn value(size: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..BLOCK).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let mut value = block.repeat(size.div_ceil(BLOCK));
    value.truncate(size);
    value
}
