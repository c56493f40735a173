//! Handles: the numbers by which clients name their regions. Owns [`Handles`]. Engine thread only.
//!
//! Invariants: a number means something on one connection alone, and is not used again there. A client that
//! may map a region has a word in its slots that says whether it still may. Its handle holds the memory of
//! the region, even after that was freed, so the client never sees another region's bytes there. A handle to
//! a region that has moved away holds nothing, and its word stays as it is: nobody had a view when the region
//! left, and nobody is let in any more, even if the region comes back to other memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use plasmon::region::{RegionState, Rights};
use plasmon::shared::MAPPED_MAX;
use plasmon::{Error, ErrorKind, ObjectId};

use super::frames::Desk;
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
            Self::There(mapping) => (mapping.id, mapping.desk().life),
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

    /// Whether the region has to be looked for, because it is not here, or not at the home of the mapping,
    /// any more.
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

/// A client's handle, with the rights that the client asked for.
enum Handle {
    Here(Rights, Rc<Region>),
    There(Rights, Rc<Mapping>),
}

/// A node may have a million handles. A handle to a region of another node takes this size in the table of
/// its client, beside its number.
const _: () = assert!(size_of::<Handle>() <= 16);

impl Handle {
    fn new(at: At, rights: Rights) -> Self {
        match at {
            At::Here(region) => Self::Here(rights, region),
            At::There(mapping) => Self::There(rights, mapping),
        }
    }

    fn at(&self) -> At {
        match self {
            Self::Here(_, region) => At::Here(Rc::clone(region)),
            Self::There(_, mapping) => At::There(Rc::clone(mapping)),
        }
    }

    fn rights(&self) -> Rights {
        match self {
            Self::Here(rights, _) | Self::There(rights, _) => *rights,
        }
    }
}

/// Word of a region that the client may map, and the hold on the memory of the region.
struct Mapped {
    word: u32,
    /// Keeps the memory of the region until the region moves away.
    held: Option<Held>,
}

/// The handles of one client.
#[derive(Default)]
struct Own {
    handles: HashMap<u32, Handle>,
    /// Grants for the regions that the client may map, by handle.
    mapped: HashMap<u32, Mapped>,
    last: u32,
    /// Words that were used before and are free now.
    free_words: Vec<u32>,
    /// Number of words that were ever used.
    words: u32,
    /// The regions that end with the client.
    ephemeral: Vec<At>,
}

impl Own {
    /// Takes a word. `None` if the client uses all the words that there are.
    fn take_word(&mut self) -> Option<u32> {
        self.free_words.pop().or_else(|| {
            let word = Some(self.words).filter(|word| *word < MAPPED_MAX)?;
            self.words += 1;
            Some(word)
        })
    }
}

/// A handle to a region of this node, sorted by the region.
type OfRegion = (Desk, ClientKey, u32);

/// The handles of all clients.
#[derive(Default)]
struct All {
    clients: HashMap<ClientKey, Own>,
    /// Handles to regions of this node, so that a call for one region need not look at all handles.
    here: BTreeSet<OfRegion>,
}

impl All {
    /// The handles to a region of this node.
    fn of_region(&self, region: &Region) -> impl Iterator<Item = (ClientKey, u32)> + use<'_> {
        let desk = Desk::of(region);
        let handles = self.here.range((desk, ClientKey::MIN, 0)..=(desk, ClientKey::MAX, u32::MAX));
        handles.map(|(_, client, number)| (*client, *number))
    }

    /// Returns the clients that may have a region of this node mapped, with their words for the region.
    fn words_of(&self, region: &Region) -> impl Iterator<Item = (ClientKey, u32)> + use<'_> {
        self.of_region(region).filter_map(|(client, number)| {
            let mapped = self.clients.get(&client)?.mapped.get(&number)?;
            mapped.held.is_some().then_some((client, mapped.word))
        })
    }

    fn note(&mut self, client: ClientKey, number: u32, at: &At) {
        if let At::Here(region) = at {
            self.here.insert((Desk::of(region), client, number));
        }
    }

    fn forget(&mut self, client: ClientKey, number: u32, at: &At) {
        if let At::Here(region) = at {
            self.here.remove(&(Desk::of(region), client, number));
        }
    }
}

/// The handles of all clients.
#[derive(Default)]
pub(super) struct Handles(RefCell<All>);

