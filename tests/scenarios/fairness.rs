//! Priority and fairness, as seen through kubectl.

use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::is_left_out;

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);

/// One user has a level in which nobody is served, and hardly anybody may wait.
const JAIL: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: mallory}
spec:
  matchingPrecedence: 20
  priorityLevelConfiguration: {name: jail}
  distinguisherMethod: {type: ByUser}
  rules:
  - subjects: [{kind: User, user: {name: mallory}}]
    resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: ['*'], clusterScope: true}]
";

const LEVEL: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: jail}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 1}}
";

#[test]
fn priority_levels() {
    if is_left_out("L5") {
        return;
    }
    let server = Roadstead::apiserver();
    let kubectl = server.kubectl();
    let all = kubectl.run("get flowschemas,prioritylevelconfigurations");
    for line in [
        "NAME PRIORITYLEVEL MATCHINGPRECEDENCE DISTINGUISHERMETHOD AGE MISSINGPL",
        "NAME TYPE NOMINALCONCURRENCYSHARES QUEUES HANDSIZE QUEUELENGTHLIMIT AGE",
        "/exempt exempt 1 <none>",
        "/system-leader-election leader-election 100 ByUser",
        "/workload-low Limited 100 128 6 50",
        "/exempt Exempt <none> <none> <none> <none>",
        "/catch-all Limited 5 <none> <none> <none>",
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(all.lines().any(|own| words(own).contains(line)), "{line} is not in {all}");
    }
    kubectl.run("create clusterrolebinding view --clusterrole=view --user=mallory --user=carol");
    kubectl.apply(JAIL);
    let missing = || kubectl.run("get flowschema mallory -o wide --no-headers");
    assert!(missing().trim().ends_with("True"), "{}", missing());
    // Until there is such a level, the schema does nothing.
    kubectl.run("get configmaps --as=mallory");
    kubectl.apply(LEVEL);
    assert!(missing().trim().ends_with("False"), "{}", missing());
    let said = kubectl.fails("get configmaps --as=mallory --request-timeout=2s");
    assert!(said.contains("deadline exceeded") || said.contains("Timeout exceeded"), "{said}");
    kubectl.run("get configmaps --as=carol");
    let metrics = || kubectl.run("get --raw /metrics");
    let sent = "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"jail\"} 0";
    eventually("the level is counted", PATIENCE, metrics, |text| text.contains(sent));
    let dump = kubectl.run("get --raw /debug/api_priority_and_fairness/dump_priority_levels");
    let jail = dump.lines().find(|line| line.starts_with("jail,"));
    assert!(jail.is_some_and(|line| line.contains("false")), "{dump}");
    let refused = kubectl.fails(
        "patch prioritylevelconfiguration jail --type=merge -p \
         '{\"spec\":{\"limited\":{\"lendablePercent\":101}}}'",
    );
    let words =
        "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive";
    assert!(refused.contains(words), "{refused}");
    kubectl.run("delete flowschema mallory");
    kubectl.run("get configmaps --as=mallory");
    // What the server needs comes back.
    kubectl.run("delete prioritylevelconfiguration catch-all");
    let back = || kubectl.run("get prioritylevelconfigurations -o name");
    let is_back = |names: &String| names.contains("/catch-all");
    eventually("the level is back", PATIENCE, back, is_back);
}
