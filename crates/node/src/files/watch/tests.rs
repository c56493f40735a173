//! Tests of watchers, without nodes: who is told what, who is waited for, and for how long.

use std::time::{Duration, Instant};

use plasmon::wire::files::{Listed, ROOT_INODE, Time, VolumeTerms};

use super::*;
use crate::files::state::State;

/// Memory that is enough for all keys.
const MEMORY: u64 = 1 << 30;

fn watchers() -> (Watchers, Instant) {
    let now = Instant::now();
    (Watchers::new(now), now)
}

fn name(name: &'static str) -> Stale {
    Stale::Name { folder: ROOT_INODE, name: name.into(), is_folder: false }
}

/// Lets a session look up a name that is not there. Returns whether the session may keep that.
fn look(watchers: &mut Watchers, now: Instant, session: u32, name: &'static str) -> bool {
    let lookup = FileOperation::Lookup { folder: ROOT_INODE, name: name.into() };
    watchers.give(now, session, &lookup, &FileOutcome::Failed(Errno::NotFound), MEMORY)
}

/// Lets session 1 change a name.
fn change(watchers: &mut Watchers, now: Instant, changed: &'static str) -> (News, Option<Waiting>) {
    watchers.change(now, (1, 7), vec![name(changed)], |_| Vec::new())
}

fn is_done(waiting: &Waiting) -> bool {
    waiting.confirmed.iter().all(|(_, _, done)| done.clone().now_or_never().is_some())
}

#[test]
fn who_watches_is_told_and_waited_for() {
    let (mut watchers, now) = watchers();
    for session in [1, 2, 3] {
        assert!(look(&mut watchers, now, session, "a"));
    }
    assert!(look(&mut watchers, now, 4, "other"));
    let (news, waiting) = change(&mut watchers, now, "a");
    assert_eq!(news.told.keys().copied().collect::<Vec<_>>(), [2, 3], "not itself, nor who looked elsewhere");
    assert_eq!(news.told[&2], [name("a")]);
    let waiting = waiting.expect("two sessions are waited for");
    assert!(!is_done(&waiting) && waiting.over.is_none());
    watchers.confirm(4, news.number);
    watchers.confirm(2, news.number + 1);
    watchers.confirm(2, news.number);
    assert!(!is_done(&waiting), "one of two has confirmed");
    watchers.confirm(2, news.number);
    watchers.confirm(3, news.number);
    assert!(is_done(&waiting));
    assert_eq!((watchers.counts.told, watchers.counts.confirmed, watchers.counts.missed), (2, 2, 0));
    // No session keeps the name any more.
    let (news, waiting) = change(&mut watchers, now, "a");
    assert!(news.told.is_empty() && waiting.is_none());
}

#[test]
fn a_watch_ends_with_its_time() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a"));
    let (news, waiting) = change(&mut watchers, now + KEPT_TIME, "a");
    assert!(news.told.is_empty() && waiting.is_none());
    // A watch outlasts the turn of the tables, and what was given last counts.
    assert!(look(&mut watchers, now + KEPT_TIME / 2, 2, "b"));
    watchers.turn(now + KEPT_TIME);
    assert!(look(&mut watchers, now + KEPT_TIME, 3, "b"));
    let (news, _) = change(&mut watchers, now + KEPT_TIME + Duration::from_millis(1), "b");
    assert_eq!(news.told.len(), 2);
}

#[test]
fn what_was_not_confirmed_yet_is_waited_for_by_the_next_change() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a"));
    let (first, _) = change(&mut watchers, now, "a");
    let (second, waiting) = watchers.change(now, (3, 1), vec![name("a")], |_| Vec::new());
    assert!(second.told.is_empty(), "session 2 was told");
    let waiting = waiting.expect("it may keep the name so far");
    watchers.confirm(2, first.number);
    assert!(is_done(&waiting));
    // A session does not wait for itself.
    assert!(look(&mut watchers, now, 2, "a"));
    change(&mut watchers, now, "a");
    let (_, waiting) = watchers.change(now, (2, 1), vec![name("a")], |_| Vec::new());
    assert!(waiting.is_none());
}

#[test]
fn a_silent_session_is_waited_for_once_and_given_nothing() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a") && look(&mut watchers, now, 2, "b"));
    let (news, waiting) = change(&mut watchers, now, "a");
    let (number, due, _) = waiting.expect("it is waited for").confirmed[0].clone();
    assert_eq!((number, due), (news.number, now + CHANGE_PATIENCE));
    watchers.give_up(number, due);
    watchers.give_up(number, due);
    assert_eq!(watchers.counts.missed, 1);
    // The session is told what it may have kept, but is not waited for, whatever it confirms.
    watchers.confirm(2, number);
    let (news, waiting) = change(&mut watchers, due, "b");
    assert_eq!(news.told.len(), 1);
    assert!(waiting.is_none() && !look(&mut watchers, due, 2, "a"));
    let late = due + SILENCE_TIME;
    assert!(look(&mut watchers, late, 2, "a"));
    assert!(change(&mut watchers, late, "a").1.is_some());
}

