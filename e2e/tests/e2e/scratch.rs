//! Tests of memory that clients give for objects: after a death in the middle it is not written any more.

use std::thread;

use plasmon::{ErrorKind, ObjectId, Protocol};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until};

use crate::support::{MIB, get, put};

const BIG: usize = 128 * MIB;

#[test]
fn a_holder_that_dies_while_its_object_is_got_into_memory() {
    kill_the_holder(Protocol::Auto);
}

#[test]
fn a_holder_that_dies_while_its_object_is_got_into_memory_by_messages() {
    kill_the_holder(Protocol::Send);
}

#[test]
fn a_holder_that_dies_while_its_object_is_got_into_memory_through_a_socket() {
    kill_the_holder(Protocol::Socket);
}

fn kill_the_holder(protocol: Protocol) {
    let args = ["--protocol", protocol.name()];
    let mut cluster = Cluster::builder().nodes(3).memory("320MiB").args(&args).start();
    let other = put(&cluster.client(2), Pattern(2), BIG);
    let client = cluster.client(0);
    let mut scratch = client.buffer(BIG, false, None).expect("buffer");
    let lost = put(&cluster.client(1), Pattern(1), BIG);
    let result = thread::scope(|scope| {
        let fetch = scope.spawn(|| client.get_into(lost, scratch.as_mut_slice(), Some(PATIENCE)));
        until("it is being read", || {
            (cluster.status(1).transfer.leases > 0 || fetch.is_finished()).then_some(())
        });
        cluster.kill(1);
        fetch.join().expect("no panic")
    });
    // The object may have been there before its holder was killed.
    match result {
        Ok(len) => assert_eq!(len, BIG),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
    }
    // Another object goes to the same memory at once: nothing of the first object comes there any more.
    let len = client.get_into(other, scratch.as_mut_slice(), Some(PATIENCE)).expect("get into");
    assert_eq!(len, BIG);
    Pattern(2).check(scratch.as_slice());
    eventually("no lease is left", || cluster.status(2).transfer.leases == 0);
    drop(scratch);
    eventually("its memory is free", || cluster.status(0).memory.used == 0);
}

#[test]
fn a_client_that_dies_leaves_none_of_its_memory() {
    let cluster = Cluster::builder().nodes(1).memory("64MiB").start();
    let client = cluster.client(0);
    let kept = client.buffer(MIB, false, None).expect("buffer");
    let id = ObjectId::random();
    let mut moved = client.buffer(MIB, false, None).expect("buffer");
    moved.as_mut_slice().fill(7);
    assert!(client.put_from(id, &mut moved, MIB, b"seven", &Default::default()).expect("put"));
    let other = cluster.client(0);
    drop(client);
    drop((kept, moved));
    eventually("what it kept is free", || {
        let used = cluster.status(0).memory.used;
        (MIB as u64..MIB as u64 + 8192).contains(&used)
    });
    let object = get(&other, id);
    assert_eq!((object.data().len(), object.metadata()), (MIB, &b"seven"[..]));
    assert!(object.data().iter().all(|byte| *byte == 7));
}
