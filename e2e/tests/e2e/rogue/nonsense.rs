//! Tests of invalid messages: they are dropped and counted, and a member that sends many is cut off.

use std::thread;
use std::time::Duration;

use bytes::BufMut;
use plasmon::{ErrorKind, NodeId, ObjectId, Protocol};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, Pattern, eventually};

use super::frames::{Frame, HEADER_LEN, Head, MESSAGE_MAX_BYTES, VERSION, body, opcode, protocol_written};
use super::{Rogue, cluster, dropped, heard, the_others_go_on};
use crate::support::MIB;

/// One frame of each kind with a valid body.
fn sound(rogue: &Rogue, to: &str) -> Vec<Frame> {
    let (id, request) = (ObjectId::random(), 1 << 40);
    let head = Head { id, life: 1, len: 100 };
    let others = [rogue.node];
    let bodies = [
        (opcode::FETCH, body::fetch(id, Protocol::Auto as u8)),
        (opcode::EAGER, body::eager(&head, &[0; 100])),
        (opcode::OFFER, body::offer(&head, 10_000, &[(0, 1, 0, 100)], (1, 1), &others)),
        (opcode::RENEW, body::words(&[request])),
        (opcode::RENEWED, vec![0; 4]),
        (opcode::RELEASE, [&[1, 0, 0, 0], &body::words(&[request])[..]].concat()),
        (opcode::PUBLISH, body::publish(std::slice::from_ref(&head))),
        (opcode::UNPUBLISH, [&[1], &body::ids(&[id])[..]].concat()),
        (opcode::DROP, body::lives(&[(id, 1)])),
        (opcode::QUERY, body::ids(&[id])),
        (opcode::FOUND, vec![1, 0, 0, 0, 1]),
        (opcode::SEGMENT, body::segment(&rogue.provider, 0, 1, rogue.region)),
        (opcode::REFUSED, [&[1, 0], &[0; 6][..]].concat()),
        (opcode::PROMOTE, body::heirs(&[(id, 1)])),
        (opcode::WITHHOLD, body::withhold(&head)),
        (opcode::UNVEIL, [id.as_bytes(), &body::words(&[1])[..], &[0]].concat()),
        (opcode::KNOWN, [id.as_bytes(), &body::words(&[1])[..]].concat()),
        (opcode::BURY, body::ends(&[(id, 1)])),
        (opcode::CURRENT, [id.as_bytes(), &[0][..]].concat()),
        (opcode::IS, vec![0; 4]),
        (opcode::GUARD, body::guard(id, &[1], 1)),
        (opcode::HELD, vec![1, 0, 0, 0, 0]),
        (opcode::REGISTERED, body::registered(&head, 10_000, &[rogue.region])),
        (opcode::STREAM, body::stream(&head, 10_000)),
        (opcode::READY, body::words(&[request])),
        (opcode::PART, body::part(request, 0, &[0; 100])),
        (opcode::STAMPS, body::stamps(&rogue.provider, &[0, 0, 64])),
        (opcode::PROBE, [&body::words(&[request, 64])[..], &[0]].concat()),
        (opcode::PUSHED, body::pushed(&head, 1, 0, 0)),
        (opcode::WINDOW, body::stamps(&rogue.provider, &[1, 0, 5, 64])),
        (opcode::SHUT, body::words(&[1])),
        (opcode::DIAL, body::dial(&head, 10_000, 1)),
        (opcode::LOCATE, id.as_bytes().to_vec()),
        (opcode::LOCATED, [&[1, 0, 0, 0], &rogue.node[..], &[0]].concat()),
    ];
    bodies.into_iter().map(|(opcode, body)| Frame { request, ..rogue.frame(to, opcode, body) }).collect()
}

