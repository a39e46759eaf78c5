//! Keystone session: a token, and the URL at which Neutron answers.
//!
//! Source: OpenStack Identity API v3, "Password", "Token" and "Application credential" authentication, "catalog".

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::error::{Cause, Error};
use crate::http::Http;
use crate::settings::{Auth, Credential, Domain, Name, Settings};

/// Session that all requests of a client share until the token expires.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Token; `None` without authentication.
    pub(crate) token: Option<String>,
    /// Neutron URL without `/v2.0` and without a trailing slash.
    pub(crate) endpoint: String,
    /// Session number. A request that finds the token expired passes this number, so that concurrent requests open only
    /// one new session together.
    pub(crate) number: u64,
}

impl Session {
    /// Requests a token from Keystone, and looks up Neutron in the service catalog unless the settings contain the URL.
    pub(crate) async fn open(http: &Http, settings: &Settings, number: u64) -> Result<Session, Error> {
        let fixed = settings.endpoint.as_deref().map(root);
        let Some((auth_url, body)) = request(&settings.auth) else {
            let missing = || Error::configuration("auth_type none", "endpoint is missing");
            return Ok(Session { token: None, endpoint: fixed.ok_or_else(missing)?, number });
        };
        let base = match auth_url.ends_with("/v3") {
            true => auth_url.to_owned(),
            false => format!("{auth_url}/v3"),
        };
        let address = format!("{base}/auth/tokens");
        let what = format!("POST {address}");
        let answer = http.call(&Method::POST, &address, &[], Some(&body), Duration::ZERO).await?;
        if !answer.status.is_success() {
            return Err(answer.refusal(&what));
        }
        let token = answer.headers.get("x-subject-token").and_then(|token| token.to_str().ok());
        let unreadable = |why: &str| Error::new(what.clone(), Cause::Unreadable(why.to_owned()));
        let token = token.ok_or_else(|| unreadable("X-Subject-Token is missing"))?.to_owned();
        let endpoint = match fixed {
            Some(endpoint) => endpoint,
            None => find(&answer.body["token"]["catalog"], settings)?,
        };
        Ok(Session { token: Some(token), endpoint, number })
    }
}

/// Returns the Keystone URL and the body for the authentication request; `None` if no authentication is needed.
fn request(auth: &Auth) -> Option<(&str, Value)> {
    let (auth_url, identity, project) = match auth {
        Auth::None => return None,
        Auth::Password { auth_url, user, password, project } => {
            let mut user = named(user);
            user["password"] = json!(password.0);
            (auth_url, json!({ "methods": ["password"], "password": { "user": user } }), project.as_ref())
        }
        Auth::ApplicationCredential { auth_url, credential, secret } => {
            let mut own = json!({ "secret": secret.0 });
            match credential {
                Credential::Id(id) => own["id"] = json!(id),
                Credential::Named(name, user) => {
                    own["name"] = json!(name);
                    own["user"] = named(user);
                }
            }
            // An application credential already belongs to a project, and Keystone rejects a scope in addition.
            (auth_url, json!({ "methods": ["application_credential"], "application_credential": own }), None)
        }
        Auth::Token { auth_url, token, project } => {
            (auth_url, json!({ "methods": ["token"], "token": { "id": token.0 } }), project.as_ref())
        }
    };
    let mut body = json!({ "auth": { "identity": identity } });
    if let Some(project) = project {
        body["auth"]["scope"] = json!({ "project": named(project) });
    }
    Some((auth_url, body))
}

fn named(name: &Name) -> Value {
    match name {
        Name::Id(id) => json!({ "id": id }),
        Name::InDomain(name, Domain::Id(id)) => json!({ "name": name, "domain": { "id": id } }),
        Name::InDomain(name, Domain::Name(domain)) => json!({ "name": name, "domain": { "name": domain } }),
    }
}

/// Finds the Neutron URL in the service catalog, for the region and interface in the settings.
fn find(catalog: &Value, settings: &Settings) -> Result<String, Error> {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut seen = Vec::new();
    for service in all(catalog).iter().filter(|service| service["type"] == "network") {
        for endpoint in all(&service["endpoints"]) {
            let text = |key: &str| endpoint[key].as_str().unwrap_or_default();
            let region = if text("region_id").is_empty() { text("region") } else { text("region_id") };
            let fits = settings.region.as_deref().is_none_or(|wanted| wanted == region);
            if fits && text("interface") == settings.interface {
                return Ok(root(text("url")));
            }
            seen.push(format!("{region}/{}", text("interface")));
        }
    }
    let wanted = format!("{}/{}", settings.region.as_deref().unwrap_or("any region"), settings.interface);
    let why = format!("no network service at {wanted}; the catalog has: {}", seen.join(", "));
    Err(Error::configuration("catalog", why))
}

/// Removes `/v2.0` and trailing slashes, so that request paths can be appended.
fn root(address: &str) -> String {
    let address = address.trim_end_matches('/');
    address.strip_suffix("/v2.0").unwrap_or(address).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog() -> Value {
        let endpoint = |region: &str, interface: &str, url: &str| json!({ "region_id": region, "region": region, "interface": interface, "url": url });
        json!([
            { "type": "identity", "endpoints": [endpoint("one", "public", "https://keystone")] },
            { "type": "network", "endpoints": [
                endpoint("one", "public", "https://one/"), endpoint("one", "internal", "https://inner-one/v2.0"),
                endpoint("two", "public", "https://two/networking/v2.0/")] },
        ])
    }

    #[test]
    fn neutron_url_is_that_of_the_region_and_the_interface() {
        let mut settings = Settings::open("unused");
        assert_eq!(find(&catalog(), &settings).unwrap(), "https://one");
        settings.region = Some("two".to_owned());
        assert_eq!(find(&catalog(), &settings).unwrap(), "https://two/networking");
        settings = Settings { region: Some("one".to_owned()), interface: "internal".to_owned(), ..settings };
        assert_eq!(find(&catalog(), &settings).unwrap(), "https://inner-one");
        settings.region = Some("three".to_owned());
        let error = find(&catalog(), &settings).unwrap_err().to_string();
        assert!(error.contains("three/internal") && error.contains("two/public"), "{error}");
    }
}
