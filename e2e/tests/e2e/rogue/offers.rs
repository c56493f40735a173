//! Tests of a holder's offers, true and false: an object is received whole and right, or not at all.

use std::thread;
use std::time::Duration;

use plasmon::{Client, Error, ErrorKind, ObjectId};
use plasmon_e2e::Pattern;

use super::frames::{Frame, Head, body, opcode};
use super::{Rogue, cluster, the_others_go_on};
use crate::support::{MIB, try_get};

/// Bytes of the objects that the rogue has.
const PATTERN: Pattern = Pattern(7);

type Answer = Box<dyn Fn(&mut Rogue, &Frame, &Head)>;
/// Function that returns the pieces of an object, given its length and the rogue's own region.
type Pieces = fn(u64) -> Vec<(u32, u32, u64, u64)>;
type Regions = fn(u64, (u64, u64, u64)) -> Vec<(u64, u64, u64)>;

type Lie = (&'static str, u64, Answer);

/// False answers of a holder to a fetch.
fn lies() -> Vec<Lie> {
    let kinds = [lies_in_messages(), lies_of_pieces(), lies_of_regions(), lies_in_parts(), other_lies()];
    kinds.into_iter().flatten().collect()
}

/// Answer that offers these pieces.
fn offer(lease: u32, pieces: Pieces, stamp: (u32, u64)) -> Answer {
    Box::new(move |rogue, asked, head| {
        let body = body::offer(head, lease, &pieces(head.len), stamp, &[]);
        rogue.reply(asked, opcode::OFFER, body);
    })
}

/// Answer that names these registered regions.
fn registered(regions: Regions) -> Answer {
    Box::new(move |rogue, asked, head| {
        let body = body::registered(head, 10_000, &regions(head.len, rogue.region));
        rogue.reply(asked, opcode::REGISTERED, body);
    })
}

/// Answer that streams these parts, each with its offset and its length.
fn parts(parts: fn(u64) -> Vec<(u64, usize)>) -> Answer {
    Box::new(move |rogue, asked, head| {
        rogue.reply(asked, opcode::STREAM, body::stream(head, 10_000));
        let request = asked.request;
        let lease = body::words(&[request]);
        rogue.next("it is ready", |frame| frame.opcode == opcode::READY && frame.body == lease);
        for (at, len) in parts(head.len) {
            rogue.say(asked, opcode::PART, body::part(request, at, &vec![1; len]));
        }
    })
}

/// Answer that is this frame, whatever was asked for.
fn answer(opcode: u8, body: &'static [u8]) -> Answer {
    Box::new(move |rogue, asked, _| rogue.reply(asked, opcode, body.to_vec()))
}

/// Answer that has `len` bytes of an object in it.
fn eager(other: fn(&Head) -> Head, len: usize) -> Answer {
    Box::new(move |rogue, asked, head| {
        rogue.reply(asked, opcode::EAGER, body::eager(&other(head), &vec![1; len]));
    })
}

/// Answer with `last` bytes in it, behind messages with these offsets and lengths.
fn messages(parts: fn(u64) -> Vec<(u64, usize)>, last: usize) -> Answer {
    Box::new(move |rogue, asked, head| {
        for (at, len) in parts(head.len) {
            rogue.say(asked, opcode::PART, body::part(asked.request, at, &vec![1; len]));
        }
        rogue.reply(asked, opcode::EAGER, body::eager(head, &vec![1; last]));
    })
}

/// Lies about an object that comes inside messages.
fn lies_in_messages() -> Vec<Lie> {
    vec![
        ("messages out of order", 20_000, messages(|_| vec![(8000, 8000), (0, 8000)], 4000)),
        ("a message twice", 20_000, messages(|_| vec![(0, 8000), (0, 8000)], 4000)),
        ("messages with a gap", 20_000, messages(|_| vec![(0, 4000), (8000, 8000)], 12_000)),
        ("too few messages", 20_000, messages(|_| vec![(0, 8000)], 11_999)),
        ("messages beyond the end", 20_000, messages(|_| vec![(0, 15_000), (15_000, 15_000)], 15_000)),
        ("messages beyond all", 20_000, messages(|_| vec![(u64::MAX, 8000)], 12_000)),
        ("messages of nothing", 20_000, messages(|_| vec![(0, 0); 100], 15_000)),
        (
            "more messages than it was told to send",
            300_000,
            messages(|len| (0..len).step_by(15_000).map(|at| (at, 15_000)).collect(), 0),
        ),
        ("fewer bytes than it says", 100, eager(Head::clone, 99)),
        ("more bytes than it says", 100, eager(Head::clone, 101)),
        ("more than there can be", 100, eager(|head| Head { len: 1 << 62, ..head.clone() }, 100)),
        ("another object", 100, eager(|head| Head { id: ObjectId::random(), ..head.clone() }, 100)),
    ]
}

/// Lies about the pieces of an object that is to be read.
fn lies_of_pieces() -> Vec<Lie> {
    vec![
        ("no pieces", 1000, offer(10_000, |_| Vec::new(), (0, 0))),
        ("too short a piece", 1000, offer(10_000, |len| vec![(0, 1, 0, len - 1)], (0, 0))),
        ("an offset that overflows", 1000, offer(10_000, |len| vec![(0, 1, u64::MAX, len)], (0, 0))),
        (
            "lengths that overflow",
            1000,
            offer(10_000, |len| vec![(0, 1, 0, u64::MAX), (0, 1, 0, len + 1)], (0, 0)),
        ),
        ("a segment of which nothing was said", 1000, offer(10_000, |len| vec![(9, 1, 0, len)], (0, 0))),
        ("a version that was replaced", 1000, offer(10_000, |len| vec![(0, 9, 0, len)], (0, 0))),
        ("a segment beyond any", 1000, offer(10_000, |len| vec![(u32::MAX, 1, 0, len)], (0, 0))),
        ("a place behind the segment's end", 1000, offer(10_000, |len| vec![(0, 1, 8 << 20, len)], (0, 0))),
        ("a forged key", 1000, offer(10_000, |len| vec![(1, 1, 0, len)], (0, 0))),
        ("a forged address", 1000, offer(10_000, |len| vec![(2, 1, 0, len)], (0, 0))),
        ("a segment as long as all memory", 1000, offer(10_000, |len| vec![(3, 1, 1 << 40, len)], (0, 0))),
        ("a lease of no time", 4 << 20, offer(0, |len| vec![(0, 1, 0, len)], (u32::MAX, 7))),
        (
            "more than any node has",
            1 << 60,
            offer(10_000, |len| vec![(0, 1, 0, len / 2), (0, 1, 0, len / 2)], (0, 0)),
        ),
    ]
}

/// Lies about regions that were registered for an object.
fn lies_of_regions() -> Vec<Lie> {
    vec![
        ("no regions", 1000, registered(|_, _| Vec::new())),
        (
            "regions that overflow",
            1000,
            registered(|len, (base, key, _)| vec![(base, key, u64::MAX), (base, key, len + 1)]),
        ),
        ("a region of a forged key", 1000, registered(|len, (base, key, _)| vec![(base, !key, len)])),
        ("a region at the end of all", 1000, registered(|len, (_, key, _)| vec![(u64::MAX, key, len)])),
        ("regions of nothing", 1000, registered(|_, (base, key, _)| vec![(base, key, 0); 256])),
    ]
}

/// Lies about an object that is streamed in parts.
fn lies_in_parts() -> Vec<Lie> {
    vec![
        ("parts out of order", 20_000, parts(|_| vec![(10_000, 10_000), (0, 10_000)])),
        ("a part twice", 20_000, parts(|_| vec![(0, 10_000), (0, 10_000), (10_000, 10_000)])),
        ("a part beyond the end", 20_000, parts(|_| vec![(0, 10_000), (10_000, 10_001)])),
        ("a part beyond all", 20_000, parts(|_| vec![(u64::MAX, 1)])),
        ("parts of nothing", 20_000, parts(|_| vec![(0, 0); 100])),
        ("no parts", 20_000, parts(|_| Vec::new())),
    ]
}

/// Lies that are no offer, or one of nothing.
fn other_lies() -> Vec<Lie> {
    vec![
        (
            "a port where nobody listens",
            1000,
            Box::new(|rogue, asked, head| {
                rogue.reply(asked, opcode::DIAL, body::dial(head, 10_000, 1));
            }),
        ),
        ("a lease that never ends", 1000, offer(u32::MAX, |len| vec![(9, 1, 0, len)], (0, 0))),
        ("that it is done", 1000, answer(opcode::DONE, &[])),
        ("that it knows", 1000, answer(opcode::FOUND, &[1, 0, 0, 0, 1])),
        ("lives", 1000, answer(opcode::HELD, &[0; 4])),
        ("a renewal", 1000, answer(opcode::RENEWED, &[0xff; 4])),
        ("that it has not got it", 1000, answer(opcode::REFUSED, &[2, 0, 0, 0, 0, 0, 0, 0])),
    ]
}

/// True answers of a holder to a fetch, which has bytes of [`PATTERN`].
fn truths() -> Vec<(&'static str, usize, Answer)> {
    vec![
        (
            "inside a message",
            100,
            Box::new(|rogue, asked, head| {
                rogue.reply(asked, opcode::EAGER, body::eager(head, &PATTERN.bytes(100)));
            }),
        ),
        (
            "in messages",
            20_000,
            Box::new(|rogue, asked, head| {
                let bytes = PATTERN.bytes(20_000);
                rogue.say(asked, opcode::PART, body::part(asked.request, 0, &bytes[..15_000]));
                rogue.reply(asked, opcode::EAGER, body::eager(head, &bytes[15_000..]));
            }),
        ),
        (
            "to be read",
            4 * MIB,
            Box::new(|rogue, asked, head| {
                let body = body::offer(head, 10_000, &[(0, 1, 0, head.len)], (0, 0), &[]);
                rogue.reply(asked, opcode::OFFER, body);
            }),
        ),
        (
            "registered",
            3 * MIB,
            Box::new(|rogue, asked, head| {
                let (base, key, _) = rogue.region;
                let body = body::registered(head, 10_000, &[(base, key, head.len)]);
                rogue.reply(asked, opcode::REGISTERED, body);
            }),
        ),
        (
            "in parts",
            20_000,
            Box::new(|rogue, asked, head| {
                rogue.reply(asked, opcode::STREAM, body::stream(head, 10_000));
                rogue.next("it is ready", |frame| frame.opcode == opcode::READY);
                for (at, bytes) in (0..).step_by(10_000).zip(PATTERN.bytes(20_000).chunks(10_000)) {
                    rogue.say(asked, opcode::PART, body::part(asked.request, at, bytes));
                }
            }),
        ),
    ]
}

fn patient_get(client: &Client, id: ObjectId) -> Result<plasmon::Object, Error> {
    client.get(&[id], Some(Duration::from_secs(5))).expect("get").remove(0)
}

#[test]
fn what_a_holder_offers_is_had_whole_and_right_or_not_at_all() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    // Segments: an honest one, and some that are not.
    let (base, key, len) = rogue.region;
    let segments = [(base, key, len), (base, !key, len), (!base, key, len), (0, key, u64::MAX)];
    for (number, region) in segments.into_iter().enumerate() {
        let body = body::segment(&rogue.provider, number as u32, 1, region);
        rogue.send(&to, &rogue.frame(&to, opcode::SEGMENT, body));
    }
    let publish = Rogue::publish;

    let bytes = PATTERN.bytes(4 * MIB);
    // True offers of the same kinds are taken, so those below are refused for what is wrong with them.
    for (how, len, answer) in &truths() {
        let head = Head { id: rogue.foreign_id(), life: 5, len: *len as u64 };
        publish(&mut rogue, &head);
        let client = cluster.client(0);
        let getting = thread::spawn(move || try_get(&client, head.id));
        let asked = rogue.asked_for(head.id);
        answer(&mut rogue, &asked, &head);
        let object = getting.join().expect("no panic").unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(object.data() == &bytes[..*len], "{how}");
        drop(object);
        let client = cluster.client(0);
        rogue.letting_go(|| client.delete(&[head.id]).expect("delete"));
    }

    let lies = lies();
    let failures = cluster.status(0).transfer.fetch_failures;
    let gets: Vec<_> = lies
        .iter()
        .map(|(what, len, _)| {
            let head = Head { id: rogue.foreign_id(), life: 5, len: *len };
            publish(&mut rogue, &head);
            let (client, id) = (cluster.client(0), head.id);
            (*what, head, thread::spawn(move || patient_get(&client, id)))
        })
        .collect();
    for ((what, head, _), (.., answer)) in gets.iter().zip(&lies) {
        let asked = rogue.asked_for(head.id);
        eprintln!("the rogue offers {what}");
        answer(&mut rogue, &asked, head);
    }
    let mut timed_out = 0;
    for (what, head, getting) in gets {
        let error = getting.join().expect("no panic").expect_err(what);
        let expected = if head.len > 1 << 40 || what == "more than there can be" {
            [ErrorKind::TimedOut, ErrorKind::TooLarge]
        } else {
            [ErrorKind::TimedOut, ErrorKind::Lost]
        };
        assert!(expected.contains(&error.kind()), "{what}: {:?}: {error}", error.kind());
        timed_out += u64::from(error.kind() == ErrorKind::TimedOut);
        for keeper in rogue.keepers(&head.id) {
            let body = [&[1], &body::ids(&[head.id])[..]].concat();
            rogue.send(&keeper, &rogue.frame(&keeper, opcode::UNPUBLISH, body));
        }
    }
    // Failures that end with the get are not counted. A busy machine has more of them.
    let counted = lies.len() as u64 - timed_out.max(8);
    assert!(cluster.status(0).transfer.fetch_failures >= failures + counted);
    the_others_go_on(&cluster, &mut rogue);
}
