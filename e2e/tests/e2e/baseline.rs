//! Tests of the protocol *socket* apart from its transfers: its port, the bytes that it accepts, and its
//! time-outs. Module `death` has more.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind as IoError, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use plasmon::{Error, ErrorKind, Object, ObjectId, Protocol};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until};

use crate::support::{MIB, descriptors, get, kind, put};

/// Size in bytes of a request and of an answer on a data connection.
const ASK_BYTES: usize = 64;
const ANSWER_BYTES: usize = 40;

fn cluster(nodes: usize, memory: &str) -> Cluster {
    let args = ["--protocol", Protocol::Socket.name()];
    Cluster::builder().nodes(nodes).memory(memory).args(&args).start()
}

fn fetched(cluster: &Cluster, node: usize) -> u64 {
    cluster.status(node).transfer.protocols.get("socket").map_or(0, |count| count.fetched)
}

/// TCP ports at which a node listens.
fn ports(cluster: &Cluster, node: usize) -> HashSet<u16> {
    let process = format!("/proc/{}", cluster.daemon(node).pid());
    let descriptors = fs::read_dir(format!("{process}/fd")).expect("the daemon runs").flatten();
    let open: HashSet<_> = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let table = fs::read_to_string(format!("{process}/net/tcp")).expect("the daemon runs");
    let listening = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let ours = open.contains(format!("socket:[{}]", fields[9]).as_ref() as &std::path::Path);
        let (_, port) = fields[1].split_once(':').expect("an address has a port");
        (fields[3] == "0A" && ours).then(|| u16::from_str_radix(port, 16).expect("a port is hexadecimal"))
    });
    listening.collect()
}

/// Data port of node 0, which is open from the first fetch on.
fn data_port(cluster: &Cluster) -> u16 {
    let before = [0, 1].map(|node| ports(cluster, node));
    Pattern(0).check(get(&cluster.client(1), put(&cluster.client(0), Pattern(0), 10)).data());
    let after = [0, 1].map(|node| ports(cluster, node));
    assert_eq!(before[1], after[1], "who only reads needs no port");
    let new: Vec<_> = after[0].difference(&before[0]).copied().collect();
    assert_eq!(new.len(), 1, "{before:?} {after:?}");
    new[0]
}

/// Reads everything that a connection sends until it ends.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) if error.kind() == IoError::ConnectionReset => {}
        Err(error) => panic!("the connection stayed open: {error}"),
    }
    said
}

#[test]
fn garbage_on_the_data_port_is_closed_and_counted() {
    let cluster = cluster(2, "64MiB");
    let port = data_port(&cluster);
    let dropped = || cluster.status(0).transfer.frames_dropped;
    let before = dropped();
    let mut attempts = vec![
        vec![1],
        vec![0; ASK_BYTES],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\nHost: plasmon\r\n\r\n".to_vec(),
        u32::MAX.to_le_bytes().repeat(4),
    ];
    attempts.extend((0..10).map(|seed| Pattern(seed).bytes(100_000)));
    let open: Vec<_> = (0..50).map(|_| cluster.connect_to(0, port)).collect();
    for bytes in &attempts {
        let mut stream = cluster.connect_to(0, port);
        // The node may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let said = rest(&mut stream);
        assert!(said.is_empty(), "an answer to {:?}...: {said:?}", &bytes[..bytes.len().min(16)]);
    }
    eventually("all of it is counted", || dropped() == before + attempts.len() as u64);

    // A request as it should be, by someone who does not know the secret.
    let id = put(&cluster.client(0), Pattern(1), 1000);
    let node = cluster.status(1).node;
    let node = (0..16).map(|at| u8::from_str_radix(&node[2 * at..2 * at + 2], 16).expect("hexadecimal"));
    let asks = (0..30u64).flat_map(|request| {
        let rest = [&request.to_le_bytes()[..], &[0; 16]].concat();
        [&[1, 1, 0, 0], &id.as_bytes()[..], &node.clone().collect::<Vec<_>>(), &rest].concat()
    });
    let asks: Vec<u8> = asks.collect();
    assert_eq!(asks.len(), 30 * ASK_BYTES);
    let mut stream = cluster.connect_to(0, port);
    stream.write_all(&asks).expect("the node reads");
    stream.shutdown(Shutdown::Write).expect("it is connected");
    let refusal = [&[1, 3, 0, 0], &id.as_bytes()[..], &[0; 16]].concat();
    assert_eq!(refusal.len(), ANSWER_BYTES);
    assert_eq!(rest(&mut stream), refusal.repeat(30));

    Pattern(1).check(get(&cluster.client(1), id).data());
    drop(open);
}

