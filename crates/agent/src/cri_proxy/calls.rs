//! Which calls are the proxy's own and which the runtime's: by path, before anything is decoded.
//!
//! A call that is not named here is forwarded: also one that this release has never heard of.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;

use super::backend::{Backend, Body, Cause};
use super::relay;

/// What answers calls.
#[derive(Debug)]
pub(crate) struct Calls;

impl Calls {
    /// Answers one call.
    pub(crate) async fn answer(&self, backend: &Backend, request: Request<Incoming>) -> Response<Body> {
        let answered = forward(backend, request).await;
        answered.unwrap_or_else(|status| status.into_http())
    }
}

/// Hands a call to the runtime, and its answer back.
async fn forward(backend: &Backend, request: Request<Incoming>) -> Result<Response<Body>, Status> {
    let request = request.map(|body| body.map_err(Cause::from).boxed_unsync());
    Ok(backend.call(request).await?.map(relay::untouched))
}
