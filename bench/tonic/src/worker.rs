//! The calling side, a worker that knows `measure` alone.
//!
//! Owns a connection. Runs on the worker's only thread, which runs the connection as well while it waits.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::Result;
use crate::service::{AsTheyAre, FUNCTION};

/// Number of bytes that a call brings which is held against its reply.
const LITTLE: usize = 64;
const OPERATIONS: [&str; 3] = ["call", "call_reply", "call_begun"];

/// Connection to a server.
struct Calls {
    runtime: Runtime,
    client: Grpc<Channel>,
}

/// Answers requests until standard input ends.
pub(crate) fn serve(address: &str) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
    let client = Grpc::new(runtime.block_on(endpoint.connect())?);
    let (calls, mut answers) = (Calls { runtime, client }, stdout().lock());
    let able = json!({"version": "", "in_place": false, "shared": true, "operations": OPERATIONS});
    writeln!(answers, "{able}")?;
    for line in stdin().lock().lines() {
        let answer = calls.measure(&line?).unwrap_or_else(|error| json!({"error": error.to_string()}));
        writeln!(answers, "{answer}")?;
    }
    Ok(())
}

/// Bytes of a call, and of its reply.
fn question(operation: &str, size: usize) -> Result<(Bytes, Bytes)> {
    match operation {
        "call_reply" => {
            let mut data = vec![1; LITTLE];
            data[..8].copy_from_slice(&(size as u64).to_le_bytes());
            Ok((data.into(), vec![7; size].into()))
        }
        "call" | "call_begun" if size >= 8 => {
            let mut data: Vec<u8> = (0..size).map(|at| at as u8).collect();
            data[..8].fill(0);
            let data = Bytes::from(data);
            Ok((data.clone(), data))
        }
        other => Err(format!("there is no operation {other:?} of {size} bytes").into()),
    }
}

async fn call(mut client: Grpc<Channel>, data: Bytes) -> std::result::Result<Bytes, Status> {
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let function = PathAndQuery::from_static(FUNCTION);
    Ok(client.unary(Request::new(data), function, AsTheyAre).await?.into_inner())
}

impl Calls {
    /// Times calls, each of which is one or a batch that is under way together.
    fn measure(&self, line: &str) -> Result<Value> {
        let request: Value = serde_json::from_str(line)?;
        if request["do"] != "measure" {
            return Err("only measure is known here".into());
        }
        let number = |name: &str| request[name].as_u64().map(|number| number as usize);
        let size = number("size").ok_or("there is no size")?;
        let (batch, most) = (number("batch").unwrap_or(1).max(1), number("calls").unwrap_or(usize::MAX));
        let (data, wanted) = question(request["operation"].as_str().unwrap_or_default(), size)?;
        let span = Duration::from_secs_f64(request["seconds"].as_f64().unwrap_or(f64::from(u32::MAX)));
        let (mut ns, mut last, begin) = (Vec::new(), Bytes::new(), Instant::now());
        while ns.len() < most && begin.elapsed() < span {
            let start = Instant::now();
            last = self.runtime.block_on(self.made(&data, batch))?;
            ns.push(start.elapsed().as_nanos() as u64);
        }
        if !ns.is_empty() && last != wanted {
            return Err("a reply of other bytes came".into());
        }
        Ok(json!({ "ns": ns }))
    }

    /// Makes so many calls together. Returns the last reply.
    async fn made(&self, data: &Bytes, batch: usize) -> Result<Bytes> {
        let one = || call(self.client.clone(), data.clone());
        if batch == 1 {
            return Ok(one().await?);
        }
        let begun: Vec<_> = (0..batch).map(|_| tokio::spawn(one())).collect();
        let mut last = Bytes::new();
        for one in begun {
            last = one.await??;
        }
        Ok(last)
    }
}
