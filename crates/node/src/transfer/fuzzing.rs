//! The fuzzer's way to what decodes bytes here.

pub(crate) use super::socket::fuzzing as data;
pub(crate) use super::tuning::fuzzing as calibration;
