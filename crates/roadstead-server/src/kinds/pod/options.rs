//! What clients ask of `pods/log`, `exec`, `attach` and `portforward`, checked as upstream checks it, and
//! said again in the words of a node's agent.

use std::fmt::Write;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::request::query::{Query, repeated};

/// The container that is meant: the only one, if nobody says which.
pub(super) fn container(pod: &Value, asked: &str) -> Result<String, ApiError> {
    let name = pod.text("/metadata/name");
    let names = |list: &str| -> Vec<&str> {
        pod.list(list).iter().map(|container| container.text("/name")).collect()
    };
    let (main, init) = (names("/spec/containers"), names("/spec/initContainers"));
    match (asked, &main[..]) {
        ("", [only]) => Ok((*only).to_owned()),
        ("", _) => {
            let of_init = match &init[..] {
                [] => String::new(),
                init => format!(" or one of the init containers: [{}]", init.join(" ")),
            };
            Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]{of_init}",
                main.join(" ")
            )))
        }
        (asked, _) => {
            let later = names("/spec/ephemeralContainers");
            match [main, init, later].iter().flatten().any(|known| *known == asked) {
                true => Ok(asked.to_owned()),
                false => Err(ApiError::bad_request(format!(
                    "container {asked} is not valid for pod {name}"
                ))),
            }
        }
    }
}

/// The outputs of a container that can be asked for.
const LOG_STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];

/// Which lines of a log are wanted, as a query.
pub(super) fn log(pod: &str, query: &Query) -> Result<String, ApiError> {
    let mut causes = Causes::default();
    let mut words = Vec::new();
    for (name, least, wrong) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ] {
        let text = query.get(name);
        if text.is_empty() {
            continue;
        }
        let number: i64 = text
            .parse()
            .map_err(|_| ApiError::bad_request(format!("{name}: {text:?} is not a number")))?;
        if number < least {
            causes.invalid(name, &json!(number), wrong);
        }
        words.push((name, number.to_string()));
    }
    let since = query.get("sinceTime");
    if !since.is_empty() && query.has("sinceSeconds") {
        causes.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified");
    }
    if !since.is_empty() {
        let time = since.parse::<jiff::Timestamp>();
        time.map_err(|_| ApiError::bad_request(format!("sinceTime: {since:?} is not a time")))?;
        words.push(("sinceTime", since.to_owned()));
    }
    let stream = query.get("stream");
    if !stream.is_empty() && !LOG_STREAMS.contains(&stream) {
        causes.unsupported("stream", &json!(stream), &LOG_STREAMS);
    } else if !matches!(stream, "" | "All") {
        if query.has("tailLines") {
            let why = "`tailLines` and specific `stream` are mutually exclusive for now";
            causes.forbidden("", why);
        }
        words.push(("stream", stream.to_owned()));
    }
    if !causes.0.is_empty() {
        return Err(ApiError::invalid_pod_options("PodLogOptions", pod, &causes.0));
    }
    for name in ["follow", "previous", "timestamps"] {
        if query.flag(name) {
            words.push((name, "true".to_owned()));
        }
    }
    Ok(written(&words))
}

/// What is to be run, and which of its streams are wanted, as a query.
pub(super) fn exec(pod: &str, text: Option<&str>) -> Result<String, ApiError> {
    let (command, query) = (repeated(text, "command"), Query::parse(text));
    let mut causes = Causes::default();
    if command.is_empty() {
        causes.required("command", "");
    }
    let mut words: Vec<_> = command.into_iter().map(|word| ("command", word)).collect();
    words.extend(streams(&query, &mut causes));
    match causes.0.is_empty() {
        true => Ok(written(&words)),
        false => Err(ApiError::invalid_pod_options("PodExecOptions", pod, &causes.0)),
    }
}

/// Which streams of a running container are wanted, as a query.
pub(super) fn attach(pod: &str, query: &Query) -> Result<String, ApiError> {
    let mut causes = Causes::default();
    let words = streams(query, &mut causes);
    match causes.0.is_empty() {
        true => Ok(written(&words)),
        false => Err(ApiError::invalid_pod_options("PodAttachOptions", pod, &causes.0)),
    }
}

/// Which ports are wanted by clients that name them in the query.
pub(super) fn port_forward(text: Option<&str>) -> String {
    let words: Vec<_> = repeated(text, "ports").into_iter().map(|port| ("port", port)).collect();
    written(&words)
}

