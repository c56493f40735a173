//! Tests of the file that a coordinator's node leaves for its next life.

use super::*;

const SECOND: u64 = 1_000_000_000;
/// A time long after the boot.
const NOW: u64 = 1_000_000 * SECOND;
/// The longest time that a lease may last without a renewal.
const LONGEST: u64 = 61 * SECOND;

fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 16])
}

/// A place for a socket.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("plasmon.sock.locks")
    }

    /// Begins the life of a node, beside the socket of a killed one if it `succeeds` that.
    fn begin(&self, number: u8, succeeds: bool, now: u64) -> Life {
        let mut life = Life::of(&self.0.path().join("plasmon.sock"), succeeds);
        assert_eq!(life.until(), u64::MAX, "it gives nothing before it has begun");
        life.begin(node(number), now);
        life
    }

    /// Time until which the next life would wait.
    fn left(&self, now: u64) -> u64 {
        Life::of(&self.0.path().join("plasmon.sock"), true).former(now).0
    }
}

#[test]
fn a_first_start_grants_at_once_and_so_does_a_start_after_a_life_that_gave_nothing() {
    let place = Place::new();
    let mut first = place.begin(1, false, NOW);
    assert!(first.until() <= NOW);
    assert_eq!(first.epoch(7), 7);
    assert!(place.file().exists(), "it is there before the first lease");
    drop(first);
    // The node was killed before it gave a lease.
    first = place.begin(2, true, NOW + SECOND);
    assert!(first.until() <= NOW + SECOND);
    first.end(NOW + 2 * SECOND);
    let third = place.begin(3, false, NOW + 3 * SECOND);
    assert!(third.until() <= NOW + 3 * SECOND);
    assert!(!third.leaves_a_wait(NOW + 3 * SECOND));
}

#[test]
fn the_next_life_waits_until_the_leases_of_the_former_are_over() {
    let place = Place::new();
    let mut first = place.begin(1, false, NOW);
    first.note(NOW, 10 * SECOND, 7).expect("it is written");
    let mut next = place.begin(2, true, NOW + SECOND);
    assert!((NOW + 11 * SECOND..NOW + 20 * SECOND).contains(&next.until()));
    assert_eq!(next.epoch(3), 8);
    let until = next.until();
    next.note(NOW + SECOND, SECOND, 8).expect("it is written");
    assert!(place.left(NOW + SECOND) >= until, "the life before it may have guards still");
    next.end(NOW + 12 * SECOND);
    assert_eq!(place.begin(3, false, NOW + 13 * SECOND).until(), 0);
}

#[test]
fn the_file_is_written_ahead() {
    let place = Place::new();
    let mut life = place.begin(1, false, NOW);
    life.note(NOW, SECOND, 1).expect("it is written");
    fs::remove_file(place.file()).expect("it is there");
    life.note(NOW + SECOND / 2, SECOND, 1).expect("nothing has to be written");
    assert!(!place.file().exists());
    life.note(NOW + 2 * SECOND, SECOND, 1).expect("it is written");
    assert!(place.file().exists());
}

#[test]
fn the_next_life_of_a_home_that_rested_waits_for_nothing_and_mints_larger_tokens() {
    let place = Place::new();
    let mut first = place.begin(1, false, NOW);
    first.note(NOW, 60 * SECOND, 7).expect("it is written");
    first.rest(NOW + SECOND / 10, false);
    assert!(place.left(NOW) > NOW + 60 * SECOND, "it has not rested for long");
    first.note(NOW + SECOND, 60 * SECOND, 7).expect("it is written");
    first.rest(NOW + 2 * SECOND, false);
    assert!(place.left(NOW) > NOW + 60 * SECOND, "a lease was given meanwhile");
    first.rest(NOW + 3 * SECOND, true);
    first.rest(NOW + 4 * SECOND, false);
    assert!(place.left(NOW) > NOW + 60 * SECOND, "somebody held a lock a moment ago");
    first.rest(NOW + 5 * SECOND, false);
    assert!(!first.leaves_a_wait(NOW + 5 * SECOND));
    let next = place.begin(2, true, NOW + 5 * SECOND);
    assert_eq!((next.until(), next.epoch(1)), (NOW + 5 * SECOND, 8));
    first.note(NOW + 6 * SECOND, 60 * SECOND, 7).expect("it is written");
    assert!(place.left(NOW) > NOW + 64 * SECOND);
}

