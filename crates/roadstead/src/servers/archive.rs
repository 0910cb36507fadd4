//! What API servers have said, kept on disk for a time when there is none: a node that starts then goes on with the
//! last that it knew. Secrets are never kept.
//!
//! Watches are kept as they come, event by event, in one file each; see [`journal`]. What is asked for otherwise is
//! kept as it was answered last.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::Uri;
use jiff::Timestamp;
use roadstead_server::identity::secret_file::write_secret;
use tokio::task::spawn_blocking;
use tokio::time;
use tracing::warn;

use super::journal::{Journal, Kept};

/// How often what has changed is written.
const EVERY: Duration = Duration::from_secs(5);
/// Single answers that are longer are not kept.
pub(super) const LONGEST_ANSWER: usize = 1 << 20;
/// What may be kept: nothing secret, and nothing that means something only at its moment, as Leases do.
const KEPT: [&str; 9] = [
    "configmaps",
    "endpointslices",
    "namespaces",
    "networkpolicies",
    "nodes",
    "persistentvolumes",
    "pods",
    "servicecidrs",
    "services",
];

/// What is asked for, whatever moment it is asked about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    text: String,
    pub(super) is_watch: bool,
    /// A watch that begins with the state; else after this revision.
    pub(super) after: Option<u64>,
}

impl Question {
    /// The question of a GET, if its answer may be kept.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let mut parts = uri.path().trim_matches('/').split('/');
        let is_kept = match parts.next()? {
            "api" => parts.nth(1),
            "apis" => parts.nth(2),
            _ => None,
        };
        let plural = match (is_kept?, parts.clone().count()) {
            ("namespaces", 2..) => parts.nth(1)?,
            (plural, 0..=1) => plural,
            // A part of an object, such as a log.
            _ => return None,
        };
        if !KEPT.contains(&plural) || parts.count() > 1 {
            return None;
        }
        let (mut is_watch, mut initial, mut after) = (false, false, 0);
        let mut selectors = BTreeMap::new();
        for (name, value) in form(uri.query().unwrap_or_default()) {
            match name {
                "watch" => is_watch = matches!(value, "1" | "true"),
                "sendInitialEvents" => initial = value == "true",
                "resourceVersion" => after = value.parse().unwrap_or(0),
                "labelSelector" | "fieldSelector" => drop(selectors.insert(name, value)),
                // One page is not the answer.
                "continue" => return None,
                _ => {}
            }
        }
        let kind = if is_watch { "watch" } else { "get" };
        let text = format!("{kind} {} {selectors:?}", uri.path());
        // Others begin nowhere that we could tell.
        let is_clear = !is_watch || initial || after > 0;
        is_clear.then_some(Self { text, is_watch, after: (!initial).then_some(after) })
    }

    fn file(&self) -> String {
        let hash = digest(&SHA256, self.text.as_bytes());
        hash.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn form(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// A directory with what was said.
#[derive(Debug)]
pub(crate) struct Archive {
    directory: PathBuf,
    journals: Mutex<BTreeMap<String, Arc<Mutex<Journal>>>>,
}

impl Archive {
    /// What is in a directory, which may not exist yet.
    pub(crate) fn at(directory: PathBuf) -> io::Result<Arc<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Arc::new(Self { directory, journals: Mutex::default() }))
    }

    fn path(&self, question: &Question) -> PathBuf {
        self.directory.join(question.file())
    }

    /// Writes what has changed every few seconds, for ever.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            time::sleep(EVERY).await;
            let archive = self.clone();
            if let Err(error) = spawn_blocking(move || archive.write()).await {
                warn!(%error, "what API servers say is not kept");
            }
        }
    }

    /// Writes what has changed.
    pub(crate) fn write(&self) {
        let journals: Vec<_> = lock(&self.journals).values().cloned().collect();
        for journal in &journals {
            if let Err(error) = lock(journal).write() {
                warn!(%error, directory = %self.directory.display(), "what API servers say is not kept");
            }
        }
    }

    /// Where the answer to a watch goes; `None` if somebody else keeps it already, or there is a gap.
    pub(super) fn follow(&self, question: &Question) -> Option<Following> {
        let journal = {
            let mut journals = lock(&self.journals);
            let present = journals.entry(question.text.clone());
            present
                .or_insert_with(|| Arc::new(Mutex::new(Journal::at(self.path(question)))))
                .clone()
        };
        lock(&journal).begin(question.after).then(|| Following(journal.clone()))
    }

    /// Keeps the last answer to a question.
    pub(super) fn store(&self, question: &Question, answer: &[u8]) {
        let path = self.path(question);
        if fs::read(&path).is_ok_and(|present| present == answer) {
            return;
        }
        let text = std::str::from_utf8(answer).map_err(io::Error::other);
        if let Err(error) = text.and_then(|text| write_secret(&path, text)) {
            warn!(%error, "an answer of an API server is not kept");
        }
    }

    /// What was said about this when there were servers; nothing if this process knows better.
    pub(super) fn recall(&self, question: &Question) -> Option<Bytes> {
        let path = self.path(question);
        if !question.is_watch {
            return fs::read(path).ok().map(Bytes::from);
        }
        if question.after.is_some() || lock(&self.journals).contains_key(&question.text) {
            return None;
        }
        Kept::read(&path).map(|kept| kept.told())
    }

    /// Whether there is anything.
    pub(super) fn is_of_use(&self) -> bool {
        self.state_of().is_some()
    }

    /// When something was last written.
    pub(super) fn state_of(&self) -> Option<Timestamp> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let newest: Option<SystemTime> =
            files.filter_map(|file| file.metadata().ok()?.modified().ok()).max();
        newest.and_then(|time| Timestamp::try_from(time).ok())
    }
}

