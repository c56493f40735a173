//! `plasmon services` and `plasmon call`: lists services, and calls their functions.
//!
//! Owns no state. Main thread. Invariant: without `--json` the bytes that a function returns go to standard
//! output unchanged, the times to standard error.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use clap::Args as ClapArgs;
use plasmon::service::{Reply, Service, ServiceInfo, ServiceList};
use plasmon::{Socket, WaitStats};
use serde_json::{Value, json};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::list_args::Patience;
use crate::listing::{complete, short};
use crate::names::name;
use crate::output::{self, age, standard, table, tolerant};
use crate::python;
use crate::users::user_id;
use crate::values::seconds;

/// Arguments of `plasmon call`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The reply is printed as it is; with --values it is a value of Python and printed as JSON, by the Python \
package. The exit code is 12 if the function may have been run and no reply came, 1 if \
it was run and failed, 3 if there is no such service, 4 if no server was free within the time-out.")]
pub(crate) struct CallFunction {
    /// Name of the service
    #[arg(value_name = "SERVICE", value_parser = name)]
    pub(crate) service: String,
    /// Name of the function
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,
    /// Data of the call; - for standard input. With --values the arguments, as a list in JSON: '[1, "two"]'
    #[arg(value_name = "DATA|-", default_value = "", allow_hyphen_values = true)]
    pub(crate) data: String,
    /// Call a function that takes and returns values of Python (`serve(..., values=True)`)
    #[arg(long, conflicts_with = "explain")]
    pub(crate) values: bool,
    /// User to whom the service belongs [default: this user or root]
    #[arg(long, value_name = "USER", value_parser = user_id)]
    pub(crate) owner: Option<u32>,
    /// Seconds to wait for the reply
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Print where the time of the call went
    #[arg(long)]
    pub(crate) explain: bool,
}

/// Lists the services of the cluster.
pub(crate) fn services(socket: &Socket, as_json: bool, patience: &Patience) -> Result<(), Failure> {
    let within = Within::new(Some(patience.timeout));
    let list = ServiceList::of(&within.connect(socket, "plasmon services")?)?;
    if as_json {
        output::json(&list.services.iter().map(row_json).collect::<Value>().to_string())?;
    } else {
        let rows: Vec<_> = list.services.iter().map(row).collect();
        table(["OWNER", "NODES", "HOME", "AGE", "NAME", "FUNCTIONS"], &rows)?;
    }
    complete(&list.missing)
}

fn row(info: &ServiceInfo) -> [String; 6] {
    [
        info.owner.to_string(),
        info.nodes.to_string(),
        short(&[info.home]),
        age(Duration::from_millis(info.age_ms)),
        info.name.clone(),
        info.functions.join(", "),
    ]
}

fn row_json(info: &ServiceInfo) -> Value {
    json!({
        "name": info.name,
        "owner": info.owner,
        "home": info.home.to_string(),
        "nodes": info.nodes,
        "functions": info.functions,
        "age_seconds": info.age_ms as f64 / 1000.0,
    })
}

/// Calls a function of a service, and prints its reply.
pub(crate) fn call(socket: &Socket, as_json: bool, args: &CallFunction) -> Result<(), Failure> {
    let data = match args.data.as_str() {
        "-" => {
            let mut data = Vec::new();
            io::stdin().lock().read_to_end(&mut data).map_err(Failure::file("read", "standard input"))?;
            data
        }
        data => data.as_bytes().to_vec(),
    };
    if args.values {
        return Err(python::call(socket, as_json, args, &data));
    }
    let within = Within::new(Some(args.timeout));
    let client = within.connect(socket, "plasmon call")?;
    let service = Service::find(&client, args.owner, &args.service, None)?;
    let left = within.left().unwrap_or(args.timeout);
    let reply = service.call(&args.function, &data, left)?;
    if as_json {
        return output::json(&told(&reply, client.wait_stats()).to_string());
    }
    if args.explain {
        output::complain_further(&explained(&reply));
    }
    tolerant(standard().and_then(|mut out| out.write_all(&reply).and_then(|()| out.flush())))
}

/// A reply with its times for programs. Bytes that are no text are told as numbers.
fn told(reply: &Reply, waits: WaitStats) -> Value {
    let data = std::str::from_utf8(reply).map_or_else(|_| json!(reply.to_vec()), |text| json!(text));
    let times = reply.times();
    let seconds = |time: Duration| time.as_secs_f64();
    json!({
        "reply": data,
        "bytes": reply.len(),
        "seconds": seconds(times.total),
        "queue_seconds": seconds(times.queue),
        "wire_seconds": seconds(times.wire),
        "function_seconds": seconds(times.function),
        "waits": { "looked": waits.looked, "yielded": waits.yielded, "slept": waits.slept },
    })
}

/// Parts of the time of a call, for people.
fn explained(reply: &Reply) -> String {
    let times = reply.times();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let rest = times.total.saturating_sub(times.queue + times.wire + times.function);
    format!(
        "{:.1} us: {:.1} waiting for a thread of a server, {:.1} in the function, {:.1} between the nodes \
         and in their daemons, {:.1} between this process and its node",
        micros(times.total),
        micros(times.queue),
        micros(times.function),
        micros(times.wire),
        micros(rest)
    )
}