#[test]
fn strangers_on_the_data_port_are_few() {
    const SILENT: usize = 400;
    const MOST: usize = 200;
    let cluster = cluster(3, "64MiB");
    let port = data_port(&cluster);
    let before = descriptors(&cluster, 0);
    let silent: Vec<_> = (0..SILENT).map(|_| cluster.connect_to(0, port)).collect();
    // Another node comes through behind them.
    Pattern(1).check(get(&cluster.client(2), put(&cluster.client(0), Pattern(1), 1000)).data());
    let open = descriptors(&cluster, 0) - before;
    assert!(open < MOST, "{SILENT} strangers took {open} descriptors");
    drop(silent);
}

#[test]
fn a_hundred_objects_come_at_the_same_time() {
    const OBJECTS: u64 = 100;
    let cluster = cluster(3, "192MiB");
    let len = |number: u64| (number * number * 131 % 900_000) as usize;
    let segment = cluster.status(0).memory.segment_size as usize;
    let holders = [cluster.client(0), cluster.client(1)];
    let mut wanted: Vec<_> = (0..OBJECTS)
        .map(|number| (number, put(&holders[number as usize % 2], Pattern(number), len(number)), len(number)))
        .collect();
    // Two more objects lie in several segments each.
    wanted.extend((0..2).map(|number| {
        let len = 2 * segment + 5;
        (number, put(&holders[number as usize], Pattern(number), len), len)
    }));
    thread::scope(|scope| {
        for part in wanted.chunks(26) {
            let client = cluster.client(2);
            scope.spawn(move || {
                let ids: Vec<_> = part.iter().map(|(_, id, _)| *id).collect();
                let objects = client.get(&ids, Some(PATIENCE)).expect("get");
                for ((number, _, len), object) in part.iter().zip(objects) {
                    let object = object.expect("every object arrives");
                    assert_eq!(object.data().len(), *len);
                    Pattern(*number).check(object.data());
                }
            });
        }
    });
    assert_eq!(fetched(&cluster, 2), wanted.len() as u64);
    assert_eq!(cluster.status(2).transfer.fetch_failures, 0);
    for node in 0..2 {
        eventually("no lease is left", || cluster.status(node).transfer.leases == 0);
    }
}

/// Begins to get a large object of node 0 on node 1, and stops one of the two in the middle.
fn stopped(
    cluster: &Cluster,
    stop: usize,
    patience: Duration,
) -> (ObjectId, thread::JoinHandle<Result<Object, Error>>) {
    const BIG: usize = 256 * MIB;
    for _ in 0..20 {
        let (id, before) = (put(&cluster.client(0), Pattern(1), BIG), fetched(cluster, 1));
        let client = cluster.client(1);
        let getting = thread::spawn(move || client.get(&[id], Some(patience))?.remove(0));
        until("it is coming, or is here", || {
            let begun = cluster.status(1).memory.used >= BIG as u64;
            (begun && cluster.status(0).transfer.leases > 0 || getting.is_finished()).then_some(())
        });
        cluster.pause(stop);
        let other = 1 - stop;
        // Far more often than it takes to empty the sockets' buffers.
        let stands = (0..200).all(|_| match other {
            1 => fetched(cluster, 1) == before,
            _ => cluster.status(0).transfer.leases > 0,
        });
        if stands && !getting.is_finished() {
            return (id, getting);
        }
        cluster.resume(stop);
        drop(getting.join().expect("no panic"));
        cluster.client(0).delete(&[id]).expect("delete");
        for node in 0..2 {
            eventually("its memory is free", || cluster.status(node).memory.used < BIG as u64);
        }
    }
    panic!("no fetch could be stopped in its middle");
}

#[test]
fn a_get_that_gives_up_lets_go_of_the_memory() {
    let cluster = cluster(2, "320MiB");
    let (id, getting) = stopped(&cluster, 0, Duration::from_secs(3));
    assert!(matches!(kind(getting.join().expect("no panic")), ErrorKind::TimedOut | ErrorKind::Lost));
    cluster.resume(0);
    eventually("its memory is free", || cluster.status(1).memory.used < MIB as u64);
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
    eventually("the node is a member again", || cluster.status(0).cluster.members.len() == 2);
    Pattern(1).check(get(&cluster.client(1), id).data());
}

#[test]
fn a_reader_that_dies_in_the_middle_frees_the_holders_memory() {
    let mut cluster = cluster(2, "320MiB");
    let (id, getting) = stopped(&cluster, 1, PATIENCE);
    cluster.kill(1);
    assert_eq!(kind(getting.join().expect("no panic")), ErrorKind::Disconnected);
    cluster.client(0).delete(&[id]).expect("delete");
    eventually("its memory is free", || cluster.status(0).memory.used == 0);
}
