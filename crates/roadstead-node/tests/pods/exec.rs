//! Commands that join a container: as good as its own, and no better.

use std::process::{Command, Stdio};

use roadstead_node::runtime::exec::{ExecError, ExecOrder, ExecSession};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::images::{shell, with_image, with_image_of_users};
use super::*;

pub(super) fn order(words: &[&str]) -> ExecOrder {
    ExecOrder {
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        ..ExecOrder::default()
    }
}

async fn begin(runtime: &BuiltinRuntime, order: ExecOrder) -> Result<ExecSession, ExecError> {
    runtime.exec(&name("one"), "main", order).await
}

/// Runs it to its end; returns its exit code and what it printed.
pub(super) async fn join(runtime: &BuiltinRuntime, words: &[&str]) -> (i32, String) {
    let session = begin(runtime, order(words)).await.unwrap();
    let (code, text) = session.output(1 << 20).await;
    (code, String::from_utf8(text).unwrap())
}

#[test]
fn commands_end_as_programs_do() {
    with_image(async |_, runtime, image| {
        runtime.start(shell(&image, "main", "sleep 60")).await.unwrap();
        assert_eq!(join(runtime, &["sh", "-c", "echo out; echo err >&2; exit 7"]).await.0, 7);
        assert_eq!(join(runtime, &["sh", "-c", "kill -9 $$"]).await.0, 137);
        assert_eq!(join(runtime, &["sh", "-c", "pwd; cat"]).await, (0, "/srv\n".into()));
        let (_, all) = join(runtime, &["sh", "-c", "sleep 50 & echo done"]).await;
        assert_eq!(all, "done\n", "who stays behind is not waited for");
        for (words, code, message) in [
            (&["nonesuch"][..], 127, "exec: \"nonesuch\": executable file not found in $PATH"),
            (
                &["/none/such"],
                127,
                "exec: \"/none/such\": stat /none/such: no such file or directory",
            ),
            (&["/etc/passwd"], 126, "exec: \"/etc/passwd\": permission denied"),
            (&["/etc"], 126, "exec: \"/etc\": permission denied"),
        ] {
            let error = begin(runtime, order(words)).await.err().unwrap();
            assert_eq!(error, ExecError { code, message: message.into() });
        }
        // What it reads is what we write, until we stop.
        let mut session =
            begin(runtime, ExecOrder { stdin: true, ..order(&["cat"]) }).await.unwrap();
        let mut stdin = session.stdin.take().unwrap();
        let mut text = [0; 5];
        stdin.write_all(b"hello").await.unwrap();
        session.stdout.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"hello");
        drop(stdin);
        assert_eq!(session.process.wait().await, 0);
        // Whoever is tired of it can end it, with all that it has started.
        let long = begin(runtime, order(&["sh", "-c", "sleep 61 | sleep 62"])).await.unwrap();
        long.process.kill();
        assert_eq!(long.process.wait().await, 137);
        until(|| !try_run("ps ax | grep -v grep | grep -q 'sleep 6[12]'").status.success());
        // Who goes while it is being started leaves nobody unreaped, which would hold the container up.
        for _ in 0..5 {
            let mut begun = Box::pin(begin(runtime, order(&["true"])));
            assert!(futures::poll!(&mut begun).is_pending());
        }
        // It ends with its container, and cannot be in one that has ended.
        let last = begin(runtime, order(&["sleep", "63"])).await.unwrap();
        runtime.stop(&name("one"), "main", Stop::Now);
        assert_eq!(last.process.wait().await, 137);
        let ended = runtime.wait(&name("one"), "main");
        tokio::time::timeout(Duration::from_secs(30), ended).await.expect("it ends");
        assert!(begin(runtime, order(&["true"])).await.is_err());
        assert_eq!(run("ps -o stat= --ppid $$ | grep -c Z || true"), "0");
    });
}

