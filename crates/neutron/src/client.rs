//! Neutron API client.
//!
//! An expired token is renewed once, even if many concurrent requests find it expired at the same time. Nothing else is
//! retried, because only the caller knows whether a retry makes sense. The client counts requests, for the metrics.
//!
//! Source: OpenStack Networking API v2.0.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tracing::debug;

use crate::error::{Cause, Error};
use crate::http::Http;
use crate::port::{Network, NewPort, Port, Subnet};
use crate::session::Session;
use crate::settings::Settings;

/// Number of objects requested per page.
const PAGE: usize = 1000;

/// Client for Neutron in one cloud.
#[derive(Debug)]
pub struct Client {
    http: Http,
    settings: Settings,
    session: Mutex<Option<Session>>,
    requests: AtomicU64,
}

/// Time that each port in a bulk request adds to the timeout.
const EACH: Duration = Duration::from_secs(2);

/// List query, for example `[("tags", "a,b"), ("fields", "id")]`.
pub type Query<'a> = &'a [(&'a str, &'a str)];

// === impl Client ===

impl Client {
    /// Returns a client. It connects only with the first request.
    ///
    /// # Errors
    /// The CA bundle is invalid.
    pub fn new(settings: Settings) -> Result<Client, Error> {
        let http = Http::new(settings.ca_bundle.as_deref(), settings.timeout)?;
        Ok(Client { http, settings, session: Mutex::new(None), requests: AtomicU64::new(0) })
    }

    /// Returns the number of requests sent to Neutron so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the current session. Opens a new one if there is none yet, or if the current one has the number
    /// `expired`.
    async fn session(&self, expired: Option<u64>) -> Result<Session, Error> {
        let mut held = self.session.lock().await;
        match &*held {
            Some(session) if expired != Some(session.number) => Ok(session.clone()),
            known => {
                let number = known.as_ref().map_or(1, |known| known.number + 1);
                let session = Session::open(&self.http, &self.settings, number).await?;
                *held = Some(session.clone());
                Ok(session)
            }
        }
    }

