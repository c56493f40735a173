//! The classes of clients' work: which client may have which class, and that the engine works in it. Owns no
//! state. Engine thread only.

use plasmon::{Class, Error, ErrorKind};

use super::Sessions;
use crate::kernel::{ClientKey, class};

impl Sessions {
    /// Sets the class of a client's work from now on.
    ///
    /// # Errors
    /// `NotAllowed` when the client's user may not have the class.
    pub(super) fn classify(&self, key: ClientKey, class: Class) -> Result<(), Error> {
        let user = self.client(key, |client| client.uid);
        self.ensure_class(user, class)?;
        self.client_mut(key, |client| client.class = class);
        Ok(())
    }

    fn ensure_class(&self, user: u32, class: Class) -> Result<(), Error> {
        if self.kernel.config.classes.allow(user, class) {
            return Ok(());
        }
        let text = format!(
            "user {user} may not have work of class {class} on this node: its setting --classes says who may \
             have which, and normal is everybody's"
        );
        Err(Error::new(ErrorKind::NotAllowed, text))
    }

    /// Does work that a client asks for, in the class that the request names, or else in the client's.
    ///
    /// # Errors
    /// `NotAllowed` when the client's user may not have the class.
    pub(super) fn work<T>(
        &self,
        key: ClientKey,
        wanted: Option<Class>,
        work: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let (user, own) = self.client(key, |client| (client.uid, client.class));
        if let Some(class) = wanted {
            self.ensure_class(user, class)?;
        }
        let class = wanted.unwrap_or(own);
        self.store.network.qos.begun(class);
        Ok(class::within(class, work))
    }

    /// Does work that a client asks for, in the client's class.
    pub(super) fn work_as<T>(&self, key: ClientKey, work: impl FnOnce() -> T) -> T {
        let class = self.client(key, |client| client.class);
        self.store.network.qos.begun(class);
        class::within(class, work)
    }
}
