//! Tests of how regions are made, found, listed and freed, and of what they take.

use plasmon::status::Status;
use plasmon::wire::Operation;
use plasmon::{DeleteOutcome, ErrorKind, Filter, ObjectId};

use super::*;
use crate::memory::{Domain, Writer, Zone};
use crate::object::{DEEDS, FastPins, Wanted as WantedObjects};
use plasmon::region::region_id;

#[test]
fn a_region_is_made_of_zeros_and_found() {
    let mut bench = bench();
    let first = bench.make("a", 600 << 10);
    let fill = Operation::Fill { offset: 0, len: 256 << 10, byte: 7 };
    first.carry_out(OWNER, fill, &[]).expect("the owner may");
    bench.free(&first, OWNER).expect("the owner may");
    let again = bench.make("a", 600 << 10);
    assert_ne!((first.life(), again.life()), (again.life(), 0));
    let read =
        again.carry_out(OWNER, Operation::Read { offset: 0, len: 256 << 10 }, &[]).expect("it is there");
    assert!(read.data.iter().all(|byte| *byte == 0), "what was there before is gone");
    let found = bench.home.find(&region_id("a")).expect("it is there");
    assert!(Rc::ptr_eq(&found, &again));
    let at = bench.home.at(again.desk(), again.life()).expect("it is there");
    assert!(Rc::ptr_eq(&at, &again));
    assert_eq!(failed(bench.home.at(first.desk(), first.life())), ErrorKind::Freed);
    assert_eq!(failed(bench.home.at(u32::MAX, 1)), ErrorKind::Freed);
    assert!(bench.home.find(&region_id("b")).is_none());
    let info = again.info(OTHER);
    assert_eq!((info.name.as_str(), info.len, info.owner), ("a", 600 << 10, OWNER));
    assert_eq!((info.rights, info.public), (Rights::NONE, Rights::NONE));
}

#[test]
fn names_lengths_and_rights_that_no_region_has_are_refused() {
    let mut bench = bench();
    let kind = |bench: &mut Bench, wanted| failed(bench.try_make(wanted, OWNER));
    assert_eq!(kind(&mut bench, wanted("", 8)), ErrorKind::Invalid);
    assert_eq!(kind(&mut bench, wanted(&"n".repeat(256), 8)), ErrorKind::Invalid);
    assert_eq!(kind(&mut bench, wanted("a", 0)), ErrorKind::Invalid);
    assert_eq!(kind(&mut bench, Wanted { public: Rights::ALL, ..wanted("a", 8) }), ErrorKind::Invalid);
    assert_eq!(kind(&mut bench, wanted("a", MEMORY_BYTES + 1)), ErrorKind::TooLarge);
    assert_eq!(kind(&mut bench, wanted("a", u64::MAX)), ErrorKind::TooLarge);
    assert_eq!((bench.home.count(), bench.store.regions.bytes()), (0, 0));
    bench.make(&"n".repeat(255), 1);
}

#[test]
fn a_name_is_taken_once() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    assert_eq!(failed(bench.try_make(wanted("a", 64), OWNER)), ErrorKind::Exists);
    let as_well = |len| Wanted { exist_ok: true, ..wanted("a", len) };
    let same = bench.try_make(as_well(64), OWNER).unwrap_or_else(|error| panic!("it is there: {error}"));
    assert!(Rc::ptr_eq(&same, &region));
    assert_eq!(failed(bench.try_make(as_well(65), OWNER)), ErrorKind::Exists);
    assert_eq!(failed(bench.try_make(as_well(64), OTHER)), ErrorKind::Exists);
}

