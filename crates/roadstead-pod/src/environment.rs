//! A container's environment variables: pure.

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVarSource, Pod};

use crate::downward::{self, DownwardFacts};
use crate::env_file;
use crate::image::ImageContent;
use crate::sources::{SourceName, Sources};

/// Where programs are, if an image does not say.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What variables are made from besides the container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnvironmentContext<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) around: &'a DownwardFacts,
    /// Variables about Services.
    pub(crate) links: &'a [(String, String)],
    /// The objects that variables name.
    pub(crate) sources: &'a Sources,
}

/// Returns what the container declares, after the variables about Services, which it may replace;
/// or what about it is wrong.
pub(crate) fn environment(
    container: &Container,
    context: &EnvironmentContext<'_>,
) -> Result<Vec<(String, String)>, String> {
    let mut variables = context.links.to_vec();
    let set = |variables: &mut Vec<(String, String)>, name: &str, value: String| {
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_owned(), value));
    };
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (key, value) in whole_object(from, context)? {
            set(&mut variables, &format!("{prefix}{key}"), value);
        }
    }
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().filter(|value| !value.is_empty());
        let value = match (literal, &variable.value_from) {
            (Some(text), _) => Some(expand(text, &variables)),
            (None, Some(source)) => value(container, source, context)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            set(&mut variables, &variable.name, value);
        }
    }
    Ok(variables)
}

/// The content of a ConfigMap or Secret as variables.
fn whole_object(
    from: &EnvFromSource,
    context: &EnvironmentContext<'_>,
) -> Result<Vec<(String, String)>, String> {
    let (source, optional) = match (&from.config_map_ref, &from.secret_ref) {
        (Some(map), _) => (SourceName::ConfigMap(map.name.clone()), map.optional),
        (None, Some(secret)) => (SourceName::Secret(secret.name.clone()), secret.optional),
        (None, None) => return Ok(vec![]),
    };
    match context.sources.data(&source) {
        Some(data) => Ok(data.into_iter().map(|(key, value)| (key, text(value))).collect()),
        None if optional.unwrap_or(false) => Ok(vec![]),
        None => Err(source.missing()),
    }
}

fn text(data: Vec<u8>) -> String {
    // The kernel takes no variable with such a byte in it.
    String::from_utf8_lossy(&data).replace('\0', "")
}

/// Adds what the image and the runtime give, which the container's own go before; `$(NAME)` does not see
/// these.
pub(crate) fn with_defaults(
    image: &ImageContent,
    variables: Vec<(String, String)>,
    defaults: &Defaults<'_>,
) -> Vec<(String, String)> {
    let (from_image, path) = match image {
        ImageContent::BuiltIn(_) => (&[][..], "/bin"),
        ImageContent::Layers(image) => (&image.env[..], USUAL_PATH),
    };
    let from_image = from_image.iter().filter_map(|text| text.split_once('='));
    let usual = [("PATH", path), ("HOME", defaults.home), ("HOSTNAME", defaults.hostname)];
    let mut all: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: &str| {
        let is_known = variables.iter().chain(&all).any(|(known, _)| known == name);
        // A home that nobody has found is left to the runtime.
        let is_left = name == "HOME" && value.is_empty();
        if !is_known && !is_left {
            all.push((name.to_owned(), value.to_owned()));
        }
    };
    from_image.chain(usual).for_each(|(name, value)| add(name, value));
    all.extend(variables);
    all
}

/// What the runtime tells a container about itself.
pub(crate) struct Defaults<'a> {
    pub(crate) home: &'a str,
    pub(crate) hostname: &'a str,
}

/// Replaces `$(NAME)` by the variable's value; `$$` stands for `$`, and unknown names stay.
pub(crate) fn expand(text: &str, variables: &[(String, String)]) -> String {
    expand_with(text, |name| match variables.iter().find(|(known, _)| known == name) {
        Some((_, value)) => value.clone(),
        None => format!("$({name})"),
    })
}

