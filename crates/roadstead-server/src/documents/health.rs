//! `/healthz`, `/livez` and `/readyz`, with the checks and in the format that people know.
//!
//! The check of the store is called `etcd`, as probes written for upstream expect. A store that is
//! read-only keeps a server alive, for it still answers reads, but not ready; so is one that was asked to stop,
//! until it has.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use roadstead_store::kv::Store;

use crate::request::query::{Query, repeated};
use crate::transport::response::{Body, respond};

/// One thing to look at: what is wrong with it, if anything is.
type Check = (&'static str, Option<String>);

/// Answers `/ENDPOINT` or `/ENDPOINT/CHECK`; `None` if there is no such check.
pub(crate) fn answer(
    (store, is_leaving): (&Store, bool),
    endpoint: &str,
    check: &[&str],
    query: Option<&str>,
) -> Option<Response<Body>> {
    let stored = match endpoint {
        "livez" => None,
        _ => store.failure().map(|failure| failure.to_string()),
    };
    let damaged = match endpoint {
        "livez" => None,
        _ => damage(store),
    };
    let leaving = is_leaving && endpoint == "readyz";
    let leaving = leaving.then(|| "the server is shutting down".to_owned());
    let mut checks = vec![("ping", None), ("etcd", stored), ("shutdown", leaving)];
    // Who sees this knows that nobody but controllers ends Events.
    if !store.is_shared() {
        checks.push(("storage-scrub", damaged));
    }
    let (code, text) = match check {
        [] => {
            let verbose = Query::parse(query).has("verbose");
            summary(endpoint, &checks, verbose, &repeated(query, "exclude"))
        }
        [name] => match checks.into_iter().find(|(known, _)| known == name)? {
            (_, None) => (StatusCode::OK, "ok".to_owned()),
            (_, Some(why)) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n"))
            }
        },
        _ => return None,
    };
    let mut response = respond(code, text);
    let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    Some(response)
}

/// What is damaged on disk, in a few words; all of it is in the log.
fn damage(store: &Store) -> Option<String> {
    let damage = store.damage();
    let first = damage.first()?;
    let count = damage.len();
    Some(format!("{count} damaged on disk: {first}; save a snapshot now, and restore it elsewhere"))
}

fn summary(
    endpoint: &str,
    checks: &[Check],
    verbose: bool,
    excluded: &[String],
) -> (StatusCode, String) {
    let mut lines = String::new();
    let mut healthy = true;
    for (name, wrong) in checks {
        let line = match wrong {
            _ if excluded.iter().any(|other| other == name) => format!("[+]{name} excluded: ok\n"),
            None => format!("[+]{name} ok\n"),
            Some(why) => {
                healthy = false;
                format!("[-]{name} failed: {why}\n")
            }
        };
        lines.push_str(&line);
    }
    let known = |name: &&String| checks.iter().any(|(check, _)| check == name);
    let strange: Vec<_> = excluded.iter().filter(|name| !known(name)).collect();
    if !strange.is_empty() {
        let names = strange.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(",");
        lines.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {names}\n"
        ));
    }
    match (healthy, verbose) {
        (true, false) => (StatusCode::OK, "ok".to_owned()),
        (true, true) => (StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
        (false, _) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n"))
        }
    }
}

#[test]
fn summaries() {
    let full = Some("the store is read-only".to_owned());
    // The state of the store, verbose, excluded, answer.
    let cases = [
        (None, false, "", "200 ok"),
        (None, true, "", "200 [+]ping ok\n[+]etcd ok\nreadyz check passed\n"),
        (None, true, "etcd", "200 [+]ping ok\n[+]etcd excluded: ok\nreadyz check passed\n"),
        (
            None,
            true,
            "nope",
            "200 [+]ping ok\n[+]etcd ok\nwarn: some health checks cannot be excluded: no matches \
             for \"nope\"\nreadyz check passed\n",
        ),
        (
            full.clone(),
            false,
            "",
            "500 [+]ping ok\n[-]etcd failed: the store is read-only\nreadyz check failed\n",
        ),
        (full, false, "etcd", "200 ok"),
    ];
    for (stored, verbose, excluded, want) in cases {
        let excluded: Vec<_> = excluded.split_terminator(',').map(str::to_owned).collect();
        let (code, text) =
            summary("readyz", &[("ping", None), ("etcd", stored)], verbose, &excluded);
        assert_eq!(format!("{} {text}", code.as_u16()), want);
    }
}
