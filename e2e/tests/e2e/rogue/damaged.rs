//! Test of a rogue that gives wrong bytes of an object which another node holds as well.

use std::thread;
use std::time::Duration;

use bytes::BufMut;
use plasmon::{Client, CreateOptions, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use super::frames::{Frame, body, opcode};
use super::{Rogue, hex, the_others_go_on};
use crate::support::try_get;

/// Length in bytes of the description of an object without a name.
const HEAD_BYTES: usize = 68;
/// Place of the object's life in its description.
const LIFE: std::ops::Range<usize> = 20..28;
/// Number of objects until one of which the rogue has to be asked first.
const TRIES: u64 = 200;

/// Answer to a fetch by which the rogue gives other bytes of an object of this description.
type Answer = fn(&mut Rogue, &Frame, &[u8]);

/// Length in bytes of the object that is described.
fn len_of(head: &[u8]) -> u64 {
    u64::from_le_bytes(head[LIFE.end + 5..LIFE.end + 13].try_into().expect("eight bytes"))
}

/// Wrong bytes in one message.
fn in_a_message(rogue: &mut Rogue, asked: &Frame, head: &[u8]) {
    let len = len_of(head) as usize;
    let mut body = head.to_vec();
    body.put_u32_le(len as u32);
    body.extend(vec![1; len]);
    rogue.reply(asked, opcode::EAGER, body);
}

/// Wrong bytes to be read: those of the region that the rogue opens to all.
fn to_be_read(rogue: &mut Rogue, asked: &Frame, head: &[u8]) {
    let to = hex(&asked.reply_to);
    let body = body::segment(&rogue.provider, 0, 1, rogue.region);
    rogue.send(&to, &rogue.frame(&to, opcode::SEGMENT, body));
    let mut body = head.to_vec();
    body.put_u32_le(10_000);
    body.put_u32_le(1);
    body.put_u32_le(0);
    body.put_u32_le(1);
    body.put_u64_le(0);
    body.put_u64_le(len_of(head));
    // The offer has neither a stamp nor other holders.
    body.put_u8(0);
    body.put_u32_le(0);
    rogue.reply(asked, opcode::OFFER, body);
}

/// Description of an object as its holder gives it, by a request of the rogue's of this number.
fn head_of(rogue: &mut Rogue, holder: &str, id: ObjectId, request: u64) -> Vec<u8> {
    let frame = rogue.frame(holder, opcode::FETCH, body::fetch(id, 0));
    rogue.send(holder, &Frame { request, ..frame });
    let gives =
        |frame: &Frame| frame.request == request && [opcode::EAGER, opcode::OFFER].contains(&frame.opcode);
    let answer = rogue.next("the object", gives);
    let release = [&[1, 0, 0, 0], &body::words(&[request])[..]].concat();
    rogue.send(holder, &rogue.frame(holder, opcode::RELEASE, release));
    answer.body[..HEAD_BYTES].to_vec()
}

/// Tells the keepers of an object that the rogue has a cached replica of it.
fn publish(rogue: &mut Rogue, id: ObjectId, head: &[u8]) {
    let (user, rights) = (&head[LIFE.end..LIFE.end + 4], head[LIFE.end + 4]);
    let mut body = vec![1, 0, 0, 0];
    body.extend(id.as_bytes());
    body.extend([1, 0, 0]);
    body.extend(&head[LIFE]);
    body.push(rights);
    body.extend(user);
    body.push(0);
    for keeper in rogue.keepers(&id) {
        rogue.send(&keeper, &rogue.frame(&keeper, opcode::PUBLISH, body.clone()));
    }
}

/// Has a client get an object, and the rogue answer those who ask it. Returns the object's bytes, and how
/// often the rogue was asked.
fn get_beside(
    rogue: &mut Rogue,
    client: Client,
    head: &[u8],
    id: ObjectId,
    answer: Answer,
) -> (Vec<u8>, u64) {
    let getting = thread::spawn(move || try_get(&client, id).map(|object| object.data().to_vec()));
    let mut given = 0;
    while !getting.is_finished() {
        rogue.listen(Duration::from_millis(5));
        let asks = |frame: &Frame| frame.opcode == opcode::FETCH && frame.body.starts_with(id.as_bytes());
        while let Some(at) = rogue.frames.iter().position(asks) {
            let asked = rogue.frames.remove(at).expect("it is there");
            answer(rogue, &asked, head);
            given += 1;
        }
    }
    (getting.join().expect("no panic").expect("another holder has the right bytes"), given)
}

#[test]
fn wrong_bytes_of_a_rogue_are_noticed_and_the_right_ones_come_from_another_holder() {
    let cluster = Cluster::builder().nodes(3).args(&["--verify", "sealed"]).start();
    let mut rogue = Rogue::join(&cluster, 2);
    let (holder, reader, to) = (cluster.client(1), cluster.client(0), cluster.status(1).node);
    let options = CreateOptions { digest: true, ..CreateOptions::default() };
    let ways: [(&str, usize, Answer); 2] =
        [("in a message", 5_000, in_a_message), ("to be read", 300_000, to_be_read)];
    let mut request = 1000;
    for (way, len, answer) in ways {
        let (mut given, mut tries) = (0, 0);
        // Whom a keeper sends to is its own affair.
        while given == 0 {
            assert!(tries < TRIES, "the rogue was not asked for what was to come {way}");
            (tries, request) = (tries + 1, request + 1);
            let (id, pattern) = (rogue.foreign_id(), Pattern(request));
            holder.put(id, &pattern.bytes(len), b"", &options).expect("put");
            let head = head_of(&mut rogue, &to, id, request);
            publish(&mut rogue, id, &head);
            eventually("both are known as holders", || holder.locations(id).expect("locations").len() == 2);
            let before = cluster.status(0).transfer;
            let (data, asked) = get_beside(&mut rogue, reader.clone(), &head, id, answer);
            assert!(data == pattern.bytes(len), "{way}");
            let after = cluster.status(0).transfer;
            assert!((after.damaged > before.damaged) == (asked > 0), "{way}: {after:?}");
            assert!(after.compared > before.compared, "{way}: {after:?}");
            given += asked;
            rogue.letting_go(|| holder.delete(&[id]).expect("delete"));
        }
    }
    let (log, id) = (cluster.log(0), rogue.id());
    let said: Vec<_> = log.lines().filter(|line| line.contains("a damaged object came")).collect();
    assert!(said.len() >= 2 && said.iter().all(|line| line.contains(&id)), "{said:?}");
    the_others_go_on(&cluster, &mut rogue);
}
