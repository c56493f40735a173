//! Tests of feeds of events: a member has few, and begins none for others.

use plasmon::{ObjectId, Protocol};
use plasmon_e2e::{Cluster, Pattern, eventually};

use super::frames::{Frame, body, opcode};
use super::{Rogue, cluster, dropped, the_others_go_on};
use crate::support::try_put;

/// Maximum number of feeds that a member has at a node.
const MAX_FEEDS: u64 = 128;

/// Asks a node for events of a feed; the request has the number of the feed.
fn ask(rogue: &mut Rogue, to: &str, feed: u64, begins: bool) -> Frame {
    rogue.send(to, &Frame { request: feed, ..rogue.frame(to, opcode::WATCH, body::watch(feed, begins, 9)) });
    rogue.next("an answer", |frame| {
        frame.request == feed && [opcode::WATCHED, opcode::REFUSED].contains(&frame.opcode)
    })
}

/// Puts an object that a feed begins with.
fn put_one(cluster: &Cluster, rogue: &mut Rogue) -> ObjectId {
    let id = rogue.foreign_id();
    rogue.letting_go(|| try_put(&cluster.client(0), id, Pattern(1), 10).expect("put"));
    id
}

#[test]
fn a_member_has_few_feeds_of_events() {
    let (cluster, mut rogue) = cluster();
    let (to, id) = (cluster.status(0).node, put_one(&cluster, &mut rogue));
    for feed in 0..MAX_FEEDS {
        let told = ask(&mut rogue, &to, feed, true);
        assert_eq!((told.opcode, &told.body[..5]), (opcode::WATCHED, &[1, 0, 0, 0, 1][..]), "feed {feed}");
        assert!(told.body[5..].starts_with(id.as_bytes()));
    }
    assert_eq!(ask(&mut rogue, &to, MAX_FEEDS, true).opcode, opcode::REFUSED, "there are too many");
    assert_eq!(ask(&mut rogue, &to, MAX_FEEDS, false).opcode, opcode::REFUSED, "it did not begin");
    // A feed that begins anew takes no further place, and one that has ended makes a place free.
    assert_eq!(ask(&mut rogue, &to, 0, true).opcode, opcode::WATCHED);
    rogue.send(&to, &rogue.frame(&to, opcode::UNWATCH, body::words(&[0])));
    assert_eq!(ask(&mut rogue, &to, MAX_FEEDS, true).opcode, opcode::WATCHED);
    rogue.letting_go(|| cluster.client(0).delete(&[id]).expect("delete"));
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn a_member_asks_nothing_for_another() {
    let (cluster, mut rogue) = cluster();
    let (to, before) = (cluster.status(0).node, dropped(&cluster, 0));
    let id = put_one(&cluster, &mut rogue);
    let reply_to = *cluster.client(1).node().as_bytes();
    let claim = [&id.as_bytes()[..], &[0]].concat();
    let asked = [
        (opcode::WATCH, body::watch(1, true, 9)),
        (opcode::FETCH, body::fetch(id, Protocol::Send as u8)),
        (opcode::HOLD, [body::ids(&[id]), vec![0]].concat()),
        (opcode::QUERY, body::ids(&[id])),
        (opcode::LOCATE, id.as_bytes().to_vec()),
        (opcode::CLAIM, claim),
        (opcode::ENLIST, body::ends(&[(id, 0)])),
        (opcode::CURRENT, [id.as_bytes(), &[0][..]].concat()),
        (opcode::LEND, body::words(&[1 << 20])),
        (opcode::RENEW, body::words(&[1])),
        (opcode::REPORT, Vec::new()),
        (opcode::PING, Vec::new()),
    ];
    for (number, (opcode, body)) in (1..).zip(&asked) {
        let frame = Frame { request: number, ..rogue.frame(&to, *opcode, body.clone()) };
        rogue.send(&to, &Frame { reply_to, ..frame });
        eventually("it is counted", || dropped(&cluster, 0) == before + number);
    }
    assert_eq!(cluster.status(0).transfer.leases, 0);
    rogue.letting_go(|| cluster.client(0).delete(&[id]).expect("delete"));
    the_others_go_on(&cluster, &mut rogue);
}
