//! The plasmon command.
fn main() {}
