//! A link between two processes that a test can cut: connections stay, and nothing arrives, as when a
//! cable is pulled. What was on its way arrives when the link is whole again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often somebody who waits for the link looks again.
const LOOK: Duration = Duration::from_millis(5);

/// A link, until this is dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// To the other end, and back.
    cut: [AtomicBool; 2],
    is_over: AtomicBool,
}

impl Link {
    /// A link to an address on this machine.
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(far) = TcpStream::connect(target) {
                    join(near, far, &shared);
                }
            }
        });
        Self { address, state }
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it in one direction or both, or mends it.
    pub fn cut(&self, there: bool, back: bool) {
        self.state.cut[0].store(there, Ordering::Release);
        self.state.cut[1].store(back, Ordering::Release);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        // The listener is waiting for somebody.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(near: TcpStream, far: TcpStream, state: &Arc<State>) {
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    for (from, to, direction) in [(near, far, 0), (far_again, near_again, 1)] {
        let state = state.clone();
        thread::spawn(move || copy(from, to, &state, direction));
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, state: &State, direction: usize) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        while state.cut[direction].load(Ordering::Acquire) {
            if state.is_over.load(Ordering::Acquire) {
                break;
            }
            thread::sleep(LOOK);
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_a_link_that_is_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::to(listener.local_addr().unwrap());
        let mut near = TcpStream::connect(link.address()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut byte = [0];
        near.write_all(b"a").unwrap();
        far.read_exact(&mut byte).unwrap();
        link.cut(true, false);
        near.write_all(b"b").unwrap();
        far.write_all(b"c").unwrap();
        near.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"c", "only one direction is cut");
        far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(far.read_exact(&mut byte).is_err(), "nothing arrives");
        link.cut(false, false);
        far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        far.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"b", "what was on its way arrives");
    }
}