fn until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_terminal_is_one() {
    with_image(async |_, runtime, image| {
        runtime.start(shell(&image, "main", "sleep 60")).await.unwrap();
        let line = "tty; echo $TERM; read line; echo got $line; stty size; exec sleep 64";
        let order = ExecOrder { stdin: true, tty: true, ..order(&["sh", "-c", line]) };
        let mut session = begin(runtime, order).await.unwrap();
        let terminal = session.window.take().unwrap();
        let mut text = String::new();
        read_until(&mut session, &mut text, "xterm\r\n").await;
        assert_eq!(text, "/dev/pts/0\r\nxterm\r\n");
        terminal.resize(132, 50);
        session.stdin.as_mut().unwrap().write_all(b"it\n").await.unwrap();
        read_until(&mut session, &mut text, "50 132\r\n").await;
        assert!(text.ends_with("it\r\ngot it\r\n50 132\r\n"), "{text}");
        // Ctrl-C is for the program; a shell that waits for another would swallow it.
        until(|| try_run("ps ax | grep -v grep | grep -q ' sleep 64'").status.success());
        session.stdin.as_mut().unwrap().write_all(b"\x03").await.unwrap();
        assert_eq!(session.process.wait().await, 130);
    });
}

/// Also if whoever started us ignores that, as nohup makes it: what is ignored is inherited.
#[test]
fn a_command_is_told_when_its_terminal_hangs_up() {
    #[allow(unsafe_code)]
    // SAFETY: no handler is installed, so none can run.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN)
    };
    with_image(async |_, runtime, image| {
        runtime.start(shell(&image, "main", "sleep 60")).await.unwrap();
        let long = ExecOrder { tty: true, ..super::exec::order(&["sleep", "65"]) };
        let session = begin(runtime, long).await.unwrap();
        let process = session.process.clone();
        until(|| try_run("ps ax | grep -v grep | grep -q ' sleep 65'").status.success());
        drop(session);
        assert_eq!(process.wait().await, 129);
    });
}

async fn read_until(session: &mut ExecSession, text: &mut String, end: &str) {
    let mut buffer = [0; 1024];
    let read = async {
        while !text.ends_with(end) {
            let count = session.stdout.read(&mut buffer).await.unwrap();
            assert_ne!(count, 0, "{text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    };
    let came = tokio::time::timeout(Duration::from_secs(20), read).await;
    assert!(came.is_ok(), "{text:?}");
}

#[test]
fn built_in_containers_are_joined_as_well() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        runtime.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
        let mut main = container_config("one", "main", &[]);
        main.environment.push(("PATH".into(), "/bin".into()));
        runtime.start(main).await.unwrap();
        fetch([10, 244, 0, 2].into(), "/");
        assert_eq!(join(&runtime, &["curl", "-s", "127.0.0.1:8080"]).await, (0, "one\n".into()));
        assert_eq!(
            join(&runtime, &["curl", "-s", "-o", "/proc/1/exe", "127.0.0.1:8080"]).await.0,
            23
        );
        let error = begin(&runtime, order(&["bash"])).await.err().unwrap();
        assert_eq!(error.code, 127, "{error}");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

/// `cargo test --release --workspace --test pods -- --ignored --nocapture cost`.
#[test]
#[ignore = "it measures"]
fn what_a_command_costs_beside_runc() {
    with_image_of_users(async |config, runtime, image| {
        let started = runtime.start(shell(&image, "main", "sleep 600")).await.unwrap();
        let state = config.state_dir.join("oci");
        join(runtime, &["true"]).await;
        for _ in 0..2 {
            let ours = measured(async || assert_eq!(join(runtime, &["true"]).await.0, 0)).await;
            let theirs = measured(async || {
                let done = Command::new("runc")
                    .args(["--root".as_ref(), state.as_os_str()])
                    .args(["exec", &started.id, "true"])
                    .stdin(Stdio::null())
                    .output();
                assert!(done.unwrap().status.success());
            })
            .await;
            eprintln!("a command: {ours}; by runc: {theirs}");
        }
    });
}

async fn measured(mut once: impl AsyncFnMut()) -> String {
    let before = processor_time();
    let mut took = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        once().await;
        took.push(began.elapsed());
    }
    took.sort();
    let processor = (processor_time() - before) / 100;
    format!("p50 {:?}, p99 {:?}, processor {processor:?}", took[50], took[99])
}

/// Of this process and of those that it has waited for.
fn processor_time() -> Duration {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..15].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}
