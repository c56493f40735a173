//! The engine's part of the *socket* protocol, at both ends. The state is that of `Transfer`.
//! Engine thread only.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::UnboundedReceiver;
use futures::channel::oneshot;
use futures::stream::StreamExt;
use plasmon::{Error, ErrorKind, UsedProtocol};

use super::frame::{Ask, Sizes};
use super::thread::{Done, Job, Local, Request, SocketThread};
use crate::memory::OutOfBounds;
use crate::net::frame::{Envelope, Message};
use crate::object::{Head, Pin};
use crate::transfer::Transfer;
use crate::transfer::failure::Failure;
use crate::transfer::landing::Landing;
use crate::transfer::lease::{Kept, LEASE_MS, Lease, Owed};
use crate::transfer::record::Trace;

/// How long a data connection may move nothing.
const STALL_PATIENCE: Duration = Duration::from_secs(10);

impl Transfer {
    /// Makes the holder's answer to a fetch: the port to connect to, and the secret to show.
    pub(in crate::transfer) fn dial(self: &Rc<Self>, asked: &Envelope, pin: Pin, head: Head) -> Message {
        let port = match self.data_port() {
            Ok(port) => port,
            Err(error) => return Message::Refused { error },
        };
        let mut secret = [0; size_of::<u128>()];
        getrandom::fill(&mut secret).expect("the operating system gives random bytes");
        let secret = u128::from_ne_bytes(secret);
        self.records.count_served(UsedProtocol::Socket, &head);
        self.leases.grant(asked, pin, Owed::Socket(secret));
        Message::Dial { head, lease_ms: LEASE_MS, port, secret }
    }

    fn data_port(self: &Rc<Self>) -> Result<u16, Error> {
        let address: Option<IpAddr> = self.kernel.listen.parse().ok().map(|listen: SocketAddr| listen.ip());
        let address = address.filter(|address| !address.is_unspecified()).ok_or_else(|| {
            let text = format!(
                "node {} listens at {}, which does not say where its sockets can be reached: the protocol \
                 socket needs --listen with an address of its own",
                self.kernel.node, self.kernel.listen
            );
            Error::new(ErrorKind::Invalid, text)
        })?;
        self.sockets()?.port(address).map_err(|error| {
            let text = format!("node {} cannot open a data port at {address}: {error}", self.kernel.node);
            Error::new(ErrorKind::Internal, text)
        })
    }

    /// Returns the thread of sockets, which starts when it is first needed.
    fn sockets(self: &Rc<Self>) -> Result<&SocketThread, Error> {
        if let Some(thread) = self.socket.get() {
            return Ok(thread);
        }
        let waker = self.waker.clone();
        let (thread, requests) = SocketThread::start(Arc::new(move || waker.wake()), STALL_PATIENCE)
            .map_err(|error| {
                let text = format!("node {} cannot start the thread of sockets: {error}", self.kernel.node);
                Error::new(ErrorKind::Internal, text)
            })?;
        self.kernel.spawn(answer_requests(Rc::clone(self), requests));
        Ok(self.socket.get_or_init(|| thread))
    }

    /// Returns the object for a request on a data connection: that of the lease that the request names.
    fn leased(self: &Rc<Self>, ask: &Ask) -> Option<Local> {
        let leases = self.leases.granted.borrow();
        let lease = leases.get(&(ask.reader, ask.request))?;
        let (Kept::Object(pinned), Owed::Socket(secret)) = (&lease.kept, &lease.owed) else { return None };
        if pinned.id() != ask.id || *secret != ask.secret {
            return None;
        }
        let pin = Pin::new(pinned.replica())?;
        let (done, written) = Done::new(&self.socket.get()?.wake);
        let sizes = sizes(&pin.head());
        let local = Local { sizes, bytes: pin.run().io_range(), done };
        let transfer = Rc::clone(self);
        self.kernel.spawn(async move {
            let written = written.await.unwrap_or(0);
            // The pin is dropped only now, even if the lease has ended, because the socket thread
            // was reading these bytes.
            drop(pin);
            transfer.records.count(UsedProtocol::Socket, |count| count.copied_bytes += written);
            transfer.records.count_copy(written);
        });
        Some(local)
    }

    /// Connects to the holder and has it send the object, as the requester.
    pub(in crate::transfer) async fn take_dialled(
        self: &Rc<Self>,
        head: Head,
        (port, secret): (u16, u128),
        lease: Lease,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != trace.id {
            return Err(Failure::Holder("it sent another object".into()));
        }
        let address = self.cluster.address(lease.holder).ok_or_else(Failure::gone)?;
        let from = SocketAddr::new(address, port);
        let ask = Ask { id: head.id, reader: self.kernel.node, request: lease.request, secret };
        let receiving = async {
            let _slot = self.slots.take(lease.holder).await;
            self.receive(&head, from, ask, trace).await
        };
        let landing = lease.during(receiving).await?;
        let copied = landing.len();
        trace.copied(copied);
        trace.moved();
        self.records.count_copy(copied);
        self.land(head, landing, &trace.wanted).await
    }

    /// Has the thread fetch an object.
    async fn receive(
        self: &Rc<Self>,
        head: &Head,
        from: SocketAddr,
        ask: Ask,
        trace: &mut Trace,
    ) -> Result<Rc<Landing>, Failure> {
        let thread = self.sockets().map_err(Failure::Here)?;
        let landing = self.landing(head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        let (done, ended) = Done::new(&thread.wake);
        // The object is wanted for as long as this future lives.
        let wanted = Arc::new(());
        let outside = |error: OutOfBounds| Failure::Here(Error::new(ErrorKind::Internal, error.to_string()));
        let (sizes, into, arrived) = (sizes(head), landing.io_range().map_err(outside)?, trace.arrived());
        let (tail, wanted_still) = (landing.io_range_of_tail(), Arc::downgrade(&wanted));
        thread.fetch(from, Job { ask, sizes, into, tail, arrived, wanted: wanted_still, done });
        let (tell, told) = oneshot::channel();
        let owned = Rc::clone(&landing);
        self.kernel.spawn(async move {
            let ended = ended.await;
            // The memory is dropped only now, even if nobody waits any more, because the socket
            // thread was writing there.
            drop(owned);
            // A task that has given up needs no news.
            let _ = tell.send(ended);
        });
        match told.await {
            Ok(Ok(Ok(()))) => Ok(landing),
            Ok(Ok(Err(reason))) => Err(Failure::Holder(reason)),
            Ok(Err(_)) | Err(_) => Err(Failure::Holder("the thread of sockets gave it up".into())),
        }
    }
}

/// Finds objects for the socket thread, for as long as that lives.
async fn answer_requests(transfer: Rc<Transfer>, mut requests: UnboundedReceiver<Request>) {
    while let Some(Request { ask, answer }) = requests.next().await {
        // A connection that has ended needs no answer.
        let _ = answer.send(transfer.leased(&ask));
    }
}

fn sizes(head: &Head) -> Sizes {
    Sizes { data: head.data_len, metadata: head.metadata_len }
}
