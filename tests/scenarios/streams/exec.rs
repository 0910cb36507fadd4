//! Commands in containers, by the real kubectl: what they print, how they end, and on a terminal.

use roadstead_testkit::kubectl::Kubectl;
use roadstead_testkit::netns::{laboratory_of, run};

use crate::images::{LAYER, up_with_images};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: busybox, imagePullPolicy: IfNotPresent, command: [sleep, '1000']}
";

#[test]
fn commands_in_containers() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let sockets = roadstead.kubectl();
        let spdy = roadstead.kubectl().with("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
        sockets.apply(POD);
        sockets.run("wait --for=condition=Ready pod/box --timeout=60s");
        run("head -c 5000000 /dev/urandom > /run/many-bytes");
        for (kubectl, name) in [(&sockets, "websocket"), (&spdy, "spdy")] {
            eprintln!("over {name}");
            ends_as_its_command(kubectl);
            input(kubectl);
            copies(kubectl, name);
            a_terminal(kubectl);
        }
        // Nothing that ran keeps the pod from going.
        sockets.run("delete pod box --timeout=20s");
    });
}

fn ends_as_its_command(kubectl: &Kubectl) {
    let output = kubectl.try_run("exec box -- sh -c 'echo out; echo err >&2; exit 7'");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "err\ncommand terminated with exit code 7\n");
    assert_eq!(kubectl.run("exec box -c main -- hostname"), "box\n");
    assert_eq!(kubectl.run("exec box -- sh -c 'exit 0'"), "");
    let missing = kubectl.fails("exec box -- nonesuch");
    assert!(
        missing.contains("error executing command in container: ")
            && missing.contains("exec: \"nonesuch\": executable file not found in $PATH"),
        "{missing}"
    );
    let wrong = kubectl.fails("exec box -c other -- true");
    assert!(wrong.contains("container other is not valid for pod box"), "{wrong}");
    let nobody = kubectl.fails("exec nobody -- true");
    assert!(nobody.contains("pods \"nobody\" not found"), "{nobody}");
}

fn input(kubectl: &Kubectl) {
    let sum = run("md5sum < /run/many-bytes");
    assert_eq!(kubectl.run("exec -i box -- md5sum < /run/many-bytes").trim(), sum);
    let back = kubectl.run("exec -i box -- cat < /run/many-bytes | md5sum");
    assert_eq!(back.trim(), sum);
    // What nobody asked to send is not waited for.
    assert_eq!(kubectl.run("exec box -- cat < /run/many-bytes"), "");
}

fn copies(kubectl: &Kubectl, name: &str) {
    kubectl.run(&format!("cp /run/many-bytes box:/tmp/{name}"));
    kubectl.run(&format!("cp box:/tmp/{name} /run/back-{name}"));
    run(&format!("cmp /run/many-bytes /run/back-{name}"));
}

fn a_terminal(kubectl: &Kubectl) {
    let mut terminal = kubectl.in_terminal("exec -it box -- sh");
    terminal.shows("# ");
    terminal.types("tty; stty size; echo term=$TERM\n");
    terminal.shows("/dev/pts/");
    terminal.shows("24 80\r\n");
    terminal.shows("term=xterm\r\n");
    terminal.resize(132, 50);
    // The size travels while we type.
    terminal.types("until stty size | grep '50 132'; do sleep 0.1; done\n");
    terminal.shows("50 132\r\n");
    // Ctrl-C ends what runs, not the shell.
    terminal.types("echo before; sleep 500\n");
    terminal.shows("\nbefore\r\n");
    terminal.types("\x03");
    terminal.shows("^C");
    terminal.types("echo after; exit 3\n");
    terminal.shows("\nafter\r\n");
    assert_eq!(terminal.ends(), 3, "{}", terminal.shown());
    terminal.shows("command terminated with exit code 3");
}
