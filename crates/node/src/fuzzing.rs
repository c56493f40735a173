//! Doors for the fuzzer to what decodes bytes that others wrote. Only with the feature `fuzzing`.

use bytes::Bytes;

use crate::{control, net, spill, transfer};

/// Reads whatever a peer may send as a message.
pub fn message(bytes: &[u8]) {
    net::fuzzing::message(Bytes::copy_from_slice(bytes));
}

/// A frame of each kind, and several in a message.
pub fn messages() -> Vec<Vec<u8>> {
    net::fuzzing::messages()
}

/// Reads whatever comes on a control connection.
pub fn control_message(bytes: &[u8]) {
    control::fuzzing::control_message(bytes);
}

/// A message of each kind.
pub fn control_messages() -> Vec<Vec<u8>> {
    control::fuzzing::control_messages()
}

/// Looks for records in whatever lies in a spill directory. Their checksums are made right before, or nothing
/// but the checksum would be tested.
pub fn spill_file(bytes: &[u8]) {
    spill::fuzzing::file(bytes);
}

/// Files with and without records.
pub fn spill_files() -> Vec<Vec<u8>> {
    spill::fuzzing::files()
}

/// Reads whatever comes on a data connection of `--protocol socket`.
pub fn data_frame(bytes: &[u8]) {
    transfer::fuzzing::data::frame(bytes);
}

/// A frame of each kind.
pub fn data_frames() -> Vec<Vec<u8>> {
    transfer::fuzzing::data::frames()
}

/// Takes in whatever the file of calibrations may say.
pub fn calibration_file(bytes: &[u8]) {
    transfer::fuzzing::calibration::file(bytes);
}

/// Files with and without calibrations.
pub fn calibration_files() -> Vec<Vec<u8>> {
    transfer::fuzzing::calibration::files()
}