#[test]
fn a_message_that_nobody_waits_for_is_given_up_in_time() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a"));
    change(&mut watchers, now, "a");
    watchers.turn(now + KEPT_TIME);
    assert!(watchers.tellings.is_empty() && watchers.unconfirmed.is_empty() && watchers.waiting.is_empty());
    assert_eq!(watchers.counts.missed, 1);
}

#[test]
fn more_watchers_than_a_list_has_are_not_listed() {
    let (mut watchers, now) = watchers();
    let sessions = 2..=MAX_LISTED as u32 + 2;
    assert!(sessions.clone().all(|session| look(&mut watchers, now, session, "a")));
    let (news, waiting) = change(&mut watchers, now, "a");
    assert!(news.told.is_empty());
    let waiting = waiting.expect("what they keep is not over");
    assert_eq!((waiting.confirmed.len(), waiting.over), (0, Some(now + KEPT_TIME)));
    // Meanwhile, and for a while, the name is not given, so that later changes do not wait.
    assert!(sessions.clone().all(|session| !look(&mut watchers, now, session, "a")));
    assert!(look(&mut watchers, now, 2, "b"), "other names are as they were");
    assert!(change(&mut watchers, now + KEPT_TIME, "a").1.is_none());
    assert!(look(&mut watchers, now + KEPT_TIME + COOLING_TIME + VALID_TIME, 2, "a"));
}

#[test]
fn what_changes_often_under_the_eyes_of_others_is_not_given() {
    let (mut watchers, now) = watchers();
    for _ in 0..BUSY_CHANGES {
        assert!(look(&mut watchers, now, 2, "a"));
        let (news, _) = change(&mut watchers, now, "a");
        watchers.confirm(2, news.number);
    }
    assert!(!look(&mut watchers, now, 2, "a"));
    // As long as changes go on, no session watches and none is told.
    let mut later = now;
    for _ in 0..5 {
        later += VALID_TIME / 2;
        assert!(change(&mut watchers, later, "a").1.is_none());
        assert!(!look(&mut watchers, later, 2, "a"));
    }
    // After a pause the name is given again. The next change that has to be told ends that at once.
    later += VALID_TIME;
    assert!(look(&mut watchers, later, 2, "a"));
    assert!(change(&mut watchers, later, "a").1.is_some());
    assert!(!look(&mut watchers, later, 2, "a"));
}

#[test]
fn an_operation_is_not_waited_for_by_one_in_the_same_folder() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a") && look(&mut watchers, now, 1, "b"));
    let (first, waiting) = change(&mut watchers, now, "a");
    assert!(waiting.is_some(), "session 1 waits for session 2");
    let (second, waiting) = watchers.change(now, (2, 1), vec![name("b")], |_| Vec::new());
    assert_eq!(second.told.len(), 1, "session 1 is told all the same");
    assert!(waiting.is_none(), "its kernel has the folder locked until it is answered");
    watchers.confirm(2, first.number);
    assert!(look(&mut watchers, now, 1, "c"));
    assert!(watchers.change(now, (2, 2), vec![name("c")], |_| Vec::new()).1.is_some());
}

#[test]
fn who_has_a_file_open_is_told_of_its_bytes_and_not_waited_for() {
    let (mut watchers, now) = watchers();
    let bytes = Stale::Bytes { inode: 9, start: 0, end: 10 };
    let (news, waiting) = watchers.change(now, (1, 1), vec![bytes.clone()], |_| vec![1, 2]);
    assert_eq!(news.told.into_iter().collect::<Vec<_>>(), [(2, vec![bytes])]);
    assert!(waiting.is_none());
}

#[test]
fn an_operation_that_is_asked_for_again_waits_as_well() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a"));
    let (news, _) = change(&mut watchers, now, "a");
    let again = watchers.waits(1, 7).expect("operation 7 waits");
    assert!(!is_done(&again) && watchers.waits(1, 8).is_none());
    watchers.confirm(2, news.number);
    assert!(is_done(&again));
    watchers.answered(1, 7);
    assert!(watchers.waits(1, 7).is_none());
}

#[test]
fn a_session_that_ends_is_not_waited_for() {
    let (mut watchers, now) = watchers();
    assert!(look(&mut watchers, now, 2, "a"));
    let waiting = change(&mut watchers, now, "a").1.expect("session 2 is waited for");
    watchers.end(2);
    assert!(is_done(&waiting) && watchers.tellings.is_empty());
}

