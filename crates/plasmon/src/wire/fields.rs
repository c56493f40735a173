//! Fields of messages: how a type is written, read, drawn for tests and named in the documentation.
//!
//! Owns no state. Any thread. [`Wire`] is implemented by [`record!`](crate::wire::record) for a struct from
//! its list of fields, by [`codes!`](crate::wire::codes) for an enum without data from its list of numbers,
//! and by [`table!`](crate::wire::table) for an enum with data. A field whose type has several encodings, or
//! a limit of its own, names the type of its encoding: `name: String as AtMost<MAX_NAME_BYTES>`.
//!
//! All numbers are little-endian. Lists, texts and bytes begin with a 32-bit count. An optional value begins
//! with a byte that is 0 or 1. A value that is out of range is refused. Only an enum that names a variant for
//! unknown numbers accepts them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::WireError;
use super::body::Reader;
use super::draw::Draw;
use crate::{Error, ErrorKind, NodeId, ObjectId, Version};

/// Longest message of an error in a frame, in bytes. A frame has room for such an error for each of its ids.
const MAX_MESSAGE_BYTES: usize = 900;

/// Encoding of values of a type `T`. `Self` is `T`, or the name of another encoding than the usual one.
pub trait Wire<T = Self> {
    /// Returns the name of the encoding in the documentation, and enters the parts of the type into `types`.
    fn shape(types: &mut Types) -> Cow<'static, str>;

    /// Appends a value to a frame.
    fn put(value: &T, out: &mut BytesMut);

    /// Reads a value from a frame.
    ///
    /// # Errors
    /// If the body is too short or holds another kind of value.
    fn take(body: &mut Reader) -> Result<T, WireError>;

    /// Draws any value that can be encoded.
    fn draw(draw: &mut Draw) -> T;
}

/// Types that a table uses: descriptions of their parts, by the names of the types in the documentation.
#[derive(Debug, Default)]
pub struct Types(pub(super) BTreeMap<String, String>);

impl Types {
    /// Enters a type, unless it is entered already. Returns its name.
    pub fn enter(&mut self, name: &str, parts: impl FnOnce(&mut Self) -> String) -> Cow<'static, str> {
        let name = words(name);
        if !self.0.contains_key(&name) {
            let parts = parts(self);
            self.0.insert(name.clone(), parts);
        }
        name.into()
    }
}

/// Splits a name of the code into words: `GetInto` is "get into".
pub(super) fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

macro_rules! integers {
    ($($type:ident $put:ident),*) => {$(
        impl Wire for $type {
            fn shape(_: &mut Types) -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn put(value: &Self, out: &mut BytesMut) {
                out.$put(*value);
            }

            fn take(body: &mut Reader) -> Result<Self, WireError> {
                body.$type()
            }

            fn draw(draw: &mut Draw) -> Self {
                draw.number() as Self
            }
        }
    )*};
}

integers!(u8 put_u8, u16 put_u16_le, u32 put_u32_le, u64 put_u64_le, u128 put_u128_le);

impl Wire for i64 {
    fn shape(_: &mut Types) -> Cow<'static, str> {
        "i64".into()
    }

    fn put(value: &Self, out: &mut BytesMut) {
        out.put_i64_le(*value);
    }

    fn take(body: &mut Reader) -> Result<Self, WireError> {
        Ok(body.u64()? as Self)
    }

    fn draw(draw: &mut Draw) -> Self {
        draw.number() as Self
    }
}

impl Wire for bool {
    fn shape(_: &mut Types) -> Cow<'static, str> {
        "bool".into()
    }

    fn put(value: &Self, out: &mut BytesMut) {
        out.put_u8(u8::from(*value));
    }

    fn take(body: &mut Reader) -> Result<Self, WireError> {
        match body.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(body.malformed()),
        }
    }

    fn draw(draw: &mut Draw) -> Self {
        draw.below(2) == 1
    }
}

