//! A client in a process of its own, for tests that kill it.
//!
//! `plasmon-e2e-client SOCKET [pin ID | create ID SIZE | over ID SIZE | own NAME | add NAME TIMES | serve
//! NAME | call NAME FUNCTION | count NAME REGION TIMES | guard NAME REGION TTL | party NAME PARTIES | add-on
//! NAME | replace ID SIZE NUMBER | churn SEED]...` pins and creates objects, those of `over` to replace
//! others, makes ephemeral regions, adds to the first word of regions, serves the functions `echo` and
//! `hang`, begins calls, counts in the first word of a region under a lock, takes locks, makes handles to
//! barriers, prints `ready`, and holds all of that until its stdin ends. For each line of stdin, the program
//! says of each guard whether it is valid, and whether its region could be written with it. With `add-on`
//! the program prints `ready`, and then adds to the first word of a region for ever. With `replace` the
//! program prints `ready`, and then puts objects of rising numbers in the place of another for ever, the
//! first with this number. With `churn` the program prints `ready`, and then puts, gets, checks and deletes
//! objects for ever.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::thread;
use std::time::Duration;

use plasmon::region::{RegionOptions, Rights};
use plasmon::service::{ServeOptions, Server};
use plasmon::sync::{Lock, LockOptions};
use plasmon::{Client, CreateOptions, Creation, ErrorKind, Guard, ObjectId, Region};
use plasmon_e2e::Pattern;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let mut next = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let client = Client::connect(next("SOCKET")?)?;
    let (mut pins, mut creations, mut regions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut calls, mut guards, mut parties) = (Vec::new(), Vec::new(), Vec::new());
    while let Ok(verb) = next("verb") {
        if verb == "churn" {
            let seed = next("SEED")?.parse()?;
            writeln!(io::stdout(), "ready")?;
            return churn(&client, seed);
        }
        let what = next("ID or NAME")?;
        if verb == "add-on" {
            return add_on(&client.map_region(&what, Rights::READ_WRITE, None)?);
        }
        if verb == "own" {
            let options = RegionOptions { ephemeral: true, ..RegionOptions::default() };
            regions.push(client.create_region(&what, 4096, &options)?);
            continue;
        }
        if verb == "add" {
            let region = client.map_region(&what, Rights::READ_WRITE, None)?;
            for _ in 0..next("TIMES")?.parse()? {
                region.fetch_add(0, 1)?;
            }
            regions.push(region);
            continue;
        }
        if verb == "serve" {
            let server = client.serve(&what, &["echo", "hang"], &ServeOptions::default())?;
            thread::spawn(move || serve(&server));
            continue;
        }
        if verb == "call" {
            let service = client.service(&what, None)?;
            calls.push(service.begin(&next("FUNCTION")?, b"", Duration::from_secs(60))?);
            continue;
        }
        if verb == "count" {
            let region = client.map_region(&next("REGION")?, Rights::READ_WRITE, None)?;
            count(&Lock::new(&client, &what, &LockOptions::default())?, &region, next("TIMES")?.parse()?)?;
            continue;
        }
        if verb == "guard" {
            let region = client.map_region(&next("REGION")?, Rights::READ_WRITE, None)?;
            let ttl = Duration::from_millis(next("TTL")?.parse()?);
            guards.push((client.lock(&what, &LockOptions { ttl, ..LockOptions::default() })?, region));
            continue;
        }
        if verb == "party" {
            parties.push(client.barrier(&what, next("PARTIES")?.parse()?)?);
            continue;
        }
        let id: ObjectId = what.parse()?;
        if verb == "replace" {
            let (len, first) = (next("SIZE")?.parse()?, next("NUMBER")?.parse()?);
            writeln!(io::stdout(), "ready")?;
            return replace_on(&client, id, len, first);
        }
        match verb.as_str() {
            "pin" => {
                let objects = client.get(&[id], Some(Duration::from_secs(60)))?;
                pins.push(objects.into_iter().collect::<Result<Vec<_>, _>>()?);
            }
            "create" | "over" => creations.push(begin(&client, id, &next("SIZE")?, verb == "over")?),
            other => return Err(format!("'{other}' is no verb").into()),
        }
    }
    writeln!(io::stdout(), "ready")?;
    for line in io::stdin().lock().lines() {
        line?;
        guards.iter().try_for_each(|(guard, region)| tell(guard, region))?;
    }
    Ok(())
}

