//! Plasmon as a peer, from Rust.
//!
//! Owns a client. Runs on the worker's only thread.

use std::rc::Rc;

use plasmon::{Client, CreateOptions, DeleteOutcome, ObjectId, Presence};
use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

const DISCARDED_AT_ONCE: usize = 1000;

const OPERATIONS: &[&str] =
    &["put", "put_many", "get", "get_here", "get_many", "fetch", "fetch_many", "contains", "delete"];

/// Client of a Plasmon node.
pub(crate) struct Plasmon {
    client: Client,
    /// Whether objects are put with a digest.
    digest: bool,
    /// Ids that were computed last, with their owner and numbers.
    ids: Option<(u64, Numbers, Rc<[ObjectId]>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Put,
    PutMany,
    Get,
    GetHere,
    GetMany,
    /// Get of an object on another node. The object is here afterwards, so each is fetched once.
    Fetch,
    FetchMany,
    Contains,
    Delete,
}

/// Operation on some objects.
struct Objects<'a> {
    client: &'a Client,
    operation: Operation,
    ids: Rc<[ObjectId]>,
    batch: usize,
    /// Value of every object; empty until it is needed.
    value: Vec<u8>,
    size: usize,
    options: CreateOptions,
}

impl Plasmon {
    pub(crate) fn connect(socket: &str, digest: bool) -> Result<Self> {
        Ok(Self { client: Client::connect(socket)?, digest, ids: None })
    }

    fn ids(&mut self, owner: u64, numbers: Numbers) -> Rc<[ObjectId]> {
        match &self.ids {
            Some((of, which, ids)) if (*of, *which) == (owner, numbers) => Rc::clone(ids),
            _ => {
                let name = |number| format!("{owner}/{number}");
                let ids = numbers.iter().map(|number| ObjectId::from_name(&name(number))).collect();
                Rc::clone(&self.ids.insert((owner, numbers, ids)).2)
            }
        }
    }
}

impl Peer for Plasmon {
    fn greeting(&self) -> Greeting {
        Greeting { version: env!("CARGO_PKG_VERSION"), in_place: true, shared: true, operations: OPERATIONS }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        owner: u64,
        numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let operation = match operation {
            "put" => Operation::Put,
            "put_many" => Operation::PutMany,
            "get" => Operation::Get,
            "get_here" => Operation::GetHere,
            "get_many" => Operation::GetMany,
            "fetch" => Operation::Fetch,
            "fetch_many" => Operation::FetchMany,
            "contains" => Operation::Contains,
            "delete" => Operation::Delete,
            other => return Err(format!("there is no operation {other:?}").into()),
        };
        Ok(Box::new(Objects {
            ids: self.ids(owner, numbers),
            client: &self.client,
            operation,
            batch,
            // A value that is only compared is made after the timed calls, because a large one takes long.
            value: if matches!(operation, Operation::Put | Operation::PutMany) {
                value(size)
            } else {
                Vec::new()
            },
            size,
            options: CreateOptions { digest: self.digest, ..Default::default() },
        }))
    }

    fn prepare(&mut self, owner: u64, numbers: Numbers) {
        self.ids(owner, numbers);
    }

    fn discard(&mut self, owner: u64, numbers: Numbers) -> Result<()> {
        for ids in self.ids(owner, numbers).chunks(DISCARDED_AT_ONCE) {
            self.client.delete(ids)?;
        }
        Ok(())
    }

    fn evict(&mut self) -> Result<u64> {
        Ok(self.client.evict(u64::MAX)?)
    }
}

impl Objects<'_> {
    fn unit(&self, index: usize) -> &[ObjectId] {
        let first = index * self.batch;
        &self.ids[first..self.ids.len().min(first + self.batch)]
    }
}

impl Call for Objects<'_> {
    fn units(&self) -> usize {
        self.ids.len().div_ceil(self.batch)
    }

    fn once(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Get | Operation::GetHere | Operation::GetMany | Operation::Contains
        )
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let ids = self.unit(index);
        match self.operation {
            Operation::Put => self.client.put(ids[0], &self.value, b"", &self.options)?,
            Operation::PutMany => {
                let objects: Vec<_> = ids.iter().map(|id| (*id, &self.value[..], &b""[..])).collect();
                self.client
                    .put_many(&objects, &self.options)?
                    .into_iter()
                    .collect::<plasmon::Result<()>>()?;
            }
            Operation::GetHere => {
                let object = self.client.get_here(&ids[0]);
                drop(object.ok_or("an object that was put is not in memory")?);
            }
            Operation::Get | Operation::GetMany | Operation::Fetch | Operation::FetchMany => {
                for object in self.client.get(ids, None)? {
                    drop(object?);
                }
            }
            Operation::Contains => {
                if self.client.contains(ids)?.contains(&Presence::Absent) {
                    return Err("the store does not know an object that was put".into());
                }
            }
            Operation::Delete => {
                if self.client.delete(ids)?.iter().any(|outcome| *outcome != DeleteOutcome::Deleted) {
                    return Err("an object that was put could not be deleted at once".into());
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, index: usize) -> Result<()> {
        if self.operation == Operation::Delete {
            return Ok(());
        }
        if self.value.is_empty() {
            self.value = value(self.size);
        }
        for object in self.client.get(self.unit(index), None)? {
            if object?.data() != self.value {
                return Err("an object holds other bytes than were put".into());
            }
        }
        Ok(())
    }
}
