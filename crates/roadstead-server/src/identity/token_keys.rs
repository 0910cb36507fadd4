//! The keys of service-account tokens: one that signs, and any number that once did, by which tokens
//! from then can still be checked. Each is named by the hash of its public half, as upstream does.
//!
//! In a directory the key that signs is `sa.key`; of the others only the public halves are kept, in
//! `sa-….pub`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{DecodingKey, EncodingKey};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;

use crate::identity::authority::IdentityError;
use crate::identity::secret_file::write_secret;

const SIGNING: &str = "sa.key";

/// The keys at one moment.
pub struct Keys {
    /// Signs new tokens.
    pub signing: EncodingKey,
    /// The first is the one that signs.
    checking: Vec<Checking>,
}

/// One by which tokens are checked.
struct Checking {
    id: String,
    key: DecodingKey,
    /// The point on the curve, without what says that it is one.
    point: Vec<u8>,
}

impl Keys {
    /// One that lives as long as the process.
    pub fn ephemeral() -> Result<Self, IdentityError> {
        Self::new(&KeyPair::generate()?, &[])
    }

    /// Those in a directory; the first is made on first use.
    pub fn in_directory(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join(SIGNING);
        let read =
            |path: &Path| fs::read_to_string(path).map_err(|source| cannot_use(path, source));
        if !path.exists() {
            let key = KeyPair::generate()?.serialize_pem();
            write_secret(&path, &key).map_err(|source| cannot_use(&path, source))?;
        }
        let others = retired(directory)?;
        let others: Result<Vec<_>, _> = others.iter().map(|path| read(path)).collect();
        Self::new(&KeyPair::from_pem(&read(&path)?)?, &others?)
    }

    fn new(key: &KeyPair, others: &[String]) -> Result<Self, IdentityError> {
        let signing = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes());
        let mut checking = vec![Checking::parse(&key.public_key_pem())?];
        for pem in others {
            let other = Checking::parse(pem)?;
            // A key that came back signs again.
            if checking.iter().all(|known| known.id != other.id) {
                checking.push(other);
            }
        }
        Ok(Self { signing: signing.map_err(unreadable)?, checking })
    }

    /// The name of the key that signs.
    pub fn id(&self) -> &str {
        &self.checking[0].id
    }

    /// The names of all keys; the first signs.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.checking.iter().map(|key| key.id.as_str())
    }

    /// Those by which a token that names a key may be checked: that one, or all if it is unknown,
    /// since there were times when all keys had the same name.
    pub(crate) fn named(&self, id: Option<&str>) -> impl Iterator<Item = &DecodingKey> {
        let known = id.filter(|id| self.checking.iter().any(|key| key.id == *id));
        let fits = move |key: &&Checking| known.is_none_or(|id| key.id == id);
        self.checking.iter().filter(fits).map(|key| &key.key)
    }

    /// All of them, for others who check our tokens.
    pub(crate) fn to_json(&self) -> Value {
        let keys = self.checking.iter().map(|key| {
            let (x, y) = key.point.split_at(32);
            json!({"use": "sig", "kty": "EC", "kid": key.id, "crv": "P-256", "alg": "ES256",
                "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)})
        });
        json!({"keys": keys.collect::<Vec<_>>()})
    }
}

impl Checking {
    fn parse(pem: &str) -> Result<Self, IdentityError> {
        let key = DecodingKey::from_ec_pem(pem.as_bytes()).map_err(unreadable)?;
        let parsed = parse_x509_pem(pem.as_bytes()).map_err(unreadable)?;
        let info = parsed.1.contents;
        let point = info.len().checked_sub(64).map(|at| info[at..].to_vec());
        let point = point.ok_or_else(|| unreadable("too short"))?;
        Ok(Self { id: name(&info), key, point })
    }
}

/// What a key is called by the hash of its public half.
fn name(info: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, info))
}

fn unreadable(why: impl ToString) -> IdentityError {
    IdentityError::Key(why.to_string())
}

