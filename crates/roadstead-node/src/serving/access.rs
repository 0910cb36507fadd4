//! Who may ask the agent for what: strangers on its own port, whom the API server is asked about.

use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use hyper::{Method, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use tracing::warn;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Refusal;
use super::secure::Place;

/// Asks the API server about strangers.
#[derive(Clone)]
pub(super) struct Gatekeeper {
    client: Client,
    node: String,
    /// Where a stranger waits until he is let in for the first time.
    place: Arc<Mutex<Option<Place>>>,
}

impl Gatekeeper {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node, place: Arc::default() }
    }

    /// For somebody who waits there.
    pub(super) fn holding(self, place: Place) -> Self {
        Self { place: Arc::new(Mutex::new(Some(place))), ..self }
    }

    /// Lets a request pass, or says why not. `certificate` is who showed a certificate that we believe.
    pub(super) async fn admit(
        &self,
        certificate: Option<&UserInfo>,
        (method, path, headers): (&Method, &str, &HeaderMap),
    ) -> Result<(), Refusal> {
        let user = match certificate {
            Some(user) => user.clone(),
            None => self.bearer(headers).await?,
        };
        let name = user.username.clone().unwrap_or_default();
        let (verb, subresources) = (verb(method, path), subresources(path));
        for subresource in subresources {
            if self.may(&user, verb, subresource).await? {
                drop(self.place.lock().unwrap_or_else(PoisonError::into_inner).take());
                return Ok(());
            }
        }
        let all = subresources.join(" ");
        Err(Refusal(
            StatusCode::FORBIDDEN,
            format!("Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{all}])"),
        ))
    }

    /// Whose token it is.
    async fn bearer(&self, headers: &HeaderMap) -> Result<UserInfo, Refusal> {
        let unknown = || Refusal(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned());
        let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|text| text.strip_prefix("Bearer ")).ok_or_else(unknown)?;
        let question = TokenReview {
            spec: TokenReviewSpec { token: token.trim().to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let asked = Api::<TokenReview>::all(self.client.clone());
        let answer = asked.create(&PostParams::default(), &question).await;
        let status = answer.map_err(|error| unable(&error))?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        user.ok_or_else(unknown)
    }

    async fn may(&self, user: &UserInfo, verb: &str, subresource: &str) -> Result<bool, Refusal> {
        let extra = user.extra.clone();
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra,
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let asked = Api::<SubjectAccessReview>::all(self.client.clone());
        let answer = asked.create(&PostParams::default(), &question).await;
        Ok(answer.map_err(|error| unable(&error))?.status.is_some_and(|status| status.allowed))
    }
}

/// Nobody passes while there is nobody to ask.
fn unable(error: &kube::Error) -> Refusal {
    warn!(%error, "cannot ask who may look at this node");
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, "Authorization error".to_owned())
}

/// Who a certificate says its holder is.
pub(super) fn holder(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let groups = groups.chain(["system:authenticated"]).map(str::to_owned).collect();
    Some(UserInfo { username: Some(name), groups: Some(groups), ..UserInfo::default() })
        .filter(|user| user.username.as_deref() != Some(""))
}

/// To run something is never to read, whatever the method: WebSockets are opened by GET.
fn verb(method: &Method, path: &str) -> &'static str {
    let runs = ["/exec/", "/attach/", "/portForward/", "/run/"];
    match *method {
        _ if runs.iter().any(|begin| path.starts_with(begin)) => "create",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// Any one of these is enough.
fn subresources(path: &str) -> &'static [&'static str] {
    match path.split('/').nth(1).unwrap_or_default() {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_about() {
        let cases = [
            ("GET", "/containerLogs/default/p/c", "get proxy"),
            ("POST", "/exec/default/p/c", "create proxy"),
            ("GET", "/exec/default/p/c", "create proxy"),
            ("GET", "/attach/default/p/c", "create proxy"),
            ("GET", "/portForward/default/p", "create proxy"),
            ("GET", "/stats/summary", "get stats"),
            ("GET", "/metrics", "get metrics"),
            ("GET", "/metrics/resource", "get metrics"),
            ("GET", "/logs/", "get log"),
            ("GET", "/pods", "get pods proxy"),
            ("GET", "/healthz", "get healthz proxy"),
            ("HEAD", "/healthz", "get healthz proxy"),
            ("DELETE", "/anything", "delete proxy"),
            ("GET", "", "get proxy"),
            ("GET", "//exec", "get proxy"),
        ];
        for (method, path, want) in cases {
            let method = method.parse().unwrap();
            let all = subresources(path).join(" ");
            assert_eq!(format!("{} {all}", verb(&method, path)), want, "{method} {path}");
        }
    }
}