#[test]
fn of_those_who_make_a_region_at_once_one_makes_it() {
    let mut bench = bench();
    let (len, homes) = (1 << 20, [0; 3].map(|_| Rc::clone(&bench.home)));
    let as_well = [true, false, true];
    let begun: Vec<_> = homes
        .into_iter()
        .zip(as_well)
        .map(|(home, exist_ok)| {
            bench.begin(async move { home.make(Wanted { exist_ok, ..wanted("a", len) }, OWNER).await })
        })
        .collect();
    let mut made: Vec<_> = begun.into_iter().map(|one| bench.end(one)).collect();
    let (last, is_last_new) = made.pop().and_then(Result::ok).expect("it is there");
    assert_eq!(failed(made.pop().expect("three were begun")), ErrorKind::Exists);
    let (first, is_first_new) = made.pop().and_then(Result::ok).expect("it is made");
    assert!(Rc::ptr_eq(&first, &last) && is_first_new && !is_last_new);
    assert_eq!((bench.home.count(), bench.store.regions.bytes()), (1, len));
}

#[test]
fn who_gives_up_making_a_region_leaves_nothing() {
    let mut bench = bench();
    let home = Rc::clone(&bench.home);
    let (task, handle) =
        futures::future::abortable(async move { home.make(wanted("a", 4 << 20), OWNER).await });
    let begun = bench.begin(task);
    bench.turn();
    assert_eq!(bench.store.regions.bytes(), 4 << 20);
    handle.abort();
    assert!(bench.end(begun).is_err());
    assert_eq!(bench.store.regions.bytes(), 0);
    bench.make("a", 8);
}

#[test]
fn regions_take_what_they_may() {
    let mut bench = bench_with(|config| {
        config.region_memory = Some(3 << 20);
        config.user_quota = Some(2 << 20);
        // No region counts against a client.
        config.client_quota = Some(1);
    });
    assert_eq!(failed(bench.try_make(wanted("a", (3 << 20) + 1), OWNER)), ErrorKind::TooLarge);
    let first = bench.make("a", 2 << 20);
    let full = bench.try_make(wanted("b", 1), OWNER).err().expect("the quota is used up");
    assert!(full.kind() == ErrorKind::Full && full.message().contains("--user-quota"), "{full}");
    let second = bench.try_make(wanted("b", 1 << 20), OTHER);
    let second = second.unwrap_or_else(|error| panic!("another user has room: {error}"));
    let full = bench.try_make(wanted("c", 1), OTHER).err().expect("regions have no more room");
    assert!(full.kind() == ErrorKind::Full && full.message().contains("--region-memory"), "{full}");
    // A hold on the memory of a region keeps it in use.
    let held = first.hold();
    bench.free(&first, OWNER).expect("the owner may");
    assert_eq!(failed(bench.try_make(wanted("a", 2 << 20), OWNER)), ErrorKind::Full);
    drop(held);
    assert_eq!(bench.store.regions.bytes(), second.len());
    bench.make("a", 2 << 20);
}

#[test]
fn a_full_store_says_that_regions_hold_it() {
    let mut bench = bench();
    bench.make("a", 8 << 20);
    let zone = Zone { domain: Domain::Shared, writer: Writer::Engine };
    let store = Rc::clone(&bench.store);
    let full = bench.run(async move { store.room(zone, 12 << 20, Duration::ZERO).await.map(drop) });
    let full = full.expect_err("there is no room");
    assert!(full.message().contains("regions: 8.0 MiB"), "{}", full.message());
}

#[test]
fn a_region_that_is_freed_is_gone_at_once() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let (id, desk, life) = (region.id(), region.desk(), region.life());
    assert_eq!(failed(bench.free(&region, OTHER)), ErrorKind::NotAllowed);
    assert!(!region.is_gone());
    bench.free(&region, 0).expect("root may");
    assert!(region.is_gone() && bench.home.find(&id).is_none() && region.place(OWNER).is_none());
    let read = Operation::Read { offset: 0, len: 8 };
    assert_eq!(failed(region.carry_out(OWNER, read, &[])), ErrorKind::Freed);
    assert_eq!(failed(region.run(0, 8)), ErrorKind::Freed);
    assert_eq!(failed(bench.home.at(desk, life)), ErrorKind::Freed);
    assert_eq!(failed(bench.free(&region, OWNER)), ErrorKind::Freed);
    assert_eq!(failed(region.grant(OWNER, None, Rights::READ)), ErrorKind::Freed);
    assert_eq!((bench.home.count(), bench.store.regions.bytes()), (0, 0));
    assert!(bench.store.objects.borrow().conflict(&id).is_none(), "the name is free");
}

