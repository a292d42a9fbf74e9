//! Certificates for a Java that was unpacked and not installed.
//!
//! Debian's Java reads a store that a script of another package makes while it is installed. Here
//! no such script runs, so the store is made from the system's certificates.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::services::files;

/// Makes the store, unless the system has it.
pub(super) fn provide(java_home: &Path) -> anyhow::Result<()> {
    let store = java_home.join("lib/security/cacerts");
    if store.exists() {
        return Ok(());
    }
    let bundle = env::var_os("SSL_CERT_FILE").map_or_else(
        || PathBuf::from("/etc/ssl/certs/ca-certificates.crt"),
        PathBuf::from,
    );
    let text = fs::read_to_string(&bundle)
        .with_context(|| format!("cannot read the certificates in {}", bundle.display()))?;
    if store.is_symlink() {
        fs::remove_file(&store)?;
    }
    files::write(&store, key_store(&certificates(&text)))
}

/// The certificates of a PEM file in their binary form.
fn certificates(pem: &str) -> Vec<Vec<u8>> {
    pem.split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|part| part.split("-----END").next())
        .map(base64)
        .collect()
}

fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count).to_be_bytes()[3]);
        }
    }
    bytes
}

/// A store in Java's own old format, which every Java reads. It ends with a checksum that is keyed
/// with a password; opened without one, as the default store is, the checksum is not looked at.
fn key_store(certificates: &[Vec<u8>]) -> Vec<u8> {
    const MAGIC: u32 = 0xFEED_FEED;
    const VERSION: u32 = 2;
    const TRUSTED_CERTIFICATE: u32 = 2;
    const CHECKSUM: [u8; 20] = [0; 20];

    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
    let text = |text: &str| {
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        [&length.to_be_bytes(), text.as_bytes()].concat()
    };
    let mut store = [MAGIC.to_be_bytes(), VERSION.to_be_bytes()].concat();
    store.extend(length(certificates.len()));
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED_CERTIFICATE.to_be_bytes());
        store.extend(text(&format!("ca-{number}")));
        store.extend(0_u64.to_be_bytes());
        store.extend(text("X.509"));
        store.extend(length(certificate.len()));
        store.extend(certificate);
    }
    store.extend(CHECKSUM);
    store
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_of_the_bundle_is_decoded() {
        let pem = "# one\n-----BEGIN CERTIFICATE-----\naGVs\nbG8=\n-----END CERTIFICATE-----\n\
                   -----BEGIN CERTIFICATE-----\n+/8=\n-----END CERTIFICATE-----\n";
        assert_eq!(certificates(pem), [b"hello".to_vec(), vec![0xfb, 0xff]]);
    }

    #[test]
    fn the_store_is_laid_out_as_java_reads_it() {
        let store = key_store(&[b"cert".to_vec()]);
        let expected = b"\xfe\xed\xfe\xed\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\x04ca-0\0\0\0\0\0\0\0\0\
                         \0\x05X.509\0\0\0\x04cert";
        assert_eq!(store, [expected.as_slice(), &[0; 20]].concat());
    }
}