/// The lines of a watch on their way into the archive.
pub(super) struct Following(Arc<Mutex<Journal>>);

impl Following {
    pub(super) fn take(&self, piece: &[u8]) {
        lock(&self.0).take(piece);
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        lock(&self.0).end();
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(text: &str) -> Option<Question> {
        Question::of(&text.parse().unwrap())
    }

    #[test]
    fn what_is_kept() {
        let same = |a: &str, b: &str| question(a).unwrap().text == question(b).unwrap().text;
        assert!(same(
            "/api/v1/services?watch=true&sendInitialEvents=true&labelSelector=a",
            "/api/v1/services?watch=1&labelSelector=a&resourceVersion=7&timeoutSeconds=9",
        ));
        assert!(!same("/api/v1/services?watch=1&resourceVersion=7", "/api/v1/services"));
        for (path, want) in [
            ("/api/v1/services?watch=1&sendInitialEvents=true", true),
            ("/api/v1/namespaces/a/services", true),
            ("/api/v1/namespaces/a/configmaps/b", true),
            ("/api/v1/namespaces/a", true),
            ("/api/v1/nodes/a", true),
            ("/apis/discovery.k8s.io/v1/endpointslices?watch=1&resourceVersion=5", true),
            ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", true),
            ("/api/v1/pods?watch=1", false),
            ("/api/v1/secrets?watch=1&sendInitialEvents=true", false),
            ("/api/v1/namespaces/a/secrets/services", false),
            ("/api/v1/namespaces/services/secrets", false),
            ("/api/v1/namespaces/a/pods/b/log", false),
            ("/api/v1/nodes/a/status", false),
            ("/api/v1/services?continue=x", false),
            ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a", false),
            ("/readyz", false),
        ] {
            assert_eq!(question(path).is_some(), want, "{path}");
        }
    }

    #[test]
    fn what_was_said_is_said_again_once() {
        let directory = tempfile::tempdir().unwrap();
        let archive = Archive::at(directory.path().join("a")).unwrap();
        let watch = question("/api/v1/services?watch=1&sendInitialEvents=true").unwrap();
        assert!(archive.recall(&watch).is_none() && !archive.is_of_use());
        let following = archive.follow(&watch).unwrap();
        assert!(archive.follow(&watch).is_none(), "one of those who follow is enough");
        following.take(
            b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"3\"}}}\n\
              {\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"5\",\"annotations\":\
              {\"k8s.io/initial-events-end\":\"true\"}}}}\n",
        );
        archive.write();
        assert!(archive.recall(&watch).is_none(), "this process knows better");
        drop(following);
        let next = Archive::at(directory.path().join("a")).unwrap();
        let told = next.recall(&watch).unwrap();
        let told = std::str::from_utf8(&told).unwrap();
        assert!(told.contains("\"name\":\"a\"") && told.contains("initial-events-end"), "{told}");
        assert!(next.is_of_use());
        let after = |revision| {
            question(&format!("/api/v1/services?watch=1&resourceVersion={revision}")).unwrap()
        };
        assert!(next.recall(&after(5)).is_none(), "who knows the state is not told it");
        assert!(next.follow(&after(6)).is_none(), "what happened between 5 and 6 is not known");
        assert!(next.follow(&after(5)).is_some());
        let one = question("/api/v1/nodes/a").unwrap();
        next.store(&one, b"{}");
        assert_eq!(next.recall(&one).unwrap(), "{}");
        assert_eq!(fs::read_dir(directory.path().join("a")).unwrap().count(), 2);
    }
}