/// Messages that are no frames, or frames that a member may not send.
fn nonsense(rogue: &Rogue, to: &str) -> Vec<Vec<u8>> {
    let sound = sound(rogue, to);
    let mut messages: Vec<_> = [1, 7, 8, 87, HEADER_LEN, 89, 1000, MESSAGE_MAX_BYTES]
        .map(|len| Pattern(len as u64).bytes(len))
        .to_vec();
    // Messages that begin like a frame and continue with invalid bytes.
    messages.extend((0..40).map(|seed| {
        // The last one is text: whatever it is, it decodes.
        let (opcode, len) = (seed as u8 % opcode::LAST, 17 * seed as usize);
        let body: Vec<u8> = Pattern(seed).bytes(len).iter().map(|byte| byte | 0x80).collect();
        rogue.frame(to, opcode, body).encode()
    }));
    for (number, frame) in sound.iter().enumerate() {
        let altered = [
            Frame { token: !frame.token, ..frame.clone() },
            Frame { token: 0, ..frame.clone() },
            // A life of the rogue that has ended.
            Frame { incarnation: 0, ..frame.clone() },
            Frame { body: [&frame.body[..], &[0]].concat(), ..frame.clone() },
            Frame { body_len: Some(frame.body.len() as u32 + 1), ..frame.clone() },
        ];
        messages.extend(altered.iter().map(Frame::encode));
        // No field of the header depends on what the frame says.
        let header = [
            Frame { version: VERSION + 1, ..frame.clone() },
            Frame { version: 0, ..frame.clone() },
            Frame { flags: 1, ..frame.clone() },
            Frame { body_len: Some(u32::MAX), ..frame.clone() },
        ];
        messages.push(header[number % header.len()].encode());
        let whole = frame.encode();
        messages.extend([11, 44, HEADER_LEN - 1].map(|len| whole[..len].to_vec()));
        let cut = |len| Frame { body: frame.body[..len].to_vec(), ..frame.clone() }.encode();
        messages.extend([0, frame.body.len() / 2, frame.body.len() - 1].map(cut));
    }
    // Counts of more than there are, and more than may be.
    for opcode in [3, 4, 5, 6, 9, 10, 11, 12, 14, 15, 17, 38, 64] {
        for (count, entries) in [(u32::MAX, 100), (257, 257), (2, 1)] {
            let mut body = u32::to_le_bytes(count).to_vec();
            body.resize(4 + entries * 35, 1);
            body.truncate(MESSAGE_MAX_BYTES - HEADER_LEN);
            messages.push(rogue.frame(to, opcode, body).encode());
        }
    }
    for opcode in [0, opcode::LAST + 1, 100, u8::MAX] {
        messages.push(rogue.frame(to, opcode, Vec::new()).encode());
    }
    // Values that no member uses: a stage, a protocol, an absurd length, a segment that no arena has.
    let fetch = body::fetch(ObjectId::random(), Protocol::Auto as u8);
    for (at, value) in [(28, 5), (28, 255), (29, 200)] {
        let mut body = fetch.clone();
        body[at] = value;
        messages.push(rogue.frame(to, opcode::FETCH, body).encode());
    }
    for segment in [64, u32::MAX] {
        let body = body::segment(&rogue.provider, segment, 1, rogue.region);
        messages.push(rogue.frame(to, opcode::SEGMENT, body).encode());
    }
    let mut long = Vec::new();
    Head { id: ObjectId::random(), life: 1, len: u64::MAX }.put(&mut long);
    long[41..45].copy_from_slice(&1u32.to_le_bytes());
    long.put_u32_le(10_000);
    messages.push(rogue.frame(to, opcode::STREAM, long).encode());
    messages
}

/// Whether a node has cut another off.
fn has_cut_off(cluster: &Cluster, node: usize, other: &str) -> bool {
    let members = cluster.status(node).cluster.members;
    members.iter().any(|member| member.node == other && member.cut_off)
}

#[test]
fn a_node_that_speaks_other_frames_is_not_let_in() {
    let cluster = Cluster::builder().nodes(1).start();
    let node = *NodeId::random().as_bytes();
    for frames in [VERSION - 1, VERSION + 1] {
        let ended = Rogue::command(&cluster, 0, node, 1, frames).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success(), "version {frames} is let in");
        let both = [frames, VERSION].map(protocol_written);
        assert!(both.iter().all(|version| said.contains(&format!(" {version}"))), "{both:?}: {said}");
    }
    assert_eq!(cluster.status(0).cluster.members.len(), 1);
}

