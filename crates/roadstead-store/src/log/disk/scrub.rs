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

use crate::damage::Damage;
use crate::entry::Key;
use crate::log::disk::committer::panic_text;
use crate::log::disk::tables::Tables;

/// So many objects are read at a time,
const AT_ONCE: usize = 200;
/// and then others may have the tables.
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
    pub(crate) fn start(tables: Arc<Tables>, path: PathBuf, every: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let found = Arc::new(Mutex::new(Vec::new()));
        let work = Work { tables, path, stopped, found: found.clone() };
        let thread = thread::Builder::new().name("scrubber".into());
        let thread = thread.spawn(move || work.run(every))?;
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

/// What the thread has.
struct Work {
    tables: Arc<Tables>,
    path: PathBuf,
    stopped: Receiver<()>,
    found: Arc<Mutex<Vec<Damage>>>,
}

impl Work {
    fn run(&self, every: Duration) {
        while self.goes_on(every) {
            let (mut damage, mut after, mut objects) = (Vec::new(), None, 0);
            loop {
                match self.check_page(after.as_ref()) {
                    Ok(page) => {
                        objects += page.rows;
                        damage.extend(page.damage);
                        after = page.last;
                    }
                    Err(why) => {
                        damage.push(Damage::new(&self.path, "table objects", why));
                        after = None;
                    }
                }
                if after.is_none() {
                    break;
                }
                if !self.goes_on(PAUSE) {
                    return;
                }
            }
            self.report(objects, damage);
        }
    }

    fn goes_on(&self, pause: Duration) -> bool {
        matches!(self.stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }

    fn check_page(&self, after: Option<&Key>) -> Result<Page, String> {
        let check = || self.tables.check_page(after, AT_ONCE, &self.path);
        match catch_unwind(AssertUnwindSafe(check)) {
            Ok(page) => page.map_err(|error| error.to_string()),
            Err(panic) => Err(panic_text(&*panic).to_owned()),
        }
    }

    fn report(&self, objects: usize, damage: Vec<Damage>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for new in damage.iter().filter(|damage| !found.contains(damage)) {
            error!(
                "damage on disk, while everything is still in memory: {new}; save it now with \
                 roadstead snapshot save FILE, replace the disk, and restore it"
            );
        }
        if damage.is_empty() {
            let path = self.path.display();
            info!(%path, objects, "the tables on disk have been read, and are well");
        }
        *found = damage;
    }
}

/// Some rows that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) rows: usize,
    pub(crate) damage: Vec<Damage>,
    /// Where to go on; `None` at the end.
    pub(crate) last: Option<Key>,
}
