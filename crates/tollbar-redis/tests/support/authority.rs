//! An authority of the test's own, which signs the certificates of its servers and clients.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tollbar_testkit::redis::launch::TlsFiles;

/// Its files are removed with it.
pub(crate) struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in files.
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollbar-authority-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir_all(&directory).expect("temporary files can be written");
        let mut params = CertificateParams::new(Vec::new()).expect("no name is wrong");
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("keys can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("it signs itself");
        fs::write(directory.join("ca.pem"), issuer.pem()).expect("it can be written");
        Self { directory, issuer }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// For whoever is called `name`, until the end of `year`.
    pub(crate) fn identity(&self, name: &str, year: i32) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        // Whoever is called like its authority is taken for that.
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("keys can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        let path = |kind: &str| self.directory.join(format!("{name}-{year}-{kind}.pem"));
        let identity = Identity { certificate: path("certificate"), key: path("key") };
        fs::write(&identity.certificate, certificate.pem()).expect("it can be written");
        fs::write(&identity.key, key.serialize_pem()).expect("it can be written");
        identity
    }

    /// Of a server that shows `identity`.
    pub(crate) fn files(&self, identity: &Identity, asks_clients: bool) -> TlsFiles {
        let (certificate, key) = (identity.certificate.clone(), identity.key.clone());
        TlsFiles { ca: self.ca(), certificate, key, asks_clients }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        // What cannot be removed is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
