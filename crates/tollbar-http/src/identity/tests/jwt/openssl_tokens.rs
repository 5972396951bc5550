//! Tokens and public keys made by OpenSSL, so that signatures are not judged by the library that verifies them. Every
//! token has `sub` 42 and ends ten seconds after the tests' clock begins. The private keys were thrown away.

use crate::JwtAlgorithm;

pub(super) const SECRET: &[u8] = b"a secret of OpenSSL";

pub(super) const RSA: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAnB6frR7uVucUE8/XYsyn
9sZbklnI5HywCgXrId1YYeRytj1TNFz6uo0axso01blV57JK9AhQogSUbPDNmfIj
WhoDEfxp4FL+1t/lGDCth9jSXaiU2IcYAZFGoUTc1vGiDYfrr1fq3QA+thFVhVrE
9aDsDAGS5noVo5S8PmCArgPes4/I3qEUnMrYiiVkyVM8Z0tN/GTqfyLoXaArZQYs
qR+hUR0m1hre1lsV0Xf9991d7XJO9bRCnRiuS9/ReHRvNTVn7dL10zEAPB3+x7aC
i6aRzbTM6z2NtqBMYhirNrgtCLTpZo1Qigpsz3PmEXw7v5xMzUfFm8J83yQcO671
OwIDAQAB
-----END PUBLIC KEY-----
";

pub(super) const RSA_1024: &str = "\
-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDiS3mEOw1Y4Dpz9oekxCEbgoHo
00OrS/bMu7YsgdWUVXPU6jqhk3gLX2aX96nxwvsnMNU5UtbTFrUdmpjPMZ2G+OXZ
gt1CMtdsCRHXPCZqBop4CBNzX9JdbokTuEnJSyqNXPdzRewAfFfTQIWsFYuBU9L7
3+8N8toKOWCR4VMRCwIDAQAB
-----END PUBLIC KEY-----
";

pub(super) const P256: &str = "\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE+t4zDp46UXxRq6xsubnidOltWtCw
eEXFMie9GELscieMkw6pv0BBrGEBHJA5hSwk92EuWHQyDWJ/9sisiSNqxA==
-----END PUBLIC KEY-----
";

pub(super) const P384: &str = "\
-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE2jhnps5OTb7jxT8mFVQLSH+iH32aDZ4C
HmruvTkKOFD6g45LQkJwUuyYc73GiELOtmpvZ9pCLLikyWfKIYTpTFilAZAga57R
QSxt2Zw5cx38q21Qx3A6b6gzUqd3QjSx
-----END PUBLIC KEY-----
";

pub(super) const ED25519: &str = "\
-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEACJzs/AtZz6vuI4UXxlVqxmAPTLSUxeRP4I6heHHVYg4=
-----END PUBLIC KEY-----
";

/// The modulus and the exponent of [`RSA`], as a JWK has them; the first also with a zero in front.
pub(super) const RSA_MODULUS: &str = "nB6frR7uVucUE8_XYsyn9sZbklnI5HywCgXrId1YYeRytj1TNFz6uo0axso01blV57JK9AhQogSUbPDNmfIjWhoDEfxp4FL-1t_lGDCth9jSXaiU2IcYAZFGoUTc1vGiDYfrr1fq3QA-thFVhVrE9aDsDAGS5noVo5S8PmCArgPes4_I3qEUnMrYiiVkyVM8Z0tN_GTqfyLoXaArZQYsqR-hUR0m1hre1lsV0Xf9991d7XJO9bRCnRiuS9_ReHRvNTVn7dL10zEAPB3-x7aCi6aRzbTM6z2NtqBMYhirNrgtCLTpZo1Qigpsz3PmEXw7v5xMzUfFm8J83yQcO671Ow";
pub(super) const RSA_MODULUS_WITH_ZERO: &str = "AJwen60e7lbnFBPP12LMp_bGW5JZyOR8sAoF6yHdWGHkcrY9UzRc-rqNGsbKNNW5VeeySvQIUKIElGzwzZnyI1oaAxH8aeBS_tbf5RgwrYfY0l2olNiHGAGRRqFE3Nbxog2H669X6t0APrYRVYVaxPWg7AwBkuZ6FaOUvD5ggK4D3rOPyN6hFJzK2IolZMlTPGdLTfxk6n8i6F2gK2UGLKkfoVEdJtYa3tZbFdF3_ffdXe1yTvW0Qp0Yrkvf0Xh0bzU1Z-3S9dMxADwd_se2goumkc20zOs9jbagTGIYqza4LQi06WaNUIoKbM9z5hF8O7-cTM1HxZvCfN8kHDuu9Ts";
pub(super) const RSA_EXPONENT: &str = "AQAB";

