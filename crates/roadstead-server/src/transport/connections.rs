//! Who is connected. Strangers, of whom nobody knows yet who they are, must not keep out those whom
//! we know: there is room for a bounded number of them, for fewer from one address, and when it is
//! short the one that has been silent for longest goes.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tokio_util::sync::CancellationToken;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// In all.
    most: usize,
    /// Of strangers who are silent; those who are being greeted do not count.
    strangers: usize,
    /// Of those, from one address.
    each: usize,
    /// Of one user whom we know; those beyond stay among the strangers.
    user: usize,
}

impl Bounds {
    /// As many as there may be open files, less some for the store and for everything else.
    fn of_files(files: usize) -> Self {
        let most = files.saturating_sub((files / 4).clamp(64, 1024)).max(16);
        // Each of them takes some room in memory, too.
        let strangers = (most / 2).min(1024);
        Self { most, strangers, each: strangers / 2, user: most / 4 }
    }
}

/// All who are connected.
pub(crate) struct Connections {
    bounds: Bounds,
    begin: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connected: usize,
    /// By address, the one that has been silent for longest first (see [`State::silent`]).
    strangers: HashMap<IpAddr, VecDeque<Arc<Person>>>,
    /// How many strangers there are.
    count: usize,
    /// How many connections each user has that are not among the strangers.
    users: HashMap<String, usize>,
}

/// Somebody who is connected, until dropped.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    person: Arc<Person>,
}

/// What is known about a connection.
struct Person {
    address: IpAddr,
    known: AtomicBool,
    /// Whose it is, if it is not among the strangers any more.
    user: OnceLock<String>,
    /// How much is being done for it.
    busy: AtomicUsize,
    /// When it was last busy, in milliseconds since the connections began.
    last: AtomicU64,
    /// When it was last put into its place among the strangers.
    placed: AtomicU64,
    /// Set when it has to leave.
    leave: CancellationToken,
}

impl Connections {
    /// As large as the open files of the process allow.
    pub(crate) fn new() -> Arc<Self> {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        Self::bounded(Bounds::of_files(usize::try_from(files).unwrap_or(1 << 20).min(1 << 20)))
    }

    fn bounded(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, begin: Instant::now(), state: Mutex::default() })
    }

    /// Lets somebody in, who is a stranger at first; `None` if there is no room.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Connection>> {
        let address = network(address);
        let mut state = self.lock();
        let own = state.strangers.get(&address).map_or(0, VecDeque::len);
        let leaves = if own >= self.bounds.each {
            state.silent(&address)
        } else if state.count >= self.bounds.strangers || state.connected >= self.bounds.most {
            state.largest().and_then(|address| state.silent(&address))
        } else {
            None
        };
        let leaves = leaves.or_else(|| {
            // Whoever is being greeted may stay as long as there is room for everybody.
            let full = state.connected >= self.bounds.most;
            let largest = if full { state.largest() } else { None };
            largest.and_then(|address| state.first(&address))
        });
        if let Some(leaves) = &leaves {
            state.dismiss(leaves);
        } else if state.connected >= self.bounds.most {
            return None;
        }
        let now = self.now();
        let person = Arc::new(Person {
            address,
            known: AtomicBool::new(false),
            user: OnceLock::new(),
            busy: AtomicUsize::new(0),
            last: AtomicU64::new(now),
            // Whoever has just come has not been silent.
            placed: AtomicU64::new(0),
            leave: CancellationToken::new(),
        });
        state.connected += 1;
        state.count += 1;
        state.strangers.entry(address).or_default().push_back(person.clone());
        drop(state);
        Some(Arc::new(Connection { connections: self.clone(), person }))
    }

    /// Sends away whoever has been silent for longest, because there are no files left.
    pub(crate) fn make_room(&self) {
        let mut state = self.lock();
        let leaves = state.largest().and_then(|address| state.silent(&address));
        if let Some(leaves) = leaves {
            state.dismiss(&leaves);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the beginning, which was at 1.
    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).map_or(u64::MAX, |now| now + 1)
    }
}

