//! Handles: the numbers by which clients name the regions that they have. Engine thread only.
//!
//! Invariants: a number means something on one connection alone, and is not used again there. A client that
//! may map a region has a word in its slots that says whether it still may. Its handle holds the memory of
//! the region, even after that was freed, so the client never sees another region's bytes there.

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::region::{RegionState, Rights};
use plasmon::shared::MAPPED_MAX;
use plasmon::{Error, ErrorKind, ObjectId};

use super::home::{Held, Region};
use super::mapping::Mapping;
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::sessions::slots::Slots;

/// Maximum number of handles of a client.
const MAX_HANDLES: usize = 1 << 20;

/// A region, wherever it lives: the id of its name, and its life.
pub(super) type Life = (ObjectId, u64);

/// A region as a handle has it.
#[derive(Clone)]
pub(crate) enum At {
    /// The region lives on this node.
    Here(Rc<Region>),
    /// The region lives on another node.
    There(Rc<Mapping>),
}

impl At {
    /// The region, wherever it lives.
    pub(super) fn life(&self) -> Life {
        match self {
            Self::Here(region) => (region.id(), region.life()),
            Self::There(mapping) => (mapping.id, mapping.desk.life),
        }
    }

    /// The name of the region.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Here(region) => region.name(),
            Self::There(mapping) => &mapping.name,
        }
    }

    /// The user to whom the region belongs.
    pub(super) fn owner(&self) -> u32 {
        match self {
            Self::Here(region) => region.owner(),
            Self::There(mapping) => mapping.owner,
        }
    }

    /// Number of changes of the region's rights, as far as this node has heard.
    pub(super) fn changes(&self) -> u16 {
        match self {
            Self::Here(region) => region.changes(),
            Self::There(mapping) => mapping.changes.get(),
        }
    }

    /// Whether the region has to be looked for: it is not here any more, or not at the home of the mapping.
    pub(super) fn is_stale(&self) -> bool {
        match self {
            Self::Here(region) => region.is_gone(),
            Self::There(mapping) => mapping.is_stale(),
        }
    }

    /// Whether the region was freed, as far as this node has heard.
    pub(super) fn is_freed(&self) -> bool {
        match self {
            Self::Here(region) => region.is_gone() && !region.has_moved(),
            Self::There(mapping) => mapping.state.get() == RegionState::Freed,
        }
    }
}

/// A client's handle.
struct Handle {
    at: At,
    /// The rights that the client asked for.
    rights: Rights,
    /// The word that lets the client touch the region, if it may map it.
    word: Option<u32>,
    /// Keeps the memory of a region that the client may map.
    _held: Option<Held>,
}

/// The handles of one client.
#[derive(Default)]
struct Own {
    handles: HashMap<u32, Handle>,
    last: u32,
    /// The words that were used before and are free.
    free_words: Vec<u32>,
    /// Number of words that were ever used.
    words: u32,
    /// The regions that end with the client.
    ephemeral: Vec<At>,
}

impl Own {
    /// Takes a word; `None` if the client has as many as there are.
    fn take_word(&mut self) -> Option<u32> {
        self.free_words.pop().or_else(|| {
            let word = Some(self.words).filter(|word| *word < MAPPED_MAX)?;
            self.words += 1;
            Some(word)
        })
    }
}

/// The handles of all clients.
#[derive(Default)]
pub(super) struct Handles(RefCell<HashMap<ClientKey, Own>>);

