//! Traces: one span for each ADD, with the plan, every plugin and the status as its children.
//!
//! ```text
//!   CNI ADD ─┬─ plan              the agent
//!            ├─ bridge ADD ─── host-local ADD     each plugin, and those that it called: the hands measured them
//!            ├─ tuning ADD        …
//!            └─ network-status    the agent, once the API server took it
//! ```
//!
//! Rules:
//! - nothing is exported unless it was asked for, and nothing is kept for it then;
//! - nobody waits for a collector: spans are put into a queue of bounded size, which a thread of its own empties; what
//!   does not fit is dropped;
//! - what hands tell is shown and not believed: times are cut to what is possible.
//!
//! Source: OpenTelemetry, traces and the environment of its SDKs; semantic conventions `k8s.*`, `container.id`.

mod collector;
mod otlp_client;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::Error;
use cni::name::ContainerId;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::trace::{SpanBuilder, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use rpc::plan::{AttachmentReport, PlanReport, PlanRequest, PluginCall};

use super::metrics::Metrics;
use cli_support::failure::Failure;
pub use collector::Export;

/// Most ADDs whose status is still awaited.
const OPEN_MAX: usize = 1024;
/// Earlier than this before its question, no call began: a runtime gives up sooner.
const CALL_MAX: Duration = Duration::from_secs(600);
/// Longest text of a failure, in characters.
const TEXT_MAX: usize = 1024;
/// How long the last spans may take to leave when the agent ends.
const FAREWELL: Duration = Duration::from_secs(3);
/// Name of who traces.
const SCOPE: &str = "weft";

/// Where spans go.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// Whose status is still awaited.
    open: Mutex<VecDeque<(ContainerId, SpanContext)>>,
}

/// The trace of one ADD.
#[derive(Debug)]
pub struct Trace {
    tracer: SdkTracer,
    root: Span,
    /// What the plugins' children are told of.
    context: Context,
    began: SystemTime,
}

// === impl Traces ===

impl Traces {
    /// Starts to export, if it is asked for by option or environment.
    ///
    /// # Errors
    /// What the option or a variable says cannot be done.
    pub fn start(export: &Export, node: &str, metrics: &Metrics) -> Result<Option<Traces>, Failure> {
        let Some(provider) = collector::provider(export, node, metrics)? else { return Ok(None) };
        let tracer = provider.tracer(SCOPE);
        Ok(Some(Traces { provider, tracer, open: Mutex::default() }))
    }

    /// The trace of the call that asks.
    pub fn begin(&self, request: &PlanRequest, arrived: SystemTime) -> Trace {
        let PlanRequest { pod, container, ifname, node: _, began } = request;
        let attributes = [
            KeyValue::new("k8s.namespace.name", pod.namespace.clone()),
            KeyValue::new("k8s.pod.name", pod.name.clone()),
            KeyValue::new("k8s.pod.uid", pod.uid.clone()),
            KeyValue::new("container.id", container.to_string()),
            KeyValue::new("cni.command", "ADD"),
            KeyValue::new("cni.ifname", ifname.to_string()),
        ];
        let began = UNIX_EPOCH + Duration::from_micros(*began);
        let possible = arrived.duration_since(began).is_ok_and(|before| before <= CALL_MAX);
        let began = if possible { began } else { arrived };
        let builder = SpanBuilder::from_name("CNI ADD").with_kind(SpanKind::Server);
        let builder = builder.with_start_time(began).with_attributes(attributes);
        let root = self.tracer.build_with_context(builder, &Context::new());
        let context = Context::new().with_remote_span_context(root.span_context().clone());
        let mut open = self.open();
        open.retain(|(known, _)| known != container);
        if open.len() == OPEN_MAX {
            open.pop_front();
        }
        open.push_back((container.clone(), root.span_context().clone()));
        drop(open);
        Trace { tracer: self.tracer.clone(), root, context, began }
    }

