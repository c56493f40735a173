//! The set-up of a data connection, and one system call on it at a time. Owns no state. Socket thread only.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::memory::IoRange;

/// Maximum number of bytes that a write or a read moves, as in Plasma's buffers.
const PIECE_BYTES: usize = 4096;

/// Prepares a stream as Plasma did, with keepalive as well, so that a silent death of the peer is noticed.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Writes some of an object's bytes from `at` on, by one write(2). Returns the number of bytes written.
pub(super) async fn write_piece(
    stream: &TcpStream,
    bytes: &IoRange,
    at: usize,
    stall: Duration,
) -> io::Result<usize> {
    let len = PIECE_BYTES.min(bytes.len() - at);
    once(stream, Interest::WRITABLE, Some(stall), || bytes.write_to(at, len, stream.as_fd())).await
}

/// Reads some of an object's bytes from `at` on, by one read(2), of a socket that is reported as
/// readable. Returns the number of bytes read. Fails with `WouldBlock` when the socket was not readable.
pub(super) fn try_read_piece(stream: &TcpStream, bytes: &IoRange, at: usize) -> io::Result<usize> {
    let len = PIECE_BYTES.min(bytes.len() - at);
    stream.try_io(Interest::READABLE, || bytes.read_from(at, len, stream.as_fd()))
}

/// Reads and drops some of `len` bytes that are not kept, as [`try_read_piece`] does. Returns the
/// number of bytes read.
pub(super) fn try_skip_piece(stream: &TcpStream, len: usize) -> io::Result<usize> {
    stream.try_read(&mut [0; PIECE_BYTES][..PIECE_BYTES.min(len)])
}

/// Writes a frame as a whole, or fails after a stall.
pub(super) async fn write_frame(stream: &TcpStream, frame: &[u8], stall: Duration) -> io::Result<()> {
    let mut at = 0;
    while at < frame.len() {
        at += once(stream, Interest::WRITABLE, Some(stall), || {
            rustix::io::write(stream, &frame[at..]).map_err(io::Error::from)
        })
        .await?;
    }
    Ok(())
}

/// Reads a frame, and waits for its first byte for as long as `patience`. Returns the number of bytes
/// that came before the connection ended or stalled.
pub(super) async fn read_frame(
    stream: &TcpStream,
    frame: &mut [u8],
    mut patience: Option<Duration>,
    stall: Duration,
) -> io::Result<usize> {
    let mut at = 0;
    while at < frame.len() {
        let read = once(stream, Interest::READABLE, patience, || {
            rustix::io::read(stream, &mut frame[at..]).map_err(io::Error::from)
        });
        match read.await {
            Ok(0) => break,
            Ok(len) => at += len,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
            Err(error) => return Err(error),
        }
        patience = Some(stall);
    }
    Ok(at)
}

/// Makes a call that moves bytes, as soon as the socket is ready for it.
async fn once(
    stream: &TcpStream,
    interest: Interest,
    patience: Option<Duration>,
    mut call: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    let call = async {
        loop {
            stream.ready(interest).await?;
            match stream.try_io(interest, &mut call) {
                Err(error) if is_transient(&error) => {}
                result => return result,
            }
        }
    };
    match patience {
        Some(patience) => timeout(patience, call).await.map_err(|_| stalled(patience))?,
        None => call.await,
    }
}

/// Whether the call moved nothing and may succeed the next time.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The error for a peer that moves nothing.
pub(super) fn stalled(stall: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no byte moved for {stall:?}"))
}