fn cannot_use(path: &Path, source: io::Error) -> IdentityError {
    IdentityError::File { path: path.to_owned(), source }
}

/// The files of keys that sign no more.
fn retired(directory: &Path) -> Result<Vec<PathBuf>, IdentityError> {
    let entries =
        fs::read_dir(directory).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(|source| cannot_use(directory, source))?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sa-") && name.ends_with(".pub")
    });
    paths.sort();
    Ok(paths)
}

/// What to do with keys that do not sign any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// Tokens that they have signed stay valid.
    Keep,
    /// Tokens that they have signed are worth nothing from now on.
    Forget,
}

/// Lets a new key sign from now on. The private half of the one before is gone.
pub fn rotate(directory: &Path, previous: Previous) -> Result<(), IdentityError> {
    let path = directory.join(SIGNING);
    let old = fs::read_to_string(&path).map_err(|source| cannot_use(&path, source))?;
    let old = KeyPair::from_pem(&old)?;
    if previous == Previous::Keep {
        let kept = directory.join(format!("sa-{}.pub", name(&old.subject_public_key_info())));
        // Before the new key: at no moment is there a token that nobody can check.
        let public = old.public_key_pem();
        write_secret(&kept, &public).map_err(|source| cannot_use(&kept, source))?;
    }
    let key = KeyPair::generate()?.serialize_pem();
    if previous == Previous::Forget {
        for path in retired(directory)? {
            fs::remove_file(&path).map_err(|source| cannot_use(&path, source))?;
        }
    }
    write_secret(&path, &key).map_err(|source| cannot_use(&path, source))
}

/// Something that changes whenever a directory has other keys than before.
pub(crate) fn fingerprint(directory: &Path) -> Vec<(PathBuf, Option<std::time::SystemTime>)> {
    let mut paths = retired(directory).unwrap_or_default();
    paths.push(directory.join(SIGNING));
    let changed = |path: PathBuf| {
        let time = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        (path, time)
    };
    paths.into_iter().map(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_and_go() {
        let place = tempfile::tempdir().unwrap();
        let ids = || {
            let keys = Keys::in_directory(place.path()).unwrap();
            keys.ids().map(str::to_owned).collect::<Vec<_>>()
        };
        let first = ids();
        assert_eq!((first.len(), ids()), (1, first.clone()), "the same at the next start");
        let before = fingerprint(place.path());
        rotate(place.path(), Previous::Keep).unwrap();
        assert_ne!(fingerprint(place.path()), before);
        let second = ids();
        assert_eq!((second.len(), &second[1]), (2, &first[0]));
        rotate(place.path(), Previous::Keep).unwrap();
        let third = ids();
        assert_eq!(third.len(), 3);
        assert!(third[1..].contains(&first[0]) && third[1..].contains(&second[0]));
        let text = Keys::in_directory(place.path()).unwrap().to_json().to_string();
        assert!(third.iter().all(|id| text.contains(id)), "{text}");
        rotate(place.path(), Previous::Forget).unwrap();
        let last = ids();
        assert!(last.len() == 1 && !third.contains(&last[0]));
    }

    #[test]
    fn a_key_is_named_by_its_hash() {
        let key = KeyPair::generate().unwrap();
        let keys = Keys::new(&key, &[key.public_key_pem()]).unwrap();
        assert_eq!(keys.id(), name(&key.subject_public_key_info()));
        assert_eq!((keys.id().len(), keys.ids().count()), (43, 1));
        assert_eq!(keys.to_json()["keys"][0]["kid"], keys.id());
        let other = KeyPair::generate().unwrap();
        let keys = Keys::new(&key, &[other.public_key_pem()]).unwrap();
        for (id, want) in
            [(Some(keys.id().to_owned()), 1), (Some("roadstead".into()), 2), (None, 2)]
        {
            assert_eq!(keys.named(id.as_deref()).count(), want, "{id:?}");
        }
    }
}
