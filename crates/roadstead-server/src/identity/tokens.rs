//! Bearer tokens: those of service accounts, which we sign, those from a file, and those by which machines join.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, Header, Validation};
use roadstead_api::kind::Info;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::ApiError;
use crate::identity::authority::IdentityError;
use crate::identity::bootstrap_tokens;
use crate::identity::token_file::TokenFile;
use crate::identity::token_keys::{Keys, fingerprint};
use crate::identity::user::User;
use crate::storage::Storage;

/// Who signs our tokens, and whom they are for unless somebody asks for others.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const DEFAULT_LIFETIME: i64 = 3600;
const SHORTEST_LIFETIME: i64 = 600;
const LONGEST_LIFETIME: i64 = 1 << 32;

/// Makes and checks tokens.
pub struct Tokens {
    keys: RwLock<Arc<Keys>>,
    /// Where the keys are kept, if they are, and what they were like there when they were read.
    place: Option<(PathBuf, Mutex<Fingerprint>)>,
    /// Tokens from a file.
    known: TokenFile,
}

impl Tokens {
    /// A key that lives as long as the process.
    pub fn ephemeral() -> Result<Self, IdentityError> {
        Ok(Self::with_keys(Keys::ephemeral()?, None))
    }

    /// The keys kept in a directory, the first made on first use.
    pub fn in_directory(directory: &Path) -> Result<Self, IdentityError> {
        let keys = Keys::in_directory(directory)?;
        let seen = Mutex::new(fingerprint(directory));
        Ok(Self::with_keys(keys, Some((directory.to_owned(), seen))))
    }

    fn with_keys(keys: Keys, place: Option<(PathBuf, Mutex<Fingerprint>)>) -> Self {
        Self { keys: RwLock::new(Arc::new(keys)), place, known: TokenFile::default() }
    }

