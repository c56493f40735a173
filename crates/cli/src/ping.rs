//! `plasmon ping`: asks a node for signs of life, by slot, and prints how long they take.

use std::thread;
use std::time::Duration;

use clap::Args as ClapArgs;
use plasmon::{Pinged, Socket, WaitStats, find_nodes};
use serde_json::json;

use crate::connecting::Within;
use crate::failure::Failure;
use crate::output::{self, counted, line};
use crate::serve_args::seconds;

/// Arguments of `plasmon ping`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The time is that of a call by a slot of shared memory: to this host's node and back, and for another node \
the way between the nodes. The last line says how the command waited: it looks for an answer while a core \
is idle, then yields its core a few times, then sleeps.")]
pub(crate) struct Ping {
    /// Node, as its host's name or address, or as its id or the beginning of the id [default: this host's
    /// node]
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: Option<String>,
    /// Number of answers to ask for
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Seconds between an answer and the next question
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Seconds to wait for each answer
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

pub(crate) fn ping(socket: &Socket, as_json: bool, args: &Ping) -> Result<(), Failure> {
    let client = Within::new(Some(args.timeout)).connect(socket, "plasmon ping")?;
    let node = match &args.node {
        Some(wanted) => find_nodes(&client, &[wanted], Some(args.timeout))?[0],
        None => client.node(),
    };
    if !as_json {
        line(&format!("node {node}"))?;
    }
    let mut pings = Vec::new();
    for nth in 1..=args.count {
        if nth > 1 {
            thread::sleep(args.interval);
        }
        let pinged = client.ping(node, args.timeout)?;
        if !as_json {
            line(&format!("{nth:>4}  {}", told(&pinged)))?;
        }
        pings.push(pinged);
    }
    let waits = client.wait_stats();
    if as_json { output::json(&report(&node.to_string(), &pings, waits)) } else { sum_up(&pings, waits) }
}

/// Times of a ping for people.
fn told(pinged: &Pinged) -> String {
    let total = micros(pinged.total);
    if pinged.network.is_zero() {
        format!("{total:>9.1} us")
    } else {
        format!("{total:>9.1} us, {:.1} of them between the nodes", micros(pinged.network))
    }
}

fn sum_up(pings: &[Pinged], waits: WaitStats) -> Result<(), Failure> {
    let mut times: Vec<_> = pings.iter().map(|pinged| micros(pinged.total)).collect();
    times.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (times.first(), times.last()) else { return Ok(()) };
    line(&format!(
        "{}: {least:.1} us at least, {:.1} in the middle, {most:.1} at most; waited looking {}, yielding {}, \
         asleep {}",
        counted(times.len() as u64, "answer"),
        times[times.len() / 2],
        waits.looked,
        waits.yielded,
        waits.slept
    ))
}

fn report(node: &str, pings: &[Pinged], waits: WaitStats) -> String {
    let pings: Vec<_> = pings
        .iter()
        .map(|pinged| json!({"total_us": micros(pinged.total), "network_us": micros(pinged.network)}))
        .collect();
    let waits = json!({"looked": waits.looked, "yielded": waits.yielded, "slept": waits.slept});
    json!({"node": node, "pings": pings, "waits": waits}).to_string()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
