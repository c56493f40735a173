//! Tests of a member that uses what is not its own: memory that it was not offered, leases of others, orders
//! for objects that it does not keep.

use plasmon::{CreateOptions, NodeId, ObjectId, Protocol};
use plasmon_e2e::{Pattern, eventually, until};

use super::frames::{Frame, Head, body, opcode};
use super::{Rogue, cluster, dropped, heard, the_others_go_on};
use crate::support::{MIB, get, try_put};

#[test]
fn a_member_reads_what_it_is_offered_and_nothing_else_and_writes_nothing() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let client = cluster.client(0);
    let id = rogue.foreign_id();
    try_put(&client, id, Pattern(1), MIB).expect("put");
    let held = get(&client, id);
    let frame = rogue.frame(&to, opcode::FETCH, body::fetch(id, Protocol::Read as u8));
    rogue.send(&to, &Frame { request: 77, ..frame });
    let numbers = |frame: &Frame, at: usize| -> u64 {
        u64::from_le_bytes(frame.body[at..at + 8].try_into().expect("eight bytes"))
    };
    let stamps = rogue.next("where the stamps are", |frame| frame.opcode == opcode::STAMPS);
    let segment = rogue.next("where the segment is", |frame| frame.opcode == opcode::SEGMENT);
    let offer = rogue.next("an offer", |frame| frame.opcode == opcode::OFFER);
    assert_eq!(offer.request, 77);
    let (base, key, len) = (numbers(&segment, 8), numbers(&segment, 16), numbers(&segment, 24));
    // Behind head, lease and the number of pieces: segment, version, offset.
    let at = numbers(&offer, 67 + 4 + 4 + 8);

    let offered = rogue.read(&to, (base, key), at, MIB as u64).expect("it was offered");
    assert_eq!(offered, Pattern(1).bytes(16));
    for (key, at, count) in [
        (!key, at, 16),
        (key ^ 1, at, 16),
        (0, 0, 16),
        (u64::MAX, 0, 16),
        (key, len, 16),
        (key, len - 8, 16),
        (key, 1 << 40, 16),
        (key, len - 4, 1 << 20),
    ] {
        assert_eq!(rogue.read(&to, (base, key), at, count), None, "key {key:#x}, {count} bytes at {at:#x}");
    }
    for (base, key, at) in [(base, key, at), (numbers(&stamps, 0), numbers(&stamps, 8), 0), (base, !key, at)]
    {
        assert!(!rogue.write(&to, (base, key), at, 64), "written with key {key:#x} at {at:#x}");
    }
    Pattern(1).check(held.data());
    Pattern(1).check(get(&cluster.client(1), id).data());
    let release = [&[1, 0, 0, 0], &body::words(&[77])[..]].concat();
    rogue.send(&to, &rogue.frame(&to, opcode::RELEASE, release));
    drop(held);
    client.delete(&[id]).expect("delete");
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn what_a_member_could_read_it_cannot_read_for_long_when_it_is_none_any_more() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let id = rogue.foreign_id();
    try_put(&holder, id, Pattern(1), MIB).expect("put");
    Pattern(1).check(get(&reader, id).data());
    let frame = rogue.frame(&to, opcode::FETCH, body::fetch(id, Protocol::Read as u8));
    rogue.send(&to, &Frame { request: 77, ..frame });
    let numbers = |frame: &Frame, at: usize| -> u64 {
        u64::from_le_bytes(frame.body[at..at + 8].try_into().expect("eight bytes"))
    };
    let segment = rogue.next("where the segment is", |frame| frame.opcode == opcode::SEGMENT);
    let offer = rogue.next("an offer", |frame| frame.opcode == opcode::OFFER);
    let (region, at) = ((numbers(&segment, 8), numbers(&segment, 16)), numbers(&offer, 67 + 4 + 4 + 8));
    assert_eq!(rogue.read(&to, region, at, MIB as u64), Some(Pattern(1).bytes(16)));

    rogue.tell("leave");
    eventually("it is no member", || cluster.status(0).cluster.members.len() == 3);
    eventually("there are new keys", || cluster.log(0).contains("have new keys"));
    // The member may connect again, and its key is valid for a while.
    until("the key is refused", || rogue.read(&to, region, at, MIB as u64).is_none().then_some(()));
    // All other members have the new key.
    reader.evict(u64::MAX).expect("evict");
    Pattern(1).check(get(&reader, id).data());
    Pattern(1).check(get(&cluster.client(2), id).data());
}

