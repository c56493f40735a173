//! Tests of rights to regions.

use plasmon::ErrorKind;
use plasmon::wire::Operation;

use super::*;

fn may(region: &Region, user: u32) -> [bool; 2] {
    let operations = [Operation::Read { offset: 0, len: 8 }, Operation::FetchAdd { offset: 0, value: 1 }];
    operations.map(|operation| match region.carry_out(user, operation, &[]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
            false
        }
    })
}

#[test]
fn users_do_what_they_have_the_right_to() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    assert_eq!(
        [may(&region, OWNER), may(&region, 0), may(&region, OTHER)],
        [[true; 2], [true; 2], [false; 2]]
    );
    region.grant(OWNER, Some(OTHER), Rights::READ).expect("the owner may");
    assert_eq!([may(&region, OTHER), may(&region, THIRD)], [[true, false], [false; 2]]);
    // Granting adds rights.
    region.grant(0, Some(OTHER), Rights::WRITE).expect("root may");
    assert_eq!((may(&region, OTHER), region.rights(OTHER)), ([true; 2], Rights::READ_WRITE));
    region.grant(OWNER, None, Rights::WRITE).expect("the owner may");
    assert_eq!(may(&region, THIRD), [false, true]);
    region.revoke(OWNER, Some(OTHER)).expect("the owner may");
    assert_eq!(region.rights(OTHER), Rights::WRITE);
    region.revoke(OWNER, None).expect("the owner may");
    assert_eq!(
        [may(&region, OTHER), may(&region, THIRD), may(&region, OWNER)],
        [[false; 2], [false; 2], [true; 2]]
    );
    let refused = region.ensure(OTHER, Rights::READ_WRITE).expect_err("it has no right");
    for part in ["'a'", &OTHER.to_string(), "rw", "none", &OWNER.to_string()] {
        assert!(refused.message().contains(part), "{refused} does not name {part}");
    }
}

#[test]
fn masters_grant_and_revoke() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    region.grant(OWNER, Some(OTHER), Rights::READ_WRITE).expect("the owner may");
    assert_eq!(failed(region.grant(OTHER, Some(THIRD), Rights::READ)), ErrorKind::NotAllowed);
    assert_eq!(failed(region.revoke(OTHER, Some(OTHER))), ErrorKind::NotAllowed);
    region.grant(OWNER, Some(OTHER), Rights::MASTER).expect("the owner may");
    region.grant(OTHER, Some(THIRD), Rights::READ).expect("a master may");
    region.revoke(OTHER, Some(OTHER)).expect("a master may");
    assert_eq!([region.rights(OTHER), region.rights(THIRD)], [Rights::NONE, Rights::READ]);
    // The rights of the owner and of root cannot be taken, and everybody cannot be master.
    for user in [OWNER, 0] {
        region.grant(OWNER, Some(user), Rights::READ).expect("it has all rights");
        assert_eq!(failed(region.revoke(OWNER, Some(user))), ErrorKind::Invalid);
        assert_eq!(region.rights(user), Rights::ALL);
    }
    assert_eq!(failed(region.grant(OWNER, None, Rights::ALL)), ErrorKind::Invalid);
    assert_eq!(failed(region.grant(OWNER, Some(THIRD), Rights::NONE)), ErrorKind::Invalid);
    region.grant(OWNER, Some(OTHER), Rights::MASTER).expect("the owner may");
    bench.free(&region, OTHER).expect("a master may");
}

#[test]
fn a_region_has_so_many_grants() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let grant = |user| region.grant(OWNER, Some(user), Rights::READ);
    (1000..1064).for_each(|user| grant(user).expect("there is room"));
    assert_eq!(failed(grant(1064)), ErrorKind::Full);
    grant(1000).expect("it has an entry");
    region.revoke(OWNER, Some(1001)).expect("the owner may");
    grant(1064).expect("there is room again");
}

#[test]
fn everybody_has_the_rights_that_the_region_was_made_with() {
    let mut bench = bench();
    let region = bench.try_make(Wanted { public: Rights::READ, ..wanted("a", 64) }, OWNER);
    let region = region.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!([may(&region, OTHER), may(&region, OWNER)], [[true, false], [true; 2]]);
    assert_eq!((region.info(OTHER).rights, region.info(OTHER).public), (Rights::READ, Rights::READ));
}
