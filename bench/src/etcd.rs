//! Locks of etcd as a peer, by its own service for locks.
//!
//! Owns a connection, and a lease to which the locks belong. Runs on the worker's only thread, which runs the
//! client's tasks as well while it waits.

use std::time::{Duration, Instant};

use etcd_client::{Client, LockOptions};
use plasmon_bench::Result;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};
use tokio::runtime::{Builder, Runtime};

/// Time to live of the lease in seconds: longer than any measurement.
const TTL_S: i64 = 3600;

/// Connection to a server.
pub(crate) struct Etcd {
    runtime: Runtime,
    client: Client,
    lease: i64,
}

impl Etcd {
    /// Connects to a host and port.
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, lease) = runtime.block_on(async {
            let mut client = Client::connect([address], None).await?;
            let lease = client.lease_grant(TTL_S, None).await?.id();
            Ok::<_, etcd_client::Error>((client, lease))
        })?;
        Ok(Self { runtime, client, lease })
    }
}

impl Peer for Etcd {
    fn greeting(&self) -> Greeting {
        Greeting { version: "", in_place: false, shared: true, operations: &["lock"] }
    }

    fn operation(
        &mut self,
        operation: &str,
        _size: usize,
        _owner: u64,
        _numbers: Numbers,
        _batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        match operation {
            "lock" => Ok(Box::new(Taken { etcd: self, took: Duration::ZERO })),
            other => Err(format!("there is no operation {other:?}").into()),
        }
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Lock that nobody else wants.
struct Taken<'a> {
    etcd: &'a mut Etcd,
    took: Duration,
}

impl Call for Taken<'_> {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let Etcd { runtime, client, lease } = &mut *self.etcd;
        let begin = Instant::now();
        let options = LockOptions::new().with_lease(*lease);
        let locked = runtime.block_on(client.lock("bench-lock", Some(options)))?;
        self.took = begin.elapsed();
        runtime.block_on(client.unlock(locked.key()))?;
        Ok(())
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}