#[test]
fn frames_that_make_no_sense_are_dropped_and_counted() {
    let (cluster, mut rogue) = cluster();
    for node in 0..3 {
        let to = cluster.status(node).node;
        // A few invalid messages of a member are forgiven. The rogue sends another part of them in each life.
        let lives = nonsense(&rogue, &to).into_iter().filter(|it| rogue.stands_for(&to, it)).count() / 60 + 1;
        for life in (node..lives).step_by(3) {
            let (named, unnamed): (Vec<_>, Vec<_>) =
                nonsense(&rogue, &to).into_iter().partition(|it| rogue.stands_for(&to, it));
            let named: Vec<_> = named.into_iter().skip(60 * life).take(60).collect();
            let before = dropped(&cluster, node);
            rogue.send_bytes(&to, &unnamed);
            rogue.send_bytes(&to, &named);
            heard(&mut rogue, &to);
            let sent = (unnamed.len() + named.len()) as u64;
            eventually("all are counted", || dropped(&cluster, node) - before >= sent);
            assert_eq!(dropped(&cluster, node) - before, sent);
            assert!(cluster.log(node).contains("dropped a frame"), "it is logged");
            rogue = rogue.join_again(&cluster);
        }
    }
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn who_sends_nonsense_again_and_again_is_cut_off_until_it_starts_anew() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let nonsense = |rogue: &Rogue| Frame { flags: 1, ..rogue.frame(&to, opcode::DONE, Vec::new()) }.encode();
    // The rogue holds an object that a get there waits for.
    let head = Head { id: rogue.foreign_id(), life: 5, len: 100 };
    for keeper in rogue.keepers(&head.id) {
        rogue.send(
            &keeper,
            &rogue.frame(&keeper, opcode::PUBLISH, body::publish(std::slice::from_ref(&head))),
        );
    }
    let client = cluster.client(0);
    let getting = thread::spawn(move || client.get(&[head.id], Some(Duration::from_secs(3))).expect("get"));
    rogue.asked_for(head.id);
    // 64 within a minute are forgiven.
    let line = nonsense(&rogue);
    rogue.send_bytes(&to, &vec![line.clone(); 64]);
    heard(&mut rogue, &to);
    assert!(!has_cut_off(&cluster, 0, &rogue.id()));

    rogue.send_bytes(&to, &[line]);
    eventually("it is cut off", || has_cut_off(&cluster, 0, &rogue.id()));
    assert!(cluster.log(0).contains(&format!("node {} at", rogue.id())), "the log says whom");
    assert!(cluster.log(0).contains("is cut off until it starts anew"), "the log says so");
    // Whatever it says then, it is not heard.
    let before = dropped(&cluster, 0);
    rogue.send(&to, &rogue.frame(&to, opcode::LOCATE, head.id.as_bytes().to_vec()));
    eventually("it is dropped", || dropped(&cluster, 0) > before);
    assert_eq!(rogue.count(|frame| frame.opcode == opcode::LOCATED), 0, "it was answered");
    let error = getting.join().expect("no panic").remove(0).expect_err("nobody else has it");
    assert!([ErrorKind::TimedOut, ErrorKind::Lost].contains(&error.kind()), "{error}");
    // The rogue is a member again, for the others too.
    let other = cluster.status(1).node;
    heard(&mut rogue, &other);
    the_others_go_on(&cluster, &mut rogue);

    let mut rogue = rogue.join_again(&cluster);
    eventually("it is listened to again", || !has_cut_off(&cluster, 0, &rogue.id()));
    heard(&mut rogue, &to);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn nobody_is_cut_off_for_what_a_stranger_or_a_former_life_of_it_says() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let frame = Frame { flags: 1, ..rogue.frame(&to, opcode::DONE, Vec::new()) };
    let of = |frame: Frame| vec![frame.encode(); 100];
    let before = dropped(&cluster, 0);
    let token = !frame.token;
    rogue.send_bytes(&to, &of(Frame { token, ..frame.clone() }));
    rogue.send_bytes(&to, &of(Frame { token, flags: 0, ..frame.clone() }));
    rogue.send_bytes(&to, &of(Frame { incarnation: 0, ..frame.clone() }));
    rogue.send_bytes(&to, &of(Frame { incarnation: 0, flags: 0, ..frame.clone() }));
    // Nobody knows yet whether that one is a member soon.
    rogue.send_bytes(&to, &of(Frame { from: [9; 16], ..frame }));
    heard(&mut rogue, &to);
    assert_eq!(dropped(&cluster, 0) - before, 400);
    for member in cluster.status(0).cluster.members {
        assert!(!member.cut_off, "{member:?}");
    }
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn counted_messages_are_acted_on_once_and_in_order() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let question = |rogue: &Rogue, stream, number| {
        let frame = rogue.frame(&to, opcode::LOCATE, ObjectId::random().as_bytes().to_vec());
        Frame { stream, number, request: number.wrapping_add(1000), ..frame }.encode()
    };
    let before = dropped(&cluster, 0);
    // Some come early, some twice; the last are none that may come yet.
    let numbers = [1, 3, 4, 3, 2, 2, 1, 6, 4, 5, 7 + 32, u64::MAX];
    let messages = numbers.map(|number| question(&rogue, 5, number));
    rogue.send_bytes(&to, &messages);
    // All answers, of which the last is that to a frame that is sent now.
    let answered = |rogue: &mut Rogue| {
        let last = rogue.frame(&to, opcode::LOCATE, ObjectId::random().as_bytes().to_vec());
        rogue.send(&to, &Frame { request: 1, ..last });
        let mut answers = Vec::new();
        while answers.last() != Some(&1) {
            answers.push(rogue.next("an answer", |frame| frame.opcode == opcode::LOCATED).request);
        }
        answers.pop();
        answers
    };
    assert_eq!(answered(&mut rogue), (1001..=1006).collect::<Vec<_>>());
    assert_eq!(dropped(&cluster, 0) - before, 2);
    // A later stream begins anew, and ends the one before.
    let messages = [(6, 1), (5, 7), (6, 2)].map(|(stream, number)| question(&rogue, stream, number));
    rogue.send_bytes(&to, &messages);
    assert_eq!(answered(&mut rogue), [1001, 1002]);
    assert_eq!(dropped(&cluster, 0) - before, 3);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn frames_of_strangers_take_little_memory() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    let before = dropped(&cluster, 0);
    let frames: Vec<_> = (0..2000u64)
        .map(|number| {
            let mut from = [7; 16];
            from[..8].copy_from_slice(&number.to_le_bytes());
            let frame = rogue.frame(&to, opcode::PART, body::part(number, 0, &[0; 1000]));
            Frame { from, ..frame }.encode()
        })
        .collect();
    rogue.send_bytes(&to, &frames);
    // The last that came may be of one that is a member soon.
    eventually("most are dropped", || dropped(&cluster, 0) - before >= 2000 - 1024);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn messages_longer_than_any_frame_are_not_taken() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    for len in [MESSAGE_MAX_BYTES + 1, 64 << 10, MIB, 7 * MIB] {
        rogue.send_long(&to, len);
    }
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn long_messages_under_way_when_a_connection_closes_harm_nobody() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    for (round, wait) in [0, 5, 20, 60].into_iter().enumerate() {
        rogue.send_many_long(&to, 20, 7 * MIB);
        let_pass(Duration::from_millis(wait), "how much is under way when the connection closes differs");
        if round % 2 == 0 {
            // Closed by the victim; else it dies.
            let line = Frame { flags: 1, ..rogue.frame(&to, opcode::DONE, Vec::new()) }.encode();
            rogue.send_bytes(&to, &vec![line; 70]);
            eventually("it is cut off", || has_cut_off(&cluster, 0, &rogue.id()));
        }
        rogue = rogue.join_again(&cluster);
        heard(&mut rogue, &to);
    }
    the_others_go_on(&cluster, &mut rogue);
}