/// Whoever has one address of IPv6 has all of its network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl State {
    /// The address with most strangers.
    fn largest(&self) -> Option<IpAddr> {
        let largest = self.strangers.iter().max_by_key(|(_, strangers)| strangers.len());
        largest.map(|(address, _)| *address)
    }

    /// The stranger from there who has been silent for longest.
    fn silent(&mut self, address: &IpAddr) -> Option<Arc<Person>> {
        let queue = self.strangers.get_mut(address)?;
        let rests = |person: &Person| person.busy.load(Ordering::Relaxed) == 0;
        for _ in 0..queue.len() {
            let person = queue.pop_front()?;
            queue.push_back(person.clone());
            let last = person.last.load(Ordering::Relaxed);
            let spoke = person.placed.swap(last, Ordering::Relaxed) < last;
            if rests(&person) && !spoke {
                return Some(person);
            }
        }
        // All have spoken since they got their place: the first of those who rest now.
        queue.iter().find(|person| rests(person)).cloned()
    }

    /// The stranger from there who came first, whatever it does.
    fn first(&self, address: &IpAddr) -> Option<Arc<Person>> {
        self.strangers.get(address)?.front().cloned()
    }

    /// Sends a stranger away.
    fn dismiss(&mut self, person: &Person) {
        self.remove(person);
        person.leave.cancel();
    }

    /// Takes somebody from the strangers.
    fn remove(&mut self, person: &Person) {
        let Some(queue) = self.strangers.get_mut(&person.address) else { return };
        let before = queue.len();
        queue.retain(|other| !std::ptr::eq(Arc::as_ptr(other), person));
        self.count -= before - queue.len();
        if queue.is_empty() {
            self.strangers.remove(&person.address);
        }
    }
}

impl Connection {
    /// From now on it is known who it is. Nobody can make all connections their own: those of a
    /// user who has very many still make room.
    pub(crate) fn know(&self, user: &str) {
        if self.person.known.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.connections.lock();
        let own = state.users.get(user).copied().unwrap_or(0);
        if own < self.connections.bounds.user && self.person.user.set(user.to_owned()).is_ok() {
            state.users.insert(user.to_owned(), own + 1);
            state.remove(&self.person);
        }
    }

    /// Something is done for it until the result is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.person.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Waits until it has to leave.
    pub(crate) async fn dismissed(&self) {
        self.person.leave.cancelled().await;
    }

    /// For how long it has been silent, if it is a stranger.
    pub(crate) fn silence(&self) -> Option<Duration> {
        if self.person.known.load(Ordering::Relaxed) {
            return None;
        }
        let silent = match self.person.busy.load(Ordering::Relaxed) {
            0 => self.connections.now().saturating_sub(self.person.last.load(Ordering::Relaxed)),
            _ => 0,
        };
        Some(Duration::from_millis(silent))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.connections.lock();
        state.connected -= 1;
        state.remove(&self.person);
        if let Some(user) = self.person.user.get()
            && let Some(own) = state.users.get_mut(user)
        {
            *own -= 1;
            if *own == 0 {
                state.users.remove(user);
            }
        }
    }
}

/// Something is being done for a connection.
pub(crate) struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.person.last.store(self.0.connections.now(), Ordering::Relaxed);
        self.0.person.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Travels with each request, so that whoever finds out who sent it can say so.
