//! Parses `clouds.yaml` and the `OS_*` variables the way OpenStack's own clients do.
//!
//! - Variables override the file, and a `secure.yaml` in the same directory is merged over it.
//! - Any setting that turns off certificate verification is rejected by name.
//! - `auth_type` selects the authentication method; without it, the method follows from the keys that are present.
//!
//! Source: openstacksdk "Configuration"; keystoneauth plugins `password`, `v3applicationcredential`, `token`, `none`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::Error;
use crate::settings::{Auth, Credential, Domain, Name, Secret, Settings, TIMEOUT};

/// Default file locations, the first one wins; `OS_CLIENT_CONFIG_FILE` overrides them.
pub const PLACES: [&str; 2] = ["clouds.yaml", "/etc/openstack/clouds.yaml"];
/// Maximum file size in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Flat settings, named like the `OS_*` variables without prefix and like the keys in keystoneauth sections, for
/// example `auth_url` and `username`.
pub type Words = BTreeMap<String, String>;

/// Clouds by name, with the settings as they stand in the file.
type Clouds = BTreeMap<String, Map<String, Value>>;

/// Reads the settings from the environment: the cloud that `OS_CLOUD` selects, or the other variables alone.
///
/// # Errors
/// A setting is missing or invalid.
pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Error> {
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut words = Words::new();
    if let Some(cloud) = given("OS_CLOUD") {
        let named = given("OS_CLIENT_CONFIG_FILE").map(PathBuf::from);
        let found = named.or_else(|| PLACES.iter().map(PathBuf::from).find(|path| path.exists()));
        let Some(path) = found else {
            let why = format!("OS_CLOUD is {cloud:?}, but neither {} exists", PLACES.join(" nor "));
            return Err(Error::configuration("clouds.yaml", why));
        };
        words = read_file(&path, &cloud)?;
    }
    for key in KEYS {
        if let Some(value) = given(&format!("OS_{}", key.to_uppercase())) {
            words.insert((*key).to_owned(), value);
        }
    }
    from_words("the environment", &words)
}

/// Reads the settings for one cloud from a file.
///
/// # Errors
/// The file cannot be read, or it has no such cloud.
pub fn from_file(path: &Path, cloud: &str) -> Result<Settings, Error> {
    from_words(&path.display().to_string(), &read_file(path, cloud)?)
}

