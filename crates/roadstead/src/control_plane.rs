//! How another machine becomes an API server of a cluster in etcd: the directory `pki` of the first one lies in etcd
//! for a while, sealed with a key that is made from a token. Whoever reads etcd has the objects, but not these keys.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use clap::Parser;
use roadstead_etcd::messages::{Act, Compare, PutRequest, RangeRequest, TxnOperation, TxnRequest};
use roadstead_server::identity::secret_file::write_secret;
use serde_json::{Map, Value};
use tokio::time::Instant;
use tracing::info;

use crate::apiserver;
use crate::etcd_args::EtcdClientArgs;

/// How such tokens begin.
const VERSION: &str = "rc1";
/// Where bundles lie, below the prefix of all keys. No kind has its objects there.
const PLACE: &str = "roadstead/bootstrap";
const PATIENCE: Duration = Duration::from_secs(30);
const NONCE: usize = 12;
/// The file that says that the keys are complete: it is written last.
const LAST: &str = "ca.key";

/// What lets a machine have the cluster's keys.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ControlPlaneToken {
    id: String,
    secret: [u8; 32],
}

impl ControlPlaneToken {
    fn fresh() -> anyhow::Result<Self> {
        let (mut id, mut secret) = ([0; 6], [0; 32]);
        for bytes in [&mut id[..], &mut secret[..]] {
            aws_lc_rs::rand::fill(bytes).map_err(|_| anyhow::anyhow!("there is no randomness"))?;
        }
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id, secret })
    }

    fn to_text(&self) -> String {
        format!("{VERSION}.{}.{}", self.id, URL_SAFE_NO_PAD.encode(self.secret))
    }

    fn key(&self) -> anyhow::Result<RandomizedNonceKey> {
        let salt = Salt::new(HKDF_SHA256, b"roadstead control plane");
        let key = salt.extract(&self.secret);
        let info = [self.id.as_bytes()];
        let mut bytes = [0; 32];
        let made = key.expand(&info, HKDF_SHA256).and_then(|key| key.fill(&mut bytes));
        let made = made.and_then(|()| RandomizedNonceKey::new(&AES_256_GCM, &bytes));
        made.map_err(|_| anyhow::anyhow!("cannot make a key from the token"))
    }

    /// Nobody without the token reads or changes it, or takes it for the bundle of another token.
    fn seal(&self, plain: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut sealed = plain.to_vec();
        let aad = Aad::from(self.id.as_bytes());
        let nonce = self.key()?.seal_in_place_append_tag(aad, &mut sealed);
        let nonce = nonce.map_err(|_| anyhow::anyhow!("cannot seal the keys"))?;
        let nonce: &[u8; NONCE] = nonce.as_ref();
        Ok([nonce.as_slice(), &sealed].concat())
    }

    fn open(&self, sealed: &[u8]) -> anyhow::Result<Vec<u8>> {
        let wrong = || anyhow::anyhow!("the token does not fit, or somebody has changed the keys");
        let (nonce, rest) = sealed.split_at_checked(NONCE).ok_or_else(wrong)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| wrong())?;
        let mut rest = rest.to_vec();
        let aad = Aad::from(self.id.as_bytes());
        let plain = self.key()?.open_in_place(nonce, aad, &mut rest).map_err(|_| wrong())?;
        Ok(plain.to_vec())
    }
}

impl FromStr for ControlPlaneToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // What is wrong with a secret is not repeated.
        let wrong = || {
            "this is no token of the control plane: it is rc1.…, by `roadstead token create \
             --control-plane`"
                .to_owned()
        };
        let rest = text.trim().strip_prefix(VERSION).and_then(|rest| rest.strip_prefix('.'));
        let (id, secret) = rest.and_then(|rest| rest.split_once('.')).ok_or_else(wrong)?;
        let is_plain = id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let secret = URL_SAFE_NO_PAD.decode(secret).ok().filter(|_| is_plain).ok_or_else(wrong)?;
        let secret = secret.try_into().map_err(|_| wrong())?;
        Ok(Self { id: id.to_owned(), secret })
    }
}

fn place(etcd: &EtcdClientArgs, token: &ControlPlaneToken) -> Bytes {
    format!("{}/{PLACE}/{}", etcd.prefix(), token.id).into()
}

/// Lays the keys of a directory into etcd for a while; prints what to type on the other machine.
pub(crate) async fn offer(
    data_dir: &Path,
    etcd: &EtcdClientArgs,
    (ttl, quiet): (Duration, bool),
) -> anyhow::Result<()> {
    anyhow::ensure!(
        etcd.is_given(),
        "--control-plane needs --etcd-servers: several API servers share an etcd"
    );
    let token = ControlPlaneToken::fresh()?;
    let sealed = token.seal(&packed(&apiserver::pki(data_dir))?)?;
    let client = etcd.client()?;
    let seconds = i64::try_from(ttl.as_secs()).context("--ttl is too long")?;
    let lease = client.grant(seconds, Instant::now() + PATIENCE).await;
    let lease = lease.context("etcd gives no lease")?.id;
    let key = place(etcd, &token);
    let put = PutRequest { key: key.clone(), value: sealed.into(), lease };
    let transaction = TxnRequest {
        compare: vec![Compare::at_revision(key, 0)],
        success: vec![TxnOperation { act: Some(Act::Put(put)) }],
        failure: Vec::new(),
    };
    let written = client.txn(&transaction).await.context("etcd does not take the keys")?;
    anyhow::ensure!(written.succeeded, "somebody has the same token: try again");
    let (mut out, text) = (io::stdout(), token.to_text());
    if quiet {
        return Ok(writeln!(out, "{text}")?);
    }
    Ok(writeln!(
        out,
        "sudo roadstead join --control-plane --token {text} -- --etcd-servers {} --listen 0.0.0.0:6443 \
         --advertise-address ADDRESS",
        etcd.servers()
    )?)
}