#[test]
fn a_life_that_rests_leaves_what_the_one_before_it_has_left() {
    let place = Place::new();
    place.begin(1, false, NOW).note(NOW, 50 * SECOND, 7).expect("it is written");
    let mut second = place.begin(2, true, NOW + SECOND);
    second.note(NOW + SECOND, 60 * SECOND, 8).expect("it is written");
    (0..4).for_each(|second_s| second.rest(NOW + (second_s + 2) * SECOND, false));
    assert_eq!(place.left(NOW), NOW + 52 * SECOND);
}

#[test]
fn a_file_that_is_damaged_or_cannot_be_read_is_waited_out_from_now() {
    let place = Place::new();
    place.begin(1, false, NOW).note(NOW, 50 * SECOND, 7).expect("it is written");
    let whole = fs::read(place.file()).expect("it is there");
    let digit = whole.windows(3).position(|three| three == b"_ns").expect("it names a time") + 5;
    let mut earlier = whole.clone();
    earlier[digit] = b'0';
    for damaged in [&[][..], b"{", b"{}\n", &whole[..whole.len() / 2], &whole[..whole.len() - 1], &earlier] {
        fs::write(place.file(), damaged).expect("there is room");
        for succeeds in [true, false] {
            let (until, epoch, lives) = Life::of(&place.0.path().join("plasmon.sock"), succeeds).former(NOW);
            assert_eq!((until, epoch, lives.len()), (NOW + LONGEST, 0, 0));
        }
    }
    fs::remove_file(place.file()).expect("it is there");
    fs::create_dir(place.file()).expect("there is room");
    assert_eq!(place.begin(2, false, NOW).until(), NOW + LONGEST);
}

#[test]
fn a_file_that_is_gone_beside_the_socket_of_a_killed_node_is_waited_out_from_now() {
    let place = Place::new();
    place.begin(1, false, NOW).note(NOW, 50 * SECOND, 7).expect("it is written");
    fs::remove_file(place.file()).expect("it is there");
    let life = place.begin(2, true, NOW + SECOND);
    assert_eq!(life.until(), NOW + SECOND + LONGEST);
    assert!(place.left(NOW + SECOND) >= NOW + SECOND + LONGEST, "a third life waits as long");
    // A minute after the boot nothing is left that a folder has lost which does not outlive a boot.
    let booted = Place::new();
    assert_eq!(booted.begin(1, false, 5 * SECOND).until(), LONGEST);
}

#[test]
fn the_time_of_another_boot_says_nothing_unless_the_life_had_ended() {
    let place = Place::new();
    let mut first = place.begin(1, false, NOW);
    let boot = std::mem::replace(&mut first.boot, "another".to_owned());
    first.note(NOW, SECOND, 9).expect("it is written");
    let next = place.begin(2, true, NOW + 100 * SECOND);
    assert_eq!((next.until(), next.epoch(1)), (NOW + 100 * SECOND + LONGEST, 10));
    first.end(NOW);
    let next = place.begin(2, false, SECOND);
    assert_eq!((next.until(), next.epoch(1)), (0, 10));
    // A host that does not tell its boots is never taken for the same.
    assert!(!boot.is_empty());
    first.boot.clear();
    first.record = Some(first.next_record(0, 9));
    first.note(NOW, SECOND, 9).expect("it is written");
    let mut unknown = Life::of(&place.0.path().join("plasmon.sock"), true);
    unknown.boot.clear();
    assert_eq!(unknown.former(NOW).0, NOW + LONGEST);
}

#[test]
fn a_member_that_followed_an_unknown_life_has_it_waited_out_once() {
    let place = Place::new();
    let mut life = place.begin(3, false, NOW);
    life.note(NOW, SECOND, 9).expect("it is written");
    let later = NOW + 5 * SECOND;
    assert!(life.meet(&[node(1), node(3)], later));
    assert_eq!(life.until(), later + LONGEST);
    assert!(!life.meet(&[node(1)], later + SECOND), "another member that followed it");
    assert_eq!(life.until(), later + LONGEST);
    let mut next = place.begin(4, true, later + SECOND);
    assert_eq!(next.until(), later + LONGEST, "the file says so as well");
    assert!(!next.meet(&[node(1), node(3)], later + SECOND), "the file has both");
    next.end(later + 70 * SECOND);
    let mut last = place.begin(5, false, later + 71 * SECOND);
    assert!(!last.meet(&[node(4), node(3)], later + 72 * SECOND), "a restart in good order is no doubt");
    assert_eq!(last.until(), 0);
    (10..100).for_each(|number| _ = last.meet(&[node(number)], NOW));
    assert_eq!(last.lives.len(), MAX_LIVES);
}
