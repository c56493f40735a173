//! `plasmon ping`: asks a node, or a server of a service, for signs of life, by slot, and prints how long
//! they take.
//!
//! Owns no state. Main thread.

use std::thread;
use std::time::Duration;

use clap::Args as ClapArgs;
use plasmon::service::Times;
use plasmon::{Client, NodeId, Pinged, Service, Socket, WaitStats, find_nodes};
use serde_json::{Value, json};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::output::{self, counted, line};
use crate::values::seconds;

/// Arguments of `plasmon ping`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The time is that of a call by a slot of shared memory: to this host's node and back, and for another node \
the way between the nodes. A service is asked by a call that a thread of a server takes as any other, and \
answers without running a function. The last line says how the command waited: it looks for an answer \
while a core is idle, then yields its core a few times, then sleeps.")]
pub(crate) struct Ping {
    /// Node, as its host's name or address, or as its id or the beginning of the id; or a service, unless a
    /// node is called so [default: this host's node]
    #[arg(value_name = "NODE|HOST|SERVICE")]
    pub(crate) target: Option<String>,
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

/// Asks a node or a service for as many answers as wanted, and prints their times.
pub(crate) fn ping(socket: &Socket, as_json: bool, args: &Ping) -> Result<(), Failure> {
    let client = Within::new(Some(args.timeout)).connect(socket, "plasmon ping")?;
    let target = find(&client, args)?;
    if !as_json {
        line(&target.told())?;
    }
    let mut pings = Vec::new();
    for nth in 1..=args.count {
        if nth > 1 {
            thread::sleep(args.interval);
        }
        let pinged = match &target {
            Target::Node(node) => Answer::Node(client.ping(*node, args.timeout)?),
            Target::Service(service) => Answer::Server(service.ping(args.timeout)?),
        };
        if !as_json {
            line(&format!("{nth:>4}  {}", pinged.told()))?;
        }
        pings.push(pinged);
    }
    let waits = client.wait_stats();
    if as_json { output::json(&report(&target, &pings, waits)) } else { sum_up(&pings, waits) }
}

/// Node or service that is pinged.
enum Target {
    Node(NodeId),
    Service(Service),
}

impl Target {
    fn told(&self) -> String {
        match self {
            Self::Node(node) => format!("node {node}"),
            Self::Service(service) => format!("service {}", service.name()),
        }
    }
}

/// Finds the node or the service of this name.
fn find(client: &Client, args: &Ping) -> Result<Target, Failure> {
    let Some(wanted) = &args.target else { return Ok(Target::Node(client.node())) };
    match find_nodes(client, &[wanted], Some(args.timeout)) {
        Ok(nodes) => Ok(Target::Node(nodes[0])),
        // If no service is called so either, the error is that of the node.
        Err(error) => client.service(wanted, None).map(Target::Service).map_err(|_| error.into()),
    }
}

/// Times of a sign of life.
enum Answer {
    Node(Pinged),
    Server(Times),
}

impl Answer {
    fn total(&self) -> Duration {
        match self {
            Self::Node(pinged) => pinged.total,
            Self::Server(times) => times.total,
        }
    }

    fn told(&self) -> String {
        let total = micros(self.total());
        match self {
            Self::Node(pinged) if pinged.network.is_zero() => format!("{total:>9.1} us"),
            Self::Node(pinged) => {
                format!("{total:>9.1} us, {:.1} of them between the nodes", micros(pinged.network))
            }
            Self::Server(times) => format!(
                "{total:>9.1} us, {:.1} of them between the nodes, {:.1} waiting for a thread of a server",
                micros(times.wire),
                micros(times.queue)
            ),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Node(Pinged { total, network }) => {
                json!({"total_us": micros(*total), "network_us": micros(*network)})
            }
            Self::Server(Times { queue, wire, function, total }) => json!({
                "total_us": micros(*total),
                "network_us": micros(*wire),
                "queue_us": micros(*queue),
                "server_us": micros(*function),
            }),
        }
    }
}

fn sum_up(pings: &[Answer], waits: WaitStats) -> Result<(), Failure> {
    let mut times: Vec<_> = pings.iter().map(|pinged| micros(pinged.total())).collect();
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

fn report(target: &Target, pings: &[Answer], waits: WaitStats) -> String {
    let pings: Vec<_> = pings.iter().map(Answer::json).collect();
    let waits = json!({"looked": waits.looked, "yielded": waits.yielded, "slept": waits.slept});
    let (kind, name) = match target {
        Target::Node(node) => ("node", node.to_string()),
        Target::Service(service) => ("service", service.name().to_owned()),
    };
    json!({kind: name, "pings": pings, "waits": waits}).to_string()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
