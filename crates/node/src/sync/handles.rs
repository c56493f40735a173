//! The numbers by which clients name locks. Owns [`Handles`]. Engine thread only.
//!
//! Invariant: a number names a lock on its own connection alone, and is not used again.

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::{Error, ErrorKind};

use super::tickets::{MAX_TICKETS, Named};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;

/// The handles of one client.
#[derive(Default)]
struct Numbered {
    open: HashMap<u32, Rc<Named>>,
    last: u32,
}

/// The handles of all clients.
#[derive(Default)]
pub(super) struct Handles(RefCell<HashMap<ClientKey, Numbered>>);

impl Handles {
    /// Makes a handle.
    ///
    /// # Errors
    /// `Full` if the client has too many.
    pub(super) fn open(&self, client: ClientKey, named: Named) -> Result<u32, Error> {
        let mut clients = self.0.borrow_mut();
        let handles = clients.entry(client).or_default();
        if handles.open.len() >= MAX_TICKETS || handles.last == u32::MAX {
            let text = format!("this client has {MAX_TICKETS} handles to locks already: let it close some");
            return Err(Error::new(ErrorKind::Full, text));
        }
        handles.last += 1;
        handles.open.insert(handles.last, Rc::new(named));
        Ok(handles.last)
    }

    /// Returns the lock of a handle.
    ///
    /// # Errors
    /// `NotFound` if the client has no such handle.
    pub(super) fn get(&self, client: ClientKey, handle: u32) -> Result<Rc<Named>, Error> {
        let clients = self.0.borrow();
        let named = clients.get(&client).and_then(|handles| handles.open.get(&handle));
        named.cloned().ok_or_else(|| {
            let text = format!("this connection has no handle {handle} to a lock: open the lock again");
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Ends a handle, if there is one of this number.
    pub(super) fn close(&self, client: ClientKey, handle: u32) {
        if let Some(handles) = self.0.borrow_mut().get_mut(&client) {
            handles.open.remove(&handle);
        }
    }

    pub(super) fn close_all(&self, client: ClientKey) {
        self.0.borrow_mut().remove(&client);
    }
}
