//! A client in a process of its own, for tests that kill it.
//!
//! `plasmon-e2e-client SOCKET [pin ID | create ID SIZE]...` does as told, prints `ready`, and holds what
//! it has until its stdin ends.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::io::{self, Read, Write};
use std::time::Duration;

use plasmon::{Client, CreateOptions, ObjectId};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let mut next = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let client = Client::connect(next("SOCKET")?)?;
    let (mut pins, mut creations) = (Vec::new(), Vec::new());
    while let Ok(verb) = next("verb") {
        let id: ObjectId = next("ID")?.parse()?;
        match verb.as_str() {
            "pin" => {
                let objects = client.get(&[id], Some(Duration::from_secs(60)))?;
                pins.push(objects.into_iter().collect::<Result<Vec<_>, _>>()?);
            }
            "create" => {
                let mut creation =
                    client.create(id, next("SIZE")?.parse()?, &[], &CreateOptions::default())?;
                // Half written, as by a program that dies in the middle.
                let data = creation.as_mut_slice();
                let half = data.len() / 2;
                data[..half].fill(0xa5);
                creations.push(creation);
            }
            other => return Err(format!("'{other}' is neither pin nor create").into()),
        }
    }
    writeln!(io::stdout(), "ready")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
