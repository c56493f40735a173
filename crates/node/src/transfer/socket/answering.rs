//! The holder's side of data connections. Owns no state: each connection has a task with its state.
//! Socket thread only.
//!
//! A client of the data port is a stranger until one of its requests shows the secret of a lease. A
//! stranger stands in a [`Door`], must send a request within a stall, and may be wrong a limited
//! number of times, because a lease can end while a request for it is under way. A member may be
//! silent between its requests for any time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::channel::oneshot;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use super::frame::{ASK_LEN, Answer, Ask};
use super::stream::{prepare, read_frame, write_frame, write_piece};
use super::thread::{Local, Request, Shared};
use crate::kernel::seldom::Seldom;
use crate::net::door::{DATA, Displaced, Door, Place};

/// How often a stranger may ask in vain. This is more often than a member has fetches under way.
pub(super) const MOST_VAIN_ASKS: u32 = 64;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
enum Closed {
    #[error("it sent an invalid request: {0}")]
    Garbage(String),
    #[error("it asked {MOST_VAIN_ASKS} times for objects on which it has no lease")]
    Vain,
    #[error(transparent)]
    Displaced(#[from] Displaced),
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// Accepts connections for as long as the thread lives.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    static TOLD: Seldom = Seldom::new();
    let door = Door::new(DATA);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match door.enter(peer.ip()) {
                Some(place) => drop(tokio::spawn(attend(stream, peer, place, Arc::clone(&shared)))),
                None => debug!("turned away {peer}: too many others have connected that have shown no lease"),
            },
            Err(error) => {
                // Usually too many files are open: the thread waits a little instead of spinning.
                if let Some(unsaid) = TOLD.due() {
                    warn!(unsaid, "cannot accept a data connection: {error}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(stream: TcpStream, peer: SocketAddr, place: Place, shared: Arc<Shared>) {
    match serve(&stream, place, &shared).await {
        Ok(()) => debug!("the data connection of {peer} ended"),
        Err(closed) => {
            if !matches!(closed, Closed::Broken(_) | Closed::Displaced(_)) {
                shared.garbage.fetch_add(1, Ordering::Relaxed);
            }
            debug!("closed the data connection of {peer}: {closed}");
        }
    }
}

/// Answers requests, one after the other, until the connection ends.
async fn serve(stream: &TcpStream, place: Place, shared: &Shared) -> Result<(), Closed> {
    prepare(stream)?;
    let (mut stranger, mut vain) = (Some(place), 0);
    loop {
        let mut frame = [0; ASK_LEN];
        let read = match &mut stranger {
            Some(place) => {
                place.hold(read_frame(stream, &mut frame, Some(shared.stall), shared.stall)).await?
            }
            None => read_frame(stream, &mut frame, None, shared.stall).await,
        };
        match read? {
            0 => return Ok(()),
            ASK_LEN => {}
            len => return Err(Closed::Garbage(format!("{len} bytes"))),
        }
        let ask = Ask::decode(&frame).map_err(|error| Closed::Garbage(error.to_string()))?;
        let Some(local) = local_get(ask, shared).await else {
            vain += 1;
            if stranger.is_some() && vain == MOST_VAIN_ASKS {
                return Err(Closed::Vain);
            }
            let refusal = Answer { id: ask.id, sizes: None };
            write_frame(stream, &refusal.encode(), shared.stall).await?;
            continue;
        };
        stranger = None;
        let Local { sizes, bytes, done } = local;
        let answer = Answer { id: ask.id, sizes: Some(sizes) };
        let mut at = 0;
        let mut written = write_frame(stream, &answer.encode(), shared.stall).await;
        while written.is_ok() && at < bytes.len() {
            written = write_piece(stream, &bytes, at, shared.stall).await.map(|len| at += len);
        }
        drop(bytes);
        done.tell(at as u64);
        written?;
    }
}

/// Has the engine look for the object of a request, as Plasma's manager asked its store.
async fn local_get(ask: Ask, shared: &Shared) -> Option<Local> {
    let (answer, local) = oneshot::channel();
    // An engine that has gone drops the request, before or after it arrives.
    let _ = shared.requests.unbounded_send(Request { ask, answer });
    (shared.wake)();
    local.await.ok().flatten()
}
