//! Traces: one span for each ADD; plan, plugins and status are child spans.
//!
//! ```text
//!   CNI ADD ─┬─ plan              the agent
//!            ├─ bridge ADD ─── host-local ADD     each plugin, and those that it called: weft-cni measured them
//!            ├─ tuning ADD        …
//!            └─ network-status    the agent, once the API server accepted it
//! ```
//!
//! - A trace context of the runtime is the parent of the whole trace, which then has the runtime's trace id.
//! - Traces are exported only on request, and nothing is kept for them otherwise.
//! - No request waits for a collector: spans go into a bounded queue, which a thread empties. Spans beyond it are dropped.
//! - Times that weft-cni reports are not trusted: they are limited to the possible range.
//!
//! Source: OpenTelemetry, traces and SDK environment variables; semantic conventions `k8s.*`, `container.id`.

mod collector;
mod otlp_client;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::Error;
use cni::name::ContainerId;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::trace::{SpanBuilder, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use rpc::plan::{AttachmentReport, PlanReport, PlanRequest, PluginCall};

use super::metrics::Metrics;
use cli_support::failure::Failure;
pub use collector::Export;

/// Maximum number of ADDs whose status is pending.
const OPEN_MAX: usize = 1024;
/// Longest time between a call and the request: a runtime gives up sooner.
const CALL_MAX: Duration = Duration::from_secs(600);
/// Maximum length for an error text, in characters.
const TEXT_MAX: usize = 1024;
/// Timeout for the last spans when the agent shuts down.
const SHUTDOWN_MAX: Duration = Duration::from_secs(3);
/// Name that the instrumentation scope has.
const SCOPE: &str = "weft";

/// Trace exporter.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// ADDs whose status is pending.
    open: Mutex<VecDeque<(ContainerId, SpanContext)>>,
}

/// Trace for one ADD.
#[derive(Debug)]
pub struct Trace {
    tracer: SdkTracer,
    root: Span,
    /// Parent for the plugins' spans.
    context: Context,
    began: SystemTime,
}

// === impl Traces ===

impl Traces {
    /// Starts the export, if it is requested by option or environment.
    ///
    /// # Errors
    /// The option or a variable is invalid.
    pub fn start(export: &Export, node: &str, metrics: &Metrics) -> Result<Option<Traces>, Failure> {
        let Some(provider) = collector::provider(export, node, metrics)? else { return Ok(None) };
        let tracer = provider.tracer(SCOPE);
        Ok(Some(Traces { provider, tracer, open: Mutex::default() }))
    }

    /// Begins the trace for a plan request: a part of the runtime's trace, if the request names one.
    pub fn begin(&self, request: &PlanRequest, arrived: SystemTime) -> Trace {
        let PlanRequest { pod, container, ifname, node: _, began, trace_parent, purpose: _ } = request;
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
        let root = self.tracer.build_with_context(builder, &context_of(trace_parent));
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

    /// Adds a span for a status update; further attempts may follow a failure.
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

    /// Sends the remaining spans.
    pub fn end(&self) {
        // Spans that the collector does not accept now are lost.
        let _ = self.provider.shutdown_with_timeout(SHUTDOWN_MAX);
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<(ContainerId, SpanContext)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Trace ===

impl Trace {
    /// Returns the trace id.
    pub fn id(&self) -> String {
        self.root.span_context().trace_id().to_string()
    }

    /// Returns the trace id, if the sampler selected the trace for export.
    pub fn exported_id(&self) -> Option<String> {
        self.root.span_context().is_sampled().then(|| self.id())
    }

    /// Adds a span for planning; a refusal ends the trace.
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

    /// Adds the plugins' spans and ends the trace.
    pub fn reported(mut self, report: &PlanReport) {
        let PlanReport { microseconds, attachments, error } = report;
        let whole = Duration::from_micros(*microseconds).min(CALL_MAX);
        // The first failed plugin failed the call; later calls were the teardown.
        let mut unexplained = error.as_ref();
        for tried in attachments {
            self.ran(tried, whole, &mut unexplained);
        }
        if let Some(error) = error {
            self.fail(None, error);
        }
        self.root.end_with_timestamp(self.began + whole);
    }

    /// Adds spans for one network's plugins, and for the plugins that they called.
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

    /// Records an error on the whole trace, and on one part if given.
    fn fail(&mut self, part: Option<&mut Span>, error: &Error) {
        let code = KeyValue::new("cni.code", i64::from(error.code));
        for span in [Some(&mut self.root), part].into_iter().flatten() {
            span.set_status(Status::error(shortened(&error.msg)));
            span.set_attribute(code.clone());
        }
    }
}

/// Returns the context in a `traceparent`; an invalid one has no trace.
fn context_of(trace_parent: &str) -> Context {
    let fields = HashMap::from([("traceparent".to_owned(), trace_parent.to_owned())]);
    TraceContextPropagator::new().extract_with_context(&Context::new(), &fields)
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}
