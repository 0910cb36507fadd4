//! `/scale`: the number of replicas, apart from what they are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roadstead_api::kind::Info;
use roadstead_api::selector::Selector;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;

/// Where an object keeps its numbers of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaPaths {
    /// The pointer to the wanted number.
    wanted: String,
    /// The pointer to the present number.
    present: String,
    /// The pointer to a selector in the form of text; built-in kinds have one in `spec.selector`.
    selector: Option<String>,
}

impl ReplicaPaths {
    /// Of Deployments and other kinds that are built in.
    pub(crate) fn built_in() -> Self {
        let place = |pointer: &str| pointer.to_owned();
        Self { wanted: place("/spec/replicas"), present: place("/status/replicas"), selector: None }
    }

    /// Of a custom kind, by the `scale` of its definition: `.spec.replicas` and the like.
    pub(crate) fn custom(scale: &Value) -> Self {
        let place = |field: &str| scale.text(field).replace('.', "/");
        Self {
            wanted: place("/specReplicasPath"),
            present: place("/statusReplicasPath"),
            selector: Some(place("/labelSelectorPath")),
        }
    }

    /// The `autoscaling/v1` Scale of an object.
    pub(crate) fn scale_of(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "creationTimestamp": metadata["creationTimestamp"],
            },
            "spec": {"replicas": object.int(&self.wanted)},
            "status": {"replicas": object.int(&self.present), "selector": self.selector(object)},
        })
    }

    fn selector(&self, object: &Value) -> String {
        match &self.selector {
            Some(place) if place.is_empty() => String::new(),
            Some(place) => object.text(place).to_owned(),
            None => selector(&object["spec"]["selector"]),
        }
    }

    /// The object with the number of replicas that its Scale asks for.
    pub(crate) fn scaled(&self, object: &Value, scale: &Value) -> Result<Value, ApiError> {
        let replicas = scale.int("/spec/replicas");
        if replicas < 0 {
            let mut causes = Causes::default();
            let why = "must be greater than or equal to 0";
            causes.invalid("spec.replicas", &json!(replicas), why);
            let info = Info::new("autoscaling", "v1", "Scale", "scales", "scale");
            return Err(ApiError::invalid(&info, object.text("/metadata/name"), &causes.0));
        }
        let mut new = object.clone();
        let mut steps: Vec<_> = self.wanted.split('/').skip(1).collect();
        let last = steps.pop().unwrap_or_default();
        let place = steps.into_iter().fold(&mut new, |parent, step| child(parent, step));
        place[last] = replicas.into();
        match scale.text("/metadata/resourceVersion") {
            "" => {
                new["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
            }
            version => new["metadata"]["resourceVersion"] = version.into(),
        }
        Ok(new)
    }
}

/// ReplicationControllers select by plain labels, all others by a LabelSelector.
fn selector(selector: &Value) -> String {
    let plain = |(_, value): (&str, &Value)| value.is_string();
    let selector = match selector.fields("").all(plain) {
        true => json!({"matchLabels": selector}),
        false => selector.clone(),
    };
    Selector::from_object(&LabelSelector::deserialize(&selector).unwrap_or_default()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        let cases = [
            (json!({"app": "web", "a": "b"}), "a=b,app=web"),
            (json!({"matchLabels": {"app": "web"}}), "app=web"),
            (
                json!({"matchLabels": {"m": "n"}, "matchExpressions": [
                    {"key": "z", "operator": "NotIn", "values": ["y", "x"]},
                    {"key": "b", "operator": "In", "values": ["d", "c"]},
                    {"key": "e", "operator": "Exists"},
                    {"key": "f", "operator": "DoesNotExist"}]}),
                "b in (c,d),e,!f,m=n,z notin (x,y)",
            ),
            (Value::Null, ""),
        ];
        for (object, want) in cases {
            assert_eq!(selector(&object), want, "{object}");
        }
    }

    #[test]
    fn numbers_are_where_the_definition_says() {
        let places = ReplicaPaths::custom(&json!({"specReplicasPath": ".spec.size.count",
            "statusReplicasPath": ".status.ready", "labelSelectorPath": ".status.selector"}));
        let object = json!({"metadata": {"name": "a"}, "spec": {"size": {"count": 2}},
            "status": {"ready": 1, "selector": "a=b"}});
        let scale = places.scale_of(&object);
        assert_eq!(scale["spec"]["replicas"], 2);
        assert_eq!(scale["status"], json!({"replicas": 1, "selector": "a=b"}));
        let scaled = places.scaled(&object, &json!({"spec": {"replicas": 7}})).unwrap();
        assert_eq!(scaled["spec"], json!({"size": {"count": 7}}));
        let odd = json!({"metadata": {}, "spec": "many"});
        let scaled = places.scaled(&odd, &json!({"spec": {"replicas": 7}})).unwrap();
        assert_eq!(scaled["spec"], json!({"size": {"count": 7}}), "whatever was there before");
        let error = places.scaled(&object, &json!({"spec": {"replicas": -1}})).unwrap_err();
        assert_eq!(
            error.message,
            "Scale.autoscaling \"a\" is invalid: spec.replicas: Invalid value: -1: must be greater \
             than or equal to 0"
        );
    }
}
