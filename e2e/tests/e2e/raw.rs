//! Client protocol, frame by frame.

use std::io::{ErrorKind as IoError, Write};
use std::os::unix::net::UnixStream;

use bytes::BytesMut;
use plasmon::Error;
use plasmon::wire::{Header, Receiver, Reply, Request};
use plasmon_e2e::{Cluster, PATIENCE};

/// Connection without the client library, for frames that the library would not send.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) receiver: Receiver,
}

impl Raw {
    /// Connects and says hello, as request 0.
    pub(crate) fn connect(cluster: &Cluster, node: usize) -> Self {
        let stream = UnixStream::connect(cluster.socket(node)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut raw = Self { stream, receiver: Receiver::default() };
        raw.send(0, &hello());
        assert!(matches!(raw.next(), Some((0, Reply::Hello { .. }))), "a hello is answered by one");
        raw
    }

    pub(crate) fn send(&mut self, number: u64, request: &Request) {
        self.stream.write_all(&frame(number, request)).expect("the daemon reads");
    }

    /// Next reply with the request that it belongs to. `None` when the daemon has closed the connection.
    pub(crate) fn next(&mut self) -> Option<(u64, Reply)> {
        loop {
            let frame = Header::take_frame(&mut self.receiver.buffer).expect("the daemon's frames are whole");
            if let Some((header, body)) = frame {
                self.receiver.take_descriptors(header.descriptors.into());
                let reply = Reply::decode(&header, body).expect("the daemon's frames make sense");
                return Some((header.request, reply));
            }
            match self.receiver.receive(&self.stream) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == IoError::Interrupted => {}
                // The daemon closed the connection before it had read everything.
                Err(error) if error.kind() == IoError::ConnectionReset => return None,
                Err(error) => panic!("the daemon neither answers nor closes the connection: {error}"),
            }
        }
    }

    /// Failures that come before the connection ends. No other reply may come.
    pub(crate) fn last_words(mut self) -> Vec<(u64, Error)> {
        let mut said = Vec::new();
        while let Some((number, reply)) = self.next() {
            let Reply::Failed { error } = reply else { panic!("request {number} was answered by {reply:?}") };
            said.push((number, error));
        }
        said
    }
}

pub(crate) fn hello() -> Request {
    Request::Hello { name: "hostile".to_owned() }
}

pub(crate) fn frame(number: u64, request: &Request) -> BytesMut {
    let mut out = BytesMut::new();
    request.encode(number, &mut out);
    out
}
