//! The fuzzer's access to the decoders of bytes that others wrote. Only with the feature `fuzzing`. Owns no
//! state. Any thread.

use bytes::Bytes;

use crate::{call, control, files, net, region, spill, sync, transfer};

/// Decodes bytes as a message of a peer.
pub fn message(bytes: &[u8]) {
    net::fuzzing::message(Bytes::copy_from_slice(bytes));
}

/// Returns messages of one frame of each kind, and of several frames.
pub fn messages() -> Vec<Vec<u8>> {
    net::fuzzing::messages()
}

/// Decodes bytes as a frame about services: its number, then its body.
pub fn call_frame(bytes: &[u8]) {
    call::fuzzing::frame(bytes);
}

/// Returns a few frames about services of each kind.
pub fn call_frames() -> Vec<Vec<u8>> {
    call::fuzzing::frames()
}

/// Decodes bytes as a frame about locks and barriers: its number, then its body.
pub fn sync_frame(bytes: &[u8]) {
    sync::fuzzing::frame(bytes);
}

/// Returns a few frames about locks and barriers of each kind.
pub fn sync_frames() -> Vec<Vec<u8>> {
    sync::fuzzing::frames()
}

/// Decodes bytes as a frame about files: its number, then its body.
pub fn file_frame(bytes: &[u8]) {
    files::fuzzing::frame(bytes);
}

/// Returns a few frames about files of each kind.
pub fn file_frames() -> Vec<Vec<u8>> {
    files::fuzzing::frames()
}

/// Decodes bytes as the changes that a mirror of a volume receives, and applies the changes.
pub fn file_changes(bytes: &[u8]) {
    files::fuzzing::changes(bytes);
}

/// Returns a few batches of changes of a volume.
pub fn file_batches() -> Vec<Vec<u8>> {
    files::fuzzing::batches()
}

/// Decodes bytes as a frame about regions: its number, then its body.
pub fn region_frame(bytes: &[u8]) {
    region::fuzzing::frame(bytes);
}

/// Returns a few frames about regions of each kind.
pub fn region_frames() -> Vec<Vec<u8>> {
    region::fuzzing::frames()
}

/// Decodes bytes as a message on a control connection.
pub fn control_message(bytes: &[u8]) {
    control::fuzzing::control_message(bytes);
}

/// Returns a control message of each kind.
pub fn control_messages() -> Vec<Vec<u8>> {
    control::fuzzing::control_messages()
}

/// Scans bytes as a spill file. First the checksums in the bytes are corrected, because otherwise only the
/// check of checksums would be tested.
pub fn spill_file(bytes: &[u8]) {
    spill::fuzzing::file(bytes);
}

/// Returns spill files with and without records.
pub fn spill_files() -> Vec<Vec<u8>> {
    spill::fuzzing::files()
}

/// Decodes bytes as a frame on a data connection of `--protocol socket`.
pub fn data_frame(bytes: &[u8]) {
    transfer::fuzzing::data::frame(bytes);
}

/// Returns a frame of a data connection of each kind.
pub fn data_frames() -> Vec<Vec<u8>> {
    transfer::fuzzing::data::frames()
}

/// Loads bytes as a file of calibrations.
pub fn calibration_file(bytes: &[u8]) {
    transfer::fuzzing::calibration::file(bytes);
}

/// Returns files with and without calibrations.
pub fn calibration_files() -> Vec<Vec<u8>> {
    transfer::fuzzing::calibration::files()
}
