//! Fuzz target for results: parsing must never panic, and a parsed result can be printed and parsed again.

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
            let (again, _) = Success::read(&printed, Version::ABSENT).expect("a printed result is valid");
            assert_eq!(again, *wanted);
        }
        if version >= Version::V1_0_0 {
            let printed = success.print(version).expect("every result has a form in 1.x");
            let (_, again) = Success::read(&printed, version).expect("a printed result is valid");
            assert_eq!(again.to_value(version), success.to_value(version));
        }
    }
});
