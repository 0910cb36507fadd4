//! Termination messages: written to a file, or taken from the log.

use roadstead_pod::termination_message::{Otherwise, TerminationMessage};

use super::images::{shell, with_image_of_users};
use super::*;

fn from(path: &str, otherwise: Otherwise) -> Option<TerminationMessage> {
    Some(TerminationMessage { path: path.into(), otherwise })
}

#[test]
fn the_built_in_image_writes_its_last_words() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        fetch(start(&runtime, "one", &[]).await, "/");
        for path in ["/dev/termination-log", "/somewhere/else", "/etc/resolv.conf"] {
            let mut writer =
                container_config("one", "writer", &["curl", "-s", "-o", path, "127.0.0.1:8080"]);
            writer.termination_message = from(path, Otherwise::Nothing);
            writer.confinement.read_only_root = true;
            runtime.start(writer).await.unwrap();
            let exit = runtime.wait(&name("one"), "writer").await;
            assert_eq!((exit.code, exit.message.as_deref()), (0, Some("one\n")), "{path}");
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn an_image_writes_its_last_words_or_its_log_is_taken() {
    with_image_of_users(async |_, runtime, image| {
        let (nothing, log) = (Otherwise::Nothing, Otherwise::LogOnError);
        let long =
            "i=0; while [ $i -lt 600 ]; do echo 123456789; i=$((i+1)); done > /dev/termination-log";
        let cases = [
            ("echo bye > /dev/termination-log; exit 3", nothing, 0, Some("bye\n")),
            ("echo bye > /dev/termination-log", log, 1000, Some("bye\n")),
            ("echo oops; exit 1", nothing, 0, None),
            ("echo oops; exit 1", log, 0, Some("oops\n")),
            ("echo fine", log, 0, None),
            (long, nothing, 0, Some(&"123456789\n".repeat(410)[4..])),
        ];
        for (run, (line, otherwise, user, want)) in (0..).zip(cases) {
            let mut writer = shell(&image, "writer", line);
            writer.restarts = run;
            writer.termination_message = from("/dev/termination-log", otherwise);
            writer.confinement.user = user;
            runtime.start(writer).await.unwrap();
            let exit = runtime.wait(&name("one"), "writer").await;
            assert_eq!(exit.message.as_deref(), want, "{line}");
        }
    });
}