#[test]
fn the_user_of_the_node_frees_what_others_leave() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    bench.free(&region, rustix::process::getuid().as_raw()).expect("the node's own user may");
    assert!(region.is_gone());
}

#[test]
fn a_region_whose_deed_was_displaced_ends() {
    let mut bench = bench();
    let (region, other) = (bench.make("a", 64), bench.make("b", 64));
    bench.store.remove(&region.id());
    let add = Operation::FetchAdd { offset: 0, value: 1 };
    assert_eq!(failed(region.carry_out(OWNER, add, &[])), ErrorKind::Freed);
    // Before the node has looked, the name may have another region.
    let again = bench.make("a", 64);
    bench.home.on_tick();
    assert!(region.is_gone() && !again.is_gone() && !other.is_gone());
    let found = bench.home.find(&again.id()).expect("it is there");
    assert!(Rc::ptr_eq(&found, &again));
    assert_eq!((bench.home.count(), bench.store.regions.bytes()), (2, 128));
}

#[test]
fn a_node_that_withholds_objects_withholds_regions() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    bench.placement.cluster.withheld.set(true);
    let add = Operation::FetchAdd { offset: 0, value: 1 };
    assert_eq!(failed(region.carry_out(OWNER, add, &[])), ErrorKind::Disconnected);
    assert_eq!(failed(region.run(0, 8)), ErrorKind::Disconnected);
    assert_eq!(failed(bench.free(&region, OWNER)), ErrorKind::Disconnected);
    assert_eq!(failed(bench.try_make(wanted("b", 8), OWNER)), ErrorKind::Disconnected);
    bench.placement.cluster.withheld.set(false);
    assert_eq!(region.carry_out(OWNER, add, &[]).expect("it serves again").value, 0);
}

#[test]
fn nobody_sees_deeds() {
    let mut bench = bench();
    bench.store.objects.borrow_mut().happenings = Some(Vec::new());
    let region = bench.make("a", 64);
    let objects = bench.store.objects.borrow();
    assert_eq!(objects.staying(), (0, 0, 0));
    assert_eq!(objects.census(&FastPins::default()).primary, 0);
    for user in [0, OWNER, OTHER] {
        let wanted = WantedObjects { user, filter: Filter::default().prepare(), now: 0 };
        let (page, next) = objects.page(0, &wanted, &FastPins::default(), 10, |_| true);
        assert!(page.is_empty() && next.is_none());
        let deed = objects.get(&region.id()).expect("it is there");
        assert!(!deed.visible_to(user) && !deed.ownership().may_change(user));
    }
    assert!(objects.conflict(&region.id()).is_some(), "nobody makes an object of that id");
    drop(objects);
    let deleted = bench.placement.directory.deletion.delete_here(&[region.id()], &[], 0);
    assert!(!region.is_gone(), "root deletes no deed: {deleted:?}");
    bench.free(&region, OWNER).expect("the owner may");
    let happenings = bench.store.objects.borrow_mut().happenings.take();
    assert!(happenings.is_some_and(|all| all.is_empty()));
}

#[test]
fn the_deletion_of_another_life_deletes_nothing() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let deletion = Rc::clone(&bench.placement.directory.deletion);
    let delete = |life| deletion.delete_here(&[region.id()], &[life], DEEDS);
    assert_eq!(delete(region.life() ^ 1), [DeleteOutcome::Absent]);
    assert!(bench.store.objects.borrow().get(&region.id()).is_some());
    assert_eq!(delete(region.life()), [DeleteOutcome::Deleted]);
}

