//! Looking at containers that run, and typing.

use roadstead_node::runtime::attach::{AttachOrder, AttachSession};
use roadstead_node::runtime::exec::ProcessOutput;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::images::{shell, with_image};
use super::*;

const ALL: AttachOrder = AttachOrder { stdin: true, stdout: true, stderr: true };
const ONLY_LOOKING: AttachOrder = AttachOrder { stdin: false, ..ALL };

async fn attach(runtime: &BuiltinRuntime, order: AttachOrder) -> AttachSession {
    runtime.attach(&name("one"), "main", order).await.unwrap()
}

fn with_streams(config: ContainerConfig, words: &str) -> ContainerConfig {
    let has = |word| words.split(' ').any(|found| found == word);
    let streams =
        ContainerStreams { stdin: has("stdin"), stdin_once: has("once"), terminal: has("tty") };
    ContainerConfig { streams, ..config }
}

async fn until(output: &mut Option<ProcessOutput>, end: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 1024]);
    let read = async {
        while !text.ends_with(end) {
            let count = output.as_mut().unwrap().read(&mut buffer).await.unwrap();
            assert_ne!(count, 0, "{text:?}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    };
    let came = tokio::time::timeout(Duration::from_secs(20), read).await;
    assert!(came.is_ok(), "{text:?}");
    text
}

async fn rest(output: Option<ProcessOutput>) -> String {
    let mut text = String::new();
    let read = async { output.unwrap().read_to_string(&mut text).await.unwrap() };
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("it ends");
    text
}

async fn until_it_said(text: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while log("one", "main") != text {
        assert!(Instant::now() < deadline, "{}", log("one", "main"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn types(session: &mut AttachSession, text: &str) {
    session.stdin.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
}

const REPEAT: &str =
    "echo early; while read line; do echo got $line; echo err $line >&2; done; echo end";

#[test]
fn what_is_typed_and_what_is_shown() {
    with_image(async |config, runtime, image| {
        let repeat = with_streams(shell(&image, "main", REPEAT), "stdin once");
        runtime.start(repeat).await.unwrap();
        until_it_said("early\n").await;
        let mut one = attach(runtime, ALL).await;
        assert_eq!(until(&mut one.stdout, "\n").await, "early\n", "it waited for this one");
        let mut two = attach(runtime, ONLY_LOOKING).await;
        types(&mut one, "a\n").await;
        assert_eq!(until(&mut one.stdout, "\n").await, "got a\n");
        let what = until(&mut two.stdout, "\n").await;
        assert_eq!(what, "got a\n", "what was before is not repeated for others");
        assert_eq!(until(&mut one.stderr, "\n").await, "err a\n");
        assert!(one.window.is_none());
        // Who leaves is not waited for.
        drop(two);
        let mut three = attach(runtime, ALL).await;
        types(&mut three, "b\n").await;
        assert_eq!(until(&mut three.stdout, "\n").await, "got b\n");
        assert_eq!(until(&mut one.stdout, "\n").await, "got b\n");
        // The end of the first one's input is the end of all input.
        drop((one.stdin.take(), three.stdin.take()));
        assert_eq!(rest(one.stdout).await, "end\n");
        assert_eq!(rest(three.stdout).await, "end\n");
        assert_eq!(runtime.wait(&name("one"), "main").await.code, 0);
        // Two pipes: what went to one of them has no order with what went to the other.
        let log = log("one", "main");
        let (errors, lines): (Vec<_>, Vec<_>) =
            log.lines().partition(|line| line.starts_with("err"));
        assert_eq!(lines, ["early", "got a", "got b", "end"]);
        assert_eq!(errors, ["err a", "err b"]);
        let error = runtime.attach(&name("one"), "main", ALL).await.err().unwrap();
        assert_eq!(error.to_string(), "container not found (\"main\")");
        let mode =
            run(&format!("stat -c %a {}/pods/*/main/attach.sock", config.state_dir.display()));
        assert_eq!(mode, "600");
    });
}

#[test]
fn input_that_is_not_for_one_stays_open() {
    with_image(async |_, runtime, image| {
        runtime.start(with_streams(shell(&image, "main", REPEAT), "stdin")).await.unwrap();
        for line in ["a", "b"] {
            let mut session = attach(runtime, ALL).await;
            types(&mut session, &format!("{line}\n")).await;
            let got = until(&mut session.stdout, &format!("got {line}\n")).await;
            assert!(got.len() < 20, "{got}");
        }
        // Who has no input reads nothing, and nobody can type.
        runtime.stop(&name("one"), "main", Stop::Now);
        runtime.wait(&name("one"), "main").await;
        runtime.start(shell(&image, "main", "cat; sleep 1; echo done")).await.unwrap();
        let mut session = attach(runtime, ALL).await;
        let _ = session.stdin.as_mut().unwrap().write_all(b"x\n").await;
        assert_eq!(rest(session.stdout).await, "done\n");
    });
}

#[test]
fn a_container_has_a_terminal() {
    with_image(async |_, runtime, image| {
        let line = "tty; echo term=$TERM; while read line; do stty size; echo got $line; done";
        let mut config_of = with_streams(shell(&image, "main", line), "stdin tty");
        config_of.environment.push(("TERM".into(), "xterm".into()));
        runtime.start(config_of).await.unwrap();
        until_it_said("/dev/pts/0\nterm=xterm\n").await;
        let mut session = attach(runtime, ALL).await;
        session.window.as_ref().unwrap().resize(132, 50);
        types(&mut session, "a\n").await;
        let text = until(&mut session.stdout, "got a\r\n").await;
        assert_eq!(text, "a\r\n50 132\r\ngot a\r\n");
        assert_eq!(rest(session.stderr.take()).await, "", "a terminal has one output");
        drop(session);
        let mut session = attach(runtime, ALL).await;
        // Ctrl-D is the end of what is typed.
        types(&mut session, "b\n\x04").await;
        let text = rest(session.stdout).await;
        assert!(text.ends_with("got b\r\n"), "{text:?}");
        assert_eq!(runtime.wait(&name("one"), "main").await.code, 0);
        let log = log("one", "main");
        assert!(log.starts_with("/dev/pts/0\nterm=xterm\n"), "{log:?}");
        assert!(log.ends_with("got b\n"), "{log:?}");
    });
}

#[test]
fn the_next_agent_shows_what_this_one_started() {
    in_laboratory(async |config| {
        let first = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let echo = with_streams(container_config("one", "main", &[]), "stdin tty");
        first.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
        first.start(echo).await.unwrap();
        let before = attach(&first, ALL).await;
        drop(first);
        let second = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let mut session = attach(&second, ALL).await;
        assert!(session.window.is_some());
        // A terminal repeats what is typed, whoever reads it; Ctrl-C ends what has it.
        types(&mut session, "x\n").await;
        until(&mut session.stdout, "x\r\n").await;
        types(&mut session, "\x03").await;
        rest(session.stdout.take()).await;
        assert_eq!(second.wait(&name("one"), "main").await.code, 130);
        let shown = rest(before.stdout).await;
        assert!(shown.contains("x\r\n"), "nobody was cut off: {shown:?}");
        drop((second, session));
        cleanup(&config).await.unwrap();
    });
}