impl Wire for Version {
    fn shape(_: &mut Types) -> Cow<'static, str> {
        "version".into()
    }

    fn put(value: &Self, out: &mut BytesMut) {
        out.put_u64_le(value.number());
    }

    fn take(body: &mut Reader) -> Result<Self, WireError> {
        Ok(Self::from_number(body.u64()?))
    }

    fn draw(draw: &mut Draw) -> Self {
        Self::from_number(draw.number())
    }
}

macro_rules! ids {
    ($($type:ident $take:ident $shape:literal),*) => {$(
        impl Wire for $type {
            fn shape(_: &mut Types) -> Cow<'static, str> {
                $shape.into()
            }

            fn put(value: &Self, out: &mut BytesMut) {
                out.put_slice(value.as_bytes());
            }

            fn take(body: &mut Reader) -> Result<Self, WireError> {
                body.$take()
            }

            fn draw(draw: &mut Draw) -> Self {
                Self::from_bytes(std::array::from_fn(|_| draw.word() as u8))
            }
        }
    )*};
}

ids!(ObjectId object "object id", NodeId node "node id");

/// Encoding with a limit: a text, bytes or a list of at most `MAX` bytes or items, or a number of at most
/// `MAX`.
///
/// Without such a limit, texts and bytes are limited by their frame, and lists by their [`Reader`].
#[derive(Debug, Clone, Copy)]
pub struct AtMost<const MAX: usize>;

/// Encoding of a list of at most `MAX` items, or of an optional value, whose items have the encoding `Way`.
#[derive(Debug, Clone, Copy)]
pub struct Each<Way, const MAX: usize = { usize::MAX }>(std::marker::PhantomData<Way>);

/// Appends the number of the bytes, and the bytes.
fn put_bytes(bytes: &[u8], out: &mut BytesMut) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

impl<const MAX: usize> Wire<Bytes> for AtMost<MAX> {
    fn shape(_: &mut Types) -> Cow<'static, str> {
        if MAX == usize::MAX { "bytes".into() } else { format!("bytes, at most {MAX}").into() }
    }

    fn put(value: &Bytes, out: &mut BytesMut) {
        put_bytes(value, out);
    }

    fn take(body: &mut Reader) -> Result<Bytes, WireError> {
        body.bytes(MAX)
    }

    fn draw(draw: &mut Draw) -> Bytes {
        (0..draw.count(MAX)).map(|_| draw.word() as u8).collect()
    }
}

macro_rules! texts {
    ($($type:ty),*) => {$(
        impl<const MAX: usize> Wire<$type> for AtMost<MAX> {
            fn shape(_: &mut Types) -> Cow<'static, str> {
                if MAX == usize::MAX { "text".into() } else { format!("text of at most {MAX} bytes").into() }
            }

            fn put(value: &$type, out: &mut BytesMut) {
                put_bytes(value.as_bytes(), out);
            }

            fn take(body: &mut Reader) -> Result<$type, WireError> {
                body.text(MAX).map(<$type>::from)
            }

            fn draw(draw: &mut Draw) -> $type {
                // The longest of these letters has three bytes.
                let letters = (0..draw.count(MAX / 3)).map(|_| draw.one(&['a', 'Z', '"', '\0', 'ß', '中']));
                letters.collect()
            }
        }
    )*};
}

texts!(String, Box<str>);

impl<const MAX: usize> Wire<u64> for AtMost<MAX> {
    fn shape(_: &mut Types) -> Cow<'static, str> {
        format!("u64, at most {MAX}").into()
    }

    fn put(value: &u64, out: &mut BytesMut) {
        out.put_u64_le(*value);
    }

    fn take(body: &mut Reader) -> Result<u64, WireError> {
        let value = body.u64()?;
        if value <= MAX as u64 { Ok(value) } else { Err(body.malformed()) }
    }

    fn draw(draw: &mut Draw) -> u64 {
        draw.number() % (MAX as u64).saturating_add(1)
    }
}

