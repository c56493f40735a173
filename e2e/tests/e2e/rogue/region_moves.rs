//! Tests of a rogue in moves of regions: as the node to which a region moves, and as the home that gives one
//! away.

use plasmon::region::{Region, RegionOptions, Rights, region_id};
use plasmon::{Client, ErrorKind, NodeId, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use super::region_frames::{Moved, body, opcode};
use super::regions::{ALL, BRIEF, Honest, LEN, begin, refusal};
use super::{cluster, the_others_go_on};
use crate::support::kind;

#[test]
fn a_target_that_does_not_take_a_region_leaves_it_where_it_was() {
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &mut rogue);
    let to = NodeId::from_bytes(rogue.node);
    let moves = |client: &Region| begin(client, move |region| region.move_to(to, BRIEF));
    let adds = |honest: &Honest| {
        for region in [&honest.near, &honest.far] {
            region.fetch_add(0, 1).expect("nobody is waited for");
            region.fetch_add(0, u64::MAX).expect("nobody is waited for");
        }
    };
    // The target does not answer.
    for by in [&honest.near, &honest.far] {
        let moving = moves(by);
        let late = rogue.next_of(opcode::TAKE);
        let told = kind(moving.join().expect("no panic"));
        let fits = [ErrorKind::TimedOut, ErrorKind::OutcomeUnknown, ErrorKind::Busy];
        assert!(fits.contains(&told), "{told:?}");
        adds(&honest);
        rogue.reply_about(&late, opcode::CHANGED, Vec::new());
        honest.check();
    }
    // The target refuses.
    for what in [ErrorKind::NotHere, ErrorKind::Lost, ErrorKind::Freed, ErrorKind::Full] {
        let moving = moves(&honest.far);
        let asked = rogue.next_of(opcode::TAKE);
        rogue.refuse(&asked, what);
        let told = kind(moving.join().expect("no panic"));
        assert_eq!(told, if what == ErrorKind::Full { what } else { ErrorKind::Busy });
        adds(&honest);
    }
    // The target takes the region, and does not adopt it.
    let moving = moves(&honest.far);
    let asked = rogue.next_of(opcode::TAKE);
    rogue.reply_about(&asked, opcode::CHANGED, Vec::new());
    let asked = rogue.next_of(opcode::ADOPT);
    rogue.refuse(&asked, ErrorKind::Lost);
    assert_eq!(kind(moving.join().expect("no panic")), ErrorKind::Busy);
    adds(&honest);
    honest.check();
    honest.free(&mut rogue);
    the_others_go_on(&cluster, &mut rogue);
}

fn regions_of(cluster: &Cluster, node: usize) -> (u64, u64) {
    let regions = cluster.status(node).regions;
    (regions.regions, regions.bytes)
}

/// Region of a rogue's that is given away rightly, and its life.
fn given_away(name: &str) -> (Moved<'_>, u64) {
    (Moved { name, len: LEN, owner: 0, public: [0; 3], granted: 0 }, 5)
}

