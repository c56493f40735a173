//! Tests of windows: memory of a node that a rogue may write to, and memory of the rogue's that a node is
//! told to write to.

use std::thread;
use std::time::Duration;

use plasmon::{Client, Error, ErrorKind, ObjectId, Protocol};
use plasmon_e2e::{Cluster, Pattern};

use super::frames::{Frame, Head, body, opcode};
use super::{Rogue, cluster, heard, the_others_go_on};
use crate::support::{try_get, try_put};

/// Length in bytes of an object that comes to a window.
const LEN: u64 = 100_000;
/// Length in bytes of a slot of a window.
const SLOT: u64 = 64 << 10;

fn word(frame: &Frame, at: usize) -> u64 {
    u64::from_le_bytes(frame.body[at..at + 8].try_into().expect("eight bytes"))
}

/// Gets an object of the rogue's, which answers the fetch as `answer` does.
fn get_from<T>(
    rogue: &mut Rogue,
    client: Client,
    len: u64,
    get: impl Fn(&Client, ObjectId) -> T + Send + 'static,
    answer: impl FnOnce(&mut Rogue, &Frame, &Head),
) -> (T, Head)
where
    T: Send + 'static,
{
    let head = Head { id: rogue.foreign_id(), life: 5, len };
    rogue.publish(&head);
    let id = head.id;
    let getting = thread::spawn(move || get(&client, id));
    let asked = rogue.asked_for(id);
    answer(rogue, &asked, &head);
    (getting.join().expect("no panic"), head)
}

fn impatient_get(client: &Client, id: ObjectId) -> Result<plasmon::Object, Error> {
    client.get(&[id], Some(Duration::from_secs(1))).expect("get").remove(0)
}

/// Has node 0 read an object from the rogue, after which it tells the rogue of its window.
fn read_one(cluster: &Cluster, rogue: &mut Rogue) {
    let (object, head) = get_from(rogue, cluster.client(0), LEN, try_get, |rogue, asked, head| {
        let to = super::hex(&asked.reply_to);
        let body = body::segment(&rogue.provider, 0, 1, rogue.region);
        rogue.send(&to, &rogue.frame(&to, opcode::SEGMENT, body));
        let body = body::offer(head, 10_000, &[(0, 1, 0, head.len)], (0, 0), &[]);
        rogue.reply(asked, opcode::OFFER, body);
    });
    assert!(object.expect("it is offered").data() == &Pattern(7).bytes(LEN as usize)[..]);
    let client = cluster.client(0);
    rogue.letting_go(|| client.delete(&[head.id]).expect("delete"));
}

