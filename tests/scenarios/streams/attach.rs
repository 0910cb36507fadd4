//! Containers with an input and a terminal, by the real kubectl: attach, and run with a person in front.

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};

use super::SECOND;
use crate::images::{LAYER, up_with_images};

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: ticker}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'n=0; while sleep 0.1; do n=$((n+1)); echo tick $n; done']
---
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    stdin: true
    tty: true
    command: [sh]
";

const RUN: &str = "run --rm --restart=Never --image=busybox --image-pull-policy=IfNotPresent";

#[test]
fn a_person_in_front_of_a_container() {
    laboratory_of(LAYER, || {
        let mut roadstead = up_with_images(&["busybox"]);
        run("head -c 3000000 /dev/urandom > /run/many-bytes");
        for variable in ["true", "false"] {
            eprintln!("over websockets: {variable}");
            let kubectl = roadstead.kubectl().with("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", variable);
            kubectl.apply(PODS);
            kubectl.run("wait --for=condition=Ready pod/ticker pod/talker --timeout=60s");
            looking_on(&kubectl);
            talking(&kubectl);
            piped(&kubectl);
            a_shell(&kubectl);
            beside_others(&kubectl);
            kubectl.run("delete pod ticker --timeout=20s");
            // A terminal outlives whoever showed it.
            roadstead.kill();
            roadstead.start_again();
            let mut terminal = kubectl.in_terminal("attach -it talker");
            terminal.types("echo still-$((40 + 2))\n");
            terminal.shows("still-42\r\n");
            drop(terminal);
            kubectl.run("delete pod talker --timeout=20s");
        }
    });
}

/// What is printed from now on, to any number of people.
fn looking_on(kubectl: &Kubectl) {
    let mut all: Vec<_> = (0..3).map(|_| kubectl.in_terminal("attach ticker")).collect();
    for terminal in &mut all {
        terminal.shows("tick ");
        assert!(!terminal.shown().contains("tick 1\r\n"), "{}", terminal.shown());
    }
    for terminal in &mut all {
        terminal.types("\x03");
    }
    for terminal in &mut all {
        terminal.ends();
    }
    let log = || kubectl.run("logs ticker --tail=1");
    let before = log();
    eventually("it goes on", 10 * SECOND, log, |now| *now != before);
}

/// A shell that was there before we came, and stays.
fn talking(kubectl: &Kubectl) {
    for number in 1..3 {
        let mut terminal = kubectl.in_terminal("attach -it talker");
        terminal.resize(100, 30 + number);
        let size = format!("{} 100", 30 + number);
        terminal.types(&format!("until stty size | grep '{size}'; do sleep 0.1; done\n"));
        terminal.shows(&format!("\n{size}\r\n"));
        terminal.types(&format!("echo said-$((number{number} + {number}))\n"));
        terminal.shows(&format!("said-{number}\r\n"));
    }
    let log = kubectl.run("logs talker");
    assert!(log.contains("said-1") && log.contains("said-2"), "{log}");
}

fn piped(kubectl: &Kubectl) {
    let sum = run("md5sum < /run/many-bytes");
    let said = kubectl.run(&format!("{RUN} pipe -i -- md5sum < /run/many-bytes"));
    assert!(said.contains(&sum), "{said}");
    run("echo 7 > /run/seven");
    let failed =
        kubectl.try_run(&format!("{RUN} fails -i -- sh -c 'read x; exit $x' < /run/seven"));
    assert_eq!(failed.status.code(), Some(7), "{failed:?}");
}

fn a_shell(kubectl: &Kubectl) {
    let mut terminal = kubectl.in_terminal(&format!("{RUN} shell -it"));
    // The prompt may have come before us.
    terminal.shows("If you don't see a command prompt, try pressing enter.");
    terminal.types("\ntty; echo term=$TERM; cat /proc/1/comm\n");
    terminal.shows("/dev/pts/0\r\n");
    terminal.shows("term=xterm\r\n");
    terminal.shows("\nsh\r\n");
    terminal.types("echo before; sleep 500\n");
    terminal.shows("\nbefore\r\n");
    terminal.types("\x03");
    // What is typed before the shell asks again may be thrown away.
    let since = || terminal.shown().rsplit_once("^C").map(|(_, text)| text.to_owned());
    let asks = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("# "));
    eventually("the shell asks again", 20 * SECOND, since, asks);
    terminal.types("exit 5\n");
    assert_eq!(terminal.ends(), 5, "{}", terminal.shown());
    terminal.shows("pod \"shell\" deleted");
    let gone = || kubectl.run("get pods -o name");
    eventually("they are gone", 20 * SECOND, gone, |pods| {
        pods.trim() == "pod/talker\npod/ticker" || pods.trim() == "pod/ticker\npod/talker"
    });
}

/// A shell in a container that was added to a pod that runs.
fn beside_others(kubectl: &Kubectl) {
    if !kubectl.is_at_least(27, "kubectl debug") {
        return;
    }
    let image = "--image=busybox --image-pull-policy=IfNotPresent";
    let mut terminal = kubectl.in_terminal(&format!("debug -it ticker {image} -c helper -- sh"));
    terminal.shows("If you don't see a command prompt, try pressing enter.");
    terminal.types("\necho here-$((40 + 2)); exit 0\n");
    terminal.shows("here-42\r\n");
    terminal.ends();
}
