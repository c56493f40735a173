//! Encoding of bytes that a receiver keeps for long: as other bytes, but copied out of their frame.
//!
//! Owns no state. Any thread.

use std::borrow::Cow;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::body::Reader;
use super::{AtMost, Draw, Types, Wire, WireError};

macro_rules! slices {
    ($($type:ty),*) => {$(
        impl<const MAX: usize> Wire<$type> for AtMost<MAX> {
            fn shape(types: &mut Types) -> Cow<'static, str> {
                <Self as Wire<Bytes>>::shape(types)
            }

            fn put(value: &$type, out: &mut BytesMut) {
                u32::put(&(value.len() as u32), out);
                out.extend_from_slice(value);
            }

            fn take(body: &mut Reader) -> Result<$type, WireError> {
                Ok(body.bytes(MAX)?[..].into())
            }

            fn draw(draw: &mut Draw) -> $type {
                <Self as Wire<Bytes>>::draw(draw)[..].into()
            }
        }
    )*};
}

slices!(Box<[u8]>, Rc<[u8]>);