    fn keys(&self) -> Arc<Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the keys again if somebody has changed them; whether that was so.
    pub(crate) fn reload(&self) -> Result<bool, IdentityError> {
        let Some((directory, seen)) = &self.place else { return Ok(false) };
        let now = fingerprint(directory);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return Ok(false);
        }
        let keys = Arc::new(Keys::in_directory(directory)?);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        *seen = now;
        Ok(true)
    }

    /// Adds tokens that are known from the start.
    pub fn with_known(self, known: TokenFile) -> Self {
        Self { known, ..self }
    }

    /// Whom a token for one of these audiences belongs to, or why to nobody.
    pub(crate) fn authenticate(
        &self,
        storage: &Storage,
        token: &str,
        audiences: &[&str],
    ) -> Result<Bearer, String> {
        let wrong_audience = |own: &[String]| {
            Err(format!(
                "token audiences {own:?} is invalid for the target audiences {audiences:?}"
            ))
        };
        if token.is_empty() {
            return Err("there is no token".into());
        }
        let known = self.known.user(token).cloned().map(Ok);
        let known = known.or_else(|| bootstrap_tokens::user(storage, token, Timestamp::now()));
        if let Some(user) = known.transpose()? {
            return match audiences.contains(&ISSUER) {
                true => Ok(Bearer { user, audiences: vec![ISSUER.to_owned()] }),
                false => wrong_audience(&[ISSUER.to_owned()]),
            };
        }
        let mut rules = Validation::new(Algorithm::ES256);
        rules.set_issuer(&[ISSUER]);
        rules.validate_aud = false;
        let claims = self.claims(token, &rules)?;
        let own = claims.list("/aud").iter().filter_map(Value::as_str).map(str::to_owned);
        let own: Vec<_> = own.collect();
        let common: Vec<_> =
            own.iter().filter(|audience| audiences.contains(&audience.as_str())).cloned().collect();
        if common.is_empty() {
            return wrong_audience(&own);
        }
        Ok(Bearer { user: account_of(storage, &claims)?, audiences: common })
    }

    /// What a token says, if one of our keys has signed it.
    fn claims(&self, token: &str, rules: &Validation) -> Result<Value, String> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| error.to_string())?;
        let keys = self.keys();
        let mut why = String::new();
        for key in keys.named(header.kid.as_deref()) {
            match jsonwebtoken::decode::<Value>(token, key, rules) {
                Ok(token) => return Ok(token.claims),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }

    /// Completes a TokenRequest for a service account.
    pub(crate) fn issue(
        &self,
        storage: &Storage,
        account: &Value,
        mut request: Value,
    ) -> Result<Value, ApiError> {
        let lifetime = match request.has("/spec/expirationSeconds") {
            true => request.int("/spec/expirationSeconds"),
            false => DEFAULT_LIFETIME,
        };
        check_lifetime(lifetime)?;
        let now = Timestamp::now().as_second();
        let audiences = match request.list("/spec/audiences") {
            [] => json!([ISSUER]),
            asked => json!(asked),
        };
        let (namespace, name) =
            (account.text("/metadata/namespace"), account.text("/metadata/name"));
        let mut about = json!({"namespace": namespace,
            "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}});
        if request.has("/spec/boundObjectRef") {
            let (claim, bound) = bound_to(storage, account, &request["spec"]["boundObjectRef"])?;
            about[claim] = json!({"name": bound["metadata"]["name"],
                "uid": bound["metadata"]["uid"]});
        }
        let claims = json!({
            "iss": ISSUER, "aud": audiences, "iat": now, "nbf": now, "exp": now + lifetime,
            "jti": Uuid::new_v4().to_string(), "kubernetes.io": about,
            "sub": username(namespace, name),
        });
        let mut header = Header::new(Algorithm::ES256);
        let keys = self.keys();
        header.kid = Some(keys.id().to_owned());
        let token = jsonwebtoken::encode(&header, &claims, &keys.signing)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let end = Timestamp::from_second(now + lifetime)
            .map_err(|e| ApiError::internal(e.to_string()))?;
        request["spec"]["audiences"] = audiences;
        request["spec"]["expirationSeconds"] = lifetime.into();
        request["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
        Ok(request)
    }

    /// `/openid/v1/jwks`: the keys by which others can check our tokens.
    pub(crate) fn key_set(&self) -> Value {
        self.keys().to_json()
    }
}

/// What the files of keys were like.
type Fingerprint = Vec<(PathBuf, Option<std::time::SystemTime>)>;

/// Who holds a token, and which of the audiences that were asked for it is meant for.
#[derive(Debug)]
pub(crate) struct Bearer {
    pub(crate) user: User,
    /// Never empty.
    pub(crate) audiences: Vec<String>,
}

/// What a token may be bound to, by the claim that says so: the token ends with the object.
const BINDINGS: [(&str, &str, &str); 3] =
    [("Pod", "pod", "pods"), ("Secret", "secret", "secrets"), ("Node", "node", "nodes")];

fn username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// A core object, wherever its kind lives.
fn object_of(
    storage: &Storage,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<Value, ApiError> {
    let registry = storage.registry();
    let resource = registry.core(plural);
    let namespace = if resource.info().namespaced { namespace } else { "" };
    let found = storage.object(resource, namespace, name);
    found.ok_or_else(|| ApiError::not_found(resource.info(), name))
}

/// The service account that a token names, if it and what the token is bound to still exist.
fn account_of(storage: &Storage, claims: &Value) -> Result<User, String> {
    let about = |field: &str| claims.text(&format!("/kubernetes.io/{field}"));
    let (namespace, name) = (about("namespace"), about("serviceaccount/name"));
    let invalidated = || "service account token has been invalidated".to_owned();
    let is_same = |plural: &str, claim: &str| {
        let name = about(&format!("{claim}/name"));
        let found = object_of(storage, plural, namespace, name).ok();
        found.is_some_and(|found| found.text("/metadata/uid") == about(&format!("{claim}/uid")))
    };
    let lives = BINDINGS.iter().all(|(_, claim, plural)| {
        !claims.has(&format!("/kubernetes.io/{claim}")) || is_same(plural, claim)
    });
    let name_fits = claims.text("/sub") == username(namespace, name);
    if !lives || !name_fits || !is_same("serviceaccounts", "serviceaccount") {
        return Err(invalidated());
    }
    let groups = vec![
        "system:serviceaccounts".into(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".into(),
    ];
    let uid = about("serviceaccount/uid").to_owned();
    Ok(User { uid, ..User::new(username(namespace, name), groups) })
}

/// The claim for an object that a token shall end with, and the object.
fn bound_to(
    storage: &Storage,
    account: &Value,
    reference: &Value,
) -> Result<(&'static str, Value), ApiError> {
    let (version, kind) = (reference.text("/apiVersion"), reference.text("/kind"));
    let known = BINDINGS.iter().find(|(own, ..)| *own == kind && !version.contains('/'));
    let Some(&(kind, claim, plural)) = known else {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
        return Err(ApiError::bad_request(message));
    };
    let (namespace, name) = (account.text("/metadata/namespace"), reference.text("/name"));
    let object = object_of(storage, plural, namespace, name)?;
    let account = account.text("/metadata/name");
    if kind == "Pod" && object.text("/spec/serviceAccountName") != account {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different \
             serviceaccount name."
        )));
    }
    let uid = reference.text("/uid");
    if !uid.is_empty() && uid != object.text("/metadata/uid") {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        );
        // Upstream names the kind here, not the resource.
        let info = Info::new("", "v1", kind, kind, "");
        return Err(ApiError::conflict(&info, name, &why));
    }
    Ok((claim, object))
}

fn check_lifetime(seconds: i64) -> Result<(), ApiError> {
    let why = match seconds {
        ..SHORTEST_LIFETIME => "may not specify a duration less than 10 minutes",
        SHORTEST_LIFETIME..=LONGEST_LIFETIME => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let mut causes = Causes::default();
    causes.invalid("spec.expirationSeconds", &json!(seconds), why);
    let info = Info::new("authentication.k8s.io", "v1", "TokenRequest", "tokenrequests", "");
    Err(ApiError::invalid(&info, "", &causes.0))
}

/// `/.well-known/openid-configuration`.
pub(crate) fn discovery() -> Value {
    json!({"issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"),
        "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"]})
}
