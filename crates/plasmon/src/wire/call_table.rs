//! Tables of calls by slot: a row for each call, from which its number, its words and its codec are made.
//! Owns no state. Any thread.
//!
//! ```
//! use plasmon::wire::BySlot;
//!
//! plasmon::wire::call_result! {
//!     /// Result of a `Look`.
//!     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
//!     pub struct Seen {
//!         /// Number of things that are seen.
//!         pub count: u32,
//!     }
//! }
//!
//! plasmon::wire::call_table! {
//!     /// Call about things.
//!     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
//!     pub enum ThingCall in 170..=179 {
//!         /// Looks at things.
//!         170 Look { first: u32, fast: bool, until: u64 } -> Seen,
//!         /// Writes the bytes of the payload.
//!         171 Write { at: u64 } with bytes,
//!     }
//!     retired 172
//! }
//!
//! # fn main() {
//! let call = ThingCall::Look { first: 1, fast: true, until: 3 };
//! assert_eq!(call.encode(), (170, [1 | 1 << 32, 3, 0, 0, 0, 0]));
//! assert_eq!(ThingCall::decode(170, [1 | 1 << 32, 3, 0, 0, 0, 0], &[]), Some(call));
//! # }
//! ```
//!
//! A row is a number, a variant with its fields, the struct of its result, and a description of the payload
//! if the payload is not a field. Fields are [arguments](Argument). A field with another encoding than its
//! type has names this encoding as in [`table!`](crate::wire::table!): `ticket: u64 as NotZero`.
//! [`call_table!`](crate::wire::call_table!) makes the enum, its codec and draws ([`CallTable`]), and the
//! rows as data for the documentation ([`CallRow`]). With a range after `in` the enum is a protocol
//! ([`BySlot`]). A number that is used twice, is retired or is out of the range does not compile:
//!
//! ```compile_fail,E0080
//! plasmon::wire::call_table! {
//!     enum ThingCall in 170..=179 {
//!         170 Look,
//!         180 Write,
//!     }
//! }
//! ```
//!
//! A table that ends with `and 100 On(Operation)` has the rows of another table as well, whose numbers begin
//! at 100. `enum Operation as field` makes a [`table!`](crate::wire::table!) too, with the same numbers.
//!
//! All protocols together are [`CALLS`](super::CALLS), all results [`RESULTS`](super::RESULTS).

use std::borrow::Cow;

use bytes::BytesMut;

use super::draw::Draw;
use super::fields::{Types, words};
use super::words::{Argument, Packing, Unpacking};
use crate::shared::{ARGUMENTS, VALUES};

/// Place, name and type of a field, for the documentation.
pub type Placed = (String, &'static str, Cow<'static, str>);

/// Row of a table of calls, for the documentation and for tests.
#[derive(Debug, Clone)]
pub struct CallRow {
    /// Number of the call.
    pub number: u8,
    /// Name of the variant.
    pub name: &'static str,
    /// Lines of the variant's doc comment.
    pub about: &'static [&'static str],
    /// Fields of the call.
    pub fields: Vec<Placed>,
    /// Description of a payload that is not a field. Empty if there is no such payload.
    pub payload: &'static str,
    /// Name of the result, whose parts are entered into the types. Empty if the row has no result.
    pub result: Cow<'static, str>,
}

impl CallRow {
    /// Returns the name of the variant in words.
    pub fn words(&self) -> String {
        words(self.name)
    }
}

/// Calls, or a part of them. The macro `call_table!` implements the trait.
pub trait CallTable: Sized + 'static {
    /// Numbers of the calls in the list, without those of another table.
    const NUMBERS: &'static [u8];

    /// Returns all rows in the order of their numbers. Fields begin at the byte `at`.
    fn rows(types: &mut Types, at: usize) -> Vec<CallRow>;

    /// Returns the number of the call.
    fn number(&self) -> u8;

    /// Writes the fields of the call.
    fn pack(&self, out: &mut Packing);

    /// Reads the fields of the call with this number. `None` if there is no such call, or if a field is out
    /// of range.
    fn unpack(number: u8, from: &mut Unpacking) -> Option<Self>;

    /// Draws any call with this number.
    ///
    /// # Panics
    /// If there is no such call.
    fn draw_call(number: u8, draw: &mut Draw) -> Self;
}