/// The agent's names for them are others.
fn streams(query: &Query, causes: &mut Causes) -> Vec<(&'static str, String)> {
    let all = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
    let wanted: Vec<_> = all.into_iter().filter(|(name, _)| query.flag(name)).collect();
    if !wanted.iter().any(|(name, _)| *name != "tty") {
        causes.required("", "must specify at least one of `stdin`, `stdout` or `stderr`");
    }
    if query.flag("tty") && query.flag("stderr") {
        causes.forbidden("", "tty and stderr cannot both be true");
    }
    wanted.into_iter().map(|(_, name)| (name, "1".to_owned())).collect()
}

fn written(words: &[(&str, String)]) -> String {
    let words: Vec<_> =
        words.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    words.join("&")
}

/// A text as a part of an address.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(result: Result<String, ApiError>) -> String {
        result.unwrap_or_else(|error| format!("{} {}", error.code.as_u16(), error.message))
    }

    #[test]
    fn which_container_is_meant() {
        let names = |all: &str| -> Vec<_> {
            all.split_whitespace().map(|name| json!({"name": name})).collect()
        };
        let cases = [
            ("a", "", "", "a"),
            ("a b", "", "b", "b"),
            ("a", "i", "i", "i"),
            ("a", "", "e", "e"),
            (
                "a b",
                "",
                "",
                "400 a container name must be specified for pod p, choose one of: [a b]",
            ),
            (
                "a b",
                "i j",
                "",
                "400 a container name must be specified for pod p, choose one of: [a b] \
                 or one of the init containers: [i j]",
            ),
            ("a", "", "x", "400 container x is not valid for pod p"),
        ];
        for (main, init, asked, want) in cases {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": names(main),
                "initContainers": names(init), "ephemeralContainers": names("e")}});
            assert_eq!(told(container(&pod, asked)), want, "{main} {init} {asked}");
        }
    }

    #[test]
    fn what_is_asked_of_a_log() {
        let cases = [
            ("", ""),
            ("follow=true&tailLines=3&timestamps=1", "tailLines=3&follow=true&timestamps=true"),
            ("sinceTime=2026-01-02T03:04:05Z", "sinceTime=2026-01-02T03%3A04%3A05Z"),
            ("stream=All&tailLines=3", "tailLines=3"),
            ("stream=Stderr&limitBytes=9", "limitBytes=9&stream=Stderr"),
            ("limitBytes=x", "400 limitBytes: \"x\" is not a number"),
            ("sinceTime=x", "400 sinceTime: \"x\" is not a time"),
        ];
        for (text, want) in cases {
            assert_eq!(told(log("p", &Query::parse(Some(text)))), want, "{text}");
        }
        for (text, want) in [
            ("stream=stdout", "stream: Unsupported value: \"stdout\": supported values: \"All\", "),
            (
                "stream=Stdout&tailLines=1",
                "`tailLines` and specific `stream` are mutually exclusive",
            ),
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=5&sinceTime=2026-01-02T03:04:05Z", "at most one of `sinceTime` or"),
        ] {
            let said = told(log("p", &Query::parse(Some(text))));
            assert!(said.starts_with("422 ") && said.contains(want), "{text}: {said}");
        }
    }

    #[test]
    fn which_ports_are_asked_for() {
        assert_eq!(port_forward(None), "");
        assert_eq!(port_forward(Some("ports=80&ports=81%2C82")), "port=80&port=81%2C82");
    }

    #[test]
    fn what_is_asked_of_a_command() {
        let cases = [
            ("command=ls&command=-l%20a&stdout=true", "command=ls&command=-l%20a&output=1"),
            (
                "command=sh&stdin=true&stdout=true&tty=true&container=c",
                "command=sh&input=1&output=1&tty=1",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(told(exec("p", Some(text))), want, "{text}");
        }
        for (text, want) in [
            ("stdout=true", "command: Required value"),
            ("command=a", "must specify at least one of `stdin`, `stdout` or `stderr`"),
            ("command=a&tty=true&stderr=true", "tty and stderr cannot both be true"),
        ] {
            let said = told(exec("p", Some(text)));
            assert!(said.starts_with("422 ") && said.contains(want), "{text}: {said}");
        }
    }
}
