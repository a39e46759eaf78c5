//! API errors described for people: the API server's message, or the address of a server that did not answer.
//!
//! - Every client's errors pass through [`by`], so that an error without a response names the server.
//! - [`describe`] alone makes the text: the library's own text omits the innermost cause.
//! - [`failure`] adds what a person can do next.

use std::error::Error;
use std::fmt;

use kube::core::Status;
use kube::runtime::watcher;
use tower::BoxError;

use cli_support::failure::Failure;

/// Body with which the API server answers if a resource is not installed.
const UNKNOWN_KIND: &str = "404 page not found";
/// Error texts from libraries that add nothing to the cause.
const EMPTY_WORDS: [&str; 4] =
    ["client error (Connect)", "client error (SendRequest)", "tcp connect error", "dns error"];

/// A server did not answer.
#[derive(Debug)]
struct NoResponse {
    server: String,
    cause: BoxError,
}

/// Returns the error with the server's address.
pub(super) fn by(server: &str, cause: BoxError) -> BoxError {
    if cause.is::<kube::Error>() || cause.is::<NoResponse>() {
        return cause;
    }
    Box::new(NoResponse { server: server.trim_end_matches('/').to_owned(), cause })
}

/// Returns an error's description, as the end of a sentence.
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => match status.message.trim() {
            UNKNOWN_KIND => {
                "the cluster does not have this custom resource; install it: weft crds | kubectl apply -f -"
                    .to_owned()
            }
            "" => format!("the API server returned {}", status.code),
            message => message.to_owned(),
        },
        kube::Error::Service(cause) => match (cause.downcast_ref::<NoResponse>(), cause.downcast_ref()) {
            (Some(error), _) => error.to_string(),
            // Clients that observe another client pass its errors on.
            (None, Some(error)) => describe(error),
            (None, None) => causes(cause.as_ref()),
        },
        other => causes(other),
    }
}

/// Returns the failure for a request that a person made, with the next step: `step: …`.
pub fn failure(step: impl fmt::Display, error: &kube::Error) -> Failure {
    let failure = Failure::new(format!("{step}: {}", describe(error)));
    match next_step(error) {
        Some(next) => failure.next(next),
        None => failure,
    }
}

/// Returns what a person can do about an error, if that depends only on the error kind.
fn next_step(error: &kube::Error) -> Option<&'static str> {
    let kube::Error::Api(status) = error else {
        let has_no_response = matches!(error, kube::Error::Service(_));
        return has_no_response.then_some(
            "kubectl cluster-info tests the connection; --kubeconfig and --context name another cluster",
        );
    };
    match status.code {
        401 => Some(
            "the credentials are invalid or have expired: log in again, or name another kubeconfig with --kubeconfig",
        ),
        403 => Some(
            "kubectl auth can-i --list shows the rights of this user; docs/commands.md has those of the command",
        ),
        429 | 500.. => {
            Some("run the command again; kubectl get --raw /readyz shows the state of the API server")
        }
        _ => None,
    }
}

/// Returns a description for an error that ended a watch.
pub fn describe_watch(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let status = match (answer(error), error) {
        (Some(status), _) => status,
        (None, InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)) => {
            return describe(error);
        }
        (None, other) => return other.to_string(),
    };
    match status.message.trim() {
        UNKNOWN_KIND => describe(&kube::Error::Api(Box::new(status.clone()))),
        message => format!("the API server returned {}: {message}", status.code),
    }
}

/// Returns the API server's answer that ended a watch, if it answered.
fn answer(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    }
}

/// Whether the API server refuses the watching user: repetitions are refused, too, until the right is
/// granted.
#[must_use]
pub fn is_refusal(error: &watcher::Error) -> bool {
    answer(error).is_some_and(|status| matches!(status.code, 401 | 403))
}

/// Whether the API server rejected a patch because the object has another uid.
///
/// It reports a conflict or an immutable field. The patch contains no resource version, so the conflict is about the uid.
pub fn is_about_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        409 => status.message.to_lowercase().contains("uid"),
        422 => causes.into_iter().any(|cause| cause.field == "metadata.uid"),
        _ => false,
    }
}

/// Joins an error and all causes, each text once.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let text = error.to_string();
        if next.is_some() && EMPTY_WORDS.contains(&text.as_str()) {
            continue;
        }
        // A text that ends with its cause contains it already.
        if texts.last().is_none_or(|last| !last.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

impl fmt::Display for NoResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoResponse { server, cause } = self;
        write!(f, "{server}: {}", causes(cause.as_ref()))
    }
}

impl Error for NoResponse {}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, message: message.to_owned(), ..Status::default() }))
    }

    #[test]
    fn api_error_is_the_message_of_the_server() {
        let forbidden = r#"ippools.weft.dev is forbidden: User "x" cannot list resource"#;
        assert_eq!(describe(&api(403, forbidden)), forbidden);
        assert_eq!(describe(&api(401, "Unauthorized")), "Unauthorized");
        assert_eq!(describe(&api(500, "")), "the API server returned 500");
        let unknown = describe(&api(404, "404 page not found\n"));
        assert!(unknown.ends_with("weft crds | kubectl apply -f -"), "{unknown}");
        let watch = watcher::Error::InitialListFailed(api(403, forbidden));
        assert_eq!(describe_watch(&watch), format!("the API server returned 403: {forbidden}"));
    }

    #[test]
    fn api_error_without_response_names_server_and_root_cause() {
        let refused: BoxError = Box::new(std::io::Error::from_raw_os_error(111));
        let error = kube::Error::Service(by("https://10.0.0.1:6443/", refused));
        assert_eq!(describe(&error), "https://10.0.0.1:6443: Connection refused (os error 111)");
        assert!(failure("list pods", &error).to_string().contains("kubectl cluster-info"));
    }

    #[test]
    fn api_error_of_a_person_has_the_next_step_of_its_kind() {
        for (code, next) in [(401, "log in again"), (403, "kubectl auth can-i"), (503, "/readyz")] {
            let text = failure("list pods", &api(code, "no")).to_string();
            assert!(text.starts_with("list pods: no\n  ") && text.contains(next), "{text}");
        }
        assert_eq!(failure("pod a/b", &api(404, "no")).to_string(), "pod a/b: no");
    }
}
