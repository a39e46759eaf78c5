//! Tests how certificates and authorities are replaced. A rustls client verifies each of them.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;

const DAY: u64 = 86_400;
const NAME: &str = "weft-admission.kube-system.svc";

fn validity() -> Duration {
    Duration::from_secs(90 * DAY)
}

fn next(stored: Option<&Stored>, now: u64) -> Option<Stored> {
    Stored::next(stored, now, validity(), &[NAME.to_owned()]).unwrap()
}

/// Whether a client that trusts `bundle` accepts the certificate of `server` at this time.
fn is_trusted(bundle: &str, server: &Signed, now: u64) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(server.certificate.as_bytes()).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(now));
    use rustls::client::danger::ServerCertVerifier;
    verifier.verify_server_cert(&certificate, &[], &name, &[], time).is_ok()
}

#[test]
fn certificate_is_made_once_and_replaced_after_two_thirds() {
    let now = 1_700_000_000;
    let first = next(None, now).unwrap();
    assert!(is_trusted(&first.bundle(), &first.server, now));
    assert!(!is_trusted(&first.bundle(), &first.server, now + 91 * DAY), "it ends");
    assert_eq!(next(Some(&first), now + 59 * DAY), None);
    let second = next(Some(&first), now + 60 * DAY).unwrap();
    assert_eq!(second.authorities, first.authorities, "replicas with either certificate are trusted");
    assert_ne!(second.server, first.server);
    assert!(is_trusted(&first.bundle(), &second.server, now + 61 * DAY));
}

#[test]
fn successor_of_an_authority_is_trusted_long_before_it_signs() {
    let start = 1_700_000_000;
    let mut stored = next(None, start).unwrap();
    let mut bundles = vec![(start, stored.bundle())];
    let (mut rotations, mut most) = (0, 1);
    for day in 1..3000 {
        let now = start + day * DAY;
        while let Some(changed) = next(Some(&stored), now) {
            rotations += usize::from(changed.authorities[0] != stored.authorities[0]);
            stored = changed;
            bundles.push((now, stored.bundle()));
        }
        most = most.max(stored.authorities.len());
        // An API server that read the bundle a month ago trusts the certificate of today.
        let old = bundles
            .iter()
            .rev()
            .find(|(at, _)| at + 30 * DAY <= now)
            .map_or(&bundles[0].1, |(_, bundle)| bundle);
        assert!(is_trusted(old, &stored.server, now), "day {day}");
        assert!(is_trusted(&stored.bundle(), &stored.server, now), "day {day}");
    }
    assert!(rotations >= 3 && most == 2, "{rotations} rotations, {most} authorities");
}

#[test]
fn certificate_after_a_long_pause_is_made_anew() {
    let stored = next(None, 1_700_000_000).unwrap();
    let later = 1_700_000_000 + 5000 * DAY;
    let fresh = next(Some(&stored), later).unwrap();
    assert!(fresh.authorities != stored.authorities && is_trusted(&fresh.bundle(), &fresh.server, later));
}
