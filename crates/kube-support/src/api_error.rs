//! What an error of the API says to people: what the server says, or which server gives no answer and why.
//!
//! Rules: every client's errors go through [`by`], so that one without an answer knows its server; the text is made by
//! [`describe`] alone: what the library writes has neither the cause at its bottom nor a form for people.

use std::error::Error;
use std::fmt;

use kube::core::Status;
use kube::runtime::watcher;
use tower::BoxError;

/// What a server answers of a kind of object that it does not have.
const UNKNOWN_KIND: &str = "404 page not found";
/// Words of libraries that add nothing to the causes below them.
const EMPTY_WORDS: [&str; 4] =
    ["client error (Connect)", "client error (SendRequest)", "tcp connect error", "dns error"];

/// A server that gave no answer.
#[derive(Debug)]
struct Unanswered {
    server: String,
    cause: BoxError,
}

/// The same error, and which server it is about.
pub(super) fn by(server: &str, cause: BoxError) -> BoxError {
    match cause.is::<kube::Error>() {
        true => cause,
        false => Box::new(Unanswered { server: server.trim_end_matches('/').to_owned(), cause }),
    }
}

/// An error in a sentence's end.
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => match status.message.trim() {
            UNKNOWN_KIND => {
                "the cluster has no such kind of object: weft crds | kubectl apply -f -".to_owned()
            }
            "" => format!("the API server says {}", status.code),
            message => message.to_owned(),
        },
        kube::Error::Service(cause) => match cause.downcast_ref::<Unanswered>() {
            Some(unanswered) => unanswered.to_string(),
            None => causes(cause.as_ref()),
        },
        other => causes(other),
    }
}

/// The same of what is followed.
pub(crate) fn describe_watch(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status,
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => return describe(error),
        NoResourceVersion => return error.to_string(),
    };
    match status.message.trim() {
        UNKNOWN_KIND => describe(&kube::Error::Api(status.clone())),
        message => format!("the API server says {}: {message}", status.code),
    }
}

/// Is it another object of the name? A server calls that a conflict, or a field that cannot be changed; the patch
/// names no version, so there is nothing else to be in conflict with.
pub fn is_about_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        409 => status.message.to_lowercase().contains("uid"),
        422 => causes.into_iter().any(|cause| cause.field == "metadata.uid"),
        _ => false,
    }
}

/// An error and what is below it, each thing once.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let text = error.to_string();
        if next.is_some() && EMPTY_WORDS.contains(&text.as_str()) {
            continue;
        }
        // What ends with its own cause says it.
        if texts.last().is_none_or(|last| !last.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unanswered { server, cause } = self;
        write!(f, "{server}: {}", causes(cause.as_ref()))
    }
}

impl Error for Unanswered {}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, message: message.to_owned(), ..Status::default() }))
    }

    #[test]
    fn what_the_server_says_is_said_and_nothing_of_the_library() {
        let forbidden = r#"ippools.weft.dev is forbidden: User "x" cannot list resource"#;
        assert_eq!(describe(&api(403, forbidden)), forbidden);
        assert_eq!(describe(&api(401, "Unauthorized")), "Unauthorized");
        assert_eq!(describe(&api(500, "")), "the API server says 500");
        let unknown = describe(&api(404, "404 page not found\n"));
        assert!(unknown.ends_with("weft crds | kubectl apply -f -"), "{unknown}");
        let watch = watcher::Error::InitialListFailed(api(403, forbidden));
        assert_eq!(describe_watch(&watch), format!("the API server says 403: {forbidden}"));
    }

    #[test]
    fn who_gives_no_answer_is_named_with_the_cause_at_the_bottom() {
        let refused: BoxError = Box::new(std::io::Error::from_raw_os_error(111));
        let error = kube::Error::Service(by("https://10.0.0.1:6443/", refused));
        assert_eq!(describe(&error), "https://10.0.0.1:6443: Connection refused (os error 111)");
    }
}