/// Becomes an API server of the cluster, and is one until interrupted. The flags are those of `apiserver`.
pub(crate) async fn join(
    data_dir: &Path,
    token: Option<&str>,
    flags: &[String],
) -> anyhow::Result<()> {
    let directory = data_dir.display().to_string();
    let own = ["apiserver", "--data-dir", &directory].map(str::to_owned);
    let server = apiserver::Args::try_parse_from(own.iter().chain(flags));
    let server = server.context("what follows -- are flags of `roadstead apiserver`")?;
    let etcd = server.etcd();
    anyhow::ensure!(etcd.is_given(), "which etcd? give -- --etcd-servers URL,…");
    let pki = apiserver::pki(data_dir);
    if !pki.join(LAST).exists() {
        let Some(token) = token else {
            bail!(
                "this machine has no keys yet: give it --token, as `token create --control-plane` prints it"
            );
        };
        let token: ControlPlaneToken = token.parse().map_err(anyhow::Error::msg)?;
        let question = RangeRequest { key: place(etcd, &token), ..RangeRequest::default() };
        let found = etcd.client()?.range(&question, Instant::now() + PATIENCE).await;
        let found = found.context("etcd does not answer")?.kvs.into_iter().next();
        let sealed = found.context("etcd has no keys for this token: perhaps its time is over")?;
        unpack(&token.open(&sealed.value)?, &pki)?;
        info!(directory = %pki.display(), "this machine has the keys of the cluster");
    }
    apiserver::run(server).await
}

/// All files of a directory, as one text.
fn packed(pki: &Path) -> anyhow::Result<Vec<u8>> {
    let mut files = Map::new();
    let read = || format!("cannot read {}", pki.display());
    for entry in fs::read_dir(pki).with_context(read)? {
        let path = entry.with_context(read)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_file() && !name.starts_with('.') {
            let bytes = fs::read(&path).with_context(read)?;
            files.insert(name.to_owned(), STANDARD.encode(bytes).into());
        }
    }
    anyhow::ensure!(files.contains_key(LAST), "{} has no {LAST}", pki.display());
    Ok(Value::Object(files).to_string().into_bytes())
}

fn unpack(bundle: &[u8], pki: &Path) -> anyhow::Result<()> {
    let files: Map<String, Value> = serde_json::from_slice(bundle).context("no bundle of keys")?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(pki);
    made.with_context(|| format!("cannot make {}", pki.display()))?;
    let (last, first): (Vec<_>, Vec<_>) = files.iter().partition(|(name, _)| *name == LAST);
    for (name, text) in first.into_iter().chain(last) {
        let is_plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
        let bytes = text.as_str().and_then(|text| STANDARD.decode(text).ok());
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|_| is_plain);
        let text = text.with_context(|| format!("{name:?} is no file of keys"))?;
        let path = pki.join(name);
        write_secret(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_opens_what_it_has_sealed() {
        let [own, other] = [(); 2].map(|()| ControlPlaneToken::fresh().unwrap());
        let sealed = own.seal(b"keys").unwrap();
        assert!(!sealed.windows(4).any(|bytes| bytes == b"keys"));
        assert_ne!(sealed, own.seal(b"keys").unwrap(), "nobody sees that it is the same");
        let again: ControlPlaneToken = own.to_text().parse().unwrap();
        assert_eq!(again.open(&sealed).unwrap(), b"keys");
        assert!(other.open(&sealed).is_err());
        let moved = ControlPlaneToken { id: other.id.clone(), ..own.clone() };
        assert!(moved.open(&sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(own.open(&changed).is_err(), "byte {at}");
        }
        assert!(own.open(&sealed[..NONCE - 1]).is_err());
        for wrong in ["", "rc1", "rc1.abc.def", "rt1.000000000000.AA", "rc1.00000000000/.AA"] {
            assert!(wrong.parse::<ControlPlaneToken>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn directories_of_keys_are_the_same_elsewhere() {
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        assert!(packed(here.path()).is_err(), "it has no authority");
        for name in ["ca.crt", "ca.key", "service-account.key"] {
            fs::write(here.path().join(name), format!("the {name}\n")).unwrap();
        }
        let bundle = packed(here.path()).unwrap();
        unpack(&bundle, &there.path().join("pki")).unwrap();
        for name in ["ca.crt", "ca.key", "service-account.key"] {
            let text = fs::read_to_string(there.path().join("pki").join(name)).unwrap();
            assert_eq!(text, format!("the {name}\n"));
        }
        for wrong in [r#"{"../a": "YQ=="}"#, r#"{".a": "YQ=="}"#, r#"{"a": 7}"#, "no"] {
            assert!(unpack(wrong.as_bytes(), there.path()).is_err(), "{wrong}");
        }
    }
}
