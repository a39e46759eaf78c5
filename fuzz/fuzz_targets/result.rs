//! A result from anywhere: reading never panics, and what was read can be written and read again.

#![no_main]

use cni::Version;
use cni::result::Success;
use cni::runtime::chain::Attached;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for expected in [Version::V0_2_0, Version::V0_4_0, Version::V1_1_0] {
        let _ = Attached::read(bytes, expected);
        let Ok((version, success)) = Success::read(bytes, expected) else { continue };
        for wanted in Version::ALL {
            let Ok(printed) = success.print(*wanted) else { continue };
            let (again, _) = Success::read(&printed, Version::ABSENT).expect("what we print, we read");
            assert_eq!(again, *wanted);
        }
        if version >= Version::V1_0_0 {
            let printed = success.print(version).expect("any result is one of 1.x");
            let (_, again) = Success::read(&printed, version).expect("what we print, we read");
            assert_eq!(again.to_value(version), success.to_value(version));
        }
    }
});