/// Number, arguments and payload of a call. The payload is empty if it is not a field of the call.
pub type Packed = (u8, [u64; ARGUMENTS], BytesMut);

/// Calls that a service answers.
pub trait BySlot: CallTable {
    /// Number of the first call.
    const FIRST: u8;
    /// Largest number that a call of the protocol may have.
    const LAST: u8;
    /// Name of the protocol.
    const NAME: &'static str;

    /// Returns the number and the arguments of the call, and its payload if the payload is a field.
    fn packed(&self) -> Packed {
        let mut out = Packing::default();
        self.pack(&mut out);
        let (arguments, payload) = out.arguments();
        (self.number(), arguments, payload)
    }

    /// Returns the number and the arguments of a call whose payload is not a field.
    fn encode(&self) -> (u8, [u64; ARGUMENTS]) {
        let (number, arguments, _) = self.packed();
        (number, arguments)
    }

    /// Returns the call with this number, these arguments and this payload. `None` if there is no such call,
    /// if a field is out of range, or if there are bytes beyond the fields of the call.
    fn decode(number: u8, arguments: [u64; ARGUMENTS], payload: &[u8]) -> Option<Self> {
        let mut from = Unpacking::of_arguments(arguments, payload);
        let call = Self::unpack(number, &mut from)?;
        from.finish(call)
    }
}

/// Result of a call. The macro `call_result!` implements the trait.
pub trait SlotResult: Sized + 'static {
    /// Returns the name of the result in the documentation, and enters its parts into `types`.
    fn shape(types: &mut Types) -> Cow<'static, str>;

    /// Writes the fields of the result.
    fn pack(&self, out: &mut Packing);

    /// Reads the fields of the result. `None` if one is out of range.
    fn unpack(from: &mut Unpacking) -> Option<Self>;

    /// Draws any result.
    fn draw_result(draw: &mut Draw) -> Self;

    /// Returns the values of the result, and its payload if the payload is a field.
    fn packed(&self) -> ([u64; VALUES], BytesMut) {
        let mut out = Packing::default();
        self.pack(&mut out);
        out.values()
    }

    /// Returns the values of a result whose payload is not a field.
    fn values(&self) -> [u64; VALUES] {
        self.packed().0
    }

    /// Returns the result with these values and this payload. `None` if a field is out of range, or if there
    /// are bytes beyond the fields of the result.
    fn of_values(values: [u64; VALUES], payload: &[u8]) -> Option<Self> {
        let mut from = Unpacking::of_values(values, payload);
        let result = Self::unpack(&mut from)?;
        from.finish(result)
    }
}

/// Whether all of these numbers are in a range.
#[doc(hidden)]
pub const fn are_within(numbers: &[u8], first: u8, last: u8) -> bool {
    match numbers {
        [number, rest @ ..] => first <= *number && *number <= last && are_within(rest, first, last),
        [] => true,
    }
}

/// Whether none of the numbers of another table, counted from `base`, is in `own`.
#[doc(hidden)]
pub const fn are_others(own: &[u8], base: u8, others: &[u8]) -> bool {
    let mut at = 0;
    while at < others.len() {
        let mut nth = 0;
        while nth < own.len() {
            if own[nth] == base + others[at] {
                return false;
            }
            nth += 1;
        }
        at += 1;
    }
    true
}

/// Returns place, name and type of a field, whose type is entered into `types`.
#[doc(hidden)]
pub fn placed<T, Way: Argument<T>>(name: &'static str, types: &mut Types, at: &mut usize) -> Placed {
    (Way::place(at), name, Way::shape(types))
}

/// Enters a result into the types of a page, and returns its name.
#[doc(hidden)]
pub fn enter_result(
    name: &str,
    types: &mut Types,
    payload: &str,
    fields: impl FnOnce(&mut Types, &mut usize) -> Vec<Placed>,
) -> Cow<'static, str> {
    types.enter(name, |types| {
        let mut text = listed_places(&fields(types, &mut 0));
        if !payload.is_empty() {
            text = format!("{text}, payload: {payload}");
        }
        text
    })
}