#[test]
fn what_cannot_be_a_region_is_not_taken() {
    let (cluster, mut rogue) = cluster();
    let to = cluster.status(0).node;
    rogue.tell_segment(&to);
    let name = rogue.foreign_name();
    let (moved, life) = given_away(&name);
    let (id, whole) = (region_id(&name), [(0, 1, 0, LEN)]);
    let long = "n".repeat(255);
    let lies: Vec<(&str, Vec<u8>, ErrorKind)> = vec![
        ("another id", body::take(ObjectId::random(), life, &moved, &whole), ErrorKind::Invalid),
        ("no life", body::take(id, 0, &moved, &whole), ErrorKind::Invalid),
        (
            "no name",
            body::take(region_id(""), life, &Moved { name: "", ..moved.clone() }, &whole),
            ErrorKind::Invalid,
        ),
        (
            "another name",
            body::take(id, life, &Moved { name: &long, ..moved.clone() }, &whole),
            ErrorKind::Invalid,
        ),
        ("no bytes", body::take(id, life, &Moved { len: 0, ..moved.clone() }, &[]), ErrorKind::Invalid),
        ("no pieces", body::take(id, life, &moved, &[]), ErrorKind::Invalid),
        ("fewer bytes", body::take(id, life, &moved, &[(0, 1, 0, LEN - 1)]), ErrorKind::Invalid),
        ("more bytes", body::take(id, life, &moved, &[(0, 1, 0, LEN + 1)]), ErrorKind::Invalid),
        (
            "lengths that overflow",
            body::take(id, life, &moved, &[(0, 1, 0, u64::MAX), (0, 1, 0, LEN + 1)]),
            ErrorKind::Invalid,
        ),
        (
            "everybody as its master",
            body::take(id, life, &Moved { public: ALL, ..moved.clone() }, &whole),
            ErrorKind::Invalid,
        ),
        (
            "too many grants",
            body::take(id, life, &Moved { granted: 65, ..moved.clone() }, &whole),
            ErrorKind::Invalid,
        ),
        (
            "more than any node has",
            body::take(id, life, &Moved { len: 1 << 50, ..moved.clone() }, &[(0, 1, 0, 1 << 50)]),
            ErrorKind::TooLarge,
        ),
        ("unknown bytes", body::take(id, life, &moved, &[(9, 1, 0, LEN)]), ErrorKind::Disconnected),
        (
            "bytes behind the end",
            body::take(id, life, &moved, &[(0, 1, 8 << 20, LEN)]),
            ErrorKind::Disconnected,
        ),
    ];
    for (what, body, expected) in lies {
        let answer = rogue.ask_as(0, &to, opcode::TAKE, body);
        assert_eq!(refusal(&answer), Some(expected), "{what}");
        rogue.tell_segment(&to);
        let adopted = rogue.ask_as(0, &to, opcode::ADOPT, body::adopt(id, life));
        assert_eq!(refusal(&adopted), Some(ErrorKind::Lost), "{what}");
        eventually("nothing is left", || regions_of(&cluster, 0) == (0, 0));
    }
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn what_a_home_gives_away_is_adopted_once_unless_its_name_is_taken() {
    let (cluster, mut rogue) = cluster();
    let (to, client): (String, Client) = (cluster.status(0).node, cluster.client(0));
    rogue.tell_segment(&to);
    let name = rogue.foreign_name();
    let (moved, life) = given_away(&name);
    let whole = [(0, 1, 0, LEN)];
    let occupied = rogue.foreign_name();
    let taken = client.create_region(&occupied, LEN, &RegionOptions::default()).expect("there is room");
    for (name, adopts) in [(&name, true), (&occupied, false)] {
        let (id, moved) = (region_id(name), Moved { name, ..moved.clone() });
        for _ in 0..2 {
            let answer = rogue.ask_as(0, &to, opcode::TAKE, body::take(id, life, &moved, &whole));
            assert_eq!(answer.opcode, opcode::CHANGED, "{:?}", refusal(&answer));
        }
        let other = rogue.ask_as(0, &to, opcode::ADOPT, body::adopt(id, life + 1));
        assert_eq!(refusal(&other), Some(ErrorKind::Lost), "another life");
        let adopted = rogue.ask_as(0, &to, opcode::ADOPT, body::adopt(id, life));
        assert_eq!(refusal(&adopted), Some(ErrorKind::Exists).filter(|_| !adopts));
        let again = rogue.ask_as(0, &to, opcode::ADOPT, body::adopt(id, life));
        assert_eq!(refusal(&again), Some(ErrorKind::Lost), "it is adopted once");
    }
    let mut found = vec![1; LEN as usize];
    taken.read(0, &mut found).expect("read");
    assert!(found.iter().all(|byte| *byte == 0), "the region that was there");
    for node in [1, 0] {
        let region = cluster.client(node).map_region(&name, Rights::ALL, None).expect("it is there");
        region.read(0, &mut found).expect("read");
        Pattern(7).check(&found);
        if node == 0 {
            rogue.letting_go(|| region.free().expect("free"));
        }
    }
    rogue.letting_go(|| taken.free().expect("free"));
    eventually("nothing is left", || regions_of(&cluster, 0) == (0, 0));
    the_others_go_on(&cluster, &mut rogue);
}
