//! Whether a step is done: a question about objects and about the reader's answer.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::kind::LessonKind;
use crate::language::Text;

const SERVICE_NAME: &str = "/metadata/labels/kubernetes.io~1service-name";

/// What is looked at: the objects of the namespace, and what the reader has answered.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Objects with their kinds.
    pub objects: Vec<(LessonKind, Value)>,
    /// The answer, if one was given.
    pub answer: Option<String>,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// There is an object, and it is so.
    Object(WantedObject),
    /// There is no such object.
    Gone(Named),
    /// So many addresses of a Service are ready.
    Ready(Ready),
    /// The reader knows it.
    Answer(RightAnswer),
    /// All of these.
    All(Vec<Question>),
}

/// An object by its name; any of its kind, without one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    kind: LessonKind,
    name: Option<String>,
    /// Of a slice: the Service that it is for.
    service: Option<String>,
}

/// An object that is so.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WantedObject {
    kind: LessonKind,
    name: Option<String>,
    service: Option<String>,
    #[serde(default)]
    fields: Vec<Field>,
}

/// What is at a place in an object.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Field {
    /// A JSON pointer.
    path: String,
    /// Exactly that.
    is: Option<Value>,
    /// Whether anything is there.
    exists: Option<bool>,
}

/// Addresses that are ready.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    service: String,
    addresses: usize,
}

/// What the reader is to answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RightAnswer {
    /// Any of these.
    #[serde(default)]
    one_of: Vec<String>,
    /// What is there in an object.
    of: Option<Place>,
}

/// A place in an object.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    kind: LessonKind,
    name: Option<String>,
    service: Option<String>,
    path: String,
}

impl Question {
    /// The kinds that it asks about.
    pub fn kinds(&self) -> BTreeSet<LessonKind> {
        match self {
            Self::Object(wanted) => [wanted.kind].into(),
            Self::Gone(named) => [named.kind].into(),
            Self::Ready(_) => [LessonKind::EndpointSlice].into(),
            Self::Answer(answer) => answer.of.iter().map(|place| place.kind).collect(),
            Self::All(all) => all.iter().flat_map(Self::kinds).collect(),
        }
    }

    /// Whether the reader has to say something.
    pub fn wants_answer(&self) -> bool {
        match self {
            Self::Answer(_) => true,
            Self::All(all) => all.iter().any(Self::wants_answer),
            _ => false,
        }
    }

    /// Nothing, if it is so; else what is missing.
    pub fn missing(&self, world: &Evidence) -> Option<Text> {
        match self {
            Self::Object(wanted) => wanted.missing(world),
            Self::Gone(named) => named.still_there(world),
            Self::Ready(ready) => ready.missing(world),
            Self::Answer(answer) => answer.missing(world),
            Self::All(all) => all.iter().find_map(|check| check.missing(world)),
        }
    }
}

/// The objects that are meant.
fn found<'a>(
    world: &'a Evidence,
    kind: LessonKind,
    name: Option<&'a str>,
    service: Option<&'a str>,
) -> impl Iterator<Item = &'a Value> {
    let text = |object: &'a Value, path: &str| object.pointer(path).and_then(Value::as_str);
    let is_meant = move |object: &&'a Value| {
        name.is_none_or(|name| text(object, "/metadata/name") == Some(name))
            && service.is_none_or(|service| text(object, SERVICE_NAME) == Some(service))
    };
    let of_kind = world.objects.iter().filter(move |(own, _)| *own == kind);
    of_kind.map(|(_, object)| object).filter(is_meant)
}

/// An object in the words of a sentence.
fn described(kind: LessonKind, name: Option<&str>, service: Option<&str>) -> String {
    let kind = kind.names().1;
    match (name, service) {
        (Some(name), _) => format!("{kind} {name}"),
        (None, Some(service)) => format!("{kind} (kubernetes.io/service-name={service})"),
        (None, None) => kind.to_owned(),
    }
}

