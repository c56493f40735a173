//! Descriptors of this node's memory that clients get. Owns no state. Engine thread only.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use plasmon::wire::{Access, Granted, Reply, TablePart};
use plasmon::{Error, ErrorKind};

use crate::kernel::ClientKey;
use crate::memory;
use crate::service::Outcome;
use crate::sessions::Sessions;

impl Sessions {
    /// Returns the descriptors of those segments that the client does not have yet.
    pub(crate) fn grant(
        &self,
        client: ClientKey,
        segments: &[u32],
        access: Access,
    ) -> Result<(Vec<Granted>, Vec<Arc<OwnedFd>>), Error> {
        let mut arena = self.store.arena.borrow_mut();
        let (mut granted, mut descriptors) = (Vec::new(), Vec::new());
        for &segment in segments {
            let version = arena.version(segment);
            let has = self.client(client, |client| client.granted.get(&(segment, access)) == Some(&version));
            if has {
                continue;
            }
            let wanted = match access {
                Access::Read => memory::Access::Read,
                Access::Write => memory::Access::Write,
            };
            let descriptor =
                arena.descriptor(segment, wanted).map_err(|error| cannot_share(error.to_string()))?;
            granted.push(Granted { segment, version, access });
            descriptors.push(descriptor);
        }
        self.client_mut(client, |client| {
            client.granted.extend(granted.iter().map(|one| ((one.segment, access), one.version)));
        });
        Ok((granted, descriptors))
    }

    /// Whether a client has the descriptors to write to these segments.
    pub(crate) fn may_write(&self, client: ClientKey, segments: &[u32]) -> bool {
        let arena = self.store.arena.borrow();
        self.client(client, |client| {
            let version = |segment| client.granted.get(&(segment, Access::Write)).copied();
            segments.iter().all(|segment| version(*segment) == Some(arena.version(*segment)))
        })
    }

    /// Makes a client its page set, and shares the object tables with it.
    pub(super) fn open_channel(self: &Rc<Self>, client: ClientKey) -> Outcome {
        let (pages, bell) = self.make_channel(client)?;
        let (parts, mut descriptors) = self.new_parts(client)?;
        descriptors.splice(0..0, [pages.into(), bell]);
        Ok((Reply::Channel { parts }, descriptors))
    }

    /// Shares the new parts of the object tables.
    pub(super) fn share_tables(&self, client: ClientKey) -> Outcome {
        let (parts, descriptors) = self.new_parts(client)?;
        Ok((Reply::Tables { parts }, descriptors))
    }

    /// The parts of the tables that a client does not have yet.
    fn new_parts(&self, client: ClientKey) -> Result<(Vec<TablePart>, Vec<Arc<OwnedFd>>), Error> {
        let uid = self.client(client, |client| client.uid);
        let mut objects = self.store.objects.borrow_mut();
        let has = |part: &TablePart| self.client(client, |client| client.parts.contains(part));
        let grants = objects.shared.grants(uid, has).map_err(|error| cannot_share(error.to_string()))?;
        let (parts, descriptors): (Vec<_>, _) = grants.into_iter().unzip();
        self.client_mut(client, |client| client.parts.extend(parts.iter().copied()));
        Ok((parts, descriptors))
    }
}

pub(crate) fn cannot_share(why: String) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot share memory: {why}"))
}
