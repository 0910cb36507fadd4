//! What systemd is told of a service of type `notify`: that it is ready, that it ends, that it lives.
//!
//! A datagram to the socket that `NOTIFY_SOCKET` names, as sd_notify(3) says. Without that variable, which
//! means without systemd, nothing happens.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time;
use tracing::warn;

/// A service that has to wait for others is up after this time, too, or else whoever started it waits as well:
/// a machine that boots, or its package manager.
const PATIENCE: Duration = Duration::from_secs(20);

/// Says that everything that was asked for runs.
pub(crate) fn ready() {
    tell("READY=1\nSTATUS=ready");
}

/// Says that it runs once a part has come that far, or when that takes long.
pub(crate) fn ready_after<T: Send + Sync + 'static>(
    mut part: watch::Receiver<T>,
    is_ready: impl FnMut(&T) -> bool + Send + 'static,
) {
    tokio::spawn(async move {
        tell("STATUS=waiting for what the cluster has");
        match time::timeout(PATIENCE, part.wait_for(is_ready)).await {
            Ok(Ok(_)) => ready(),
            // The part has ended, and the process ends with it.
            Ok(Err(_)) => {}
            Err(_) => tell("READY=1\nSTATUS=runs, but knows nothing of the cluster yet"),
        }
    });
}

/// Says that it ends because it was asked to.
pub(crate) fn stopping() {
    tell("STOPPING=1\nSTATUS=stopping");
}

/// Shows signs of life as often as is asked for, as long as the process does other work, too.
pub(crate) fn keep_alive() {
    let variable = |name: &str| std::env::var(name).ok();
    let asked = interval(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id());
    if let Some(interval) = asked {
        tokio::spawn(async move {
            let mut ticks = time::interval(interval);
            loop {
                ticks.tick().await;
                tell("WATCHDOG=1");
            }
        });
    }
}

/// Half of what systemd waits for, if it asks us and not the process that started us.
fn interval(microseconds: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let limit: u64 = microseconds?.parse().ok()?;
    Some(Duration::from_micros(limit / 2)).filter(|interval| !interval.is_zero())
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        warn!(%error, "cannot tell the service manager: {}", state.lines().next().unwrap_or(state));
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let sender = UnixDatagram::unbound()?;
    // A service manager that does not read is not to stop us.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_by_path_and_by_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let name = format!("roadstead-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let abstract_name = format!("@{name}");
        for (socket, listener) in
            [(path.as_os_str(), by_path), (OsStr::new(&abstract_name), by_name)]
        {
            send(socket, "READY=1").unwrap();
            let mut heard = [0; 64];
            let length = listener.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }

    #[test]
    fn only_who_is_asked_shows_signs_of_life() {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let cases = [
            ("nobody asks", "", "", None),
            ("every ten seconds", "20000000", "", Some(10)),
            ("of us", "20000000", "7", Some(10)),
            ("of our parent", "20000000", "1", None),
            ("never", "0", "7", None),
            ("not a number", "soon", "7", None),
        ];
        for (name, limit, pid, want) in cases {
            assert_eq!(
                interval(text(limit), text(pid), 7),
                want.map(Duration::from_secs),
                "{name}"
            );
        }
    }
}
