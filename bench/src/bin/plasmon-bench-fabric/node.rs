//! End of a connection: an endpoint, and the way in which its thread waits. Small messages tell the other end
//! how to wait, and confirm that it does.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use plasmon_bench::Result;
use plasmon_bench::memory::Mapping;
use plasmon_fabric::{Access, Domain, Endpoint, Event, Memory, Op, Region, Slice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Number of messages for which there is room. Each has a word and the sender's address.
const MESSAGES: usize = 32;
pub(crate) const MESSAGE: usize = 256;

/// Word that tells the other end to sleep while it waits, and confirms that.
pub(crate) const SLEEP: u8 = 1;
/// Word that tells the other end to poll while it waits, and confirms that.
pub(crate) const POLL: u8 = 2;

/// End of a connection.
pub(crate) struct Node {
    pub(crate) domain: Domain,
    pub(crate) endpoint: Endpoint,
    /// Memory for messages, half of it for received ones.
    messages: Rc<Region>,
    pub(crate) events: RefCell<Vec<Event>>,
}

impl Node {
    pub(crate) fn open(provider: &str, address: &str) -> Result<Self> {
        let provider = plasmon_fabric::choose(Some(provider), Some(address))?;
        let domain = Domain::open(&provider)?;
        let endpoint = domain.endpoint()?;
        let room = Registered(Mapping::new(2 * MESSAGES * MESSAGE, true)?);
        let messages = domain.register(Rc::new(room), Access::LOCAL)?;
        for slot in 0..MESSAGES {
            endpoint.receive(messages.slice(slot * MESSAGE, MESSAGE)?)?;
        }
        Ok(Self { domain, endpoint, messages, events: RefCell::default() })
    }

    /// Registers memory for this end's reads, or also for the other's.
    pub(crate) fn register(&self, memory: Mapping, access: Access) -> Result<Rc<Region>> {
        Ok(self.domain.register(Rc::new(Registered(memory)), access)?)
    }

    /// Sends a word and this end's address, and waits until it is sent.
    pub(crate) fn send(&self, to: plasmon_fabric::Peer, word: u8) -> Result<()> {
        let message = self.message(word)?;
        self.finish(&self.endpoint.send(to, message), true)
    }

    /// Message of a word and this end's address. It has to be sent before the next one is made.
    pub(crate) fn message(&self, word: u8) -> Result<Slice> {
        let address = self.endpoint.address();
        let message = self.messages.slice(MESSAGES * MESSAGE, 1 + address.len())?;
        message.copy_from_slice(&[&[word], &address[..]].concat())?;
        Ok(message)
    }

    /// Waits for the next message. Returns its word and its sender's address.
    pub(crate) fn next_message(&self, polling: bool) -> Result<(u8, Vec<u8>)> {
        loop {
            let event = self.events.borrow_mut().pop();
            match event {
                Some(Event::Received { slice, len, .. }) => {
                    let bytes = slice.slice(0, len)?.to_vec();
                    self.endpoint.receive(slice)?;
                    let (word, sender) = bytes.split_first().ok_or("an empty message")?;
                    return Ok((*word, sender.to_vec()));
                }
                Some(other) => return Err(format!("unexpected: {other:?}").into()),
                None => self.turn(polling)?,
            }
        }
    }

    /// Waits for an operation.
    pub(crate) fn finish(&self, operation: &Op, polling: bool) -> Result<()> {
        loop {
            if let Some(result) = operation.result() {
                return Ok(result?);
            }
            self.turn(polling)?;
        }
    }

    /// Polls the provider. Returns the number of events.
    pub(crate) fn poll(&self) -> Result<usize> {
        Ok(self.domain.poll(&mut self.events.borrow_mut())?)
    }

    /// Polls the provider. Then sleeps until there is more to do, unless `polling`.
    fn turn(&self, polling: bool) -> Result<()> {
        let happened = self.poll()?;
        if polling || happened > 0 {
            return Ok(());
        }
        if let Some(descriptor) = self.domain.wait_descriptor()
            && self.domain.try_wait()
        {
            let limit = self.domain.sleep_limit().and_then(|limit| Timespec::try_from(limit).ok());
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], limit.as_ref())?;
        }
        Ok(())
    }
}

/// Mapping that is only used through its region from now on.
pub(crate) struct Registered(Mapping);

impl Registered {
    pub(crate) fn new(mapping: Mapping) -> Self {
        Self(mapping)
    }
}

// SAFETY: the mapping has a fixed place and length and lives as long as the value. It gives references to its
// bytes only to a mutable owner, which no longer exists.
unsafe impl Memory for Registered {
    fn base(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
