//! The server: a function that returns what it was given, or as many bytes as the first word says.
//!
//! Owns the runtime, which has as many threads as there are cores.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{Write, stdout};
use std::net::SocketAddr;

use bytes::{Buf, BufMut, Bytes};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::codegen::{BoxFuture, Context, Poll, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::Result;

/// Path of the function.
pub(crate) const FUNCTION: &str = "/bench.Calls/call";

/// Messages as they are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AsTheyAre;

impl Codec for AsTheyAre {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for AsTheyAre {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for AsTheyAre {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// The service.
#[derive(Debug, Clone, Copy)]
struct Calls;

impl NamedService for Calls {
    const NAME: &'static str = "bench.Calls";
}

impl Service<HttpRequest<Body>> for Calls {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(AsTheyAre).unary(Reply, request).await) })
    }
}

/// The function.
struct Reply;

impl UnaryService<Bytes> for Reply {
    type Response = Bytes;
    type Future = Ready<std::result::Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let data = request.into_inner();
        let wanted = data.first_chunk().map_or(0, |len| u64::from_le_bytes(*len) as usize);
        ready(Ok(Response::new(if wanted == 0 { data } else { vec![7; wanted].into() })))
    }
}

/// Answers calls at an address until the process is killed.
pub(crate) fn answer(address: &str) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let incoming = TcpIncoming::bind(address)?.with_nodelay(Some(true));
        writeln!(stdout(), "ready")?;
        Ok(Server::builder().add_service(Calls).serve_with_incoming(incoming).await?)
    })
}
