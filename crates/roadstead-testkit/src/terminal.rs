//! A terminal with a program in it, and somebody who types and looks at it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::kubectl::eventually;
use crate::netns::run;

const PATIENCE: Duration = Duration::from_secs(30);
/// Terminals of our own: those of the machine may not be for us.
const TERMINALS: &str = "/run/terminals";

/// Whoever sits in front of a program on a terminal.
pub struct Typist {
    outer: File,
    program: Child,
    shown: Arc<Mutex<String>>,
}

impl Typist {
    /// Starts the command in a terminal of 80 by 24; only in a laboratory.
    pub fn start(command: &mut Command) -> Self {
        if !Path::new(TERMINALS).exists() {
            run(&format!(
                "mkdir {TERMINALS} && mount -t devpts -o newinstance,ptmxmode=0666 devpts {TERMINALS}"
            ));
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let outer = open(format!("{TERMINALS}/ptmx"), flags, Mode::empty()).expect("it is ours");
        unlockpt(&outer).expect("it is ours");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let inner = ioctl_tiocgptpeer(&outer, flags).expect("it is unlocked");
        resize(&outer, 80, 24);
        let copy = || Stdio::from(inner.try_clone().expect("there are descriptors"));
        // It makes this the terminal of a session of its own, so that its signals arrive.
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--wait"]);
        // Whoever started us in the background ignores what is typed to end a program, and that is inherited.
        session.args(["env", "--default-signal"]);
        session.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            session.env(name, value.expect("nothing is taken away"));
        }
        session.env("TERM", "xterm").stdin(copy()).stdout(copy()).stderr(copy());
        let program = session.spawn().expect("setsid is on every machine");
        let shown = Arc::new(Mutex::new(String::new()));
        let (outer, screen) = (File::from(outer), shown.clone());
        let mut looked_at = outer.try_clone().expect("there are descriptors");
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It is an error when nobody has the other end any more.
            while let Ok(count @ 1..) = looked_at.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]);
                screen.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Self { outer, program, shown }
    }

    /// Types something.
    pub fn types(&mut self, text: &str) {
        self.outer.write_all(text.as_bytes()).expect("it can always be typed");
    }

    /// Makes it another size.
    pub fn resize(&self, columns: u16, rows: u16) {
        resize(&self.outer, columns, rows);
    }

    /// All that it has shown.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has shown this.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        eventually(text, PATIENCE, || self.shown(), |shown| shown.contains(text));
    }

    /// Waits until the program has ended; returns its exit code, 128 plus the signal if one ended it.
    #[track_caller]
    pub fn ends(&mut self) -> i32 {
        let mut ended = || self.program.try_wait().expect("it is our child");
        let status = eventually("the end", PATIENCE, &mut ended, Option::is_some);
        let status = status.expect("it has ended");
        let killed = || status.signal().map(|signal| 128 + signal);
        status.code().or_else(killed).expect("one of both")
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn resize(terminal: impl std::os::fd::AsFd, columns: u16, rows: u16) {
    let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal has a size");
}
