//! Signatures of tokens, verified by ring.

use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::hmac;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm};

/// A key that verifies signatures of one algorithm.
#[derive(Clone)]
pub(super) enum Verifier {
    Secret(hmac::Key),
    Rsa {
        parameters: &'static RsaParameters,
        modulus: Box<[u8]>,
        exponent: Box<[u8]>,
    },
    /// A public key, as ring takes it.
    Public {
        algorithm: &'static dyn VerificationAlgorithm,
        key: Box<[u8]>,
    },
    /// The key is of another kind than the algorithm: it has signed nothing.
    Mismatch,
}

impl Verifier {
    pub(super) fn new(algorithm: Algorithm, key: &DecodingKey) -> Self {
        // A public key is no secret: it must never verify an HMAC.
        if key.family() != algorithm.family() {
            return Self::Mismatch;
        }
        let rsa = rsa_parameters(algorithm);
        let bytes = match (key.kind(), rsa) {
            (DecodingKeyKind::SecretOrDer(bytes), _) => bytes,
            (DecodingKeyKind::RsaModulusExponent { n, e }, Some(parameters)) => {
                let [modulus, exponent] = [n, e].map(|number| without_zeros(number).into());
                return Self::Rsa { parameters, modulus, exponent };
            }
            _ => return Self::Mismatch,
        };
        let public = |algorithm| Self::Public { algorithm, key: bytes.as_slice().into() };
        match algorithm {
            Algorithm::HS256 => Self::Secret(hmac::Key::new(hmac::HMAC_SHA256, bytes)),
            Algorithm::HS384 => Self::Secret(hmac::Key::new(hmac::HMAC_SHA384, bytes)),
            Algorithm::HS512 => Self::Secret(hmac::Key::new(hmac::HMAC_SHA512, bytes)),
            Algorithm::ES256 => public(&signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => public(&signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => public(&signature::ED25519),
            _ => rsa.map_or(Self::Mismatch, |parameters| public(parameters)),
        }
    }

    /// Returns true if the key has signed the message.
    pub(super) fn accepts(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Secret(key) => hmac::verify(key, message, signature),
            Self::Rsa { parameters, modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(parameters, message, signature)
            }
            Self::Public { algorithm, key } => {
                signature::UnparsedPublicKey::new(*algorithm, key).verify(message, signature)
            }
            Self::Mismatch => return false,
        };
        verified.is_ok()
    }
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// A number as ring takes it. RFC 7518 has no zeros in front either, but some issuers write one.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
