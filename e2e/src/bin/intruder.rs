//! A program that gets an object like any client and then tries to change it.
//!
//! `plasmon-e2e-intruder SOCKET ID` prints the number of descriptors that it was given, and a line for each
//! change that it could make with them and that a reader should not be able to make.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;

use bytes::BytesMut;
use plasmon::ObjectId;
use plasmon::wire::{Header, Receiver, Reply, Request, Span};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [socket, id] = &words[..] else { return Err("usage: SOCKET ID".into()) };
    let mut daemon = Daemon { socket: UnixStream::connect(socket)?, receiver: Receiver::default() };

    let Reply::Hello { segment_size, .. } = daemon.ask(Request::Hello { name: "intruder".to_owned() })?.0
    else {
        return Err("no hello".into());
    };
    let ids: Vec<ObjectId> = vec![id.parse()?];
    let (Reply::Got { objects, .. }, descriptors) =
        daemon.ask(Request::Get { timeout_us: 10_000_000, verify: false, ids })?
    else {
        return Err("no object".into());
    };
    let span = objects.into_iter().next().ok_or("no result")??;

    println!("descriptors {}", descriptors.len());
    for descriptor in descriptors {
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let given = File::from(descriptor);
        try_change("given", &given, &span, segment_size);
        if given.set_permissions(PermissionsExt::from_mode(0o666)).is_ok() {
            println!("given: made writable");
        }
        for (how, options) in
            [("read-write", OpenOptions::new().read(true)), ("write", &mut OpenOptions::new())]
        {
            if let Ok(again) = options.write(true).open(&path) {
                println!("reopened {how}");
                try_change("reopened", &again, &span, segment_size);
            }
        }
    }
    Ok(())
}

/// Tries to write into the object and to change the size of its segment. Prints each success.
fn try_change(which: &str, segment: &File, span: &Span, segment_size: u64) {
    if segment.write_at(&[0xee; 16], span.offset % segment_size).is_ok() {
        println!("{which}: written");
    }
    for size in [0, 2 * segment_size] {
        if segment.set_len(size).is_ok() {
            println!("{which}: sized {size}");
        }
    }
}

/// Connection to the daemon without the client library, which would keep the descriptors to itself.
struct Daemon {
    socket: UnixStream,
    receiver: Receiver,
}

impl Daemon {
    fn ask(&mut self, request: Request) -> Result<(Reply, Vec<OwnedFd>), Box<dyn Error>> {
        let mut out = BytesMut::new();
        request.encode(1, &mut out);
        self.socket.write_all(&out)?;
        loop {
            if let Some((header, body)) = Header::take_frame(&mut self.receiver.buffer)? {
                let descriptors = self.receiver.take_descriptors(header.descriptors.into());
                return match Reply::decode(&header, body)? {
                    Reply::Failed { error, .. } => Err(error.into()),
                    reply => Ok((reply, descriptors)),
                };
            }
            if self.receiver.receive(&self.socket)? == 0 {
                return Err("the daemon closed the connection".into());
            }
        }
    }
}
