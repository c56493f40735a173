//! Tests of tables of calls: every call survives encoding as words, and words decode to at most one call.

use super::*;
use crate::wire::{InWord, NotZero};

crate::wire::call_result! {
    /// Result of a `Look`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Seen {
        pub(super) count: u16,
        pub(super) well: bool as InWord<3>,
    }
    with bytes
}

crate::wire::call_table! {
    /// Part of calls that is a field of frames, too.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Touch as field {
        0 Feel { softly: u8 },
        3 Hit { hard: u32 } with bytes,
    }
}

crate::wire::call_table! {
    /// Call about things.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum ThingCall in 170..=179 {
        /// Looks at things.
        175 Look { first: u8, second: u16, third: u32, fourth: u8, until: u64 as NotZero } -> Seen,
        170 Rest,
    }
    retired 172
    and 173
    /// Touches things.
    On(Touch)
}

#[test]
fn fields_lie_as_in_a_struct() {
    let look = ThingCall::Look { first: 1, second: 2, third: 3, fourth: 4, until: 5 };
    assert_eq!(look.encode(), (175, [1 | 2 << 16 | 3 << 32, 4, 5, 0, 0, 0]));
    assert_eq!(ThingCall::On(Touch::Hit { hard: 6 }).encode(), (176, [6, 0, 0, 0, 0, 0]));
    assert_eq!(Seen { count: 1, well: true }.values(), [1, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn what_no_field_takes_is_no_call() {
    let decode = |number, arguments, payload: &[u8]| ThingCall::decode(number, arguments, payload).is_some();
    assert!(decode(175, [1 | 2 << 16 | 3 << 32, 4, 5, 0, 0, 0], &[]));
    assert!(!decode(175, [1 << 8, 4, 5, 0, 0, 0], &[]), "nothing lies between fields");
    assert!(!decode(175, [1, 256, 5, 0, 0, 0], &[]), "nothing lies behind a short field");
    assert!(!decode(175, [1, 4, 5, 1, 0, 0], &[]), "it has three words");
    assert!(!decode(175, [1, 4, 0, 0, 0, 0], &[]), "the last field is not 0");
    assert!(!decode(175, [1, 4, 5, 0, 0, 0], &[1]), "it has no payload");
    assert!(decode(176, [1, 0, 0, 0, 0, 0], &[1]));
    for number in [169, 171, 172, 174, 177] {
        assert!(!decode(number, [0; ARGUMENTS], &[]));
    }
    assert_eq!(Seen::of_values([1, 0, 0, 2, 0, 0, 0], &[]), None);
}

#[test]
fn rows_tell_where_fields_lie() {
    let mut types = Types::default();
    let rows = ThingCall::rows(&mut types, 0);
    let told: Vec<_> = rows.iter().map(|row| (row.number, row.name, listed_places(&row.fields))).collect();
    let look = "0 first: u8, 2 second: u16, 4 third: u32, 8 fourth: u8, 16 until: u64, not 0";
    let (feel, hit) = ("0 softly: u8", "0 hard: u32");
    let expected = [(170, "Rest", ""), (173, "Feel", feel), (175, "Look", look), (176, "Hit", hit)];
    assert_eq!(told, expected.map(|(number, name, fields)| (number, name, fields.to_owned())));
    assert_eq!((rows[3].payload, &rows[2].result[..]), ("bytes", "seen"));
    assert_eq!(types.0["seen"], "0 count: u16, 24 well: bool, payload: bytes");
}

#[test]
fn numbers_are_in_their_range_and_in_one_table() {
    assert!(are_within(&[1, 2, 3], 1, 3) && !are_within(&[1, 4], 1, 3));
    assert!(are_others(&[1, 2], 3, &[0, 1]) && !are_others(&[1, 4], 3, &[0, 1]));
}
