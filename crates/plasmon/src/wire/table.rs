//! Tables of messages: a protocol is one list with a row for each message, from which its enum and codec are
//! made. Owns no state. Any thread.
//!
//! ```
//! use plasmon::ObjectId;
//! use plasmon::wire::{AtMost, Table};
//!
//! plasmon::wire::table! {
//!     /// Message of one peer to another.
//!     #[derive(Debug, Clone, PartialEq, Eq)]
//!     pub enum Say in says -> Say in self {
//!         /// Asks for the name of the peer.
//!         1 Who -> Name,
//!         /// Answers `Who`.
//!         2 Name(name: String as AtMost<100>),
//!         /// Hands over objects.
//!         3 Have {
//!             /// Id of the object.
//!             id: ObjectId,
//!             /// Number of objects.
//!             times: u16,
//!         },
//!     }
//!     retired 4, 5
//! }
//!
//! # fn main() {
//! assert_eq!(Say::Who.opcode(), 1);
//! # }
//! ```
//!
//! A row is a number, a variant with its fields, and the possible answers to the message. From the rows
//! [`table!`](crate::wire::table!) makes the enum; its opcodes, bodies and draws ([`Table`]); the rows as
//! data, for the documentation ([`Row`]); and [`Wire`](crate::wire::Wire), so that an enum with data can be a
//! field as well, encoded as its number and its body. Opcodes stand in the table and nowhere else. An opcode
//! that is used twice, or is retired, does not compile:
//!
//! ```compile_fail,E0080
//! plasmon::wire::table! {
//!     enum Say {
//!         1 Yes,
//!         2 No,
//!     }
//!     retired 2
//! }
//! ```
//!
//! With `in` and `->`, a module has each row as a struct of its own, which converts into the enum and back.
//! Rows with one answer are questions ([`Ask`]): they name the struct of their answer, so that a call returns
//! just that: `let Name(name) = ask(says::Who)?`. The table of the answers follows `->`, with the path of the
//! module of its rows as seen from the new module. A row with several answers, `-> Offer | Eager`, is no
//! [`Ask`].
//!
//! A table that ends with `others Other` has one more variant, for messages of tables that it does not know
//! ([`Other`]). Their opcodes are [`FIRST_OTHER`] and above.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::WireError;
use super::body::Reader;
use super::draw::Draw;
use super::fields::{Types, words};

/// Name and shape of a field, for the documentation.
pub type Field = (&'static str, Cow<'static, str>);

/// Row of a table, for the documentation and for tests.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Opcode of the message.
    pub opcode: u8,
    /// Name of the variant.
    pub name: &'static str,
    /// Lines of the variant's doc comment.
    pub about: &'static [&'static str],
    /// Function that returns names and shapes of the fields, and enters the types of the fields.
    pub fields: fn(&mut Types) -> Vec<Field>,
    /// Names of the rows that answer the message, in this or another table.
    pub answers: &'static [&'static str],
}

impl Row {
    /// Returns the name of the variant in words.
    pub fn words(&self) -> String {
        words(self.name)
    }
}

/// Smallest opcode that may belong to another table.
pub const FIRST_OTHER: u8 = 100;

/// Message of a table that the reader does not know, for another part of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Opcode of the message in its own table.
    pub opcode: u8,
    /// Encoded fields of the message.
    pub body: Bytes,
}

impl Other {
    /// Encodes a message of another table.
    pub fn of(message: &impl Table) -> Self {
        let mut body = BytesMut::new();
        message.put_body(&mut body);
        Self { opcode: message.opcode(), body: body.freeze() }
    }

    /// Reads the message as one of its own table.
    ///
    /// # Errors
    /// As [`Table::decode_body`].
    pub fn read<T: Table>(&self) -> Result<T, WireError> {
        T::decode_body(self.opcode, self.body.clone())
    }
}