#[test]
fn what_is_not_its_own_does_not_answer_to_it() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let id = rogue.foreign_id();
    try_put(&holder, id, Pattern(1), MIB).expect("put");
    Pattern(1).check(get(&reader, id).data());
    let before = cluster.status(0);
    let dropped_before = dropped(&cluster, 0);
    let mut say = |opcode, body| rogue.send(&to, &Frame { request: 9, ..rogue.frame(&to, opcode, body) });

    // Leases, parts and notices of readiness that do not exist. No node has asked so much.
    for request in [0, 1 << 40, 1 << 41, u64::MAX - 1, u64::MAX] {
        say(opcode::RENEW, body::words(&[request]));
        say(opcode::RELEASE, [&[1, 0, 0, 0], &body::words(&[request])[..]].concat());
        say(opcode::READY, body::words(&[request]));
        say(opcode::PART, body::part(request, 0, &[1; 1000]));
    }
    // Orders for another life, or for an object that is not here.
    say(opcode::DROP, body::lives(&[(id, 1), (id, 0), (ObjectId::random(), 1)]));
    say(opcode::PROMOTE, body::heirs(&[(ObjectId::random(), 1), (id, 1)]));
    say(opcode::BURY, body::ends(&[(id, 1), (ObjectId::random(), 1)]));
    // Who is no keeper of an object has nobody guard it.
    say(opcode::GUARD, body::guard(id, &[0, 1], 7));
    say(opcode::UNPUBLISH, [&[1], &body::ids(&[id, ObjectId::random()])[..]].concat());
    say(opcode::UNPUBLISH, [&[0], &body::ids(&[id])[..]].concat());
    // Answers without a request.
    let head = Head { id, life: 3, len: 1000 };
    say(opcode::EAGER, body::eager(&head, &[1; 1000]));
    say(opcode::OFFER, body::offer(&head, 10_000, &[(0, 1, 0, 1000)], (1, 1), &[]));
    say(opcode::STREAM, body::stream(&head, 10_000));
    say(opcode::REFUSED, [&[5, 0], &[0; 6][..]].concat());
    let found = ObjectId::random();
    say(opcode::LOCATE, found.as_bytes().to_vec());

    // Each renewal is refused, each order is answered, and offers are given back.
    for _ in 0..6 {
        rogue.next("a refusal", |frame| frame.opcode == opcode::REFUSED && frame.request == 9);
    }
    for _ in 0..2 {
        rogue.next("that it is done", |frame| frame.opcode == opcode::DONE);
        rogue.next("an offer given back", |frame| frame.opcode == opcode::RELEASE);
    }
    rogue.next("an answer", |frame| frame.opcode == opcode::LOCATED);
    let mut after = cluster.status(0);
    // The reader's lease may have ended meanwhile.
    (after.objects.pinned, after.objects.pinned_bytes) = (before.objects.pinned, before.objects.pinned_bytes);
    assert_eq!(
        dropped(&cluster, 0) - dropped_before,
        10,
        "what is ready and what comes in parts is for nobody"
    );
    assert_eq!(
        (after.objects, after.memory.used, after.cluster.directory_entries),
        (before.objects, before.memory.used, before.cluster.directory_entries)
    );
    Pattern(1).check(get(&reader, id).data());
    reader.evict(u64::MAX).expect("evict");
    Pattern(1).check(get(&reader, id).data());
    Pattern(1).check(get(&cluster.client(2), id).data());
    holder.delete(&[id]).expect("delete");
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn leases_go_to_who_asked_and_are_not_replaced() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let (holder, other) = (cluster.client(0), cluster.status(1).node);
    let (first, second) = (rogue.foreign_id(), rogue.foreign_id());
    let len = 2 * MIB;
    for id in [first, second] {
        try_put(&holder, id, Pattern(1), len).expect("put");
    }
    let leases = || cluster.status(0).transfer.leases;
    let ask = |rogue: &Rogue, id| {
        let frame = rogue.frame(&to, opcode::FETCH, body::fetch(id, Protocol::Read as u8));
        Frame { request: 77, ..frame }
    };
    // In the name of another member, which has asked for nothing: it gives the offer back, and keeps nothing
    // of it.
    let reply_to: [u8; 16] = *other.parse::<NodeId>().expect("a node id").as_bytes();
    let before = cluster.status(1);
    let forged = Frame { reply_to, ..ask(&rogue, first) };
    rogue.send(&to, &forged);
    heard(&mut rogue, &to);
    eventually("it is given back", || leases() == 0);
    let after = cluster.status(1);
    assert_eq!((after.objects, after.memory.used), (before.objects, before.memory.used));

    // An object with a reader's lease stays where it is, whatever is asked in the reader's name.
    let frame = ask(&rogue, first);
    rogue.send(&to, &frame);
    rogue.next("an offer", |frame| frame.opcode == opcode::OFFER);
    let before = dropped(&cluster, 0);
    let frame = ask(&rogue, second);
    rogue.send(&to, &frame);
    heard(&mut rogue, &to);
    assert_eq!(dropped(&cluster, 0) - before, 1);
    assert_eq!((leases(), rogue.count(|frame| frame.opcode == opcode::OFFER)), (1, 0));
    holder.delete(&[first, second]).expect("delete");
    let used = || cluster.status(0).memory.used;
    assert!((len as u64..2 * len as u64).contains(&used()), "{} bytes", used());
    // The reader's lease is neither renewed nor given back in the reader's name.
    let release = [&[1, 0, 0, 0], &body::words(&[77])[..]].concat();
    let from = [9; 16];
    let stranger = Frame { from, ..rogue.frame(&to, opcode::RELEASE, release.clone()) };
    rogue.send(&to, &stranger);
    heard(&mut rogue, &to);
    assert_eq!(leases(), 1);
    rogue.send(&to, &rogue.frame(&to, opcode::RELEASE, release));
    eventually("the memory is free", || used() == 0);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn what_is_published_to_a_node_that_does_not_keep_it_any_more_does_not_stay_there() {
    let (cluster, mut rogue) = cluster();
    let heads: Vec<_> = (0..200).map(|_| Head { id: ObjectId::random(), life: 1, len: 10 }).collect();
    for node in 0..3 {
        let to = cluster.status(node).node;
        let frame = rogue.frame(&to, opcode::PUBLISH, body::publish(&heads));
        // The request comes from a member that follows an older view.
        let epoch = frame.epoch - 1;
        rogue.send(&to, &Frame { epoch, ..frame });
        let kept = heads.iter().filter(|head| rogue.keepers(&head.id).contains(&to)).count() as u64;
        assert!(kept > 50, "{kept}");
        rogue.send(&to, &rogue.frame(&to, opcode::LOCATE, heads[0].id.as_bytes().to_vec()));
        rogue.next("an answer", |frame| frame.opcode == opcode::LOCATED);
        assert_eq!(cluster.status(node).cluster.directory_entries, kept, "node {node}");
    }
}

