//! What a container does when it has started and before it ends: pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::probe::{HttpGet, static_command};

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// When the container has started.
    PostStart,
    /// Before it is asked to end.
    PreStop,
}

impl HookKind {
    /// The container's hook of this kind, or what is wrong with it.
    pub fn of(self, container: &Container) -> Option<Result<ContainerHook, String>> {
        let hooks = container.lifecycle.as_ref()?;
        let handler = match self {
            HookKind::PostStart => hooks.post_start.as_ref()?,
            HookKind::PreStop => hooks.pre_stop.as_ref()?,
        };
        Some(ContainerHook::of(handler, container))
    }

    /// The reason and the message of the event that it failed.
    pub fn failure(self) -> (&'static str, &'static str) {
        match self {
            HookKind::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
            HookKind::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
        }
    }
}

pub(crate) fn has_post_start(container: &Container) -> bool {
    HookKind::PostStart.of(container).is_some()
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum ContainerHook {
    /// Run a command in the container.
    Exec(Vec<String>),
    /// Send a request, whatever the answer.
    Http(HttpGet),
    /// Wait.
    Sleep(Duration),
}

impl ContainerHook {
    fn of(handler: &LifecycleHandler, container: &Container) -> Result<Self, String> {
        if let Some(exec) = &handler.exec {
            return Ok(ContainerHook::Exec(static_command(exec, container)));
        }
        if let Some(http) = &handler.http_get {
            return HttpGet::of(http, container).map(ContainerHook::Http);
        }
        if let Some(sleep) = &handler.sleep {
            return Ok(ContainerHook::Sleep(Duration::from_secs(
                sleep.seconds.max(0).unsigned_abs(),
            )));
        }
        Err("invalid handler".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hooks() {
        for (handler, want) in [
            (
                json!({"exec": {"command": ["a", "$(B)"]}}),
                Ok(ContainerHook::Exec(vec!["a".into(), "1".into()])),
            ),
            (json!({"sleep": {"seconds": 3}}), Ok(ContainerHook::Sleep(Duration::from_secs(3)))),
            (json!({"tcpSocket": {"port": 1}}), Err("invalid handler".into())),
            (json!({"httpGet": {"port": "x"}}), Err("couldn't find port: \"x\"".into())),
        ] {
            let container = json!({"name": "c", "env": [{"name": "B", "value": "1"}],
                                   "lifecycle": {"preStop": handler}});
            let container: Container = serde_json::from_value(container).unwrap();
            assert_eq!(HookKind::PostStart.of(&container), None);
            assert_eq!(HookKind::PreStop.of(&container), Some(want), "{handler}");
        }
    }
}