/// Messages of a protocol, or an enum that is a field. The macro `table!` implements the trait.
pub trait Table: Sized + 'static {
    /// All rows, in the order of the list.
    const ROWS: &'static [Row];

    /// Returns the opcode of the message.
    fn opcode(&self) -> u8;

    /// Appends the fields of the message to a frame.
    fn put_body(&self, out: &mut BytesMut);

    /// Reads the fields of the message with this opcode.
    ///
    /// # Errors
    /// If the opcode is unknown or the fields are not those of its row.
    fn take_body(opcode: u8, body: &mut Reader) -> Result<Self, WireError>;

    /// Draws any message of a row.
    ///
    /// # Panics
    /// If no row has this opcode.
    fn draw_body(opcode: u8, draw: &mut Draw) -> Self;

    /// Position of the row of each opcode in the list; `u8::MAX` if there is none.
    const PLACES: [u8; 256] = places(Self::ROWS);

    /// Returns the row of an opcode, if there is one.
    fn row_of(opcode: u8) -> Option<&'static Row> {
        Self::ROWS.get(usize::from(Self::PLACES[usize::from(opcode)]))
    }

    /// Returns the row of the message. `None` if the message is of another table.
    fn row(&self) -> Option<&'static Row> {
        Self::row_of(self.opcode())
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// As [`Table::take_body`], and if bytes are left.
    fn decode_body(opcode: u8, body: Bytes) -> Result<Self, WireError> {
        let name = Self::row_of(opcode).map_or("message", |row| row.name);
        let mut body = Reader::new(body, name);
        let message = Self::take_body(opcode, &mut body)?;
        body.finish(message)
    }

    /// Draws `of_each` messages of every row from a seed, for tests and as seeds of the fuzzer.
    fn draw_all(of_each: usize, seed: u64) -> Vec<Self> {
        let mut draw = Draw::new(seed);
        let opcodes = Self::ROWS.iter().flat_map(|row| std::iter::repeat_n(row.opcode, of_each));
        opcodes.map(|opcode| Self::draw_body(opcode, &mut draw)).collect()
    }
}

/// Message that has one answer.
pub trait Ask: Into<Self::Table> {
    /// Table of the message.
    type Table: Table;
    /// Table of the answer.
    type Answers: Table;
    /// Answer to the message. The conversion returns any other message as its error.
    type Answer: TryFrom<Self::Answers, Error = Self::Answers>;
}

/// Computes which opcodes of `answering` answer a message of `asking`.
///
/// # Panics
/// If a row of `asking` names an answer that is not in `answering`. In a constant, that is an error of the
/// compiler.
pub const fn answers(asking: &[Row], answering: &[Row]) -> [bool; 256] {
    let mut marks = [false; 256];
    let mut at = 0;
    while at < asking.len() {
        let mut nth = 0;
        while nth < asking[at].answers.len() {
            marks[opcode_of(answering, asking[at].answers[nth]) as usize] = true;
            nth += 1;
        }
        at += 1;
    }
    marks
}

/// Returns the positions of rows by their opcodes; `u8::MAX` for an opcode without a row.
const fn places(rows: &[Row]) -> [u8; 256] {
    assert!(rows.len() < u8::MAX as usize, "too many rows");
    let mut places = [u8::MAX; 256];
    let mut at = 0;
    while at < rows.len() {
        places[rows[at].opcode as usize] = at as u8;
        at += 1;
    }
    places
}