    /// Sends one request to Neutron. If the token has expired, opens a new session and repeats the request once.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        revision: Option<u64>,
    ) -> Result<Value, Error> {
        self.call_longer(method, path, body, revision, Duration::ZERO).await
    }

    async fn call_longer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        revision: Option<u64>,
        longer: Duration,
    ) -> Result<Value, Error> {
        let what = format!("{method} {}", path.split('?').next().unwrap_or_default());
        let condition = revision.map(|number| format!("revision_number={number}"));
        let mut session = self.session(None).await?;
        let mut renewed = false;
        loop {
            let mut headers = Vec::new();
            headers.extend(session.token.as_deref().map(|token| ("X-Auth-Token", token)));
            headers.extend(condition.as_deref().map(|condition| ("If-Match", condition)));
            self.requests.fetch_add(1, Ordering::Relaxed);
            let address = format!("{}{path}", session.endpoint);
            let answer = self.http.call(&method, &address, &headers, body, longer).await?;
            debug!(%method, path, status = answer.status.as_u16(), "Neutron answered");
            if answer.status.as_u16() == 401 && session.token.is_some() && !renewed {
                session = self.session(Some(session.number)).await?;
                renewed = true;
                continue;
            }
            return match answer.status.is_success() {
                true => Ok(answer.body),
                false => Err(answer.refusal(&what)),
            };
        }
    }

    async fn show<T: DeserializeOwned>(&self, path: &str, key: &str) -> Result<T, Error> {
        let answer = self.call(Method::GET, path, None, None).await?;
        read(&format!("GET {path}"), answer, key)
    }

    /// Reads a subnet.
    pub async fn subnet(&self, id: &str) -> Result<Subnet, Error> {
        self.show(&format!("/v2.0/subnets/{}", word(id)), "subnet").await
    }

    /// Reads a network.
    pub async fn network(&self, id: &str) -> Result<Network, Error> {
        self.show(&format!("/v2.0/networks/{}", word(id)), "network").await
    }

    /// Reads a port.
    pub async fn port(&self, id: &str) -> Result<Port, Error> {
        self.show(&format!("/v2.0/ports/{}", word(id)), "port").await
    }

    /// Lists all ports that match the query, over all pages.
    pub async fn ports(&self, query: Query<'_>) -> Result<Vec<Port>, Error> {
        let mut all: Vec<Port> = Vec::new();
        loop {
            let mut path = format!("/v2.0/ports?limit={PAGE}&sort_key=id&sort_dir=asc");
            if let Some(last) = all.last() {
                path.push_str(&format!("&marker={}", word(&last.id)));
            }
            for (key, value) in query {
                path.push_str(&format!("&{key}={}", word(value)));
            }
            let answer = self.call(Method::GET, &path, None, None).await?;
            let has_next = has_next_page(&answer);
            let page: Vec<Port> = read(&format!("GET {path}"), answer, "ports")?;
            let (is_empty, is_full) = (page.is_empty(), page.len() >= PAGE);
            all.extend(page);
            if is_empty || !(is_full || has_next) {
                return Ok(all);
            }
        }
    }

    /// Creates a port.
    pub async fn create_port(&self, port: &NewPort) -> Result<Port, Error> {
        let answer = self.call(Method::POST, "/v2.0/ports", Some(&json!({ "port": port })), None).await?;
        read("POST /v2.0/ports", answer, "port")
    }

    /// Creates several ports in one request; Neutron creates either all of them or none.
    pub async fn create_ports(&self, ports: &[NewPort]) -> Result<Vec<Port>, Error> {
        let body = json!({ "ports": ports });
        let longer = EACH * u32::try_from(ports.len()).unwrap_or(u32::MAX).min(1000);
        let answer = self.call_longer(Method::POST, "/v2.0/ports", Some(&body), None, longer).await?;
        read("POST /v2.0/ports", answer, "ports")
    }

    /// Changes a port. With `revision`, Neutron rejects the change if the port has changed since that revision was
    /// read.
    pub async fn update_port(&self, id: &str, change: &Value, revision: Option<u64>) -> Result<Port, Error> {
        let path = format!("/v2.0/ports/{}", word(id));
        let answer = self.call(Method::PUT, &path, Some(&json!({ "port": change })), revision).await?;
        read(&format!("PUT {path}"), answer, "port")
    }

    /// Deletes a port; a missing port is not an error.
    pub async fn delete_port(&self, id: &str) -> Result<(), Error> {
        match self.call(Method::DELETE, &format!("/v2.0/ports/{}", word(id)), None, None).await {
            Err(error) if !error.is_absent() => Err(error),
            _ => Ok(()),
        }
    }

    /// Replaces all tags on a port.
    pub async fn tag_port(&self, id: &str, tags: &[String]) -> Result<(), Error> {
        let path = format!("/v2.0/ports/{}/tags", word(id));
        self.call(Method::PUT, &path, Some(&json!({ "tags": tags })), None).await.map(drop)
    }

    /// Lists the extension aliases that this cloud supports, for example `trunk`.
    pub async fn extensions(&self) -> Result<Vec<String>, Error> {
        let all: Vec<Value> = self.show("/v2.0/extensions?fields=alias", "extensions").await?;
        Ok(all.iter().filter_map(|one| one["alias"].as_str().map(str::to_owned)).collect())
    }

    /// Adds or removes trunk subports; `action` is `add_subports` or `remove_subports`.
    pub(crate) async fn change_trunk(
        &self,
        id: &str,
        action: &str,
        subports: &Value,
    ) -> Result<Value, Error> {
        let path = format!("/v2.0/trunks/{}/{action}", word(id));
        self.call(Method::PUT, &path, Some(&json!({ "sub_ports": subports })), None).await
    }

    /// Lists all trunks with subports.
    pub(crate) async fn trunks(&self) -> Result<Vec<Value>, Error> {
        self.show("/v2.0/trunks?fields=id&fields=sub_ports", "trunks").await
    }

    /// Lists a trunk's subports.
    pub(crate) async fn subports(&self, id: &str) -> Result<Vec<Value>, Error> {
        let trunk: Value = self.show(&format!("/v2.0/trunks/{}", word(id)), "trunk").await?;
        Ok(trunk["sub_ports"].as_array().cloned().unwrap_or_default())
    }
}

/// Whether another page follows. The number of ports does not tell: a server may return fewer ports per page than
/// requested (`pagination_max_limit`), and then only the `next` link says that there are more.
fn has_next_page(answer: &Value) -> bool {
    answer["ports_links"].as_array().into_iter().flatten().any(|link| link["rel"] == "next")
}

/// Percent-encodes a value for use in a URL.
fn word(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn read<T: DeserializeOwned>(what: &str, mut answer: Value, key: &str) -> Result<T, Error> {
    let part = answer.get_mut(key).map(Value::take).unwrap_or_default();
    serde_json::from_value(part)
        .map_err(|cause| Error::new(what, Cause::Unreadable(format!("{key}: {cause}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_list_continues_only_with_a_link_to_the_next_page() {
        let links =
            |rel: &[&str]| rel.iter().map(|rel| json!({ "rel": rel, "href": "h" })).collect::<Vec<_>>();
        assert!(has_next_page(&json!({ "ports": [], "ports_links": links(&["previous", "next"]) })));
        assert!(!has_next_page(&json!({ "ports": [], "ports_links": links(&["previous"]) })));
        assert!(!has_next_page(&json!({ "ports": [] })));
    }
}
