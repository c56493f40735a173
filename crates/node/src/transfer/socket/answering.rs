//! The holder's side of data connections. Socket thread only.
//!
//! Whoever connects is a stranger until a request of his shows the secret of a lease. A stranger must speak within a
//! stall and may be wrong a few times, since a lease can end while a request for it is under way; a member may be
//! silent for as long as it likes between its requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::channel::oneshot;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use super::frame::{ASK_LEN, Answer, Ask};
use super::service::{Local, Request, Shared};
use super::stream::{prepare, read_frame, write_frame, write_piece};

/// How often a stranger may ask in vain. More than a member has fetches under way.
pub(super) const VAIN: u32 = 64;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
enum Closed {
    #[error("it said something else than a request: {0}")]
    Garbage(String),
    #[error("it asked {VAIN} times for what it has no lease on")]
    Vain,
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// Takes connections for as long as the thread lives.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                tokio::spawn(attend(stream, peer, Arc::clone(&shared)));
            }
            Err(error) => {
                // Too many open files, mostly: waits a little rather than spin.
                warn!("cannot accept a data connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    match serve(&stream, &shared).await {
        Ok(()) => debug!("the data connection of {peer} ended"),
        Err(closed) => {
            if !matches!(closed, Closed::Broken(_)) {
                shared.garbage.fetch_add(1, Ordering::Relaxed);
            }
            debug!("closed the data connection of {peer}: {closed}");
        }
    }
}

/// Answers requests, one after the other, until the connection ends.
async fn serve(stream: &TcpStream, shared: &Shared) -> Result<(), Closed> {
    prepare(stream)?;
    let (mut member, mut vain) = (false, 0);
    loop {
        let patience = (!member).then_some(shared.stall);
        let mut frame = [0; ASK_LEN];
        match read_frame(stream, &mut frame, patience, shared.stall).await? {
            0 => return Ok(()),
            ASK_LEN => {}
            len => return Err(Closed::Garbage(format!("{len} bytes"))),
        }
        let ask = Ask::decode(&frame).map_err(|error| Closed::Garbage(error.to_string()))?;
        let Some(local) = local_get(ask, shared).await else {
            vain += 1;
            if !member && vain == VAIN {
                return Err(Closed::Vain);
            }
            let refusal = Answer { id: ask.id, sizes: None };
            write_frame(stream, &refusal.encode(), shared.stall).await?;
            continue;
        };
        member = true;
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

/// Has the engine look for the object, as Plasma's manager asked its store.
async fn local_get(ask: Ask, shared: &Shared) -> Option<Local> {
    let (answer, local) = oneshot::channel();
    // An engine that has gone drops the request, here or there.
    let _ = shared.requests.unbounded_send(Request { ask, answer });
    (shared.wake)();
    local.await.ok().flatten()
}
