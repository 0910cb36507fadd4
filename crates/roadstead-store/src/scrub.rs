//! Reads the tables of a running store from time to time, slowly, and checks them: damage is better
//! known while everything is still in memory than at the next start.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, info};

use crate::committer::panic_text;
use crate::damage::Damage;
use crate::disk::Disk;
use crate::entry::Key;

/// So many objects are read at a time,
const AT_ONCE: usize = 200;
/// and then others may have the disk.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Scrubber {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    found: Arc<Mutex<Vec<Damage>>>,
}

impl Scrubber {
    /// Reads everything once in `every`.
    pub(crate) fn start(disk: Arc<Disk>, path: PathBuf, every: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let found = Arc::new(Mutex::new(Vec::new()));
        let shared = found.clone();
        let thread = thread::Builder::new().name("scrubber".into());
        let thread = thread.spawn(move || run(&disk, path, every, &stopped, &shared))?;
        Ok(Self { stop: Some(stop), thread: Some(thread), found })
    }

    /// What the last reading found.
    pub(crate) fn found(&self) -> Vec<Damage> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(
    disk: &Disk,
    path: PathBuf,
    every: Duration,
    stopped: &Receiver<()>,
    found: &Mutex<Vec<Damage>>,
) {
    let goes_on = |pause| matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout));
    while goes_on(every) {
        let (mut damage, mut after, mut objects) = (Vec::new(), None, 0);
        loop {
            let look = || disk.look(after.as_ref(), AT_ONCE, &path).map_err(|e| e.to_string());
            let looked = catch_unwind(AssertUnwindSafe(look))
                .unwrap_or_else(|panic| Err(panic_text(&*panic).to_owned()));
            match looked {
                Ok(page) => {
                    objects += page.rows;
                    damage.extend(page.damage);
                    after = page.last;
                }
                Err(why) => {
                    damage.push(Damage::new(&path, "table objects", why));
                    after = None;
                }
            }
            if after.is_none() {
                break;
            }
            if !goes_on(PAUSE) {
                return;
            }
        }
        report(&path, objects, damage, found);
    }
}

fn report(path: &std::path::Path, objects: usize, damage: Vec<Damage>, found: &Mutex<Vec<Damage>>) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    for new in damage.iter().filter(|damage| !found.contains(damage)) {
        error!(
            "damage on disk, while everything is still in memory: {new}; save it now with roadstead \
             snapshot save FILE, replace the disk, and restore it"
        );
    }
    if damage.is_empty() {
        info!(path = %path.display(), objects, "the tables on disk have been read, and are well");
    }
    *found = damage;
}

/// Some rows that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) rows: usize,
    pub(crate) damage: Vec<Damage>,
    /// Where to go on; `None` at the end.
    pub(crate) last: Option<Key>,
}
