//! Access for the fuzzer to the decoders of this room. Owns no state. Any thread.

pub(crate) use super::socket::fuzzing as data;
pub(crate) use super::tuning::fuzzing as calibration;
