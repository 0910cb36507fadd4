//! Bearer tokens: those of service accounts, which we sign, and those from a file.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::{KeyPair, PublicKeyData};
use roadstead_api::look::Look;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{Api, User};
use crate::error::ApiError;
use crate::identity::{IdentityError, write_secret};
use crate::object;

/// Who signs our tokens, and whom they are for unless somebody asks for others.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const DEFAULT_LIFETIME: i64 = 3600;
const SHORTEST_LIFETIME: i64 = 600;

/// Makes and checks tokens.
pub struct Tokens {
    signing: EncodingKey,
    checking: DecodingKey,
    /// The public key, uncompressed.
    public: Vec<u8>,
    /// Tokens from a file.
    known: HashMap<String, User>,
}

impl Tokens {
    /// A key that lives as long as the process.
    pub fn ephemeral() -> Result<Self, IdentityError> {
        Self::with_key(&KeyPair::generate()?)
    }

    /// The key kept in a directory, made on first use.
    pub fn in_directory(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join("sa.key");
        let file = |source| IdentityError::File { path: path.clone(), source };
        if path.exists() {
            let pem = std::fs::read_to_string(&path).map_err(file)?;
            return Self::with_key(&KeyPair::from_pem(&pem)?);
        }
        let key = KeyPair::generate()?;
        write_secret(&path, &key.serialize_pem()).map_err(file)?;
        Self::with_key(&key)
    }

    fn with_key(key: &KeyPair) -> Result<Self, IdentityError> {
        let wrong = |error: jsonwebtoken::errors::Error| IdentityError::Pem(error.to_string());
        Ok(Self {
            signing: EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).map_err(wrong)?,
            checking: DecodingKey::from_ec_pem(key.public_key_pem().as_bytes()).map_err(wrong)?,
            public: key.der_bytes().to_vec(),
            known: HashMap::new(),
        })
    }

    /// Adds the tokens of a file: `token,user,uid,"group1,group2"` on each line.
    pub fn with_file(mut self, text: &str) -> Self {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut parts = line.splitn(4, ',').map(str::trim);
            let (Some(token), Some(name)) = (parts.next(), parts.next()) else { continue };
            let groups = parts.nth(1).unwrap_or("").trim_matches('"').split(',');
            let groups = groups.filter(|group| !group.is_empty()).map(str::to_owned);
            let groups = groups.chain(["system:authenticated".to_owned()]).collect();
            self.known.insert(token.to_owned(), User::new(name, groups));
        }
        self
    }

    /// Whom a token belongs to, or why to nobody.
    pub fn authenticate(&self, api: &Api, token: &str) -> Result<User, String> {
        if let Some(user) = self.known.get(token) {
            return Ok(user.clone());
        }
        let mut rules = Validation::new(Algorithm::ES256);
        rules.set_issuer(&[ISSUER]);
        rules.set_audience(&[ISSUER]);
        let claims = jsonwebtoken::decode::<Value>(token, &self.checking, &rules)
            .map_err(|error| error.to_string())?
            .claims;
        let about = |field: &str| claims.text(&format!("/kubernetes.io/{field}")).to_owned();
        let (namespace, name) = (about("namespace"), about("serviceaccount/name"));
        let registry = api.registry();
        let accounts = registry.core("serviceaccounts");
        let account = api.store.get(&accounts.key(&namespace, &name));
        let account = account.map(|entry| object::value(&entry)).unwrap_or_default();
        if account.text("/metadata/uid") != about("serviceaccount/uid") {
            return Err("service account token has been invalidated".into());
        }
        let groups = vec![
            "system:serviceaccounts".into(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".into(),
        ];
        Ok(User::new(format!("system:serviceaccount:{namespace}:{name}"), groups))
    }

    /// Completes a TokenRequest for a service account.
    pub fn issue(&self, account: &Value, mut request: Value) -> Result<Value, ApiError> {
        let asked = request.int("/spec/expirationSeconds");
        let lifetime = if asked == 0 { DEFAULT_LIFETIME } else { asked };
        if lifetime < SHORTEST_LIFETIME {
            return Err(ApiError::unprocessable(format!(
                "spec.expirationSeconds: Invalid value: {asked}: may not specify a duration less \
                 than 10 minutes"
            )));
        }
        let now = Timestamp::now().as_second();
        let audiences = match request.list("/spec/audiences") {
            [] => json!([ISSUER]),
            asked => json!(asked),
        };
        let (namespace, name) =
            (account.text("/metadata/namespace"), account.text("/metadata/name"));
        let mut bound = json!({"namespace": namespace,
            "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}});
        let reference = request["spec"]["boundObjectRef"].clone();
        if reference.is_object() {
            let kind = reference.text("/kind").to_lowercase();
            bound[kind] = json!({"name": reference["name"], "uid": reference["uid"]});
        }
        let claims = json!({
            "iss": ISSUER, "aud": audiences, "iat": now, "nbf": now, "exp": now + lifetime,
            "jti": Uuid::new_v4().to_string(), "kubernetes.io": bound,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        });
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some("roadstead".into());
        let token = jsonwebtoken::encode(&header, &claims, &self.signing)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let end = Timestamp::from_second(now + lifetime)
            .map_err(|e| ApiError::internal(e.to_string()))?;
        request["spec"]["audiences"] = audiences;
        request["spec"]["expirationSeconds"] = lifetime.into();
        request["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
        Ok(request)
    }

    /// `/openid/v1/jwks`: the key by which others can check our tokens.
    pub fn key_set(&self) -> Value {
        let half = |range: std::ops::Range<usize>| {
            self.public.get(range).map(|bytes| URL_SAFE_NO_PAD.encode(bytes)).unwrap_or_default()
        };
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": "roadstead", "crv": "P-256",
            "alg": "ES256", "x": half(1..33), "y": half(33..65)}]})
    }
}

/// `/.well-known/openid-configuration`.
pub fn discovery() -> Value {
    json!({"issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"),
        "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"]})
}
