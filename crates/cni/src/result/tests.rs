//! Conversion between the forms, by requirement id.

use super::*;

#[test]
fn trap5_dns_is_always_printed_up_to_0_4_0_and_never_empty_from_1_0_0() -> Result<(), Error> {
    let empty = Success::default();
    assert_eq!(empty.print(Version::V0_4_0)?, b"{\n    \"cniVersion\": \"0.4.0\",\n    \"dns\": {}\n}");
    assert_eq!(empty.print(Version::V1_0_0)?, b"{\n    \"cniVersion\": \"1.0.0\"\n}");
    Ok(())
}
