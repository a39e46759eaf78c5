//! Tests for VERSION with real processes.

use super::*;
use crate::runtime::rig::{Rig, exec, network};

// Requirements: S4, L11
#[test]
fn version_report_is_read_as_in_libcni() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let name = PluginType::new("one")?;
    let asked = || versions(&exec(), &name, &rig.path());
    rig.prints("one", "VERSION", r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0","7.0.0"]}"#);
    assert_eq!(asked()?, ["0.4.0", "1.0.0", "7.0.0"]);
    let call = &rig.calls()[0];
    assert_eq!(call.stdin, r#"{"cniVersion":"1.1.0"}"#);
    for variable in ["CNI_NETNS", "CNI_IFNAME"] {
        assert_eq!(call.variable(variable), Some("dummy"));
    }

    rig.prints("one", "VERSION", r#"{"cniVersion":"0.2.0"}"#);
    assert_eq!(asked()?, ["0.1.0", "0.2.0"]);
    for silent in [r#"{"cniVersion":"1.0.0"}"#, r#"{"supportedVersions":["1.0.0"]}"#, "", "oops"] {
        rig.prints("one", "VERSION", silent);
        assert_eq!(asked().unwrap_err().code, 6, "{silent}");
    }

    rig.fails("one", "VERSION", r#"{"code":100,"msg":"unknown CNI_COMMAND: VERSION"}"#);
    assert_eq!(asked()?, ["0.1.0"]);
    rig.fails("one", "VERSION", r#"{"code":4,"msg":"unknown CNI_COMMAND: OTHER"}"#);
    assert_eq!(asked().unwrap_err().code, 4);
    Ok(())
}

// Requirements: L11
#[test]
fn validate_names_all_faults() -> Result<(), Error> {
    let rig = Rig::with(&["good", "old"]);
    rig.prints("good", "VERSION", r#"{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}"#);
    rig.prints("old", "VERSION", r#"{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}"#);
    let text = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"good","capabilities":{"mac":true,"ips":false}},{"type":"good","capabilities":{"portMappings":true}}]}"#;
    let capabilities = validate(&exec(), &Network::parse(text.as_bytes(), "t")?, &rig.path())?;
    assert_eq!(capabilities.into_iter().collect::<Vec<_>>(), ["mac", "portMappings"]);

    let error = validate(&exec(), &network("1.0.0", &["old", "good", "ghost"]), &rig.path()).unwrap_err();
    assert!(error.msg.contains(r#"plugin old does not support config version "1.0.0""#), "{error}");
    assert!(error.msg.contains(r#"failed to find plugin "ghost""#), "{error}");
    Ok(())
}