#[test]
fn what_a_holder_writes_to_a_window_is_had_whole_and_right_or_not_at_all() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    read_one(&cluster, &mut rogue);
    let told = rogue.next("a window", |frame| frame.opcode == opcode::WINDOW);
    let (window, region) = (word(&told, 0), (word(&told, 8), word(&told, 16)));
    assert_eq!(word(&told, 24), 32 * SLOT);

    // The rogue writes zeros.
    for first in [0, 30] {
        let at = (u64::from(first) + 2) * SLOT - LEN;
        let mut request = 0;
        let (object, head) = get_from(&mut rogue, cluster.client(0), LEN, try_get, |rogue, asked, head| {
            assert!(rogue.write(&to, region, at, LEN), "the window is open to it");
            rogue.reply(asked, opcode::PUSHED, body::pushed(head, window, first, 0));
            request = asked.request;
        });
        assert!(object.expect("it was pushed").data() == &vec![0; LEN as usize][..]);
        let release = [&[1, 0, 0, 0], &body::words(&[request])[..]].concat();
        rogue.next("its release", |frame| frame.opcode == opcode::RELEASE && frame.body == release);
        let client = cluster.client(0);
        rogue.letting_go(|| client.delete(&[head.id]).expect("delete"));
    }
    for (key, at) in [(!region.1, 0), (region.1, 32 * SLOT - 8)] {
        assert!(!rogue.write(&to, (region.0, key), at, 16), "written by key {key:#x} at {at}");
    }

    let honest = |rogue: &mut Rogue, first: u64, len: u64| {
        assert!(rogue.write(&to, region, (first + len.div_ceil(SLOT)) * SLOT - len, len));
    };
    type Lie<'a> = &'a dyn Fn(&mut Rogue, &Frame, &Head);
    // The last of them spoils the window.
    let lies: [(&str, u64, Lie<'_>); 5] = [
        ("to another window", LEN, &|rogue, asked, head| {
            rogue.reply(asked, opcode::PUSHED, body::pushed(head, window + 1, 0, 0));
        }),
        ("another object", LEN, &|rogue, asked, head| {
            honest(rogue, 4, head.len);
            let other = Head { id: ObjectId::random(), ..head.clone() };
            rogue.reply(asked, opcode::PUSHED, body::pushed(&other, window, 4, 0));
        }),
        ("where no slot is", LEN, &|rogue, asked, head| {
            rogue.reply(asked, opcode::PUSHED, body::pushed(head, window, u32::MAX, 0));
        }),
        ("more than there is room for", 300_000, &|rogue, asked, head| {
            rogue.reply(asked, opcode::PUSHED, body::pushed(head, window, 0, 0));
        }),
        ("when nobody waits, and then again", LEN, &|rogue, asked, head| {
            honest(rogue, 8, head.len);
            let nobody = Frame { request: asked.request + 1_000_000, ..asked.clone() };
            rogue.reply(&nobody, opcode::PUSHED, body::pushed(head, window, 8, 0));
            rogue.next("a release", |frame| frame.opcode == opcode::RELEASE);
            rogue.reply(asked, opcode::PUSHED, body::pushed(head, window, 8, 0));
        }),
    ];
    for (what, len, lie) in lies {
        let (result, head) = get_from(&mut rogue, cluster.client(0), len, impatient_get, lie);
        let error = result.expect_err(what);
        assert!([ErrorKind::TimedOut, ErrorKind::Lost].contains(&error.kind()), "{what}: {error}");
        for keeper in rogue.keepers(&head.id) {
            let body = [&[1], &body::ids(&[head.id])[..]].concat();
            rogue.send(&keeper, &rogue.frame(&keeper, opcode::UNPUBLISH, body));
        }
    }
    // Objects still come by reads.
    read_one(&cluster, &mut rogue);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn a_window_that_is_none_costs_its_owner_the_pushes() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let (client, id) = (cluster.client(0), rogue.foreign_id());
    try_put(&client, id, Pattern(1), LEN as usize).expect("put");
    let provider = rogue.provider.clone();
    let window = |number: u64, key: u64, len: u64| body::stamps(&provider, &[number, 0, key, len]);
    for (number, len) in [(1, 0), (2, 1 << 40), (3, 32 * SLOT)] {
        rogue.send(&to, &rogue.frame(&to, opcode::WINDOW, window(number, 12_345, len)));
    }
    rogue.send(&to, &rogue.frame(&to, opcode::SHUT, body::words(&[9])));
    heard(&mut rogue, &to);
    // The write to the third is refused, which breaks the connection and spoils the window.
    for request in 100.. {
        let frame = rogue.frame(&to, opcode::FETCH, body::fetch_pushed(id));
        rogue.send(&to, &Frame { request, ..frame });
        rogue.listen(Duration::from_millis(200));
        let mut frames = rogue.frames.iter();
        if frames.any(|frame| frame.opcode == opcode::SHUT && word(frame, 0) == 3) {
            break;
        }
    }
    let request = 99;
    let frame = rogue.frame(&to, opcode::FETCH, body::fetch(id, Protocol::Read as u8));
    rogue.send(&to, &Frame { request, ..frame });
    rogue.next("an offer", |frame| frame.opcode == opcode::OFFER && frame.request == request);
    rogue.letting_go(|| client.delete(&[id]).expect("delete"));
    let all: Vec<u64> = (99..1000).collect();
    for requests in all.chunks(256) {
        let release = [&(requests.len() as u32).to_le_bytes()[..], &body::words(requests)].concat();
        rogue.send(&to, &rogue.frame(&to, opcode::RELEASE, release));
    }
    the_others_go_on(&cluster, &mut rogue);
}
