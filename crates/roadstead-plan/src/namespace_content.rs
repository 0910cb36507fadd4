//! What every namespace has: a default service account, and the certificate by which pods recognise
//! the API server. Whoever deletes or changes them gets them back, as from upstream's
//! root-ca-certificate-publisher-controller and serviceaccount-controller.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The name of the account.
pub const ACCOUNT: &str = "default";
/// The name of the ConfigMap with the certificate.
pub const CERTIFICATE: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIBED: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when \
    using internal endpoints such as the internal service IP or kubernetes.default.svc. No other \
    usage is guaranteed across distributions of Kubernetes clusters.";

/// What a namespace has of it now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present<'a> {
    /// Its default account.
    pub account: Option<&'a ServiceAccount>,
    /// Its certificate.
    pub certificate: Option<&'a ConfigMap>,
}

/// What it lacks.
#[derive(Debug, Default, PartialEq)]
pub struct ContentPlan {
    /// This account is made.
    pub account: Option<ServiceAccount>,
    /// This is done about the certificate.
    pub certificate: Option<Certificate>,
}

/// What is done about a certificate.
#[derive(Debug, PartialEq)]
pub enum Certificate {
    /// It is made.
    Create(ConfigMap),
    /// It is set right.
    Replace(ConfigMap),
    /// It is wrong and says that it cannot be changed: the one with this uid goes.
    Delete(Option<String>),
}

/// Says what a namespace lacks; without a certificate only the account counts.
pub fn plan(present: &Present<'_>, root_ca: Option<&str>) -> ContentPlan {
    let named = |name: &str| ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata: named(ACCOUNT), ..ServiceAccount::default() };
    ContentPlan {
        account: present.account.is_none().then_some(account),
        certificate: root_ca.and_then(|root_ca| certificate(present.certificate, root_ca)),
    }
}

fn certificate(present: Option<&ConfigMap>, root_ca: &str) -> Option<Certificate> {
    let data = Some(BTreeMap::from([("ca.crt".to_owned(), root_ca.to_owned())]));
    let mut wanted = present.cloned().unwrap_or_default();
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    let told = annotations.get(DESCRIPTION).is_some_and(|text| !text.is_empty());
    if !told {
        annotations.insert(DESCRIPTION.to_owned(), DESCRIBED.to_owned());
    }
    wanted.data = data;
    match present {
        None => {
            wanted.metadata.name = Some(CERTIFICATE.to_owned());
            Some(Certificate::Create(wanted))
        }
        Some(present) if present.data == wanted.data && told => None,
        Some(present) if present.metadata.deletion_timestamp.is_some() => None,
        Some(present) if present.immutable == Some(true) && present.data != wanted.data => {
            Some(Certificate::Delete(present.metadata.uid.clone()))
        }
        Some(_) => Some(Certificate::Replace(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_namespace_lacks() {
        let account = ServiceAccount::default();
        let nothing = plan(&Present::default(), Some("CA"));
        assert_eq!(nothing.account.unwrap().metadata.name.as_deref(), Some(ACCOUNT));
        let Some(Certificate::Create(right)) = nothing.certificate else { panic!("none is made") };
        assert_eq!(right.data.as_ref().unwrap()["ca.crt"], "CA");
        assert_eq!(plan(&Present::default(), None).certificate, None);

        let about = |certificate: &ConfigMap| {
            let present = Present { account: Some(&account), certificate: Some(certificate) };
            let plan = plan(&present, Some("CA"));
            assert_eq!(plan.account, None);
            plan.certificate
        };
        assert_eq!(about(&right), None);
        let mut wrong = right.clone();
        wrong.metadata.resource_version = Some("7".into());
        wrong.data = Some(BTreeMap::from([("ca.crt".into(), "EVIL".into())]));
        let Some(Certificate::Replace(again)) = about(&wrong) else { panic!("it stays wrong") };
        assert_eq!(
            (again.data, again.metadata.resource_version),
            (right.data.clone(), Some("7".into()))
        );
        let undescribed = ConfigMap { metadata: ObjectMeta::default(), ..right.clone() };
        assert!(matches!(about(&undescribed), Some(Certificate::Replace(_))));
        wrong.immutable = Some(true);
        wrong.metadata.uid = Some("u".into());
        assert_eq!(about(&wrong), Some(Certificate::Delete(Some("u".into()))));
    }
}