macro_rules! same {
    ($(($($generic:tt)*) $way:ty => $type:ty => $other:ty);* $(;)?) => {$(
        impl<$($generic)*> Wire<$type> for $way {
            fn shape(types: &mut Types) -> Cow<'static, str> {
                <$other as Wire<$type>>::shape(types)
            }

            fn put(value: &$type, out: &mut BytesMut) {
                <$other as Wire<$type>>::put(value, out);
            }

            fn take(body: &mut Reader) -> Result<$type, WireError> {
                <$other as Wire<$type>>::take(body)
            }

            fn draw(draw: &mut Draw) -> $type {
                <$other as Wire<$type>>::draw(draw)
            }
        }
    )*};
}

// Encodings of types whose own encoding has only a limit.
same! {
    () Bytes => Bytes => AtMost<{ usize::MAX }>;
    () String => String => AtMost<{ usize::MAX }>;
    (T: Wire) Vec<T> => Vec<T> => Each<T>;
    (T: Wire) Option<T> => Option<T> => Each<T>;
    (const MAX: usize, T: Wire) AtMost<MAX> => Vec<T> => Each<T, MAX>;
}

impl<T, Way: Wire<T>, const MAX: usize> Wire<Vec<T>> for Each<Way, MAX> {
    fn shape(types: &mut Types) -> Cow<'static, str> {
        let limit = if MAX == usize::MAX { String::new() } else { format!(", at most {MAX}") };
        format!("[{}]{limit}", Way::shape(types)).into()
    }

    fn put(value: &Vec<T>, out: &mut BytesMut) {
        out.put_u32_le(value.len() as u32);
        value.iter().for_each(|one| Way::put(one, out));
    }

    fn take(body: &mut Reader) -> Result<Vec<T>, WireError> {
        let (count, max) = (body.u32()?, if MAX == usize::MAX { body.most_items() } else { MAX });
        if count as usize > max {
            return Err(body.malformed());
        }
        (0..count).map(|_| Way::take(body)).collect()
    }

    fn draw(draw: &mut Draw) -> Vec<T> {
        (0..draw.count(MAX)).map(|_| Way::draw(draw)).collect()
    }
}

impl<T, Way: Wire<T>> Wire<Option<T>> for Each<Way> {
    fn shape(types: &mut Types) -> Cow<'static, str> {
        format!("{} or none", Way::shape(types)).into()
    }

    fn put(value: &Option<T>, out: &mut BytesMut) {
        bool::put(&value.is_some(), out);
        value.iter().for_each(|value| Way::put(value, out));
    }

    fn take(body: &mut Reader) -> Result<Option<T>, WireError> {
        bool::take(body)?.then(|| Way::take(body)).transpose()
    }

    fn draw(draw: &mut Draw) -> Option<T> {
        bool::draw(draw).then(|| Way::draw(draw))
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn shape(types: &mut Types) -> Cow<'static, str> {
        format!("0 {} or 1 {}", T::shape(types), E::shape(types)).into()
    }

    fn put(value: &Self, out: &mut BytesMut) {
        bool::put(&value.is_err(), out);
        match value {
            Ok(value) => T::put(value, out),
            Err(error) => E::put(error, out),
        }
    }

    fn take(body: &mut Reader) -> Result<Self, WireError> {
        Ok(if bool::take(body)? { Err(E::take(body)?) } else { Ok(T::take(body)?) })
    }

    fn draw(draw: &mut Draw) -> Self {
        if bool::draw(draw) { Err(E::draw(draw)) } else { Ok(T::draw(draw)) }
    }
}

