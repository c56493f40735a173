//! Tests of invalid bytes: they close the connection on which they came, and disturb no other client.

use std::io::{ErrorKind as IoError, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use bytes::BytesMut;
use plasmon::ObjectId;
use plasmon::wire::{HEADER_LEN, Header, MAX_BODY_BYTES, Reply, Request, Row, Table, VERSION};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use crate::support::{MIB, get, put, try_put};

/// Header of a frame with the fields that matter here.
fn header(version: u8, opcode: u8, body_len: u32, descriptors: u16) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes[0] = version;
    bytes[1] = opcode;
    bytes[4..8].copy_from_slice(&body_len.to_le_bytes());
    bytes[8] = 7;
    bytes[18..20].copy_from_slice(&descriptors.to_le_bytes());
    bytes
}

fn hello() -> Vec<u8> {
    let mut out = BytesMut::new();
    Request::Hello { name: "e2e".to_owned() }.encode(1, &mut out);
    out.to_vec()
}

/// Sends bytes to the daemon's socket and returns the replies until it closed the connection.
fn answer(cluster: &Cluster, bytes: &[u8]) -> Vec<Reply> {
    let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
    // The daemon may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) if error.kind() == IoError::ConnectionReset => {}
        Err(error) => panic!("the daemon did not close the connection: {error}"),
    }
    let mut said = BytesMut::from(&said[..]);
    let mut replies = Vec::new();
    while let Some((header, body)) = Header::take_frame(&mut said).expect("the daemon's frames are whole") {
        replies.push(Reply::decode(&header, body).expect("the daemon's frames make sense"));
    }
    replies
}

/// Message of the last reply, which must be a failure.
fn complaint(replies: Vec<Reply>) -> String {
    match replies.last() {
        Some(Reply::Failed { error, .. }) => error.message().to_owned(),
        other => panic!("the connection closed with {other:?} instead of an error"),
    }
}

/// Runs `attack` while another client has a pin and a waiting get, which must both survive.
fn undisturbed(attack: impl FnOnce(&Cluster)) {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let held = get(&client, put(&client, Pattern(1), MIB));
    let (id, waiter) = (ObjectId::random(), cluster.client(0));
    let waiting = thread::spawn(move || Pattern(2).check(get(&waiter, id).data()));
    eventually("the get waits", || cluster.status(0).transfer.fetching == 1);

    attack(&cluster);

    assert!(!waiting.is_finished(), "the waiting get ended");
    try_put(&cluster.client(1), id, Pattern(2), 20_000).expect("put");
    waiting.join().expect("the waiting get succeeds");
    Pattern(1).check(held.data());
    let status = cluster.status(0);
    assert_eq!(status.cluster.members.len(), 2);
    assert_eq!(status.objects.unsealed, 0);
}

#[test]
fn clients_that_send_garbage_are_told_and_closed() {
    undisturbed(|cluster| {
        let said = complaint(answer(cluster, &header(VERSION + 1, 1, 0, 0)));
        assert!(said.contains("version"), "{said}");

        let said = complaint(answer(cluster, &header(VERSION, 1, MAX_BODY_BYTES as u32 + 1, 0)));
        assert!(said.contains(&(MAX_BODY_BYTES + 1).to_string()), "{said}");

        let said = complaint(answer(cluster, &[hello(), header(VERSION, 200, 0, 0)].concat()));
        assert!(said.contains("opcode 200"), "{said}");

        for Row { opcode, .. } in Request::ROWS {
            // A body that is not one of its kind: too short for all of them.
            let bytes = [hello(), header(VERSION, *opcode, 1, 0), vec![0xff]].concat();
            complaint(answer(cluster, &bytes));
        }
        // Descriptors are announced and none come.
        complaint(answer(cluster, &[hello(), header(VERSION, 11, 0, 3)].concat()));
        for seed in 0..20 {
            complaint(answer(cluster, &Pattern(seed).bytes(100_000)));
            complaint(answer(cluster, &[hello(), Pattern(seed).bytes(100_000)].concat()));
        }
    });
}

#[test]
fn a_request_before_hello_is_refused() {
    undisturbed(|cluster| {
        let mut out = BytesMut::new();
        Request::Delete { ids: vec![ObjectId::random()] }.encode(3, &mut out);
        complaint(answer(cluster, &out));
    });
}

#[test]
fn half_a_frame_disturbs_nobody() {
    undisturbed(|cluster| {
        let frames = [hello(), header(VERSION, 2, 1000, 0), vec![1; 500]].concat();
        let mut open = Vec::new();
        for len in [0, 1, HEADER_LEN - 1, HEADER_LEN, frames.len()] {
            let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
            stream.write_all(&frames[..len]).expect("the daemon reads");
            stream.shutdown(Shutdown::Write).expect("it is connected");
            open.push(stream);
        }
        for mut stream in open {
            stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
            stream.read_to_end(&mut Vec::new()).expect("the daemon closes what ended in the middle");
        }
    });
}

#[test]
fn garbage_on_the_control_port_is_closed() {
    undisturbed(|cluster| {
        let mut attempts = vec![
            vec![0xff; 64],
            vec![0; 4096],
            b"GET / HTTP/1.1\r\nHost: plasmon\r\n\r\n".to_vec(),
            u32::MAX.to_le_bytes().repeat(4),
        ];
        attempts.extend((0..10).map(|seed| Pattern(seed).bytes(100_000)));
        for bytes in attempts {
            for node in 0..2 {
                let mut stream = cluster.connect(node);
                // The node may close the connection before it has read everything.
                let _ = stream.write_all(&bytes);
                let _ = stream.shutdown(Shutdown::Write);
                match stream.read_to_end(&mut Vec::new()) {
                    Ok(_) => {}
                    Err(error) if error.kind() == IoError::ConnectionReset => {}
                    Err(error) => {
                        panic!("node {node} kept a connection open that sent {:?}...: {error}", &bytes[..16])
                    }
                }
            }
        }
    });
}

#[test]
fn a_client_that_never_reads_disturbs_nobody() {
    undisturbed(|cluster| {
        let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
        stream.set_nonblocking(true).expect("it is connected");
        let mut requests = BytesMut::from(&hello()[..]);
        (2..1000).for_each(|number| Request::Status.encode(number, &mut requests));
        // The client asks as much as the daemon takes, and never reads the answers.
        let taken = (0..100_000).map(|_| stream.write(&requests)).take_while(Result::is_ok).count();
        assert!(taken < 100_000, "the daemon took questions without end");
        // A new client gets its answers all the same.
        Pattern(3).check(get(&cluster.client(0), put(&cluster.client(0), Pattern(3), MIB)).data());
    });
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let silent: Vec<_> = (0..50).map(|_| cluster.connect(0)).collect();
    let clients = (0..50).map(|_| UnixStream::connect(cluster.socket(0)).expect("the daemon listens"));
    let clients: Vec<_> = clients.collect();
    let late = cluster.add_node();
    let id = put(&cluster.client(0), Pattern(1), MIB);
    Pattern(1).check(get(&cluster.client(late), id).data());
    drop((silent, clients));
}
