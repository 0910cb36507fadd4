//! A reader of the documents, with a terminal beside them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::run;
use roadstead_testkit::terminal::Typist;

use super::documents::manifests;
use crate::process::Roadstead;

const HOME: &str = "/run/reader";
/// Files of resolvers: the cluster's DNS, and one that knows nothing.
const CLUSTER: &str = "resolv.conf";
const NODE: &str = "node-resolv.conf";
pub(super) const PATIENCE: Duration = Duration::from_secs(40);
/// The cluster's DNS, where Services have addresses of 172.16.0.0/16, as in the documents.
pub(super) const DNS: &str = "172.16.0.10";
pub(super) const DEPRECATED: &str =
    "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";

/// Types into a shell of this machine, whose resolver is the cluster's DNS; only in a laboratory.
pub(super) struct Reader {
    manifests: Vec<String>,
    pub kubectl: Kubectl,
}

/// What came of a line.
#[derive(Debug)]
#[allow(dead_code, reason = "the line is there to be printed")]
pub(super) struct Typed {
    line: String,
    pub code: i32,
    pub said: String,
    pub complained: String,
}

impl Typed {
    /// What it said, because it went well.
    #[track_caller]
    pub(super) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.said
    }

    /// What it complained about, because it did not.
    #[track_caller]
    pub(super) fn fails(self) -> String {
        assert_ne!(self.code, 0, "{self:?}");
        self.complained
    }

    /// What it said, with the warning that Endpoints are of yesterday.
    #[track_caller]
    pub(super) fn warned(self) -> String {
        assert!(self.complained.contains(DEPRECATED), "{self:?}");
        self.ok()
    }
}

impl Reader {
    pub(super) fn new(roadstead: &Roadstead) -> Self {
        fs::create_dir_all(format!("{HOME}/bin")).unwrap();
        let own = roadstead.kubeconfig();
        // By its path, since ours has its name and is found first.
        let program_of_users = run(&format!("command -v {}", Kubectl::program()));
        let kubectl = format!(
            "export KUBECONFIG={} KUBE_EDITOR={HOME}/editor HOME={HOME}\nexec {} \"$@\"",
            own.display(),
            program_of_users.trim()
        );
        program("bin/kubectl", &kubectl);
        for (file, server) in [(CLUSTER, DNS), (NODE, "127.0.0.1")] {
            fs::write(format!("{HOME}/{file}"), format!("nameserver {server}\n")).unwrap();
        }
        Self { manifests: manifests(), kubectl: roadstead.kubectl() }
    }