/// Returns the opcode of the row with this name.
const fn opcode_of(rows: &[Row], name: &str) -> u8 {
    match rows {
        [] => panic!("an answer is not in the table of the answers"),
        [row, ..] if is_same(row.name.as_bytes(), name.as_bytes()) => row.opcode,
        [_, rest @ ..] => opcode_of(rest, name),
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    match (one, other) {
        ([a, one @ ..], [b, other @ ..]) => *a == *b && is_same(one, other),
        _ => one.is_empty() && other.is_empty(),
    }
}

/// Whether no number occurs twice.
#[doc(hidden)]
pub const fn are_distinct(opcodes: &[u8]) -> bool {
    let mut seen = [false; 256];
    let mut at = 0;
    while at < opcodes.len() {
        if seen[opcodes[at] as usize] {
            return false;
        }
        seen[opcodes[at] as usize] = true;
        at += 1;
    }
    true
}

/// Defines a table, as the module describes.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_table {
    (
        $(#[$meta:meta])*
        $vis:vis enum $table:ident in $module:ident -> $answers:ident in $($path:ident)::+ { $($rows:tt)* }
        $(retired $($retired:literal),+)?
        $(others $others:ident)?
    ) => {
        $crate::wire_table! {
            $(#[$meta])*
            $vis enum $table { $($rows)* }
            $(retired $($retired),+)?
            $(others $others)?
        }

        #[doc = concat!("The rows of [`", stringify!($table), "`], each as a struct.")]
        #[allow(dead_code, reason = "not every row is asked, or an answer")]
        $vis mod $module {
            use super::*;

            $crate::wire_table! { @rows $vis $table ($answers $($path)::+) $($rows)* }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $table:ident {
            $(
                $(#[doc = $about:literal])*
                $opcode:literal $name:ident
                $( { $( $(#[$field_meta:meta])* $field:ident: $type:ty $(as $way:ty)? ),* $(,)? } )?
                $( ( $only:ident: $only_type:ty $(as $only_way:ty)? ) )?
                $( -> $answer:ident $(| $other:ident)* )?
            ),* $(,)?
        }
        $(retired $($retired:literal),+)?
        $(others $others:ident)?
    ) => {
        $(#[$meta])*
        $vis enum $table {
            $(
                $(#[doc = $about])*
                $name $( { $( $(#[$field_meta])* $field: $type, )* } )? $( ($only_type) )?,
            )*
            $(
                /// Message of another table.
                $others($crate::wire::Other),
            )?
        }

        const _: () = assert!(
            $crate::wire::are_distinct(&[$($opcode,)* $($($retired),+)?]),
            "a number is used twice, or is retired"
        );

        impl $crate::wire::Table for $table {
            const ROWS: &'static [$crate::wire::Row] = &[$(
                $crate::wire::Row {
                    opcode: $opcode,
                    name: stringify!($name),
                    about: &[$($about),*],
                    fields: |_types| vec![
                        $($((stringify!($field), $crate::wire_way!(shape (_types) $type $(as $way)?)),)*)?
                        $((
                            stringify!($only),
                            $crate::wire_way!(shape (_types) $only_type $(as $only_way)?),
                        ),)?
                    ],
                    answers: &[$( stringify!($answer) $(, stringify!($other))* )?],
                },
            )*];

            fn opcode(&self) -> u8 {
                match self {
                    $( Self::$name { .. } => $opcode, )*
                    $( Self::$others(other) => other.opcode, )?
                }
            }

            fn put_body(&self, _out: &mut $crate::wire::BytesMut) {
                match self {
                    $( Self::$name { $($($field,)*)? $(0: $only)? } => {
                        $($( $crate::wire_way!(put ($field, _out) $type $(as $way)?); )*)?
                        $( $crate::wire_way!(put ($only, _out) $only_type $(as $only_way)?); )?
                    } )*
                    $( Self::$others(other) => _out.extend_from_slice(&other.body), )?
                }
            }

            fn take_body(
                opcode: u8,
                _body: &mut $crate::wire::body::Reader,
            ) -> ::std::result::Result<Self, $crate::wire::WireError> {
                match opcode {
                    $( $opcode => Ok(Self::$name {
                        $($( $field: $crate::wire_way!(take (_body) $type $(as $way)?)?, )*)?
                        $( 0: $crate::wire_way!(take (_body) $only_type $(as $only_way)?)?, )?
                    }), )*
                    $( opcode if opcode >= $crate::wire::FIRST_OTHER => Ok(Self::$others($crate::wire::Other {
                        opcode,
                        body: _body.rest(),
                    })), )?
                    other => Err($crate::wire::WireError::Opcode(other)),
                }
            }

            fn draw_body(opcode: u8, _draw: &mut $crate::wire::Draw) -> Self {
                match opcode {
                    $( $opcode => Self::$name {
                        $($( $field: $crate::wire_way!(draw (_draw) $type $(as $way)?), )*)?
                        $( 0: $crate::wire_way!(draw (_draw) $only_type $(as $only_way)?), )?
                    }, )*
                    other => panic!("no row of {} has the number {other}", stringify!($table)),
                }
            }
        }

        impl $crate::wire::Wire for $table {
            fn shape(types: &mut $crate::wire::Types) -> ::std::borrow::Cow<'static, str> {
                types.enter(stringify!($table), |types| {
                    $crate::wire::alternatives(<Self as $crate::wire::Table>::ROWS, types)
                })
            }

            fn put(value: &Self, out: &mut $crate::wire::BytesMut) {
                <u8 as $crate::wire::Wire>::put(&$crate::wire::Table::opcode(value), out);
                $crate::wire::Table::put_body(value, out);
            }

            fn take(
                body: &mut $crate::wire::body::Reader,
            ) -> ::std::result::Result<Self, $crate::wire::WireError> {
                let opcode = <u8 as $crate::wire::Wire>::take(body)?;
                $crate::wire::Table::take_body(opcode, body)
            }

            fn draw(draw: &mut $crate::wire::Draw) -> Self {
                let row = draw.below(<Self as $crate::wire::Table>::ROWS.len());
                $crate::wire::Table::draw_body(<Self as $crate::wire::Table>::ROWS[row].opcode, draw)
            }
        }
    };
    (
        @rows $vis:vis $table:ident $answers:tt
        $(
            $(#[doc = $about:literal])*
            $opcode:literal $name:ident
            $( { $( $(#[$field_meta:meta])* $field:ident: $type:ty $(as $way:ty)? ),* $(,)? } )?
            $( ( $only:ident: $only_type:ty $(as $only_way:ty)? ) )?
            $( -> $answer:ident $(| $other:ident)* )?
        ),* $(,)?
    ) => {$(
        $crate::wire_table! {
            @struct $vis [$(#[doc = $about])*] $name
            $( { $( $(#[$field_meta])* $field: $type, )* } )? $( ($only_type) )?
        }

        impl From<$name> for $table {
            fn from($name { $($($field,)*)? $(0: $only)? }: $name) -> Self {
                Self::$name { $($($field,)*)? $(0: $only)? }
            }
        }

        impl TryFrom<$table> for $name {
            type Error = $table;

            fn try_from(said: $table) -> ::std::result::Result<Self, $table> {
                match said {
                    $table::$name { $($($field,)*)? $(0: $only)? } => {
                        Ok(Self { $($($field,)*)? $(0: $only)? })
                    }
                    other => Err(other),
                }
            }
        }

        $( $crate::wire_table! { @ask $name $table $answers $answer $($other)* } )?
    )*};
    (@struct $vis:vis [$($about:tt)*] $name:ident { $( $(#[$meta:meta])* $field:ident: $type:ty, )* }) => {
        $($about)*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis struct $name { $( $(#[$meta])* $vis $field: $type, )* }
    };
    (@struct $vis:vis [$($about:tt)*] $name:ident ($type:ty)) => {
        $($about)*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis struct $name($vis $type);
    };
    (@struct $vis:vis [$($about:tt)*] $name:ident) => {
        $($about)*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis struct $name;
    };
    (@ask $name:ident $table:ident ($answers:ident $($path:ident)::+) $answer:ident) => {
        impl $crate::wire::Ask for $name {
            type Table = $table;
            type Answers = $answers;
            type Answer = $($path)::+::$answer;
        }
    };
    (@ask $name:ident $table:ident $answers:tt $answer:ident $($other:ident)+) => {};
}

/// Returns the text of the documentation for the variants of an enum that is a field.
#[doc(hidden)]
pub fn alternatives(rows: &[Row], types: &mut Types) -> String {
    let rows = rows.iter().map(|row| {
        let fields = super::fields::listed(&(row.fields)(types));
        let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
        format!("{} {}{fields}", row.opcode, row.words())
    });
    format!("u8: {}", rows.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests;
