//! `sign = "standard-webhooks"`: each request is signed as the specification of that name says (standardwebhooks.com), so that who
//! gets it can tell who sent it, and when. A resend has the same id, and a time and signature of its own.

use anyhow::Result;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::hmac::{Context, HMAC_SHA256, Key};
use serde::Deserialize;
use ureq::http::header::InvalidHeaderValue;
use ureq::http::{HeaderMap, HeaderValue};

use super::refused;

/// Its headers, which are nobody else's to set.
pub const HEADERS: [&str; 3] = [ID, TIMESTAMP, SIGNATURE];

const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";

/// What a key begins with; base64 follows.
pub const PREFIX: &str = "whsec_";

/// Bytes of a key.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// The line of one signature: `v1,`, 32 bytes in base64, and a space before the next.
const SIGNATURE_LENGTH: usize = 48;

/// With the padding of base64 or without it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `sign_key`: one key, or several while an old one is replaced. Without `Debug`: they are secrets.
#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "must be a key (whsec_ and base64), or a list of keys")]
pub enum SignKey {
    One(String),
    Several(Vec<String>),
}

impl SignKey {
    pub fn texts(&self) -> &[String] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        }
    }
}

/// Signs with each key, in the order in which they are given.
pub struct Signer(Vec<Key>);

impl Signer {
    /// Of the settings `sign` and `sign_key`. No error shows either: who mixed them up put a key into `sign`.
    pub fn read(sign: Option<&str>, key: Option<&SignKey>) -> Result<Option<Self>> {
        let keys = match (sign, key.map(SignKey::texts)) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                return Err(refused("sign_key is there without sign: add sign = \"standard-webhooks\""));
            }
            (Some("standard-webhooks"), Some(keys)) if !keys.is_empty() => keys,
            (Some("standard-webhooks"), _) => {
                return Err(refused(
                    "sign needs sign_key, as in sign_key = \"${WEBHOOK_KEY}\": the key that the other side has, \
                     whsec_ and base64",
                ));
            }
            (Some(_), _) => return Err(refused("sign must be \"standard-webhooks\"")),
        };
        let keys = keys.iter().enumerate().map(|(n, key)| {
            read_key(key).ok_or_else(|| {
                let which = if keys.len() > 1 { format!(" number {}", n + 1) } else { String::new() };
                refused(format!(
                    "sign_key{which} is no key: it must be whsec_ and the base64 of {} to {} bytes",
                    KEY_LENGTH.start(),
                    KEY_LENGTH.end()
                ))
            })
        });
        Ok(Some(Self(keys.collect::<Result<_>>()?)))
    }

    /// How long the longest of its headers is.
    pub fn longest_line(&self) -> usize {
        SIGNATURE.len() + self.0.len() * SIGNATURE_LENGTH
    }

    /// Signs one attempt at `seconds` since 1970.
    pub fn sign(
        &self,
        id: &str,
        seconds: u64,
        body: &str,
        headers: &mut HeaderMap,
    ) -> Result<(), InvalidHeaderValue> {
        let signatures: Vec<String> = self.0.iter().map(|key| signature(key, id, seconds, body)).collect();
        headers.insert(ID, HeaderValue::from_str(id)?);
        headers.insert(TIMESTAMP, seconds.into());
        headers.insert(SIGNATURE, HeaderValue::try_from(signatures.join(" "))?);
        Ok(())
    }
}

fn read_key(text: &str) -> Option<Key> {
    let bytes = BASE64.decode(text.strip_prefix(PREFIX)?).ok()?;
    KEY_LENGTH.contains(&bytes.len()).then(|| Key::new(HMAC_SHA256, &bytes))
}

fn signature(key: &Key, id: &str, seconds: u64, body: &str) -> String {
    let mut context = Context::with_key(key);
    for part in [id, ".", &seconds.to_string(), ".", body] {
        context.update(part.as_bytes());
    }
    format!("v1,{}", BASE64.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID_OF_IT: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &str = r#"{"test": 2432232314}"#;
    const EXPECTED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn read(sign: &str, keys: &[&str]) -> Result<Option<Signer>> {
        let keys = SignKey::Several(keys.iter().map(|key| (*key).to_owned()).collect());
        Signer::read(Some(sign), Some(&keys))
    }

    fn signed(keys: &[&str]) -> HeaderMap {
        let signer = read("standard-webhooks", keys).unwrap().unwrap();
        let mut headers = HeaderMap::new();
        signer.sign(ID_OF_IT, 1_614_265_330, BODY, &mut headers).unwrap();
        let longest = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).max();
        assert!(longest.unwrap() <= signer.longest_line());
        headers
    }

    #[test]
    fn signs_as_the_specification_does() {
        let headers = signed(&[KEY]);
        assert_eq!(headers[ID], ID_OF_IT);
        assert_eq!(headers[TIMESTAMP], "1614265330");
        assert_eq!(headers[SIGNATURE], EXPECTED);
    }

    #[test]
    fn signs_with_the_old_key_and_the_new_one_while_they_change() {
        let other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        let both = signed(&[other, KEY])[SIGNATURE].to_str().unwrap().to_owned();
        let (first, second) = both.split_once(' ').unwrap();
        assert_eq!((first, second), (signed(&[other])[SIGNATURE].to_str().unwrap(), EXPECTED));
        assert_ne!(first, second);
    }

    #[test]
    fn refuses_what_is_no_key_and_shows_none() {
        let of = |bytes: usize| format!("whsec_{}", BASE64.encode(vec![7; bytes]));
        for good in [KEY, &of(24), &of(64), &of(25), of(25).trim_end_matches('=')] {
            assert!(read("standard-webhooks", &[good]).is_ok(), "{good}");
        }
        for bad in ["", "whsec_", &of(23), &of(65), KEY.trim_start_matches("whsec_"), "whsec_s3cr3t!"] {
            let said = read("standard-webhooks", &[KEY, bad]).err().expect(bad).to_string();
            assert!(said.starts_with("sign_key number 2 is no key: "), "{said}");
            assert!(bad.len() < 8 || !said.contains(bad), "{said}");
        }
        for sign in ["standard_webhooks", "hmac", "", KEY] {
            let said = read(sign, &[KEY]).err().expect(sign).to_string();
            assert_eq!(said, "sign must be \"standard-webhooks\"");
        }
        let alone = Signer::read(Some("standard-webhooks"), None).err().unwrap().to_string();
        assert!(alone.starts_with("sign needs sign_key"), "{alone}");
        let none = read("standard-webhooks", &[]).err().unwrap().to_string();
        assert!(none.starts_with("sign needs sign_key"), "{none}");
        let key = SignKey::One(KEY.into());
        let alone = Signer::read(None, Some(&key)).err().unwrap().to_string();
        assert!(alone.starts_with("sign_key is there without sign"), "{alone}");
    }
}
