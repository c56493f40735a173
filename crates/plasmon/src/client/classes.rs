//! Classes of clients: a connection whose work is of another class than normal.
//!
//! Owns no state. Any thread.

use super::Client;
use super::connection::Undo;
use crate::wire::requests;
use crate::{Class, Result};

impl Client {
    /// Returns a client on a connection of its own whose work is of this class: its gets and puts, its
    /// operations on regions and its calls of services, unless an operation has a class of its own
    /// ([`Class::during`]).
    ///
    /// # Errors
    /// `NotAllowed` if the node does not give this class to this user; the node's setting `--classes` says
    /// which users have which class. Otherwise as [`Client::connect`].
    pub fn with_class(&self, class: Class) -> Result<Self> {
        let own = class.during(|| Self::connect(self.connection.at().clone()))?;
        let (interrupt, patience, verifies) = (self.interrupt.clone(), self.patience, self.verifies);
        Ok(Self { interrupt, patience, verifies, ..own })
    }
}

/// Gives a new connection the class that this thread has chosen, if any.
pub(super) fn classified(client: Client) -> Result<Client> {
    if let Some(class) = Class::chosen() {
        let asked = requests::Options { name: None, quota: None, class: Some(class) };
        client.ask(asked, Undo::Nothing)?;
    }
    Ok(client)
}