/// The same, but unknown names are mistakes.
pub(crate) fn expand_all(text: &str, variables: &[(String, String)]) -> Result<String, String> {
    let mut missing = None;
    let expanded = expand_with(text, |name| {
        let found = variables.iter().find(|(known, _)| known == name);
        if found.is_none() {
            missing = Some(format!("missing value for {name:?}"));
        }
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    });
    missing.map_or(Ok(expanded), Err)
}

fn expand_with(text: &str, mut value: impl FnMut(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
        {
            out.push_str(&value(name));
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

/// The value that a variable has from elsewhere; none if it may be missing and is.
fn value(
    container: &Container,
    source: &EnvVarSource,
    context: &EnvironmentContext<'_>,
) -> Result<Option<String>, String> {
    if let Some(field) = &source.field_ref {
        return downward::field(context.pod, field, context.around).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        let found = downward::resource(context.pod, Some(container), resource, context.around);
        return found.map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        let source = SourceName::ConfigMap(key.name.clone());
        return keyed(&source, &key.key, key.optional, context);
    }
    if let Some(key) = &source.secret_key_ref {
        let source = SourceName::Secret(key.name.clone());
        return keyed(&source, &key.key, key.optional, context);
    }
    match &source.file_key_ref {
        Some(selector) => {
            let found = env_file::value(selector, &context.sources.files)?;
            Ok(found.map(|value| text(value.into_bytes())))
        }
        None => Err("this node does not know where the value of a variable is from".into()),
    }
}

fn keyed(
    source: &SourceName,
    key: &str,
    optional: Option<bool>,
    context: &EnvironmentContext<'_>,
) -> Result<Option<String>, String> {
    let optional = optional.unwrap_or(false);
    let Some(mut data) = context.sources.data(source) else {
        return if optional { Ok(None) } else { Err(source.missing()) };
    };
    let namespace = context.pod.metadata.namespace.as_deref().unwrap_or_default();
    match (data.remove(key), source) {
        (Some(value), _) => Ok(Some(text(value))),
        (None, _) if optional => Ok(None),
        (None, SourceName::ConfigMap(name)) => {
            Err(format!("couldn't find key {key} in ConfigMap {namespace}/{name}"))
        }
        (None, SourceName::Secret(name)) => {
            Err(format!("couldn't find key {key} in Secret {namespace}/{name}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downward::tests::around;
    use crate::image::{ImageFacts, LayeredImage};
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "week", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "subdomain": "sub", "containers": [{"name": "a", "env": [
                {"name": "PLAIN", "value": "x"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "JOINED", "value": "$(NAME):$(PLAIN) $(NOBODY) $$(PLAIN)"},
                {"name": "LINKED", "value": "$(WEB_PORT) $(PATH)"},
                {"name": "DB_PORT", "value": "was $(DB_PORT)"},
            ]}]},
        }))
        .unwrap()
    }

    #[test]
    fn variables() {
        let pod = pod();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let links = [("WEB_PORT", "1"), ("DB_PORT", "2")];
        let links = links.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = {
            let sources = Sources::default();
            let context = EnvironmentContext {
                pod: &pod,
                around: &around(),
                links: &links,
                sources: &sources,
            };
            environment(container, &context).unwrap()
        };
        let echo = ImageFacts::built_in("roadstead/echo").unwrap().content;
        let defaults = Defaults { home: "/", hostname: "web-1" };
        let found = with_defaults(&echo, found, &defaults);
        let get = |name: &str| &found.iter().find(|(known, _)| known == name).unwrap().1;
        let cases = [
            ("HOSTNAME", "web-1"),
            ("NAME", "web-1"),
            ("LABEL", "web"),
            ("IP", "10.244.0.2"),
            ("JOINED", "web-1:x $(NOBODY) $(PLAIN)"),
            ("WEB_PORT", "1"),
            ("LINKED", "1 $(PATH)"),
            ("DB_PORT", "was 2"),
            ("PATH", "/bin"),
        ];
        for (name, want) in cases {
            assert_eq!(get(name), want, "{name}");
        }
    }

    #[test]
    fn variables_of_an_image() {
        let words = |text: &str| -> Vec<(String, String)> {
            let pairs = text.split_whitespace().map(|word| word.split_once('=').unwrap());
            pairs.map(|(name, value)| (name.into(), value.into())).collect()
        };
        for (image, own, want) in [
            ("", "A=1", "PATH=… HOME=/root HOSTNAME=web A=1"),
            ("PATH=/x A=0 B=0", "A=1", "PATH=/x B=0 HOME=/root HOSTNAME=web A=1"),
            ("HOME=/y HOSTNAME=z", "", "HOME=/y HOSTNAME=z PATH=…"),
        ] {
            let env = image.split_whitespace().map(str::to_owned).collect();
            let image = LayeredImage { env, ..LayeredImage::default() };
            let defaults = Defaults { home: "/root", hostname: "web" };
            let content = ImageContent::Layers(Box::new(image));
            let found = with_defaults(&content, words(own), &defaults);
            let found = found.iter().map(|(name, value)| format!("{name}={value}"));
            let found = found.collect::<Vec<_>>().join(" ").replace(USUAL_PATH, "…");
            assert_eq!(found, want, "{own}");
        }
    }

    #[test]
    fn values_from_objects() {
        let map = json!({"data": {"a": "1", "b": "$(A)"}});
        let secret = json!({"data": {"s": "NA=="}});
        let sources = Sources {
            config_maps: [("m".to_owned(), serde_json::from_value(map).unwrap())].into(),
            secrets: [("s".to_owned(), serde_json::from_value(secret).unwrap())].into(),
            ..Sources::default()
        };
        let key = |kind: &str, name: &str, key: &str, optional: bool| {
            json!({"env": [{"name": "X", "valueFrom":
                {kind: {"name": name, "key": key, "optional": optional}}}]})
        };
        for (container, want) in [
            (key("configMapKeyRef", "m", "a", false), "X=1"),
            (key("configMapKeyRef", "n", "a", false), "! configmap \"n\" not found"),
            (key("configMapKeyRef", "n", "a", true), ""),
            (key("configMapKeyRef", "m", "z", false), "! couldn't find key z in ConfigMap week/m"),
            (key("configMapKeyRef", "m", "z", true), ""),
            (key("secretKeyRef", "s", "s", false), "X=4"),
            (key("secretKeyRef", "t", "s", false), "! secret \"t\" not found"),
            (key("secretKeyRef", "s", "z", false), "! couldn't find key z in Secret week/s"),
            (json!({"envFrom": [{"configMapRef": {"name": "m"}}]}), "a=1 b=$(A)"),
            (
                json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}},
                                    {"secretRef": {"name": "s"}}]}),
                "P_a=1 P_b=$(A) s=4",
            ),
            (
                json!({"envFrom": [{"configMapRef": {"name": "m"}}],
                       "env": [{"name": "a", "value": "was $(a)"}]}),
                "b=$(A) a=was 1",
            ),
            (json!({"envFrom": [{"secretRef": {"name": "t"}}]}), "! secret \"t\" not found"),
            (json!({"envFrom": [{"secretRef": {"name": "t", "optional": true}}]}), ""),
        ] {
            let mut described = container.clone();
            described["name"] = json!("a");
            let described: Container = serde_json::from_value(described).unwrap();
            let pod = pod();
            let context =
                EnvironmentContext { pod: &pod, around: &around(), links: &[], sources: &sources };
            let found = match environment(&described, &context) {
                Ok(all) => {
                    let all = all.iter().map(|(name, value)| format!("{name}={value}"));
                    all.collect::<Vec<_>>().join(" ")
                }
                Err(why) => format!("! {why}"),
            };
            assert_eq!(found, want, "{container}");
        }
    }

    #[test]
    fn expressions_need_all_their_variables() {
        let variables = [("A".to_owned(), "1".to_owned())];
        for (text, want) in
            [("x/$(A)", Ok("x/1")), ("$(B)", Err("missing value for \"B\"")), ("$$(B)", Ok("$(B)"))]
        {
            let found = expand_all(text, &variables);
            assert_eq!(found.as_deref().map_err(String::as_str), want, "{text}");
        }
    }
}
