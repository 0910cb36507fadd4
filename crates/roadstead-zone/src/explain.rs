//! Why a name has no answer, in words for people.

use std::fmt;

use crate::answer::{Answer, End, MAX_ALIASES, Path, RecordType};
use crate::entry::{Entry, Kind};
use crate::name::find_suffix;
use crate::settings::{Namespaces, PodNames};
use crate::zone::{Zone, name_of, namespace_of, text};

/// The reason for an empty answer. It borrows, so that it costs nothing until it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason<'a> {
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

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::NotListed => write!(f, "not all objects of the cluster are listed yet"),
            Reason::Loop => write!(f, "ExternalName Services point at each other in a circle"),
            Reason::TooLong => {
                write!(f, "more than {MAX_ALIASES} ExternalName Services lead from one to the next")
            }
            Reason::NoNamespace(namespace) => write!(f, "there is no namespace {namespace}"),
            Reason::HiddenNamespace(namespace) => {
                write!(f, "namespace {namespace} is not among those that are served")
            }
            Reason::NoService(service, namespace) => {
                write!(f, "there is no Service {service} in namespace {namespace}")
            }
            Reason::OtherNamespace(service, there, here) => {
                write!(f, "Service {service} exists in namespace {there}, you asked in {here}")
            }
            Reason::NothingReady(service, namespace, 0) => {
                write!(f, "headless Service {namespace}/{service} has no endpoints")
            }
            Reason::NothingReady(service, namespace, unready) => {
                write!(f, "Service {namespace}/{service} has 0 of {unready} endpoints ready")
            }
            Reason::NoHost(host, service, namespace) => {
                write!(f, "Service {namespace}/{service} has no ready endpoint called {host}")
            }
            Reason::NoPort(service, namespace) => {
                write!(f, "Service {namespace}/{service} has no port of that name and protocol")
            }
            Reason::BelowAlias(service, namespace) => {
                write!(f, "{namespace}/{service} is an ExternalName, there is nothing below it")
            }
            Reason::NotAName(service, namespace) => {
                write!(f, "the externalName of {namespace}/{service} is not a domain name")
            }
            Reason::OtherFamily(family) => {
                write!(f, "the name exists, but has no {family} address")
            }
            Reason::NoPod => write!(f, "there is no pod of that name"),
            Reason::NoSuchForm => write!(f, "no name in the cluster has that form"),
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
    ) -> Option<Reason<'a>> {
        match answer.end {
            End::NotReady => return Some(Reason::NotListed),
            End::Loop => return Some(Reason::Loop),
            End::TooLong => return Some(Reason::TooLong),
            End::NoData(_) => {
                return match kind {
                    RecordType::A => Some(Reason::OtherFamily("IPv4")),
                    RecordType::Aaaa => Some(Reason::OtherFamily("IPv6")),
                    _ => None,
                };
            }
            End::NoName(_) => {}
            _ => return None,
        }
        let name = answer.aliases.iter().last().map_or(name, |alias| alias.wire());
        let at = find_suffix(name, self.origin().wire())?;
        let Some(path) = Path::read(name, at) else { return Some(Reason::NoSuchForm) };
        match path.label(0) {
            b"svc" if path.depth >= 2 => Some(self.explain_service(&path)),
            b"pod" if path.depth >= 2 && self.settings.pods == PodNames::Disabled => {
                Some(Reason::NoPod)
            }
            b"pod" if path.depth >= 2 => {
                Some(self.explain_namespace(path.wire(1, 1)).unwrap_or(Reason::NoPod))
            }
            _ => Some(Reason::NoSuchForm),
        }
    }

    fn explain_namespace<'a>(&'a self, label: &'a [u8]) -> Option<Reason<'a>> {
        if self.namespace(label).is_some() {
            return None;
        }
        let name = text(&label[1..]);
        Some(match &self.settings.namespaces {
            Namespaces::Listed(names) if !names.contains(name) => Reason::HiddenNamespace(name),
            _ => Reason::NoNamespace(name),
        })
    }

    fn explain_service<'a>(&'a self, path: &Path<'a>) -> Reason<'a> {
        let namespace = path.wire(1, 1);
        if path.depth == 2 {
            return self.explain_namespace(namespace).unwrap_or(Reason::NoSuchForm);
        }
        let key = path.wire(1, 2);
        let (service, place) = (text(&name_of(key)[1..]), text(&namespace[1..]));
        let known = self.entry(key).filter(|entry| entry.exists());
        let Some(entry) = known.filter(|_| self.namespace(namespace).is_some()) else {
            let other = self.named(name_of(key)).find(|entry| *entry.key != *key);
            return match other {
                Some(other) => {
                    let there = text(&namespace_of(&other.key)[1..]);
                    Reason::OtherNamespace(service, there, place)
                }
                None => {
                    self.explain_namespace(namespace).unwrap_or(Reason::NoService(service, place))
                }
            };
        };
        explain_entry(entry, path, service, place)
    }
}

fn explain_entry<'a>(
    entry: &Entry,
    path: &Path<'a>,
    service: &'a str,
    place: &'a str,
) -> Reason<'a> {
    match (&entry.kind, path.depth) {
        (Kind::External(_), 4..) => Reason::BelowAlias(service, place),
        (Kind::External(_), _) => Reason::NotAName(service, place),
        _ if entry.endpoints.is_empty() && (entry.is_headless() || path.depth == 3) => {
            Reason::NothingReady(service, place, entry.unready())
        }
        (_, 4) if path.label(3).first() != Some(&b'_') => {
            Reason::NoHost(text(path.label(3)), service, place)
        }
        (_, 4 | 5) => Reason::NoPort(service, place),
        _ => Reason::NoSuchForm,
    }
}
