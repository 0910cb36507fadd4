//! `template`: answers that are made from the question alone, as far as clusters use it: a code for
//! some names, or fixed addresses.

use std::net::IpAddr;

use regex::RegexBuilder;
use roadstead_zone::name::Name;
use roadstead_zone::record_type::RecordType;

use super::parse::Directive;
use super::{CorefileResult, REGEX_SIZE};
use crate::reply::ResponseCode;
use crate::setup::Template;

/// `template CLASS TYPE [ZONE...] { match REGEX, answer RECORD, rcode CODE, fallthrough }`.
pub(super) fn read(directive: &Directive, zones: &[Name]) -> CorefileResult<Template> {
    let [_, class, kind, given @ ..] = directive.words.as_slice() else {
        return Err(directive.wrong("template needs a class and a type"));
    };
    if !matches!(class.to_uppercase().as_str(), "IN" | "ANY") {
        return Err(directive.wrong(format!("template {class}: only IN and ANY are understood")));
    }
    let mut template = Template {
        zones: given.iter().map(|zone| directive.zone(zone)).collect::<CorefileResult<_>>()?,
        kind: record_type(directive, kind)?,
        patterns: Vec::new(),
        answers: Vec::new(),
        code: ResponseCode::NoError,
        fall_through: None,
    };
    if given.is_empty() {
        template.zones = zones.to_vec();
    }
    for option in &directive.body {
        match option.name() {
            "match" => template.patterns.extend(
                option.words[1..]
                    .iter()
                    .map(|text| pattern(option, text))
                    .collect::<CorefileResult<Vec<_>>>()?,
            ),
            "answer" => template.answers.push(answer(option)?),
            "rcode" => template.code = code(option)?,
            "fallthrough" => template.fall_through = Some(option.fall_through(&template.zones)?),
            other => return Err(option.wrong(format!("template: {other:?} is not understood"))),
        }
    }
    Ok(template)
}

/// `None` is any.
fn record_type(directive: &Directive, text: &str) -> CorefileResult<Option<RecordType>> {
    Ok(Some(match text.to_uppercase().as_str() {
        "ANY" => return Ok(None),
        "A" => RecordType::A,
        "AAAA" => RecordType::Aaaa,
        "CNAME" => RecordType::Cname,
        "NS" => RecordType::Ns,
        "PTR" => RecordType::Ptr,
        "SOA" => RecordType::Soa,
        "SRV" => RecordType::Srv,
        "TXT" => RecordType::Txt,
        _ => return Err(directive.wrong(format!("template {text}: this type is not understood"))),
    }))
}

fn pattern(option: &Directive, text: &str) -> CorefileResult<regex::Regex> {
    let pattern = RegexBuilder::new(text).case_insensitive(true).size_limit(REGEX_SIZE).build();
    pattern.map_err(|_| option.wrong(format!("{text} is no regular expression")))
}

/// `"{{ .Name }} 60 IN A 192.0.2.1"`: the name that was asked, and an address.
fn answer(option: &Directive) -> CorefileResult<(u32, IpAddr)> {
    let text = option.words[1..].join(" ");
    let simple = text.replace("{{.Name}}", "{{ .Name }}");
    let words: Vec<&str> =
        simple.strip_prefix("{{ .Name }}").unwrap_or("").split_whitespace().collect();
    let read = match words.as_slice() {
        [lifetime, "IN", kind, address] => lifetime.parse().ok().zip(address.parse().ok()).filter(
            |(_, address): &(u32, IpAddr)| *kind == if address.is_ipv4() { "A" } else { "AAAA" },
        ),
        _ => None,
    };
    read.ok_or_else(|| {
        option
            .wrong(format!("{text}: only \"{{{{ .Name }}}} TTL IN A|AAAA ADDRESS\" is understood"))
    })
}

fn code(option: &Directive) -> CorefileResult<ResponseCode> {
    Ok(match option.only()?.to_uppercase().as_str() {
        "NOERROR" => ResponseCode::NoError,
        "FORMERR" => ResponseCode::FormatError,
        "SERVFAIL" => ResponseCode::ServerFailure,
        "NXDOMAIN" => ResponseCode::NoName,
        "NOTIMP" => ResponseCode::NotImplemented,
        "REFUSED" => ResponseCode::Refused,
        other => return Err(option.wrong(format!("rcode {other}: unknown"))),
    })
}