impl WantedObject {
    fn missing(&self, world: &Evidence) -> Option<Text> {
        let (name, service) = (self.name.as_deref(), self.service.as_deref());
        let what = described(self.kind, name, service);
        let mut why = Text::new(format!("There is no {what}."), format!("没有 {what}。"));
        for object in found(world, self.kind, name, service) {
            match self.fields.iter().find_map(|field| field.missing(object)) {
                None => return None,
                Some((is, zh)) => {
                    why = Text::new(format!("{what}: {is}"), format!("{what}：{zh}"));
                }
            }
        }
        Some(why)
    }
}

impl Field {
    /// What is not so, in both languages.
    fn missing(&self, object: &Value) -> Option<(String, String)> {
        let own = object.pointer(&self.path).filter(|own| !own.is_null());
        let path = self.path.trim_start_matches('/').replace('/', ".").replace("~1", "/");
        let shown = own.map_or_else(|| "-".to_owned(), Value::to_string);
        if let Some(is) = &self.is
            && own != Some(is)
        {
            return Some((
                format!("{path} is {shown} and should be {is}."),
                format!("{path} 是 {shown}，应为 {is}。"),
            ));
        }
        match self.exists {
            Some(true) if own.is_none() => {
                Some((format!("{path} is missing."), format!("缺少 {path}。")))
            }
            Some(false) if own.is_some() => Some((
                format!("{path} is {shown} and should not be there."),
                format!("{path} 是 {shown}，不应该有它。"),
            )),
            _ => None,
        }
    }
}

impl Named {
    fn still_there(&self, world: &Evidence) -> Option<Text> {
        let (name, service) = (self.name.as_deref(), self.service.as_deref());
        found(world, self.kind, name, service).next()?;
        let what = described(self.kind, name, service);
        Some(Text::new(format!("{what} is still there."), format!("{what} 还在。")))
    }
}

impl Ready {
    fn missing(&self, world: &Evidence) -> Option<Text> {
        let slices = found(world, LessonKind::EndpointSlice, None, Some(&self.service));
        let endpoints = slices.filter_map(|slice| slice["endpoints"].as_array()).flatten();
        // Nobody's word counts as ready.
        let is_ready = |own: &&Value| own["conditions"]["ready"] != Value::Bool(false);
        let addresses = endpoints.filter(is_ready).filter_map(|own| own["addresses"].as_array());
        let addresses: BTreeSet<_> = addresses.flatten().filter_map(Value::as_str).collect();
        let (service, want, have) = (&self.service, self.addresses, addresses.len());
        (have != want).then(|| {
            Text::new(
                format!("{have} addresses of Service {service} are ready, and should be {want}."),
                format!("Service {service} 有 {have} 个就绪地址，应为 {want} 个。"),
            )
        })
    }
}

impl RightAnswer {
    fn missing(&self, world: &Evidence) -> Option<Text> {
        let Some(answer) = world.answer.as_deref().map(plain).filter(|own| !own.is_empty()) else {
            return Some(Text::new(
                "Give your answer: roadstead lab check ANSWER",
                "请给出答案：roadstead lab check 答案",
            ));
        };
        let mut right = self.one_of.iter().map(|own| plain(own));
        let is_right = right.any(|own| own == answer)
            || self.of.as_ref().is_some_and(|place| {
                let (name, service) = (place.name.as_deref(), place.service.as_deref());
                found(world, place.kind, name, service).any(|object| {
                    let own = object.pointer(&place.path);
                    own.is_some_and(|own| match own.as_str() {
                        Some(text) => plain(text) == answer,
                        None => plain(&own.to_string()) == answer,
                    })
                })
            });
        (!is_right).then(|| Text::new("That is not it.", "不对。"))
    }
}

/// Letters in one case, without what people put around an answer.
fn plain(text: &str) -> String {
    text.trim().trim_matches(['"', '`', '\'', '.', '。']).to_lowercase()
}

#[cfg(test)]
mod tests;