    /// A line for bash, by whose resolver names are looked up.
    fn command(resolver: &str, line: &str) -> Command {
        let mut command = Command::new("unshare");
        let own = format!("mount --bind {HOME}/{resolver} /etc/resolv.conf && exec bash -c \"$0\"");
        command.args(["--mount", "bash", "-c", &own, line]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{HOME}/bin:{path}"));
        command
    }

    /// Types a line, and waits until it is done.
    pub(super) fn types(&self, line: &str) -> Typed {
        Self::done(line, Self::command(CLUSTER, line))
    }

    /// The same on a node that does not know the cluster's DNS.
    pub(super) fn types_on_the_node(&self, line: &str) -> Typed {
        Self::done(line, Self::command(NODE, line))
    }

    fn done(line: &str, mut command: Command) -> Typed {
        let output = command.output().expect("unshare has worked before");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        Typed {
            line: line.to_owned(),
            code: output.status.code().unwrap_or(-1),
            said: text(&output.stdout),
            complained: text(&output.stderr),
        }
    }

    /// Starts a line that needs a terminal.
    pub(super) fn in_terminal(&self, line: &str) -> Typist {
        Typist::start(&mut Self::command(CLUSTER, line))
    }

    /// Types a line again and again until it says the right thing.
    #[track_caller]
    pub(super) fn until(&self, line: &str, right: impl Fn(&str) -> bool) -> String {
        let typed = || self.types(line);
        eventually(line, PATIENCE, typed, |typed| typed.code == 0 && right(&typed.said)).said
    }

    /// What is to be done in an editor: an expression of sed.
    pub(super) fn will_edit(&self, expression: &str) {
        program("editor", &format!("sed -i -e '{expression}' \"$1\""));
    }

    /// A manifest of the documents, counted from 1.
    pub(super) fn manifest(&self, number: usize) -> &str {
        &self.manifests[number - 1]
    }

    /// Applies a manifest of the documents, as it is written there.
    pub(super) fn applies(&self, number: usize) -> Typed {
        self.applies_text(self.manifest(number))
    }

    /// Applies something else.
    pub(super) fn applies_text(&self, text: &str) -> Typed {
        let file = format!("{HOME}/manifest.yaml");
        // The marker keeps kubectl from taking `{a: b}` for JSON.
        fs::write(&file, format!("---\n{text}")).unwrap();
        self.types(&format!("kubectl apply -f {file}"))
    }

    /// A field of an object, or of several.
    pub(super) fn field(&self, of: &str, path: &str) -> String {
        self.types(&format!("kubectl get {of} -o jsonpath='{path}'")).ok()
    }

    /// Waits until a field is right.
    #[track_caller]
    pub(super) fn field_becomes(
        &self,
        of: &str,
        path: &str,
        right: impl Fn(&str) -> bool,
    ) -> String {
        self.until(&format!("kubectl get {of} -o jsonpath='{path}'"), right)
    }

    /// The addresses of the pods with a label, in order.
    pub(super) fn pods(&self, label: &str) -> Vec<String> {
        let all = self.field(
            &format!("pods -l {label}"),
            "{range .items[*]}{.status.podIP} {.metadata.deletionTimestamp}{\"\\n\"}{end}",
        );
        // One that is going has something behind its address.
        let alive = all.lines().map(str::trim_end).filter(|line| !line.contains(' '));
        sorted(alive)
    }

    /// The addresses of a Service's slices, in order.
    pub(super) fn sliced(&self, service: &str) -> Vec<String> {
        let slices = format!("endpointslices -l kubernetes.io/service-name={service}");
        sorted(self.field(&slices, "{.items[*].endpoints[*].addresses[0]}").split_whitespace())
    }

    /// The address of a Service.
    pub(super) fn cluster_ip(&self, service: &str) -> String {
        self.field(&format!("service {service}"), "{.spec.clusterIP}")
    }

    /// Waits until whoever calls a port of a Service from the node gets this answer.
    #[track_caller]
    pub(super) fn is_answered(&self, service: &str, port: u16, want: &str) {
        let line = format!("curl -s -m 2 http://{}:{port}/", self.cluster_ip(service));
        self.until(&line, |said| said.contains(want));
    }

    /// Whether nobody answers there.
    pub(super) fn is_refused(&self, service: &str, port: u16) -> bool {
        let line = format!("curl -s -m 2 http://{}:{port}/", self.cluster_ip(service));
        self.types(&line).code != 0
    }

    /// What the cluster's DNS says.
    pub(super) fn dig(&self, question: &str) -> Vec<String> {
        sorted(self.types(&format!("dig +short {question}")).ok().lines())
    }

    /// Makes the controllers look at a Service again.
    pub(super) fn touch(&self, service: &str) {
        let now = run("date +%s%N");
        self.types(&format!("kubectl label service {service} touched=t{now} --overwrite")).ok();
    }
}

fn program(name: &str, text: &str) {
    let path = format!("{HOME}/{name}");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(super) fn sorted<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut words: Vec<_> =
        words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    words.sort();
    words
}

/// The cells of what kubectl printed.
pub(super) fn cells(text: &str) -> Vec<Vec<&str>> {
    let line = |line| str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty());
    text.lines().map(|text| line(text).collect()).collect()
}

/// The cells of the row that begins with this name.
#[track_caller]
pub(super) fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let mut rows = cells(text).into_iter();
    let row = rows.find(|row| row.first() == Some(&name));
    row.unwrap_or_else(|| panic!("no row {name} in {text}"))
}
