//! Plasmon.