#[test]
fn memory_limits_what_is_given() {
    let (mut watchers, now) = watchers();
    let mut given = 0;
    for inode in 0..100 {
        let get = FileOperation::GetAttributes { inode };
        let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let mut attributes = state.attributes(ROOT_INODE).expect("there is a root");
        attributes.inode = inode;
        let told = FileOutcome::Entry(attributes);
        given += u64::from(watchers.give(now, 2, &get, &told, 10 * KEY_BYTES));
    }
    assert_eq!(given, 10);
    assert_eq!(watchers.young.len(), 10);
}

#[test]
fn a_new_home_waits_for_what_the_former_one_gave() {
    let (mut watchers, now) = watchers();
    watchers.wait_for_former(now + VALID_TIME);
    assert!(!look(&mut watchers, now, 2, "a"));
    let waiting = change(&mut watchers, now, "a").1.expect("others may keep the name");
    assert_eq!(waiting.over, Some(now + VALID_TIME));
    assert!(look(&mut watchers, now + VALID_TIME, 2, "a"));
}

#[test]
fn outcomes_that_no_kernel_keeps_are_not_watched() {
    let (mut watchers, now) = watchers();
    let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
    let root = FileOutcome::Entry(state.attributes(ROOT_INODE).expect("there is a root"));
    let commit = FileOperation::Punch { inode: ROOT_INODE, offset: 0, len: 1, extend: false };
    assert!(!watchers.give(now, 2, &commit, &root, MEMORY));
    let lookup = FileOperation::Lookup { folder: ROOT_INODE, name: "a".into() };
    assert!(!watchers.give(now, 2, &lookup, &FileOutcome::Failed(Errno::NoAccess), MEMORY));
    assert!(watchers.young.is_empty());
    // A name that is there stands for an inode, which is watched too.
    assert!(watchers.give(now, 2, &lookup, &root, MEMORY));
    let stale = vec![Stale::Attributes { inode: ROOT_INODE }, name("a")];
    let (news, _) = watchers.change(now, (1, 1), stale.clone(), |_| Vec::new());
    assert_eq!(news.told[&2], stale);
}

#[test]
fn changes_say_what_is_stale() {
    let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
    let head = state.inode(ROOT_INODE).expect("there is a root").head;
    let changes = [
        Change::Name { folder: ROOT_INODE, name: b"a"[..].into(), inode: Some(ROOT_INODE) },
        Change::Punch { inode: 9, start: 100, end: u64::MAX },
        Change::Head { inode: 9, head },
        Change::Punch { inode: 9, start: 50, end: 60 },
        Change::Head { inode: ROOT_INODE, head },
        Change::Close { inode: 9, session: 1, maps: false },
    ];
    let folder = Stale::Name { folder: ROOT_INODE, name: "a".into(), is_folder: true };
    let expected = [
        folder,
        Stale::Attributes { inode: ROOT_INODE },
        Stale::Bytes { inode: 9, start: 50, end: MAX_FILE_BYTES },
    ];
    assert_eq!(stale_of(&state, &changes), expected);
}

#[test]
fn entries_that_come_with_a_name_are_watched() {
    let (mut watchers, now) = watchers();
    let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
    let attributes = state.attributes(ROOT_INODE).expect("there is a root");
    let listed = |name: &'static str| Listed { name: name.into(), cookie: 1, attributes: attributes.clone() };
    let page = FileOutcome::Entries {
        entries: vec![listed("a"), listed("b")],
        end: true,
        above: ROOT_INODE,
        last: 2,
    };
    let ahead = FileOperation::LookAhead { folder: ROOT_INODE, name: "a".into(), most: 9 };
    assert!(watchers.give(now, 2, &ahead, &page, MEMORY));
    assert!(watchers.give(now, 3, &ahead, &FileOutcome::Failed(Errno::NotFound), MEMORY));
    let told = |watchers: &mut Watchers, stale| {
        watchers.change(now, (1, 1), vec![stale], |_| Vec::new()).0.told.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(told(&mut watchers, name("a")), [2, 3]);
    assert_eq!(told(&mut watchers, name("b")), [2]);
    assert_eq!(told(&mut watchers, Stale::Attributes { inode: ROOT_INODE }), [2]);
}

#[test]
fn who_never_confirms_is_known() {
    let (mut watchers, mut now) = watchers();
    let mut miss = |watchers: &mut Watchers| {
        for _ in 0..2 {
            look(watchers, now, 2, "a");
            let (news, _) = change(watchers, now, "a");
            watchers.give_up(news.number, now);
        }
        now += SILENCE_TIME;
    };
    for times in 1..NEVER {
        miss(&mut watchers);
        assert!(watchers.who_never_confirm().is_empty(), "{times}");
    }
    // The confirmation of session 2 was late.
    watchers.confirm(2, 1);
    for _ in 1..NEVER {
        miss(&mut watchers);
        assert!(watchers.who_never_confirm().is_empty());
    }
    miss(&mut watchers);
    assert_eq!(watchers.who_never_confirm(), [2]);
    watchers.end(2);
    assert!(watchers.who_never_confirm().is_empty());
}