/// Begins to write an object, to replace another or not. It is half written, as by a program that dies in the
/// middle.
fn begin(client: &Client, id: ObjectId, size: &str, replace: bool) -> Result<Creation, Box<dyn Error>> {
    let options = CreateOptions { replace, ..CreateOptions::default() };
    let mut creation = client.create(id, size.parse()?, &[], &options)?;
    let data = creation.as_mut_slice();
    let half = data.len() / 2;
    data[..half].fill(0xa5);
    Ok(creation)
}

/// Adds to the first word of a region for ever.
fn add_on(region: &Region) -> Result<(), Box<dyn Error>> {
    region.fetch_add(0, 1)?;
    writeln!(io::stdout(), "ready")?;
    loop {
        region.fetch_add(0, 1)?;
    }
}

/// Says whether a guard is valid, and what becomes of a write that shows it.
fn tell(guard: &Guard, region: &Region) -> io::Result<()> {
    let valid = if guard.is_valid() { "valid" } else { "lost" };
    match region.write_fenced(8, b"written!", guard) {
        Ok(()) => writeln!(io::stdout(), "{valid} written"),
        Err(error) => writeln!(io::stdout(), "{valid} {:?}", error.kind()),
    }
}

/// Adds to the first word of a region by a read and a write, so that two who do so at a time lose one.
fn count(lock: &Lock, region: &Region, times: u32) -> plasmon::Result<()> {
    for _ in 0..times {
        let guard = lock.take(Some(Duration::from_secs(60)))?;
        let mut word = [0; 8];
        region.read(0, &mut word)?;
        region.write_fenced(0, &(u64::from_le_bytes(word) + 1).to_le_bytes(), &guard)?;
        guard.unlock()?;
    }
    Ok(())
}

/// Puts objects of rising numbers in the place of another for ever. An object's metadata is its number.
fn replace_on(client: &Client, id: ObjectId, len: usize, first: u64) -> Result<(), Box<dyn Error>> {
    for number in first.. {
        let (data, metadata) = (Pattern(number).bytes(len), number.to_le_bytes());
        let replaces = CreateOptions { replace: true, ..CreateOptions::default() };
        if number % 2 == 0 {
            client.replace(id, &data, &metadata, &replaces, None)?;
            continue;
        }
        let mut creation = client.create(id, len as u64, &metadata, &replaces)?;
        creation.as_mut_slice().copy_from_slice(&data);
        creation.seal()?;
    }
    Ok(())
}

/// Does everything to objects that a client can do, over and over, until the process is killed.
fn churn(client: &Client, seed: u64) -> Result<(), Box<dyn Error>> {
    let options = CreateOptions::default();
    let mut held = Vec::new();
    for round in 0.. {
        let pattern = Pattern(seed.wrapping_add(round));
        let id = ObjectId::random();
        // The lengths are for puts through the ring, into one place of the arena, and across segments.
        let len = [1, 100, 4095, 60 << 10, 1 << 20, 3 << 20][round as usize % 6];
        match make(client, id, &pattern.bytes(len), round % 3 == 0, &options) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Full => {
                held.clear();
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        // A cache may have dropped the object already.
        let Ok(object) = client.get(&[id], Some(Duration::ZERO))?.remove(0) else { continue };
        pattern.check(object.data());
        held.push((pattern, object));
        if round % 2 == 0 {
            client.delete(&[id])?;
            client.create(id, len as u64, b"", &options)?.abort()?;
        }
        if held.len() > 8 {
            let (pattern, object) = held.swap_remove(round as usize * 7 % held.len());
            pattern.check(object.data());
            client.delete(&[object.id()])?;
        }
    }
    Ok(())
}

/// Puts an object, or creates, writes and seals it.
fn make(
    client: &Client,
    id: ObjectId,
    data: &[u8],
    in_place: bool,
    options: &CreateOptions,
) -> plasmon::Result<()> {
    if !in_place {
        return client.put(id, data, b"", options);
    }
    let mut creation = client.create(id, data.len() as u64, b"", options)?;
    creation.as_mut_slice().copy_from_slice(data);
    creation.seal()
}

/// Answers calls of the first function, and keeps those of the second.
fn serve(server: &Server) {
    let mut kept = Vec::new();
    while let Ok(Some(call)) = server.receive(None) {
        if call.function() == 0 {
            let data = call.data().to_vec();
            // The caller may have gone.
            _ = call.reply(&data);
        } else {
            kept.push(call);
        }
    }
}
