//! Settings of classes of work: how they are kept apart, and who may have which.
//!
//! Owns no state. Any thread.

use plasmon::Class;
use plasmon_node::{Grants, Qos, Users};

use crate::users::user_id;

/// Parses how classes are kept apart.
pub(super) fn qos(text: &str) -> Result<Qos, String> {
    let found = Qos::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "write off, separate or priority".into())
}

/// Parses who may have which class: `high=root,alice;low=*`.
pub(super) fn grants(text: &str) -> Result<Grants, String> {
    let mut grants = Grants::default();
    let mut seen = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let advice =
            || format!("'{part}' says of no class whose it is; write CLASS=USERS such as high=root,alice");
        let (class, users) = part.split_once('=').ok_or_else(advice)?;
        let class: Class = class.trim().parse()?;
        if seen.contains(&class) {
            return Err(format!("class {class} stands there twice; write all of its users in one list"));
        }
        seen.push(class);
        let users = self::users(users)?;
        match class {
            Class::High => grants.high = users,
            Class::Normal => return Err("class normal is everybody's; leave it out".into()),
            Class::Low => grants.low = users,
        }
    }
    Ok(grants)
}

fn users(text: &str) -> Result<Users, String> {
    let named = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
    if named().any(|name| name == "*") {
        return Ok(Users::Everybody);
    }
    let users = named().map(|name| user_id(name).map_err(|why| format!("'{name}': {why}")));
    users.collect::<Result<_, _>>().map(Users::Only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_given_to_users() {
        let of = |text| grants(text).expect("it is well formed");
        assert_eq!(of(""), Grants::default());
        assert_eq!(of("low=*"), Grants::default());
        let given = of("high=root, 1000 ; low=");
        assert_eq!((given.high, given.low), (Users::Only(vec![0, 1000]), Users::Only(vec![])));
        assert_eq!(of("high=*").high, Users::Everybody);
    }

    #[test]
    fn wrong_settings_say_what_to_write() {
        let wrong = |text| grants(text).expect_err("it is not well formed");
        assert!(wrong("high").contains("CLASS=USERS"), "{}", wrong("high"));
        assert!(wrong("urgent=*").contains("high, normal and low"), "{}", wrong("urgent=*"));
        assert!(wrong("normal=1").contains("everybody's"), "{}", wrong("normal=1"));
        assert!(wrong("high=1;high=2").contains("twice"), "{}", wrong("high=1;high=2"));
        assert!(wrong("high=no-such-user").contains("no-such-user"), "{}", wrong("high=no-such-user"));
        assert!(qos("fair").expect_err("there is no such mode").contains("separate"));
    }
}
