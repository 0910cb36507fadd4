//! The shape of a component, seen from outside: the same pages, whatever it does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;

use crate::pages::Page;
use crate::readiness::Readiness;

/// What a component shows of itself besides what it counts. Clones are the same, and several components of
/// one process may share one: each part has a name.
#[derive(Clone, Debug, Default)]
pub struct Component {
    /// Who is not ready yet.
    pub readiness: Readiness,
    /// What its parts know and do.
    pub state: DebugState,
}

impl Component {
    /// The pages that every component has: `/healthz` and `/livez`, `/readyz`, `/metrics` and
    /// `/debug/state`.
    pub fn page(&self, path: &str, metrics: impl FnOnce() -> String) -> Option<Page> {
        match path {
            "/healthz" | "/livez" => Some(Page::text(200, "ok")),
            "/readyz" => Some(self.readiness.page()),
            "/metrics" => Some(Page::metrics(metrics())),
            "/debug/state" => Some(Page::state(&self.state.show())),
            _ => None,
        }
    }
}

/// What the parts of a process know and do at this moment, for the page `/debug/state`. Clones are the same.
#[derive(Clone, Default)]
pub struct DebugState(Arc<Mutex<BTreeMap<String, Show>>>);

type Show = Arc<dyn Fn() -> Value + Send + Sync>;

impl DebugState {
    /// From now on a part of that name shows what `show` returns then. One that begins anew takes its own
    /// place.
    pub fn register<T: Serialize>(
        &self,
        part: impl Into<String>,
        show: impl Fn() -> T + Send + Sync + 'static,
    ) {
        let show = move || {
            let shown = serde_json::to_value(show());
            shown.unwrap_or_else(|error| format!("cannot be shown: {error}").into())
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(part.into(), Arc::new(show));
    }

    /// What each part shows now.
    pub fn show(&self) -> Value {
        // Showing may take locks of the parts, so none is held meanwhile.
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        parts.into_iter().map(|(part, show)| (part, show())).collect()
    }
}

impl fmt::Debug for DebugState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_set().entries(parts.keys()).finish()
    }
}

#[test]
fn pages_of_a_component() {
    use std::sync::atomic::{AtomicU32, Ordering};

    let component = Component::default();
    let ready = component.readiness.register("dns");
    let count = Arc::new(AtomicU32::new(7));
    let seen = count.clone();
    component.state.register("dns", || "an old one");
    component.state.register("dns", move || BTreeMap::from([("n", seen.load(Ordering::Relaxed))]));
    component.state.register("proxy", || Value::Null);
    count.store(8, Ordering::Relaxed);
    let ask = |path| {
        let page = component.page(path, || "m 1\n".into());
        page.map(|page| (page.code, page.body.split_whitespace().collect::<String>()))
    };
    let cases = [
        ("/healthz", Some((200, "ok"))),
        ("/livez", Some((200, "ok"))),
        ("/readyz", Some((503, "notready:dns"))),
        ("/metrics", Some((200, "m1"))),
        ("/debug/state", Some((200, "{\"dns\":{\"n\":8},\"proxy\":null}"))),
        ("/other", None),
    ];
    for (path, want) in cases {
        assert_eq!(ask(path), want.map(|(code, body)| (code, body.to_owned())), "{path}");
    }
    drop(ready);
    assert_eq!(ask("/readyz"), Some((200, "ok".to_owned())));
}
