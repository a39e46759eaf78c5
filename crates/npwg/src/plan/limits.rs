//! Limits for the rendered configuration that a plugin receives: size and nesting.
//!
//! A plugin gets one part of the list together with `runtimeConfig` and, from the second plugin on and for every DEL
//! and CHECK, with `prevResult`. The limits apply to the rendered configuration, in which a pod's values are three
//! levels deeper than in the annotation. Every plugin can read a configuration within the limits, for every verb.

use cni::config::NESTING_MAX;
use cni::object::{DOCUMENT_MAX, Object};

use crate::refusal::{Fault, Refusal};
use crate::rule::Rule;

/// Room for `prevResult` and the keys that the runtime adds, in bytes.
const RESULT_ROOM: usize = 256 << 10;

/// Maximum size for a rendered list with `runtimeConfig`, in bytes.
const LIST_MAX: usize = DOCUMENT_MAX - RESULT_ROOM;

/// Refuses a rendered list that a plugin could not read.
pub(super) fn check(list: &str, runtime_config: &Object, subject: &str) -> Result<(), Refusal> {
    let refused = |reason: String, hint: &str| {
        Err(Refusal::failed(Fault::new(Rule::ConfigurationTooLarge, subject, reason).hint(hint)))
    };
    let runtime = runtime_config.to_json();
    let length = list.len() + runtime.len();
    if length > LIST_MAX {
        let reason = format!("its configuration has {length} bytes with the arguments of the pod");
        return refused(reason, &format!("the limit is {LIST_MAX} bytes: shorten spec.config or cni-args"));
    }
    // `runtimeConfig` is one level below the plugin, which is two levels below its list.
    let levels = nesting(list).max(nesting(&runtime) + 3);
    if levels > NESTING_MAX {
        let reason = format!("its configuration nests {levels} levels deep with the arguments of the pod");
        return refused(
            reason,
            &format!("the limit is {NESTING_MAX} levels: nest spec.config or cni-args less"),
        );
    }
    Ok(())
}

/// Returns how deeply arrays and objects are nested in valid JSON.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_counts_brackets_outside_of_strings() {
        for (json, levels) in [("1", 0), ("{}", 1), (r#"{"a":[[],{"b":"[[\"{{"}]}"#, 3), ("[[[]],[]]", 3)] {
            assert_eq!(nesting(json), levels, "{json}");
        }
    }

    #[test]
    fn limits_leave_room_for_the_result_of_an_add() {
        let list = |length: usize| format!(r#"{{"a":"{}"}}"#, "a".repeat(length - 8));
        assert!(check(&list(LIST_MAX - 2), &Object::default(), "n").is_ok());
        assert!(check(&list(LIST_MAX - 1), &Object::default(), "n").is_err());
    }
}
