//! PostgreSQL over TLS: what a URL asks for is what there is.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tollbar_admin::database::{DatabaseLocation, Repository, Result};

use crate::common::Scratch;
use crate::common::postgres::Postgres;

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[test]
fn a_server_is_believed_by_its_certificate_or_not_at_all() {
    let scratch = Scratch::new("postgres-tls");
    let (ours, others) = (authority("ours"), authority("others"));
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let cert = params.signed_by(&key, &ours).unwrap().pem();
    let (_postgres, port) = Postgres::start_tls(&cert, &key.serialize_pem());
    let ca = scratch.file("ours.pem", &ours.pem());
    let wrong = scratch.file("others.pem", &others.pem());
    let open = |host: &str, query: &str| -> Result<()> {
        let url = format!("postgres://tollbar@{host}:{port}/postgres?{query}");
        let location: DatabaseLocation = url.parse().unwrap();
        let mut opened = Ok(());
        super::run(async { opened = Repository::open(&location).await.map(drop) });
        opened
    };
    for mode in ["verify-full", "require", "prefer"] {
        open("127.0.0.1", &format!("sslmode={mode}&sslrootcert={ca}")).unwrap();
        // Somebody else's authority, the public ones, and another name.
        for (host, query) in [
            ("127.0.0.1", format!("sslmode={mode}&sslrootcert={wrong}")),
            ("127.0.0.1", format!("sslmode={mode}")),
            ("localhost", format!("sslmode={mode}&sslrootcert={ca}")),
        ] {
            let error = open(host, &query).unwrap_err();
            assert!(
                error.is_outage() && error.to_string().contains("certificate"),
                "{query}: {error}"
            );
        }
    }
    open("127.0.0.1", "sslmode=disable").unwrap();
    open("localhost", "").unwrap();
}