macro_rules! tuples {
    ($(($($type:ident $at:tt),*)),*) => {$(
        impl<$($type: Wire),*> Wire for ($($type,)*) {
            fn shape(types: &mut Types) -> Cow<'static, str> {
                format!("({})", [$($type::shape(types)),*].join(", ")).into()
            }

            fn put(value: &Self, out: &mut BytesMut) {
                $($type::put(&value.$at, out);)*
            }

            fn take(body: &mut Reader) -> Result<Self, WireError> {
                Ok(($($type::take(body)?,)*))
            }

            fn draw(draw: &mut Draw) -> Self {
                ($($type::draw(draw),)*)
            }
        }
    )*};
}

tuples!((A 0, B 1), (A 0, B 1, C 2));

/// Encoding of an error: its kind, its message cut to [`MAX_MESSAGE_BYTES`] bytes, the object that it is
/// about, and what was needed and held.
impl Wire for Error {
    fn shape(types: &mut Types) -> Cow<'static, str> {
        types.enter("Error", |types| {
            let kind = ErrorKind::shape(types);
            let message = format!("text of at most {MAX_MESSAGE_BYTES} bytes");
            let amounts = Option::<(u64, u64)>::shape(types);
            format!("kind: {kind}, message: {message}, id: object id or none, needed and held: {amounts}")
        })
    }

    fn put(value: &Self, out: &mut BytesMut) {
        ErrorKind::put(&value.kind(), out);
        let message = value.message();
        let mut ends = (0..=message.len().min(MAX_MESSAGE_BYTES)).rev();
        let end = ends.find(|end| message.is_char_boundary(*end)).unwrap_or_default();
        put_bytes(&message.as_bytes()[..end], out);
        Option::put(&value.id(), out);
        Option::put(&value.needed().zip(value.held()), out);
    }

    fn take(body: &mut Reader) -> Result<Self, WireError> {
        let mut error = Self::new(ErrorKind::take(body)?, body.text(MAX_MESSAGE_BYTES)?);
        if let Some(id) = <Option<ObjectId> as Wire>::take(body)? {
            error = error.about(id);
        }
        if let Some((needed, held)) = <Option<(u64, u64)> as Wire>::take(body)? {
            error = error.counting(needed, held);
        }
        Ok(error)
    }

    fn draw(draw: &mut Draw) -> Self {
        let mut error = Self::new(ErrorKind::draw(draw), String::draw(draw));
        if bool::draw(draw) {
            error = error.about(ObjectId::draw(draw));
        }
        if bool::draw(draw) {
            error = error.counting(u64::draw(draw), u64::draw(draw));
        }
        error
    }
}

/// Calls a function of the encoding of a field: the encoding of its type, or that named behind `as`.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_way {
    ($function:ident $arguments:tt $type:ty) => {
        <$type as $crate::wire::Wire<$type>>::$function $arguments
    };
    ($function:ident $arguments:tt $type:ty as $way:ty) => {
        <$way as $crate::wire::Wire<$type>>::$function $arguments
    };
}

/// Defines a struct that is encoded as its fields, in their order.
///
/// With `impl` the macro defines a new name that implements `Wire` for a struct of another crate. A field
/// names this encoding behind `as`, like `AtMost`.
///
/// ```
/// plasmon::wire::record! {
///     /// Position on a page.
///     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
///     pub struct Place {
///         /// Distance from the left, in points.
///         pub x: u32,
///         /// Distance from the top, in points.
///         pub y: u32,
///     }
/// }
///
/// plasmon::wire::record! {
///     impl for std::ops::Range<u64> as Span { start: u64, end: u64 }
/// }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! wire_record {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty $(as $way:ty)? ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[$field_meta])* $field_vis $field: $type, )*
        }

        $crate::wire_record!(@impl $name, $name { $($field: $type $(as $way)?),* });
    };
    (impl for $of:ty as $name:ident { $($field:ident: $type:ty $(as $way:ty)?),* $(,)? }) => {
        struct $name;

        $crate::wire_record!(@impl $of, $name { $($field: $type $(as $way)?),* });
    };
    (@impl $of:ty, $name:ident { $($field:ident: $type:ty $(as $way:ty)?),* }) => {
        impl $crate::wire::Wire<$of> for $name {
            fn shape(types: &mut $crate::wire::Types) -> ::std::borrow::Cow<'static, str> {
                types.enter(stringify!($name), |types| {
                    let fields: &[(&str, _)] = &[$((
                        stringify!($field),
                        $crate::wire_way!(shape (types) $type $(as $way)?),
                    )),*];
                    $crate::wire::listed(fields)
                })
            }

            fn put(value: &$of, out: &mut $crate::wire::BytesMut) {
                $( $crate::wire_way!(put (&value.$field, out) $type $(as $way)?); )*
            }

            fn take(
                body: &mut $crate::wire::body::Reader,
            ) -> ::std::result::Result<$of, $crate::wire::WireError> {
                type Of = $of;
                Ok(Of {
                    $( $field: $crate::wire_way!(take (body) $type $(as $way)?)?, )*
                })
            }

            fn draw(draw: &mut $crate::wire::Draw) -> $of {
                type Of = $of;
                Of {
                    $( $field: $crate::wire_way!(draw (draw) $type $(as $way)?), )*
                }
            }
        }
    };
}