    /// A status was written, or could not be; more tries may follow.
    pub fn status(
        &self,
        container: &ContainerId,
        began: SystemTime,
        outcome: &'static str,
        failure: Option<&str>,
    ) {
        let mut open = self.open();
        let Some(place) = open.iter().position(|(known, _)| known == container) else { return };
        let parent = match failure {
            Some(_) => open.get(place).cloned(),
            None => open.remove(place),
        };
        drop(open);
        let Some((_, parent)) = parent else { return };
        let builder = SpanBuilder::from_name("network-status").with_kind(SpanKind::Client);
        let builder = builder.with_start_time(began).with_attributes([KeyValue::new("outcome", outcome)]);
        let context = Context::new().with_remote_span_context(parent);
        let mut span = self.tracer.build_with_context(builder, &context);
        if let Some(failure) = failure {
            span.set_status(Status::error(shortened(failure)));
        }
        span.end();
    }

    /// Sends what is left.
    pub fn end(&self) {
        // What a collector does not take now is lost; it was never more than a figure.
        let _ = self.provider.shutdown_with_timeout(FAREWELL);
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<(ContainerId, SpanContext)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Trace ===

impl Trace {
    /// What it is found by.
    pub fn id(&self) -> String {
        self.root.span_context().trace_id().to_string()
    }

    /// The plan was made, or refused, which ends it.
    pub fn planned(&mut self, arrived: SystemTime, networks: Result<usize, &Error>) {
        let builder = SpanBuilder::from_name("plan").with_start_time(arrived);
        let mut span = self.tracer.build_with_context(builder, &self.context);
        match networks {
            Ok(count) => {
                span.set_attribute(KeyValue::new("networks", i64::try_from(count).unwrap_or(i64::MAX)));
            }
            Err(error) => self.fail(Some(&mut span), error),
        }
        span.end();
    }

    /// The hands said how it went.
    pub fn reported(mut self, report: &PlanReport) {
        let PlanReport { microseconds, attachments, error } = report;
        let whole = Duration::from_micros(*microseconds).min(CALL_MAX);
        // Who failed first failed the call; behind it things were taken down again.
        let mut unexplained = error.as_ref();
        for tried in attachments {
            self.ran(tried, whole, &mut unexplained);
        }
        if let Some(error) = error {
            self.fail(None, error);
        }
        self.root.end_with_timestamp(self.began + whole);
    }

    /// The plugins of one network, and those that they called.
    fn ran(&mut self, tried: &AttachmentReport, whole: Duration, unexplained: &mut Option<&Error>) {
        let AttachmentReport { network, plugin: _, ifname, microseconds: _, steps } = tried;
        let mut callers: Vec<Context> = vec![self.context.clone()];
        for PluginCall { plugin, verb, began, microseconds, depth, failed } in steps {
            callers.truncate(depth + 1);
            let caller = callers.last().unwrap_or(&self.context).clone();
            let attributes = [
                KeyValue::new("cni.plugin", shortened(plugin)),
                KeyValue::new("cni.command", shortened(verb)),
                KeyValue::new("cni.network", shortened(network)),
                KeyValue::new("cni.ifname", ifname.to_string()),
            ];
            let start = Duration::from_micros(*began).min(whole);
            let end = start.saturating_add(Duration::from_micros(*microseconds)).min(whole);
            let builder = SpanBuilder::from_name(shortened(&format!("{plugin} {verb}")));
            let builder = builder.with_start_time(self.began + start).with_attributes(attributes);
            let mut span = self.tracer.build_with_context(builder, &caller);
            if *failed {
                let error = if *depth == 0 { unexplained.take() } else { None };
                span.set_status(Status::error(error.map(|error| shortened(&error.msg)).unwrap_or_default()));
            }
            callers.push(Context::new().with_remote_span_context(span.span_context().clone()));
            span.end_with_timestamp(self.began + end);
        }
    }

    /// Says on the whole, and on a part of it, that it failed and why.
    fn fail(&mut self, part: Option<&mut Span>, error: &Error) {
        let code = KeyValue::new("cni.code", i64::from(error.code));
        for span in [Some(&mut self.root), part].into_iter().flatten() {
            span.set_status(Status::error(shortened(&error.msg)));
            span.set_attribute(code.clone());
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}
