//! Tests for `clouds.yaml` and the `OS_*` variables.

use super::*;

fn environment(pairs: &[(&str, &str)]) -> Result<Settings, Error> {
    from_environment(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
}

#[test]
fn openstack_variables_become_settings() {
    let settings = environment(&[
        ("OS_AUTH_URL", "http://keystone:5000/v3/"),
        ("OS_USERNAME", "kuryr"),
        ("OS_PASSWORD", "hidden"),
        ("OS_PROJECT_NAME", "k8s"),
        ("OS_USER_DOMAIN_NAME", "Default"),
        ("OS_INTERFACE", "internalURL"),
        ("OS_REGION_NAME", "one"),
        ("OS_CACERT", "/ca.pem"),
    ]);
    let settings = settings.unwrap();
    assert_eq!((settings.interface.as_str(), settings.region.as_deref()), ("internal", Some("one")));
    assert_eq!(settings.ca_bundle.as_deref(), Some(Path::new("/ca.pem")));
    let Auth::Password { auth_url, user, project, .. } = &settings.auth else { panic!("{settings:?}") };
    assert_eq!(auth_url, "http://keystone:5000/v3");
    assert_eq!(*user, Name::InDomain("kuryr".into(), Domain::Name("Default".into())));
    assert_eq!(*project, Some(Name::InDomain("k8s".into(), Domain::Id("default".into()))));
    assert!(!format!("{settings:?}").contains("hidden"), "`Debug` shows a secret");
}

#[test]
fn openstack_settings_errors_name_the_setting() {
    let table: [(&[(&str, &str)], &str); 6] = [
        (&[], "auth_url is missing"),
        (&[("OS_AUTH_TYPE", "none")], "endpoint is missing"),
        (&[("OS_AUTH_TYPE", "v3kerberos")], "auth_type: \"v3kerberos\""),
        (&[("OS_AUTH_URL", "u"), ("OS_USERNAME", "k")], "password is missing"),
        (&[("OS_ENDPOINT", "u"), ("OS_INTERFACE", "x")], "interface: \"x\""),
        (&[("OS_CLOUD", "x"), ("OS_CLIENT_CONFIG_FILE", "/nowhere.yaml")], "/nowhere.yaml"),
    ];
    for (pairs, words) in table {
        let error = environment(pairs).unwrap_err().to_string();
        assert!(error.contains(words), "{pairs:?}: {error}");
    }
    assert_eq!(environment(&[("OS_ENDPOINT", "http://n:9696")]).unwrap().auth, Auth::None);
}

#[test]
fn clouds_yaml_is_merged_with_secure_yaml() {
    let directory = std::env::temp_dir().join(format!("weft-clouds-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("clouds.yaml");
    let clouds = "clouds:\n  one:\n    auth_type: v3applicationcredential\n    auth:\n      auth_url: http://k/v3\n      \
                  application_credential_id: abc\n    region_name: R\n  two:\n    verify: false\n";
    std::fs::write(&file, clouds).unwrap();
    let secure = "clouds:\n  one:\n    auth:\n      application_credential_secret: hidden\n";
    std::fs::write(directory.join("secure.yaml"), secure).unwrap();
    let one = from_file(&file, "one").unwrap();
    let secret = Secret("hidden".into());
    let credential = Credential::Id("abc".into());
    assert_eq!(one.auth, Auth::ApplicationCredential { auth_url: "http://k/v3".into(), credential, secret });
    let two = from_file(&file, "two").unwrap_err().to_string();
    assert!(two.contains("always verified"), "{two}");
    let three = from_file(&file, "three").unwrap_err().to_string();
    assert!(three.contains("no cloud \"three\"; known clouds: one, two"), "{three}");
    std::fs::write(&file, "clouds: [password: hidden").unwrap();
    let broken = from_file(&file, "one").unwrap_err().to_string();
    assert!(!broken.contains("hidden"), "{broken}");
    std::fs::remove_file(directory.join("secure.yaml")).unwrap();
    for (text, expected) in [
        ("clouds:\n  one: [hidden\n", "not valid YAML at line 2, column "),
        ("- hidden\n", "expected a map with the key clouds"),
        ("clouds: [hidden]\n", "clouds: expected a map of clouds by name"),
        ("clouds:\n  one: hidden\n", "clouds.one: expected a map of settings"),
        ("clouds:\n  one:\n    auth: hidden\n", "clouds.one.auth: expected a map of settings"),
        ("clouds:\n  one:\n    auth:\n      password: [hidden]\n", "clouds.one.password: expected a string"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = from_file(&file, "one").unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("hidden"), "{text}: {error}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