/// Returns the text of the documentation for fields at their places.
pub(super) fn listed_places(fields: &[Placed]) -> String {
    let fields = fields.iter().map(|(place, name, shape)| format!("{place} {name}: {shape}"));
    fields.collect::<Vec<_>>().join(", ")
}

/// Calls a function of the [`Argument`] of a field: that of its type, or that named behind `as`.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_argument {
    ($function:ident $arguments:tt $type:ty) => {
        <$type as $crate::wire::Argument<$type>>::$function $arguments
    };
    ($function:ident $arguments:tt $type:ty as $way:ty) => {
        <$way as $crate::wire::Argument<$type>>::$function $arguments
    };
}

/// Place, name and type of a field in the documentation.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_placed {
    ($name:ident, $types:ident, $at:expr, $type:ty) => {
        $crate::wire::placed::<$type, $type>(stringify!($name), $types, $at)
    };
    ($name:ident, $types:ident, $at:expr, $type:ty as $way:ty) => {
        $crate::wire::placed::<$type, $way>(stringify!($name), $types, $at)
    };
}

/// Defines a table of calls, as the module describes.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_call_table {
    (
        $(#[$meta:meta])*
        $vis:vis enum $table:ident $(in $first:literal ..= $last:literal)? {
            $(
                $(#[doc = $about:literal])*
                $number:literal $name:ident
                $( { $( $(#[$field_meta:meta])* $field:ident: $type:ty $(as $way:ty)? ),* $(,)? } )?
                $( -> $result:ident )?
                $( with $payload:ident )?
            ),* $(,)?
        }
        $(retired $($retired:literal),+)?
        $(and $base:literal $(#[$all_meta:meta])* $all:ident($of:ident))?
    ) => {
        $(#[$meta])*
        $vis enum $table {
            $( $(#[doc = $about])* $name $( { $( $(#[$field_meta])* $field: $type, )* } )?, )*
            $( $(#[$all_meta])* $all($of), )?
        }

        $crate::wire_call_table! {
            @implement $table {
                $(
                    [$($about),*] $number $name
                    { $($( $field: $type $(as $way)?, )*)? }
                    ($($result)?) ($($payload)?)
                )*
            }
            ($($($retired),+)?)
            ($($base $all $of)?)
        }

        $(
            const _: () = assert!(
                $crate::wire::are_within(<$table as $crate::wire::CallTable>::NUMBERS, $first, $last),
                "a number is out of the range of the calls"
            );

            impl $crate::wire::BySlot for $table {
                const FIRST: u8 = $first;
                const LAST: u8 = $last;
                const NAME: &'static str = stringify!($table);
            }
        )?
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $table:ident as field {
            $(
                $(#[doc = $about:literal])*
                $number:literal $name:ident
                $( { $( $(#[$field_meta:meta])* $field:ident: $type:ty ),* $(,)? } )?
                $( with $payload:ident )?
            ),* $(,)?
        }
    ) => {
        $crate::wire_table! {
            $(#[$meta])*
            $vis enum $table {
                $( $(#[doc = $about])* $number $name $( { $( $(#[$field_meta])* $field: $type, )* } )?, )*
            }
        }

        $crate::wire_call_table! {
            @implement $table {
                $( [$($about),*] $number $name { $($( $field: $type, )*)? } () ($($payload)?) )*
            }
            ()
            ()
        }
    };
    (
        @implement $table:ident {
            $(
                [$($about:literal),*] $number:literal $name:ident
                { $( $field:ident: $type:ty $(as $way:ty)?, )* }
                ($($result:ident)?) ($($payload:ident)?)
            )*
        }
        ($($retired:literal),*)
        ($($base:literal $all:ident $of:ident)?)
    ) => {
        const _: () = assert!(
            $crate::wire::are_distinct(&[$($number,)* $($retired),*]),
            "a number is used twice, or is retired"
        );
        $(
            const _: () = assert!(
                $crate::wire::are_others(
                    <$table as $crate::wire::CallTable>::NUMBERS,
                    $base,
                    <$of as $crate::wire::CallTable>::NUMBERS,
                ),
                "a number is one of the other table as well"
            );
        )?

        impl $crate::wire::CallTable for $table {
            const NUMBERS: &'static [u8] = &[$($number),*];

            fn rows(_types: &mut $crate::wire::Types, at: usize) -> Vec<$crate::wire::CallRow> {
                let mut rows = vec![$({
                    let mut _at = at;
                    $crate::wire::CallRow {
                        number: $number,
                        name: stringify!($name),
                        about: &[$($about),*],
                        fields: vec![
                            $($crate::wire_placed!($field, _types, &mut _at, $type $(as $way)?)),*
                        ],
                        payload: stringify!($($payload)?),
                        result: ::std::borrow::Cow::Borrowed("")
                            $( + <$result as $crate::wire::SlotResult>::shape(_types) )?,
                    }
                }),*];
                $(
                    for mut row in <$of as $crate::wire::CallTable>::rows(_types, at) {
                        row.number += $base;
                        rows.push(row);
                    }
                )?
                rows.sort_by_key(|row| row.number);
                rows
            }

            fn number(&self) -> u8 {
                match self {
                    $( Self::$name { .. } => $number, )*
                    $( Self::$all(other) => $base + $crate::wire::CallTable::number(other), )?
                }
            }

            fn pack(&self, _out: &mut $crate::wire::Packing) {
                match self {
                    $( Self::$name { $($field),* } => {
                        $( $crate::wire_argument!(pack ($field, _out) $type $(as $way)?); )*
                    } )*
                    $( Self::$all(other) => $crate::wire::CallTable::pack(other, _out), )?
                }
            }

            fn unpack(number: u8, _from: &mut $crate::wire::Unpacking) -> ::std::option::Option<Self> {
                $(
                    if let Some(number) = number.checked_sub($base)
                        && <$of as $crate::wire::CallTable>::NUMBERS.contains(&number)
                    {
                        let other = <$of as $crate::wire::CallTable>::unpack(number, _from)?;
                        return Some(Self::$all(other));
                    }
                )?
                Some(match number {
                    $( $number => {
                        if !stringify!($($payload)?).is_empty() {
                            _from.leave_payload();
                        }
                        Self::$name {
                            $( $field: $crate::wire_argument!(unpack (_from) $type $(as $way)?)?, )*
                        }
                    } )*
                    _ => return None,
                })
            }

            fn draw_call(number: u8, _draw: &mut $crate::wire::Draw) -> Self {
                $(
                    if let Some(number) = number.checked_sub($base)
                        && <$of as $crate::wire::CallTable>::NUMBERS.contains(&number)
                    {
                        return Self::$all(<$of as $crate::wire::CallTable>::draw_call(number, _draw));
                    }
                )?
                match number {
                    $( $number => Self::$name {
                        $( $field: $crate::wire_argument!(draw (_draw) $type $(as $way)?), )*
                    }, )*
                    other => panic!("no call of {} has the number {other}", stringify!($table)),
                }
            }
        }
    };
}

/// Defines the result of a call: a struct whose fields lie in the values of a slot. `with` describes a
/// payload that is not a field.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_call_result {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty $(as $way:ty)? ),* $(,)?
        }
        $(with $payload:ident)?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[$field_meta])* $field_vis $field: $type, )*
        }

        impl $crate::wire::SlotResult for $name {
            fn shape(types: &mut $crate::wire::Types) -> ::std::borrow::Cow<'static, str> {
                $crate::wire::enter_result(stringify!($name), types, stringify!($($payload)?), |types, at| {
                    vec![$($crate::wire_placed!($field, types, at, $type $(as $way)?)),*]
                })
            }

            fn pack(&self, out: &mut $crate::wire::Packing) {
                $( $crate::wire_argument!(pack (&self.$field, out) $type $(as $way)?); )*
            }

            fn unpack(from: &mut $crate::wire::Unpacking) -> ::std::option::Option<Self> {
                if !stringify!($($payload)?).is_empty() {
                    from.leave_payload();
                }
                Some(Self {
                    $( $field: $crate::wire_argument!(unpack (from) $type $(as $way)?)?, )*
                })
            }

            fn draw_result(draw: &mut $crate::wire::Draw) -> Self {
                Self { $( $field: $crate::wire_argument!(draw (draw) $type $(as $way)?), )* }
            }
        }
    };
}

#[cfg(test)]
mod tests;