fn read_file(path: &Path, cloud: &str) -> Result<Words, Error> {
    let what = path.display().to_string();
    let mut clouds = parse(path)?;
    let Some(mut found) = clouds.remove(cloud) else {
        let known: Vec<String> = clouds.into_keys().collect();
        return Err(Error::configuration(
            what,
            format!("no cloud {cloud:?}; known clouds: {}", known.join(", ")),
        ));
    };
    let secure = path.with_file_name("secure.yaml");
    if secure.exists() {
        for (key, value) in parse(&secure)?.remove(cloud).unwrap_or_default() {
            match (found.get_mut(&key), value) {
                (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
                (_, value) => drop(found.insert(key, value)),
            }
        }
    }
    flatten(&what, cloud, &found)
}

fn parse(path: &Path) -> Result<Clouds, Error> {
    let failed = |cause: String| Error::configuration(path.display().to_string(), cause);
    let length = std::fs::metadata(path).map_err(|cause| failed(cause.to_string()))?.len();
    if length > FILE_MAX {
        return Err(failed(format!("larger than {FILE_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|cause| failed(cause.to_string()))?;
    // The parser's own message is left out, because it may quote a secret.
    let document: Value = serde_saphyr::from_str(&text).map_err(|cause| {
        let at = cause.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
        failed(format!("not valid YAML{}", at.unwrap_or_default()))
    })?;
    let clouds = match document {
        Value::Null => return Ok(Clouds::new()),
        Value::Object(mut document) => document.remove("clouds").unwrap_or_default(),
        _ => return Err(failed("expected a map with the key clouds".to_owned())),
    };
    let clouds = match clouds {
        Value::Null => Map::new(),
        Value::Object(clouds) => clouds,
        _ => return Err(failed("clouds: expected a map of clouds by name".to_owned())),
    };
    let cloud = |(name, cloud)| match cloud {
        Value::Object(cloud) => Ok((name, cloud)),
        _ => Err(failed(format!("clouds.{name}: expected a map of settings"))),
    };
    clouds.into_iter().map(cloud).collect()
}

/// Flattens one cloud's settings: the keys below `auth` move to the top level.
fn flatten(what: &str, name: &str, cloud: &Map<String, Value>) -> Result<Words, Error> {
    let mut words = Words::new();
    let wrong = |key: &str, why: &str| Error::configuration(what, format!("clouds.{name}.{key}: {why}"));
    let auth = match cloud.get("auth") {
        None | Some(Value::Null) => None,
        Some(Value::Object(auth)) => Some(auth),
        Some(_) => return Err(wrong("auth", "expected a map of settings")),
    };
    let auth = auth.into_iter().flatten();
    let own = cloud.iter().filter(|(key, _)| *key != "auth");
    for (key, value) in own.chain(auth) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            // The error must not show the value, which may be a secret.
            _ if KEYS.contains(&key.as_str()) && !value.is_null() => {
                return Err(wrong(key, "expected a string"));
            }
            _ => continue,
        };
        words.insert(key.clone(), text);
    }
    if words.get("verify").is_some_and(|verify| verify == "false") {
        let why = "verify: certificates are always verified; name the authority in cacert";
        return Err(Error::configuration(what, why));
    }
    Ok(words)
}

/// Environment variables that are read, in lower case and without `OS_`.
const KEYS: &[&str] = &[
    "auth_type",
    "auth_url",
    "username",
    "user_id",
    "password",
    "project_name",
    "project_id",
    "tenant_name",
    "user_domain_name",
    "user_domain_id",
    "project_domain_name",
    "project_domain_id",
    "default_domain",
    "application_credential_id",
    "application_credential_name",
    "application_credential_secret",
    "token",
    "region_name",
    "interface",
    "endpoint_type",
    "endpoint",
    "network_endpoint_override",
    "cacert",
    "api_timeout",
];

/// Builds the settings from flat words, which come from a cloud, the environment, or a keystoneauth section in a
/// `.conf` file.
///
/// # Errors
/// A setting is missing or invalid; `what` names where the settings came from.
pub fn from_words(what: &str, words: &Words) -> Result<Settings, Error> {
    let word =
        |keys: &[&str]| keys.iter().find_map(|key| words.get(*key).filter(|text| !text.is_empty()).cloned());
    let failed = |why: String| Error::configuration(what, why);
    let endpoint = word(&["network_endpoint_override", "endpoint_override", "endpoint"]);
    let auth = auth(what, &word, endpoint.is_some())?;
    if auth == Auth::None && endpoint.is_none() {
        return Err(failed(
            "auth_type none: endpoint is missing: without Keystone there is no catalog to find Neutron in"
                .to_owned(),
        ));
    }
    let interface =
        word(&["interface", "endpoint_type", "valid_interfaces"]).unwrap_or_else(|| "public".to_owned());
    let interface = interface.split(',').next().unwrap_or_default().trim().trim_end_matches("URL").to_owned();
    if !["public", "internal", "admin"].contains(&interface.as_str()) {
        return Err(failed(format!("interface: {interface:?} is not one of public, internal, admin")));
    }
    let timeout = match word(&["api_timeout", "timeout"]) {
        None => TIMEOUT,
        Some(text) => match text.parse::<u64>() {
            Ok(seconds @ 1..=3600) => Duration::from_secs(seconds),
            _ => return Err(failed(format!("api_timeout: {text:?} is not between 1 and 3600 seconds"))),
        },
    };
    Ok(Settings {
        auth,
        region: word(&["region_name"]),
        interface,
        endpoint,
        ca_bundle: word(&["cacert", "cafile"]).map(PathBuf::from),
        timeout,
    })
}

/// Returns the authentication method to use when `auth_type` is not set.
fn default_auth_type(word: &dyn Fn(&[&str]) -> Option<String>, has_endpoint: bool) -> &'static str {
    let has = |key: &str| word(&[key]).is_some();
    match () {
        () if has("application_credential_secret") => "v3applicationcredential",
        () if has("password") => "password",
        () if has("token") => "token",
        () if has_endpoint && !has("auth_url") => "none",
        () => "password",
    }
}

fn auth(what: &str, word: &dyn Fn(&[&str]) -> Option<String>, has_endpoint: bool) -> Result<Auth, Error> {
    let failed = |why: String| Error::configuration(what, why);
    let needed = |key: &str| word(&[key]).ok_or_else(|| failed(format!("{key} is missing")));
    let domain = |of: &str| {
        word(&[&format!("{of}_domain_id")])
            .map(Domain::Id)
            .or_else(|| word(&[&format!("{of}_domain_name"), "default_domain"]).map(Domain::Name))
            .unwrap_or_else(|| Domain::Id("default".to_owned()))
    };
    let user = || {
        let by_id = word(&["user_id"]).map(Name::Id);
        by_id.or_else(|| word(&["username"]).map(|name| Name::InDomain(name, domain("user"))))
    };
    let project = || {
        let by_id = word(&["project_id", "tenant_id"]).map(Name::Id);
        let by_name = || word(&["project_name", "tenant_name"]);
        by_id.or_else(|| by_name().map(|name| Name::InDomain(name, domain("project"))))
    };
    let auth_url = || needed("auth_url").map(|url| url.trim_end_matches('/').to_owned());
    let kind = word(&["auth_type"]).unwrap_or_else(|| default_auth_type(word, has_endpoint).to_owned());
    match kind.as_str() {
        "none" | "noauth" => Ok(Auth::None),
        "password" | "v3password" => Ok(Auth::Password {
            auth_url: auth_url()?,
            user: user().ok_or_else(|| failed("username is missing".to_owned()))?,
            password: Secret(needed("password")?),
            project: project(),
        }),
        "v3applicationcredential" => {
            let by_id = word(&["application_credential_id"]).map(Credential::Id);
            let credential = match by_id {
                Some(credential) => credential,
                None => {
                    let name = needed("application_credential_name")?;
                    let user = user().ok_or_else(|| {
                        failed(
                            "application_credential_name: username is missing: the name is unique for a user only"
                                .to_owned(),
                        )
                    })?;
                    Credential::Named(name, user)
                }
            };
            let secret = Secret(needed("application_credential_secret")?);
            Ok(Auth::ApplicationCredential { auth_url: auth_url()?, credential, secret })
        }
        "token" | "v3token" => {
            Ok(Auth::Token { auth_url: auth_url()?, token: Secret(needed("token")?), project: project() })
        }
        other => {
            let known = "password, v3applicationcredential, token, none";
            Err(failed(format!("auth_type: {other:?} is not one of {known}")))
        }
    }
}

#[cfg(test)]
mod tests;