#[derive(Clone)]
pub(crate) struct SenderConnection(pub Arc<Connection>);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u8) -> IpAddr {
        [127, 0, 0, number].into()
    }

    fn all() -> Arc<Connections> {
        Connections::bounded(Bounds { most: 10, strangers: 6, each: 3, user: 9 })
    }

    fn gone(open: &[Arc<Connection>]) -> Vec<usize> {
        let gone = open.iter().enumerate().filter(|(_, one)| one.person.leave.is_cancelled());
        gone.map(|(number, _)| number).collect()
    }

    #[test]
    fn the_longest_silent_stranger_leaves() {
        let all = all();
        let mut open: Vec<_> = (0..3).map(|_| all.enter(at(1)).unwrap()).collect();
        open[0].know("jane");
        open.push(all.enter(at(1)).unwrap());
        assert_eq!(gone(&open), [0; 0], "there was room for three strangers");
        let busy = open[1].busy();
        open.push(all.enter(at(1)).unwrap());
        assert_eq!(gone(&open), [2], "not whom we know, nor for whom we do something");
        open.extend((0..3).map(|_| all.enter(at(2)).unwrap()));
        assert_eq!(gone(&open), [2], "another address has its own share");
        open.push(all.enter(at(3)).unwrap());
        assert_eq!(gone(&open).len(), 2, "and now there are too many in all");
        drop(busy);
    }

    #[test]
    fn whoever_has_just_come_is_not_the_one_to_leave() {
        let all = all();
        let mut open: Vec<_> = (0..2).map(|_| all.enter(at(1)).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(2));
        open.iter().for_each(|one| drop(one.busy()));
        open.push(all.enter(at(1)).unwrap());
        open.push(all.enter(at(1)).unwrap());
        assert_eq!(gone(&open), [0], "although it has spoken, and the third has not yet");
    }

    #[test]
    fn whom_we_know_stays_and_the_rest_is_bounded() {
        let all = all();
        let known: Vec<_> = (0..9)
            .map(|_| {
                let one = all.enter(at(1)).unwrap();
                one.know("jane");
                one
            })
            .collect();
        let last = all.enter(at(1)).unwrap();
        let other = all.enter(at(2)).unwrap();
        assert!(last.person.leave.is_cancelled() && !other.person.leave.is_cancelled());
        drop(last);
        other.know("joe");
        assert!(all.enter(at(3)).is_none(), "full of people whom we know");
        assert_eq!(gone(&known), [0; 0]);
        drop(known);
        assert!(all.enter(at(3)).is_some());
        let state = all.lock();
        assert_eq!((state.connected, state.count, state.strangers.len()), (1, 0, 0));
        assert_eq!(state.users.keys().collect::<Vec<_>>(), ["joe"]);
    }

    #[test]
    fn one_user_does_not_take_all_places() {
        let all = Connections::bounded(Bounds { most: 10, strangers: 6, each: 6, user: 4 });
        let mut greedy = Vec::new();
        for _ in 0..10 {
            let one = all.enter(at(1)).unwrap();
            one.know("greedy");
            assert_eq!(one.silence(), None, "whoever is known need not speak");
            greedy.push(one);
        }
        let other = all.enter(at(2)).unwrap();
        other.know("other");
        assert_eq!(gone(&greedy).len(), 1, "the last six make room");
        assert!(!other.person.leave.is_cancelled());
    }

    #[test]
    fn those_who_are_being_greeted_stay_while_there_is_room() {
        let all = all();
        let open: Vec<_> = (0..10).map(|_| all.enter(at(1)).unwrap()).collect();
        assert_eq!(gone(&open).len(), 7, "they were silent");
        drop(open);
        let mut open = Vec::new();
        for _ in 0..10 {
            let one = all.enter(at(1)).unwrap();
            open.push((one.busy(), one));
        }
        assert!(open.iter().all(|(_, one)| !one.person.leave.is_cancelled()));
        let next = all.enter(at(2));
        assert!(next.is_some() && open[0].1.person.leave.is_cancelled(), "then the first one goes");
    }

    #[test]
    fn bounds_leave_room_for_files() {
        for (files, most, strangers) in [(1024, 768, 384), (256, 192, 96), (1 << 20, 1047552, 1024)]
        {
            let bounds = Bounds::of_files(files);
            assert_eq!((bounds.most, bounds.strangers), (most, strangers), "{files} files");
        }
        assert_eq!(
            network("2001:db8::1".parse().unwrap()),
            network("2001:db8::2".parse().unwrap())
        );
        assert_eq!(network("::ffff:127.0.0.1".parse().unwrap()), at(1));
    }
}
