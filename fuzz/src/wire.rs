//! Frames of the socket: several in a row, as they come.

use bytes::BytesMut;
use plasmon::ObjectId;
use plasmon::wire::{Gathering, Header, MAX_IDS, Reply, Request, Table};

/// Reads whatever a client may send.
pub(crate) fn requests(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    let mut gathering = Gathering::default();
    while let Ok(Some((header, body))) = Header::take_frame(&mut buffer) {
        match gathering.take(&header, body) {
            Ok(Some(request)) => {
                let mut again = BytesMut::new();
                request.encode(header.request, &mut again);
                assert_eq!(gathered(again), request);
            }
            Ok(None) => {}
            // The end of the connection.
            Err(_) => return,
        }
    }
}

/// The request that these frames are.
fn gathered(mut frames: BytesMut) -> Request {
    let mut gathering = Gathering::default();
    loop {
        let (header, body) = Header::take_frame(&mut frames).expect("our own frame").expect("a whole one");
        if let Some(request) = gathering.take(&header, body).expect("our own request") {
            assert!(frames.is_empty(), "{} bytes behind it", frames.len());
            return request;
        }
    }
}

/// Reads whatever a daemon may answer.
pub(crate) fn replies(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some((header, body))) = Header::take_frame(&mut buffer) {
        if let Ok(reply) = Reply::decode(&header, body) {
            let mut again = BytesMut::new();
            reply.encode(header.request, &mut again);
            let (header, body) = Header::take_frame(&mut again).expect("our own frame").expect("a whole one");
            assert_eq!(Reply::decode(&header, body), Ok(reply));
        }
    }
}

/// Number of seeds of each row of a protocol's table.
const OF_EACH: usize = 4;

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let mut requests = Request::draw_all(OF_EACH, 1);
    // In two frames.
    requests.push(Request::Wait {
        timeout_us: 0,
        count: 1,
        ids: vec![ObjectId::from_bytes([7; 20]); MAX_IDS + 1],
    });
    encoded(requests, Request::encode)
}

pub(crate) fn reply_seeds() -> Vec<Vec<u8>> {
    encoded(Reply::draw_all(OF_EACH, 2), Reply::encode)
}

fn encoded<T>(messages: Vec<T>, encode: fn(&T, u64, &mut BytesMut)) -> Vec<Vec<u8>> {
    let frames = messages.iter().map(|message| {
        let mut out = BytesMut::new();
        encode(message, 5, &mut out);
        out.to_vec()
    });
    frames.collect()
}
