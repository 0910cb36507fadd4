//! Pods come and go while roadstead is killed again and again: it converges, and nothing is left behind.
//!
//! `ROADSTEAD_CHURN_PODS` pods in all (24) and `ROADSTEAD_CHURN_KILLS` kills (4), at moments that follow
//! from `ROADSTEAD_SEED`.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::{Duration, Instant, SystemTime};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};
use serde_json::Value;

use crate::images::{LAYER, SEE_A_ROOT, up_with_images};
use crate::lifetime::traces;
use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);
/// How long a pod of the kind that ends runs.
const WORK: &str = "0.6";

fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// A generator of moments (xorshift).
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_millis(self.0 % 1_500)
    }
}

/// Pods of one round come in these kinds, in turn: one counts for ever, one ends with 0, one with 3, and one
/// notes its runs in a volume, fails twice and goes on.
const KINDS: [&str; 4] =
    ["Running restarts 0", "Succeeded 0 restarts 0", "Failed 3 restarts 0", "Running restarts 2"];
const FAILS_TWICE: u64 = 3;

fn kind(number: u64) -> u64 {
    number % KINDS.len() as u64
}

/// What is wanted of the pods of one round.
fn manifests(round: u64, pods: u64) -> String {
    let all = (0..pods).map(|number| {
        let command = match kind(number) {
            0 => "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done".to_owned(),
            FAILS_TWICE => "n=$(cat /w/n || echo 0); n=$((n+1)); echo $n > /w/n; echo run $n; \
                 while [ $n -gt 2 ]; do sleep 1; done; exit 1"
                .to_owned(),
            one => {
                format!("echo begin; sleep {WORK}; echo end; exit {}", if one == 1 { 0 } else { 3 })
            }
        };
        let policy = if kind(number) == FAILS_TWICE { "OnFailure" } else { "Never" };
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: pod-{round}-{number}, labels: {{round: r{round}}}}}
spec:
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 2
  volumes: [{{name: w, emptyDir: {{}}}}]
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, \"{command}\"]
    volumeMounts: [{{name: w, mountPath: /w}}]
"
        )
    });
    all.collect::<Vec<_>>().join("---")
}

#[test]
fn pods_live_through_kills() {
    laboratory_of(LAYER, || {
        let (before, stale) = (leftovers(), groups());
        let (pods, kills) =
            (number("ROADSTEAD_CHURN_PODS", 24), number("ROADSTEAD_CHURN_KILLS", 4));
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = number("ROADSTEAD_SEED", now).max(1);
        eprintln!("{pods} pods, {kills} kills with ROADSTEAD_SEED={seed}");
        let mut roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        let mut moments = Moments(seed);
        let (rounds, begin) = (kills, Instant::now());
        for round in 0..rounds {
            kubectl.apply(&manifests(round, pods / rounds));
            if round > 1 {
                kubectl.run(&format!("delete pod -l round=r{} --wait=false", round - 2));
            }
            std::thread::sleep(moments.next());
            roadstead.kill();
            roadstead.start_again();
        }
        eprintln!("killed after {:?}", begin.elapsed());
        converges(&kubectl, rounds, pods / rounds);
        eprintln!("converged after {:?}", begin.elapsed());
        assert_ne!(run(POD_LINKS), "0", "pods that run have links");
        kubectl.run("delete pods --all --timeout=60s");
        nothing_of_pods_is_left(&roadstead, &stale);
        roadstead.stop();
        let data = roadstead.directory.path().join("data");
        let binary = env!("CARGO_BIN_EXE_roadstead");
        run(&format!("{binary} cleanup --node-name node --data-dir {}", data.display()));
        assert_eq!(leftovers(), before);
        assert!(groups().is_subset(&stale), "{:?}", groups());
        assert!(!data.exists());
    });
}

/// The pods of the last two rounds are there and as they should be; those before are gone.
fn converges(kubectl: &Kubectl, rounds: u64, each: u64) {
    let mut want = BTreeMap::new();
    for round in rounds.saturating_sub(2)..rounds {
        for number in 0..each {
            want.insert(format!("pod-{round}-{number}"), KINDS[kind(number) as usize].to_owned());
        }
    }
    eventually(
        "every pod is as it should be",
        90 * SECOND,
        || found(kubectl),
        |found| *found == want,
    );
    for (name, kind) in want {
        let log = kubectl.run(&format!("logs {name}"));
        let lines: Vec<_> = log.lines().collect();
        match kind.split_once(" restarts ") {
            Some(("Running", "0")) => {
                let numbers: Vec<_> = (1..=lines.len()).map(|n| n.to_string()).collect();
                assert!(!lines.is_empty() && lines == numbers, "{name} lost lines: {log}");
            }
            Some(("Running", _)) => {
                let before = kubectl.run(&format!("logs --previous {name}"));
                // It counts itself: no run was left out, and none counted that was not.
                assert_eq!((before.trim(), log.trim()), ("run 2", "run 3"), "{name}");
            }
            _ => assert_eq!(lines, ["begin", "end"], "{name} ran once, to its end"),
        }
    }
}

fn found(kubectl: &Kubectl) -> BTreeMap<String, String> {
    let list: Value = serde_json::from_str(&kubectl.run("get pods -o json")).unwrap();
    let line = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        let code = &status["state"]["terminated"]["exitCode"];
        let code = code.as_i64().map(|code| format!(" {code}")).unwrap_or_default();
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        format!("{phase}{code} restarts {}", status["restartCount"])
    };
    let pods = list["items"].as_array().unwrap();
    pods.iter().map(|pod| (pod["metadata"]["name"].as_str().unwrap().into(), line(pod))).collect()
}

/// Counts the links of pods, which are called so.
const POD_LINKS: &str = "ip -br link | grep -c ^pod || true";

/// While roadstead still runs.
fn nothing_of_pods_is_left(roadstead: &Roadstead, stale: &BTreeSet<String>) {
    // The parts of roadstead itself are pods, too.
    roadstead.kubectl().run("delete daemonset/kube-proxy deployment/coredns -n kube-system");
    let node = roadstead.directory.path().join("data/node").display().to_string();
    let parts = || {
        [
            "ps -eo stat=,args= | grep -v ^Z | grep -cE 'sh -c (n=|echo begin)|[p]od-monitor' || true"
                .into(),
            format!("find {node} -mindepth 2 ! -path '*/images/*' | wc -l"),
            POD_LINKS.to_owned(),
            SEE_A_ROOT.into(),
        ]
        .map(|part| run(&part))
    };
    let none = ["0"; 4].map(str::to_owned);
    eventually("nothing of the pods is left", 20 * SECOND, parts, |left| *left == none);
    let groups = || groups().difference(stale).filter(|path| path.contains("/pod")).count();
    eventually("no group of the pods is left", 20 * SECOND, groups, |left| *left == 0);
}

/// What must be as before when everything was removed.
fn leftovers() -> Vec<String> {
    let files = "find /var/lib/roadstead /run/roadstead -type f 2>/dev/null || true";
    let more = [files, SEE_A_ROOT].map(run);
    traces().into_iter().chain(more).collect()
}

/// The control groups of an agent in this network. A network that is gone, and of which a killed test may
/// have left something, may have had the same number.
fn groups() -> BTreeSet<String> {
    let own = run("stat -Lc %i /proc/self/ns/net");
    let found = run(&format!("find /sys/fs/cgroup -type d -path '*roadstead-{own}*' 2>&- || true"));
    found.lines().map(str::to_owned).collect()
}
