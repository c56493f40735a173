//! Users of this host by name or number.
//!
//! Owns no state. Any thread. The host's program `id` looks names up, since it knows all places where a host
//! has users.

use std::process::{Command, Stdio};

/// Parses a user: a number, or the name of a user of this host.
pub(crate) fn user_id(text: &str) -> Result<u32, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let found = Command::new("id").args(["-u", "--", text]).stderr(Stdio::null()).output();
    let found =
        found.map_err(|error| format!("{error}: `id` cannot be run to look a user up; write a number"))?;
    let id = String::from_utf8_lossy(&found.stdout).trim().parse().ok();
    id.filter(|_| found.status.success())
        .ok_or_else(|| "this host has no user of this name; write a name or a number".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!([user_id("root"), user_id("0"), user_id("4000000000")], [Ok(0), Ok(0), Ok(4_000_000_000)]);
        assert!(user_id("no such user").is_err() && user_id("-n").is_err() && user_id("").is_err());
    }
}