impl Handles {
    /// Makes a handle; returns its number, and the word of a region that the client may map. There is none
    /// without slots, or if all words are taken: then the client makes calls instead.
    ///
    /// # Errors
    /// `Busy` when the client has too many.
    pub(super) fn open(
        &self,
        client: ClientKey,
        (at, rights): (At, Rights),
        slots: Option<&Slots>,
    ) -> Result<(u32, Option<u32>), Error> {
        let mut clients = self.0.borrow_mut();
        let own = clients.entry(client).or_default();
        if own.handles.len() >= MAX_HANDLES || own.last == u32::MAX {
            let text = format!(
                "this client has {MAX_HANDLES} regions mapped, or had 2^32: unmap some, or connect again"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        own.last += 1;
        let held = match &at {
            At::Here(region) if slots.is_some() => Some(region.hold()),
            _ => None,
        };
        let word = slots.and_then(|slots| {
            let word = own.take_word()?;
            slots.pages.let_touch(word, true);
            Some(word)
        });
        own.handles.insert(own.last, Handle { at, rights, word, _held: held });
        Ok((own.last, word))
    }

    /// The region of a handle, with the rights of the handle.
    ///
    /// # Errors
    /// `Invalid` when the client has no such handle.
    pub(super) fn get(&self, client: ClientKey, number: u32) -> Result<(At, Rights), Error> {
        let clients = self.0.borrow();
        let handle = clients.get(&client).and_then(|own| own.handles.get(&number));
        handle.map(|handle| (handle.at.clone(), handle.rights)).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("this client has no region under handle {number}: map it first"),
            )
        })
    }

    /// All handles of a client, with their regions.
    pub(super) fn of(&self, client: ClientKey) -> Vec<(u32, At)> {
        let clients = self.0.borrow();
        let handles = clients.get(&client).into_iter().flat_map(|own| &own.handles);
        handles.map(|(number, handle)| (*number, handle.at.clone())).collect()
    }

    /// Ends a handle; returns its region.
    pub(super) fn close(&self, client: ClientKey, number: u32, slots: Option<&Slots>) -> Option<At> {
        let mut clients = self.0.borrow_mut();
        let own = clients.get_mut(&client)?;
        let closed = own.handles.remove(&number);
        if let (Some(word), Some(slots)) = (closed.as_ref().and_then(|handle| handle.word), slots) {
            slots.pages.let_touch(word, false);
            own.free_words.push(word);
        }
        closed.map(|handle| handle.at)
    }

    /// Has clients touch a region no more, or any region if none is named: they make calls from then on. Or
    /// lets them touch it again.
    pub(super) fn let_touch(
        &self,
        region: Option<&Rc<Region>>,
        live: bool,
        slots: impl Fn(ClientKey) -> Option<Rc<Slots>>,
    ) {
        let is_meant = |at: &At| match (at, region) {
            (At::Here(one), Some(region)) => Rc::ptr_eq(one, region),
            _ => region.is_none(),
        };
        for (client, own) in &*self.0.borrow() {
            let words: Vec<_> = own
                .handles
                .values()
                .filter(|handle| is_meant(&handle.at))
                .filter_map(|handle| handle.word)
                .collect();
            if let Some(slots) = Some(words.is_empty()).filter(|none| !none).and_then(|_| slots(*client)) {
                words.iter().for_each(|word| slots.pages.let_touch(*word, live));
            }
        }
    }

    /// Notes that a region ends with a client.
    pub(super) fn end_with(&self, client: ClientKey, at: At) {
        self.0.borrow_mut().entry(client).or_default().ephemeral.push(at);
    }

    /// Whether a thread of a client touches a region of this node.
    pub(super) fn is_touched(
        &self,
        region: &Rc<Region>,
        slots: impl Fn(ClientKey) -> Option<Rc<Slots>>,
    ) -> bool {
        let is_of = |handle: &&Handle| matches!(&handle.at, At::Here(one) if Rc::ptr_eq(one, region));
        self.0.borrow().iter().any(|(client, own)| {
            let mut words = own.handles.values().filter(is_of).filter_map(|handle| handle.word).peekable();
            let slots = words.peek().and_then(|_| slots(*client));
            slots.is_some_and(|slots| words.any(|word| slots.pages.is_touched(word)))
        })
    }

    /// The client that has a view of a region of this node, if there is one.
    pub(super) fn viewer(
        &self,
        region: &Rc<Region>,
        slots: impl Fn(ClientKey) -> Option<Rc<Slots>>,
    ) -> Option<ClientKey> {
        let is_of = |handle: &&Handle| matches!(&handle.at, At::Here(one) if Rc::ptr_eq(one, region));
        let clients = self.0.borrow();
        let views = |(client, own): &(&ClientKey, &Own)| {
            let mut words = own.handles.values().filter(is_of).filter_map(|handle| handle.word).peekable();
            let slots = words.peek().and_then(|_| slots(**client));
            slots.is_some_and(|slots| words.any(|word| slots.pages.is_viewed(word)))
        };
        clients.iter().find(views).map(|(client, _)| *client)
    }

    /// Enters where the region of a handle is now; returns whether there is the handle. The client makes
    /// calls from then on.
    pub(super) fn replace(&self, client: ClientKey, number: u32, at: At) -> bool {
        let mut clients = self.0.borrow_mut();
        let handle = clients.get_mut(&client).and_then(|own| own.handles.get_mut(&number));
        let former = handle.map(|handle| std::mem::replace(&mut handle.at, at));
        drop(clients);
        // A mapping that is dropped tells its home.
        former.is_some()
    }

    /// Ends all handles of a client; returns the regions that end with it.
    pub(super) fn close_all(&self, client: ClientKey) -> Vec<At> {
        let own = self.0.borrow_mut().remove(&client);
        own.map(|own| own.ephemeral).unwrap_or_default()
    }

    /// Number of all handles.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().values().map(|own| own.handles.len()).sum()
    }

    /// Number of handles to a region of this node.
    pub(super) fn count_of(&self, region: &Rc<Region>) -> usize {
        let is_of = |handle: &&Handle| matches!(&handle.at, At::Here(one) if Rc::ptr_eq(one, region));
        self.0.borrow().values().flat_map(|own| own.handles.values()).filter(is_of).count()
    }
}