/// Defines an enum without data that is encoded as a number, of type `u8` or the one named. The number stands
/// before each variant.
///
/// The enum has `ALL`, its variants, and `from_wire`, which returns the variant of a number. A number that is
/// used twice does not compile. With `else`, unknown numbers read as the variant behind `else`; without,
/// unknown numbers are refused.
///
/// ```
/// plasmon::wire::codes! {
///     /// Paper of a page.
///     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
///     pub enum Paper: u8 {
///         /// White paper.
///         0 Plain,
///         /// Paper of any colour.
///         1 Coloured,
///     }
/// }
///
/// assert_eq!(Paper::from_wire(1), Some(Paper::Coloured));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! wire_codes {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $repr:ident $(else $unknown:ident)? {
            $( $(#[$variant_meta:meta])* $code:literal $variant:ident ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[repr($repr)]
        $vis enum $name {
            $( $(#[$variant_meta])* $variant = $code, )*
        }

        impl $name {
            /// All variants, in the order of the list.
            $vis const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the variant with the number `code`, if there is one.
            $vis fn from_wire(code: $repr) -> ::std::option::Option<Self> {
                match code {
                    $( $code => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }

        impl $crate::wire::Wire for $name {
            fn shape(types: &mut $crate::wire::Types) -> ::std::borrow::Cow<'static, str> {
                types.enter(stringify!($name), |_| {
                    $crate::wire::numbered(stringify!($repr), &[$(($code, stringify!($variant))),*])
                })
            }

            fn put(value: &Self, out: &mut $crate::wire::BytesMut) {
                <$repr as $crate::wire::Wire>::put(&(*value as $repr), out);
            }

            fn take(
                body: &mut $crate::wire::body::Reader,
            ) -> ::std::result::Result<Self, $crate::wire::WireError> {
                let known = Self::from_wire(<$repr as $crate::wire::Wire>::take(body)?);
                $( let known = known.or(Some(Self::$unknown)); )?
                known.ok_or_else(|| body.malformed())
            }

            fn draw(draw: &mut $crate::wire::Draw) -> Self {
                draw.one(Self::ALL)
            }
        }
    };
}

/// Returns the text of the documentation for the fields of a type or a row.
#[doc(hidden)]
pub fn listed(fields: &[(&str, Cow<'static, str>)]) -> String {
    let fields = fields.iter().map(|(name, shape)| format!("{name}: {shape}"));
    fields.collect::<Vec<_>>().join(", ")
}

/// Returns the text of the documentation for the numbers of a type.
#[doc(hidden)]
pub fn numbered(repr: &str, codes: &[(u64, &str)]) -> String {
    let codes = codes.iter().map(|(code, name)| format!("{code} {}", words(name)));
    format!("{repr}: {}", codes.collect::<Vec<_>>().join(", "))
}
