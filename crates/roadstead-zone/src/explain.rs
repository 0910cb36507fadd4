//! Why a name has no answer, in words for people.

use std::fmt;

use crate::aliases::MAX_ALIASES;
use crate::answer::{Answer, AnswerEnd};
use crate::entry::{EntryKind, ServiceEntry};
use crate::label_path::LabelPath;
use crate::name::find_suffix;
use crate::record_type::RecordType;
use crate::settings::{Namespaces, PodNames};
use crate::zone::{Zone, name_of, namespace_of, text};

/// The reason for an empty answer. It borrows, so that it costs nothing until it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerReason<'a> {
    /// Not everything has been listed yet.
    NotListed,
    /// ExternalName Services point at each other.
    Loop,
    /// More ExternalName Services lead to the next than are followed.
    TooLong,
    /// No such namespace.
    NoNamespace(&'a str),
    /// There is such a namespace, but the operator did not choose it.
    HiddenNamespace(&'a str),
    /// No such Service, nowhere.
    NoService(&'a str, &'a str),
    /// A Service of that name is in another namespace: its name, that one, and the one asked for.
    OtherNamespace(&'a str, &'a str, &'a str),
    /// A headless Service without ready endpoints; so many are not ready.
    NothingReady(&'a str, &'a str, u32),
    /// The Service has no such endpoint.
    NoHost(&'a str, &'a str, &'a str),
    /// The Service has no port of that name and protocol.
    NoPort(&'a str, &'a str),
    /// There is nothing below an ExternalName.
    BelowAlias(&'a str, &'a str),
    /// The ExternalName is not a domain name.
    NotAName(&'a str, &'a str),
    /// The name has addresses, but not of that family.
    OtherFamily(&'static str),
    /// There are no names of pods here, or no such pod.
    NoPod,
    /// No name in the cluster looks like that.
    NoSuchForm,
}

impl fmt::Display for AnswerReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AnswerReason::NotListed => write!(f, "not all objects of the cluster are listed yet"),
            AnswerReason::Loop => {
                write!(f, "ExternalName Services point at each other in a circle")
            }
            AnswerReason::TooLong => {
                write!(f, "more than {MAX_ALIASES} ExternalName Services lead from one to the next")
            }
            AnswerReason::NoNamespace(namespace) => write!(f, "there is no namespace {namespace}"),
            AnswerReason::HiddenNamespace(namespace) => {
                write!(f, "namespace {namespace} is not among those that are served")
            }
            AnswerReason::NoService(service, namespace) => {
                write!(f, "there is no Service {service} in namespace {namespace}")
            }
            AnswerReason::OtherNamespace(service, there, here) => {
                write!(f, "Service {service} exists in namespace {there}, you asked in {here}")
            }
            AnswerReason::NothingReady(service, namespace, 0) => {
                write!(f, "headless Service {namespace}/{service} has no endpoints")
            }
            AnswerReason::NothingReady(service, namespace, unready) => {
                write!(f, "Service {namespace}/{service} has 0 of {unready} endpoints ready")
            }
            AnswerReason::NoHost(host, service, namespace) => {
                write!(f, "Service {namespace}/{service} has no ready endpoint called {host}")
            }
            AnswerReason::NoPort(service, namespace) => {
                write!(f, "Service {namespace}/{service} has no port of that name and protocol")
            }
            AnswerReason::BelowAlias(service, namespace) => {
                write!(f, "{namespace}/{service} is an ExternalName, there is nothing below it")
            }
            AnswerReason::NotAName(service, namespace) => {
                write!(f, "the externalName of {namespace}/{service} is not a domain name")
            }
            AnswerReason::OtherFamily(family) => {
                write!(f, "the name exists, but has no {family} address")
            }
            AnswerReason::NoPod => write!(f, "there is no pod of that name"),
            AnswerReason::NoSuchForm => write!(f, "no name in the cluster has that form"),
        }
    }
}

impl Zone {
    /// Says why an answer is empty; `None` if it is not, or if nothing can be said. Both the name,
    /// in small letters, and the answer are those of one question.
    pub fn explain<'a>(
        &'a self,
        name: &'a [u8],
        kind: RecordType,
        answer: &Answer<'a>,
    ) -> Option<AnswerReason<'a>> {
        match answer.end {
            AnswerEnd::NotReady => return Some(AnswerReason::NotListed),
            AnswerEnd::Loop => return Some(AnswerReason::Loop),
            AnswerEnd::TooLong => return Some(AnswerReason::TooLong),
            AnswerEnd::NoData(_) => {
                return match kind {
                    RecordType::A => Some(AnswerReason::OtherFamily("IPv4")),
                    RecordType::Aaaa => Some(AnswerReason::OtherFamily("IPv6")),
                    _ => None,
                };
            }
            AnswerEnd::NoName(_) => {}
            _ => return None,
        }
        let name = answer.aliases.iter().last().map_or(name, |alias| alias.wire());
        let at = find_suffix(name, self.origin().wire())?;
        let Some(path) = LabelPath::read(name, at) else { return Some(AnswerReason::NoSuchForm) };
        match path.label(0) {
            b"svc" if path.depth >= 2 => Some(self.explain_service(&path)),
            b"pod" if path.depth >= 2 && self.settings.pods == PodNames::Disabled => {
                Some(AnswerReason::NoPod)
            }
            b"pod" if path.depth >= 2 => {
                Some(self.explain_namespace(path.wire(1, 1)).unwrap_or(AnswerReason::NoPod))
            }
            _ => Some(AnswerReason::NoSuchForm),
        }
    }

    fn explain_namespace<'a>(&'a self, label: &'a [u8]) -> Option<AnswerReason<'a>> {
        if self.namespace(label).is_some() {
            return None;
        }
        let name = text(&label[1..]);
        Some(match &self.settings.namespaces {
            Namespaces::Listed(names) if !names.contains(name) => {
                AnswerReason::HiddenNamespace(name)
            }
            _ => AnswerReason::NoNamespace(name),
        })
    }

    fn explain_service<'a>(&'a self, path: &LabelPath<'a>) -> AnswerReason<'a> {
        let namespace = path.wire(1, 1);
        if path.depth == 2 {
            return self.explain_namespace(namespace).unwrap_or(AnswerReason::NoSuchForm);
        }
        let key = path.wire(1, 2);
        let (service, place) = (text(&name_of(key)[1..]), text(&namespace[1..]));
        let known = self.entry(key).filter(|entry| entry.exists());
        let Some(entry) = known.filter(|_| self.namespace(namespace).is_some()) else {
            let other = self.named(name_of(key)).find(|entry| *entry.key != *key);
            return match other {
                Some(other) => {
                    let there = text(&namespace_of(&other.key)[1..]);
                    AnswerReason::OtherNamespace(service, there, place)
                }
                None => self
                    .explain_namespace(namespace)
                    .unwrap_or(AnswerReason::NoService(service, place)),
            };
        };
        explain_entry(entry, path, service, place)
    }
}

fn explain_entry<'a>(
    entry: &ServiceEntry,
    path: &LabelPath<'a>,
    service: &'a str,
    place: &'a str,
) -> AnswerReason<'a> {
    match (&entry.kind, path.depth) {
        (EntryKind::External(_), 4..) => AnswerReason::BelowAlias(service, place),
        (EntryKind::External(_), _) => AnswerReason::NotAName(service, place),
        _ if entry.endpoints.is_empty() && (entry.is_headless() || path.depth == 3) => {
            AnswerReason::NothingReady(service, place, entry.unready())
        }
        (_, 4) if path.label(3).first() != Some(&b'_') => {
            AnswerReason::NoHost(text(path.label(3)), service, place)
        }
        (_, 4 | 5) => AnswerReason::NoPort(service, place),
        _ => AnswerReason::NoSuchForm,
    }
}
