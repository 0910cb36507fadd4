//! What is logged: as `--log` says, and more where a configuration that is read later asks for it.

use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::{Registry, reload};

/// The filter of the log, by its directives.
pub(crate) struct LogLevel {
    directives: String,
    handle: reload::Handle<EnvFilter, Registry>,
}

impl LogLevel {
    /// The filter to begin with, and what changes it.
    pub(crate) fn new(directives: String) -> (reload::Layer<EnvFilter, Registry>, Self) {
        let (filter, handle) = reload::Layer::new(EnvFilter::new(&directives));
        (filter, Self { directives, handle })
    }

    /// From now on everything that a crate says is logged.
    pub(crate) fn log_everything_of(&self, target: &str) {
        let directives = format!("{},{target}=debug", self.directives);
        // It is gone when nobody logs any more.
        let _ = self.handle.reload(EnvFilter::new(directives));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::sync::Arc;

    use tracing::debug;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn more_is_logged_when_a_configuration_asks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (filter, level) = LogLevel::new("nlink=error,info".into());
        let file = Arc::new(File::create(&path).unwrap());
        let layer = tracing_subscriber::fmt::layer().with_writer(file).with_filter(filter);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let say = |what| debug!(target: "roadstead_proxy::agent", what);
            say("too early");
            level.log_everything_of("roadstead_proxy");
            say("said");
            debug!(target: "roadstead_dns", "somebody else");
        });
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("said") && text.lines().count() == 1, "{text}");
    }
}
