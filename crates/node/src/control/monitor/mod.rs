//! The HTTP service for monitoring a node: `/metrics`, `/healthz` and `/livez`.
//!
//! Control thread (tokio). The module owns nothing of the node: a request becomes a [`Question`] to the
//! engine, which answers between two turns with its counters. So metrics cost nothing where nobody scrapes.
//! Every client is a stranger: connections, their time and their requests are bounded. A connection without
//! a request makes way for the next one, so that health is told whatever else is connected.

mod metrics;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use plasmon::status::Status;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use self::metrics::Format;
use crate::control::{ControlError, Event, EventSender};
use crate::kernel::seldom::Seldom;
use crate::net::door::{Door, HEALTH, Place};

/// Longest time that a request may take to come, and the engine to answer it.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that a connection may take altogether.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;

const TEXT: &str = "text/plain; charset=utf-8";

/// A question to the engine.
#[derive(Debug)]
pub(crate) enum Question {
    /// Asks for the whole report.
    Status(oneshot::Sender<Box<Status>>),
    /// Asks why the node does not serve as it should; the answer is `None` if it does.
    Health(oneshot::Sender<Option<String>>),
}

/// The bound address. It is bound before anything else, so that a taken port is known at once.
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds a `host:port`.
    ///
    /// # Errors
    /// When the address does not resolve or is taken.
    pub(crate) async fn bind(address: &str) -> Result<Self, ControlError> {
        let error = |source| ControlError::Metrics { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that was taken.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the runtime ends.
    pub(crate) async fn serve(self, engine: EventSender) {
        static TOLD: Seldom = Seldom::new();
        let door = Door::new(HEALTH);
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => match door.enter(peer.ip()) {
                    Some(place) => drop(tokio::spawn(attend(stream, peer, place, engine.clone()))),
                    None => debug!(%peer, "no place for a connection for metrics: all are being answered"),
                },
                Err(error) => {
                    if let Some(unsaid) = TOLD.due() {
                        warn!(%error, unsaid, "cannot accept a connection for metrics");
                    }
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Answers one connection's request.
async fn attend(stream: TcpStream, peer: SocketAddr, mut place: Place, engine: EventSender) {
    let served = place.served();
    let service = service_fn(move |request: Request<Incoming>| {
        let (engine, served) = (engine.clone(), Arc::clone(&served));
        async move {
            served.store(true, Ordering::Relaxed);
            let answer = answer(&request, &engine).await;
            // From here on the reader may take its time, but its place is free for others.
            served.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_PATIENCE)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match place.hold(timeout(CONNECTION_PATIENCE, connection)).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => debug!(%peer, %error, "a connection for metrics broke"),
        Ok(Err(_)) => debug!(%peer, "a connection for metrics took too long"),
        Err(displaced) => debug!(%peer, "closed a connection for metrics: {displaced}"),
    }
}

async fn answer(request: &Request<Incoming>, engine: &EventSender) -> Response<Full<Bytes>> {
    let method = request.method();
    if method != Method::GET && method != Method::HEAD {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/metrics" => match ask(engine, Question::Status).await {
            Some(status) => {
                let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
                response(StatusCode::OK, format.content(), metrics::text(*status, format))
            }
            None => silent(),
        },
        "/healthz" => match ask(engine, Question::Health).await {
            Some(None) => plain(StatusCode::OK, "ok\n"),
            Some(Some(unfit)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{unfit}\n")),
            None => silent(),
        },
        "/livez" => match ask(engine, Question::Health).await {
            Some(_) => plain(StatusCode::OK, "ok\n"),
            None => silent(),
        },
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /livez\n"),
    }
}

/// Asks the engine; `None` if it is too busy to answer, or ends.
async fn ask<T>(engine: &EventSender, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    engine.send(Event::Asked(question(sender)));
    timeout(REQUEST_PATIENCE, answer).await.ok()?.ok()
}

fn silent() -> Response<Full<Bytes>> {
    plain(StatusCode::SERVICE_UNAVAILABLE, format!("the engine did not answer within {REQUEST_PATIENCE:?}\n"))
}

fn plain(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    response(code, TEXT, text)
}

fn response(code: StatusCode, content: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}