#[test]
fn a_reader_that_takes_nothing_keeps_nothing_beyond_its_lease() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let (client, id) = (cluster.client(0), rogue.foreign_id());
    try_put(&client, id, Pattern(1), 8 * MIB).expect("put");
    rogue.tells_what_came = false;
    let ask = |rogue: &Rogue, opcode, body| Frame { request: 5, ..rogue.frame(&to, opcode, body) };
    let frame = ask(&rogue, opcode::FETCH, body::fetch(id, Protocol::Send as u8));
    rogue.send(&to, &frame);
    rogue.next("that it comes in parts", |frame| frame.opcode == opcode::STREAM);
    // The member may repeat this as often as it likes.
    for _ in 0..100 {
        let frame = ask(&rogue, opcode::READY, body::words(&[5]));
        rogue.send(&to, &frame);
    }
    let parts = rogue.count(|frame| frame.opcode == opcode::PART);
    assert!((1..32).contains(&parts), "{parts} parts, and no room for more");
    client.delete(&[id]).expect("delete");
    assert!(cluster.status(0).memory.used >= 8 * MIB as u64, "the lease keeps it");
    eventually("its lease has ended", || cluster.status(0).transfer.leases == 0);
    eventually("the memory is free", || cluster.status(0).memory.used == 0);
    // The rogue may keep the shard of an id, and would have to be asked then.
    let fresh = CreateOptions { fresh: true, ..CreateOptions::default() };
    client.put(ObjectId::random(), b"", b"", &fresh).expect("put");
}
