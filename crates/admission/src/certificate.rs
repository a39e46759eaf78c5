//! Webhook certificate: a separate authority and a certificate for the Service, as the Secret stores them.
//!
//! - [`Stored::next`] decides what is done, from the Secret and the time alone.
//! - A certificate is replaced after two thirds of the validity. The authority stays, so that clients trust both a
//!   replica with the old certificate and one with the new one.
//! - The authority lives ten times as long. A new authority is trusted for a whole certificate validity before it signs
//!   anything, so that every API server knows it by then.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Validity of an authority, in validities of a certificate.
const AUTHORITY_VALIDITIES: u32 = 10;
/// Time by which clocks of other machines may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Certificates of the webhook, as stored in the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// Authorities; the first one signs.
    pub(crate) authorities: Vec<Authority>,
    /// Server certificate and key.
    pub(crate) server: Signed,
}

/// Certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Authority {
    /// Certificate and key.
    pub(crate) signed: Signed,
}

/// Certificate and key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// Beginning of the validity, in seconds since 1970.
    pub(crate) from: u64,
    /// End of the validity, in seconds since 1970.
    pub(crate) until: u64,
}

/// Error of a certificate that cannot be made.
#[derive(Debug, Error)]
#[error("make a certificate for the webhook")]
pub(crate) struct CertificateError(#[from] rcgen::Error);

impl Stored {
    /// Returns what the Secret should contain now; `None` if it is right.
    ///
    /// # Errors
    /// A stored authority cannot be read.
    pub(crate) fn next(
        stored: Option<&Stored>,
        now: u64,
        validity: Duration,
        names: &[String],
    ) -> Result<Option<Stored>, CertificateError> {
        let Some(stored) = stored.filter(|stored| !stored.authorities.is_empty()) else {
            let authority = Authority::new(now, validity)?;
            let server = authority.sign(now, validity, names)?;
            return Ok(Some(Stored { authorities: vec![authority], server }));
        };
        let mut next = stored.clone();
        next.authorities.retain(|authority| authority.signed.until > now);
        if next.authorities.is_empty() {
            return Stored::next(None, now, validity, names);
        }
        // The successor comes last, and moves to the front when every API server knows it.
        let (first, last) =
            (&next.authorities[0].signed, &next.authorities[next.authorities.len() - 1].signed);
        if first.is_due(now) && next.authorities.len() == 1 {
            next.authorities.push(Authority::new(now, validity)?);
        } else if next.authorities.len() > 1
            && now >= last.from + (validity + CLOCK_SKEW).as_secs()
            && first.from < last.from
        {
            next.authorities.rotate_right(1);
        }
        let is_signed_by_first = next.server.from >= next.authorities[0].signed.from;
        if next.server.is_due(now) || !is_signed_by_first {
            next.server = next.authorities[0].sign(now, validity, names)?;
        }
        Ok((next != *stored).then_some(next))
    }

    /// Returns the certificates that the API server must trust, in PEM.
    pub(crate) fn bundle(&self) -> String {
        self.authorities.iter().map(|authority| authority.signed.certificate.as_str()).collect()
    }
}

impl Signed {
    /// Whether two thirds of the validity are over.
    fn is_due(&self, now: u64) -> bool {
        now >= self.from + (self.until - self.from) / 3 * 2
    }
}

impl Authority {
    fn new(now: u64, validity: Duration) -> Result<Authority, CertificateError> {
        let until = now + (validity * AUTHORITY_VALIDITIES).as_secs();
        let key = KeyPair::generate()?;
        let certificate = authority_params(now, until)?.self_signed(&key)?.pem();
        Ok(Authority { signed: Signed { certificate, key: key.serialize_pem(), from: now, until } })
    }

    fn sign(&self, now: u64, validity: Duration, names: &[String]) -> Result<Signed, CertificateError> {
        let Signed { key, from, until: last, certificate: _ } = &self.signed;
        // The same parameters as when the authority was made, so that its name is the same.
        let own = authority_params(*from, *last)?;
        let issuer = Issuer::from_params(&own, KeyPair::from_pem(key)?);
        let key = KeyPair::generate()?;
        let until = (now + validity.as_secs()).min(*last);
        let mut params = params(now, until, names)?;
        params.distinguished_name.push(DnType::CommonName, names.first().cloned().unwrap_or_default());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Signed { certificate, key: key.serialize_pem(), from: now, until })
    }
}

fn authority_params(from: u64, until: u64) -> Result<CertificateParams, CertificateError> {
    let mut params = params(from, until, &[])?;
    // The time makes the name of each authority unique: a client chooses among trusted ones by their names.
    params.distinguished_name.push(DnType::CommonName, format!("weft-admission-{from}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

fn params(now: u64, until: u64, names: &[String]) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let time = |seconds: u64| {
        time::OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap_or(i64::MAX))
            .unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
    };
    params.not_before = time(now.saturating_sub(CLOCK_SKEW.as_secs()));
    params.not_after = time(until);
    Ok(params)
}

#[cfg(test)]
mod tests;