#[test]
fn deeds_stay_whatever_room_is_needed() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    assert_eq!(bench.store.make_way(u64::MAX), None);
    let store = Rc::clone(&bench.store);
    let deed = bench.store.objects.borrow().get(&region.id()).cloned().expect("it is there");
    let brought = bench.run(async move { store.bring_back(&deed).await });
    assert_eq!(failed(brought), ErrorKind::Invalid);
    assert!(!region.is_gone());
    assert!(region_id("a") != ObjectId::from_name("a") && region.id() == region_id("a"));
}

#[test]
fn lists_have_what_a_user_may_see_in_pages() {
    let mut bench = bench();
    let regions: Vec<_> = (0..7).map(|number| bench.make(&format!("r{number}"), 8)).collect();
    regions[3].grant(OWNER, Some(OTHER), Rights::READ).expect("the owner may");
    regions[5].grant(OWNER, None, Rights::READ).expect("the owner may");
    bench.free(&regions[1], OWNER).expect("the owner may");
    let names = |user, most| {
        let (mut names, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from {
            let (page, next) = bench.home.list(user, place, most);
            assert!(page.len() <= most && next.is_none_or(|next| next > place));
            names.extend(page.iter().map(|region| region.name().to_owned()));
            from = next;
        }
        names
    };
    assert_eq!(names(OTHER, 1), ["r3", "r5"]);
    assert_eq!(names(THIRD, 10), ["r5"]);
    assert_eq!(names(OWNER, 2), ["r0", "r2", "r3", "r4", "r5", "r6"]);
    assert_eq!(names(0, 100).len(), 6);
    assert_eq!(bench.home.list(0, u64::MAX, 10).1, None);
    assert_eq!(bench.home.names(2), ["r0", "r2"]);
}

#[test]
fn only_the_owner_maps_a_region() {
    let mut bench = bench();
    let region = bench.make("a", 5 << 20);
    let place = region.place(OWNER).expect("the owner may");
    let [(offset, len)] = place.pieces[..] else { panic!("{place:?}") };
    assert!(place.writable && offset.is_multiple_of(4096) && len == region.len());
    let zone = bench.store.arena.borrow().zone(place.segments[0]).expect("it has one");
    assert_eq!(zone, Zone { domain: Domain::Private(OWNER), writer: Writer::Uid(OWNER) });
    region.grant(OWNER, Some(OTHER), Rights::ALL).expect("the owner may");
    assert_eq!([region.place(OTHER), region.place(0)], [None, None]);
    let unmapped = Wanted { mappable: false, ..wanted("b", 64) };
    let unmapped = bench.try_make(unmapped, OWNER).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(unmapped.place(OWNER), None);
    let run = unmapped.run(0, 64).expect("it is there");
    let zone =
        bench.store.arena.borrow().zone(run.segments().next().expect("it lies in one")).expect("it has one");
    assert_eq!(zone, Zone::ENGINE);
}

#[test]
fn the_report_counts_regions_and_operations() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let operations = [
        Operation::Read { offset: 0, len: 8 },
        Operation::Write { offset: 0 },
        Operation::Swap { offset: 0, value: 3 },
        Operation::TestAndSet { offset: 8 },
        Operation::Fill { offset: 0, len: 8, byte: 0 },
        Operation::Notify { offset: 0 },
        // The read at this offset is refused, and does not count.
        Operation::Read { offset: 64, len: 1 },
    ];
    operations.iter().for_each(|operation| drop(region.carry_out(OWNER, *operation, &[])));
    let waiting = region.wait(OWNER, 0, 0).expect("the owner may");
    let mut status = Status::default();
    bench.home.report(&mut status);
    let regions = &status.regions;
    assert_eq!((regions.regions, regions.bytes, regions.limit), (1, 64, MEMORY_BYTES / 2));
    assert_eq!((regions.reads, regions.writes, regions.atomics), (1, 1, 2));
    assert_eq!((regions.fills, regions.notifies, regions.waits, regions.waiting), (1, 1, 1, 1));
    drop(waiting);
    bench.home.report(&mut status);
    assert_eq!(status.regions.waiting, 0);
}