impl Handles {
    /// Makes a handle. Returns its number, and the word of a region that the client may map. There is no word
    /// if the client has no slots, or uses all words: the client makes calls then. The word does not yet let
    /// the client touch a region that stands still, or that this node withholds.
    ///
    /// # Errors
    /// `Busy` when the client has too many handles.
    pub(super) fn open(
        &self,
        client: ClientKey,
        (at, rights): (At, Rights),
        slots: Option<&Slots>,
    ) -> Result<(u32, Option<u32>), Error> {
        let mut all = self.0.borrow_mut();
        let own = all.clients.entry(client).or_default();
        if own.handles.len() >= MAX_HANDLES || own.last == u32::MAX {
            let text = format!(
                "this client has {MAX_HANDLES} regions mapped, or had 2^32: unmap some, or connect again"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        own.last += 1;
        let number = own.last;
        let mapped = match (&at, slots) {
            (At::Here(region), Some(slots)) => own.take_word().map(|word| {
                let live = !region.is_frozen() && region.ensure_there().is_ok();
                slots.pages.let_touch(word, live);
                Mapped { word, held: region.hold() }
            }),
            _ => None,
        };
        let word = mapped.as_ref().map(|mapped| mapped.word);
        own.mapped.extend(mapped.map(|mapped| (number, mapped)));
        own.handles.insert(number, Handle::new(at.clone(), rights));
        all.note(client, number, &at);
        Ok((number, word))
    }

    /// Returns the region of a handle, with the rights of the handle.
    ///
    /// # Errors
    /// `Invalid` when the client has no such handle.
    pub(super) fn get(&self, client: ClientKey, number: u32) -> Result<(At, Rights), Error> {
        let all = self.0.borrow();
        let handle = all.clients.get(&client).and_then(|own| own.handles.get(&number));
        handle.map(|handle| (handle.at(), handle.rights())).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("this client has no region under handle {number}: map it first"),
            )
        })
    }

    /// Returns all handles of a client, with their regions.
    pub(super) fn of(&self, client: ClientKey) -> Vec<(u32, At)> {
        let all = self.0.borrow();
        let handles = all.clients.get(&client).into_iter().flat_map(|own| &own.handles);
        handles.map(|(number, handle)| (*number, handle.at())).collect()
    }

    /// Ends a handle. Returns its region.
    pub(super) fn close(&self, client: ClientKey, number: u32, slots: Option<&Slots>) -> Option<At> {
        let mut all = self.0.borrow_mut();
        let own = all.clients.get_mut(&client)?;
        let closed = own.handles.remove(&number)?.at();
        let mapped = own.mapped.remove(&number);
        if let (Some(mapped), Some(slots)) = (&mapped, slots) {
            slots.pages.let_touch(mapped.word, false);
            own.free_words.push(mapped.word);
        }
        all.forget(client, number, &closed);
        drop((all, mapped));
        Some(closed)
    }

    /// Stops clients from touching a region of this node, so that they make calls, or lets them touch it
    /// again if `live`.
    pub(super) fn let_touch(
        &self,
        region: &Region,
        live: bool,
        slots: impl Fn(ClientKey) -> Option<Rc<Slots>>,
    ) {
        for (client, word) in self.0.borrow().words_of(region) {
            if let Some(slots) = slots(client) {
                slots.pages.let_touch(word, live);
            }
        }
    }

    /// Stops clients from touching any region.
    pub(super) fn forbid_all(&self, slots: impl Fn(ClientKey) -> Option<Rc<Slots>>) {
        for (client, own) in &self.0.borrow().clients {
            let Some(slots) = slots(*client) else { continue };
            own.mapped.values().for_each(|mapped| slots.pages.let_touch(mapped.word, false));
        }
    }

    /// Lets go of the memory of a region that has moved away. No client may touch the region or have a view
    /// of it any more.
    pub(super) fn let_go(&self, region: &Region) {
        let mut all = self.0.borrow_mut();
        let handles: Vec<_> = all.of_region(region).collect();
        let mut held = Vec::new();
        for (client, number) in handles {
            let mapped = all.clients.get_mut(&client).and_then(|own| own.mapped.get_mut(&number));
            held.extend(mapped.and_then(|mapped| mapped.held.take()));
        }
        drop(all);
    }

    /// Notes that a region ends with a client.
    pub(super) fn end_with(&self, client: ClientKey, at: At) {
        self.0.borrow_mut().clients.entry(client).or_default().ephemeral.push(at);
    }

    /// Whether a thread of a client touches a region of this node.
    pub(super) fn is_touched(&self, region: &Region, slots: impl Fn(ClientKey) -> Option<Rc<Slots>>) -> bool {
        let all = self.0.borrow();
        let is_touched = |(client, word)| slots(client).is_some_and(|slots| slots.pages.is_touched(word));
        all.words_of(region).any(is_touched)
    }

    /// Returns a client that has a view of a region of this node, if there is one.
    pub(super) fn viewer(
        &self,
        region: &Region,
        slots: impl Fn(ClientKey) -> Option<Rc<Slots>>,
    ) -> Option<ClientKey> {
        let all = self.0.borrow();
        let has_view =
            |(client, word): &(_, _)| slots(*client).is_some_and(|slots| slots.pages.is_viewed(*word));
        all.words_of(region).find(has_view).map(|(client, _)| client)
    }

    /// Enters in a handle where its region is now. Returns whether there is the handle. The client makes
    /// calls from then on.
    pub(super) fn replace(&self, client: ClientKey, number: u32, at: At) -> bool {
        let mut all = self.0.borrow_mut();
        let Some(own) = all.clients.get_mut(&client) else { return false };
        let Some(handle) = own.handles.get_mut(&number) else { return false };
        let former = handle.at();
        *handle = Handle::new(at.clone(), handle.rights());
        let held = own.mapped.get_mut(&number).and_then(|mapped| mapped.held.take());
        all.forget(client, number, &former);
        all.note(client, number, &at);
        drop(all);
        // Dropping a mapping tells its home.
        drop((held, former));
        true
    }

    /// Ends all handles of a client. Returns the regions that end with the client.
    pub(super) fn close_all(&self, client: ClientKey) -> Vec<At> {
        let mut all = self.0.borrow_mut();
        let Some(own) = all.clients.remove(&client) else { return Vec::new() };
        own.handles.iter().for_each(|(number, handle)| all.forget(client, *number, &handle.at()));
        drop(all);
        own.ephemeral
    }

    /// Number of all handles.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().clients.values().map(|own| own.handles.len()).sum()
    }

    /// Number of handles to a region of this node.
    pub(super) fn count_of(&self, region: &Region) -> usize {
        self.0.borrow().of_region(region).count()
    }
}