/// Signed with the key of [`RSA_1024`].
pub(super) const TOKEN_OF_1024_BITS: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.fJpDQ_cwIOMeGdQLic7abfl0WMNWHP-mzZjPbgOHdPTJFCYhV0IAIKfH3otsUvatRCPRiWQyqIo3nNhXdkK1n-SGd2NWcvVKnRmXA8aiMTxSMM-hQC3Z6Ku8nII66kAOGJKXmKzyp7UTWIT6SUey_IifxL7YM1_kBvuJdxbheDg";

pub(super) const TOKENS: [(JwtAlgorithm, &str); 12] = [
    (
        JwtAlgorithm::HS256,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.mJQeS-fNTO0oDFsxoLhmZECENvmoZ47XkIYnyA6Kf6c",
    ),
    (
        JwtAlgorithm::HS384,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzM4NCJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.ywuHIowN5F615XrdRqgdSouIOAQiSsC7M0mjEO0bKzG2anI2V-PBzdB8wBf7nhmf",
    ),
    (
        JwtAlgorithm::HS512,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzUxMiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.y9s1_rB1RyM-glUP59W7MQwD5nNoxOD5dR0ACqgsBIy-2z7e2TNUxVLQTKHpsjtVQR-YOCJR77T2frKeDH2MYw",
    ),
    (
        JwtAlgorithm::RS256,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.XcRZGO8xHvQMdzShO3EOKwLdIMKpm1171GB_86DqHZZSEZptvTMPsUel8E4AjDbmbyX7mGWUw4-uiVqXXDAU86kOYeLhLEggWS6YRVp4z6TXsEzvocb96xHr_vaqok4BM2CMSUMsILiA0YxrKCL-X8Rk99chc4GKFMNATTaKreusErSlcMk2uu4n75dA5l3VmBqbljmzUiZhQq9bYjGJXcVcP1YX1vz7dlZ4A4iWPivz4FIjcWNLrkmm68h6J-269cRdlimmBS-2QlyVdnKmlqfR0xLQMfWm9B_3KZujaX6KJXMZpo89nhzPBUkSpjKuTNEaTigu_HNLkz5nuk5rOQ",
    ),
    (
        JwtAlgorithm::RS384,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzM4NCJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.WfoZpx0VKeODx9mhwwxONNGy0l-ccjKAhqqxEEgsKIeWcKHppvBVmp1R8XBKcDsg-0HJlbZAyc5LOKJhmmcZjYy1njinPIQ0HjJZIoNYLi6mlsA1WJFpI2v3_hU5nAqi8FzUWbM4GTGZSNrpQ24OIZ5INhOxB-Bp9W5mlybtesA4j7zrMq21nCRETVsLJiSDY7KMF-TpFP0heAJQyam83nOVQqD-bcbFLA51ofjNx1C-r4NGIzjpAPhRoe0tN_mEFsdpucA_J39TbqlbL8_-77ryL1NpEDZ1VGZNiu0MxIs_sBR5qdiD2ADkAwIw2yXIsQ_EmD_3z2-N6Sj8sm4rlA",
    ),
    (
        JwtAlgorithm::RS512,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzUxMiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.KpdrV_LIT0mdBUYDCs9U5qVV9wfNREs1q4DkVkYqU6oBNJlVFpNnwg8ST2bdhww6r4rBOZuFBkvc2zHLeYprd_NK58PC9CD1zaNvXsZkoFBay_m0zfowI6t8PgUODHxHY5oR08fhv1GUB6mX2uKL96cFfI78-2n3lJ2cXeGY81qcySIP17LN6juzLkZ2cSczqdiXPJvLEV4rRYQ7WFu8nmG68DTuWp30zab7InAwDjKhBBqS6gmDhBKyN0if9rRAWpTSG6hibHkw8KZDTqapxEi0mjZFjl03WpSwCT_Prk4RRhKnU20a7Hc1S0X3yFWaB36OvOIvA44qoe6LQ_kAmA",
    ),
    (
        JwtAlgorithm::PS256,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJQUzI1NiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.YzWcGwVEo-IoVGemcgRPuZ01bCb1PXMfVQ5HtoHvttbYVhbHEpzfrFW1cwm9o4Ha8lvsw8JJPcycT_CbXKCPfel050041sVpGB_JoO2A1zfMFPtgPKnUz9alJFlKcedb6zZT4EjthIKn22QT-IliX1mSR30nNEOAYQzmsUmN1Eam-F49et0Z8QWYhLaq3JFHYxZSIjp8RH5zEtipXtvr3vGssN2n7AdO_shn41CwPtFXeBUf6BoTvvx_nAhgZdb0sfbxVfqCFqpRUsr_mLIPhNPR1VKhsn4q4-mwedmgGiphmZ9x7I--RnXGFqaiYFcoSHMNfdVQl2CpSPs_0ep_5g",
    ),
    (
        JwtAlgorithm::PS384,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJQUzM4NCJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.Fgt1CYnMAWCftKh02w8y_7G1P3Qb9vYgoSOPIap3sYkHSxcX2cEeh9VHiVnGPhfXaDphKY9AT7zsJRR1XE_ect7LYU4a6tNrJJP7BsOcbn05C5w_coykzFf1uvsUYDGNs_FcRL2ofvuI7La1zR4MqeOntCR2I4y5fBqJkQLbEJXpbMFwdvSrxw2V4yomNxve6pZNPJglBA6MypFOYZYmKMVQ_zWQTUE3b36mWFe63enoPhc_yAsNKwYLZGlRkwi-iaADlJ7TL5Mi5-7fEQuYmki96uyN6ywWW-IdGvdB9R22b6aFynvigrql2S2k3frcLzNl_cE5gB62lQ_CPH-ztw",
    ),
    (
        JwtAlgorithm::PS512,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJQUzUxMiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.NvnwGmcogsxi7HARiDrXxfQMTVwFbUxPha9Rjs2QOheropjQwVw3f1dX2m6EmSZ06ydvgZLduVhNqQhSN_S16qoLoxb-ge_XbAZMjpaMioy_AsSmh2K1yGZkPmU2rL8E8FIFAUGan32sCuDuVQrFZxc3MnWmmeltXt84SldETjxwq4iM3t903Ad895CUipzQstLX51N6S-ufbCNhOja1mYk1uK4l14Qy6bqs8E-4y1VzkJb71VFJICr4lYsu2JjwFoelV3agw51AYQFX_VvE3Bd73MHxFsPyKu5hwXGbVYu19FnvQ34yFRWfsFLfCCDej3wS83cq1rt2TnBcE6kpuA",
    ),
    (
        JwtAlgorithm::ES256,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.tVK4BaNghIjILSUiVjqkxig62p0uhjBY1CFuHDKh8AJG5WSn-3oycVeu2q8p0PeJY5CcH9ANof8kerYRnYihnw",
    ),
    (
        JwtAlgorithm::ES384,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzM4NCJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.9LdjlEwxqBzx-mqHQAgaSfMLu4uhMAqRJxngE_35IsG_T_oiml23mL08rAFcy5WBCVIwBNlbsedZt2FYCqZG0IAL1qoIre6YAS2j_TTJbOCY3YcjdKyEWW33gopYWoY7",
    ),
    (
        JwtAlgorithm::EdDSA,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJFZERTQSJ9.eyJzdWIiOiI0MiIsImV4cCI6MTcwMDAwMDAxMH0.R7MuyglPyhgfkKInNSWi6BuuFh-jQoVYFfF41R0Dml_TzJy9uBgWdn2ok9TQMrih9IsjuVHDONXWHsJZNTqvBw",
    ),
];
