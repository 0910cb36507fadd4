//! Jobs by the clock, and as many pods as there is work for.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::laboratory_of;

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(60);

const OBJECTS: &str = "
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec:
  template:
    metadata: {labels: {app: old}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: roadstead/echo}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: old}
spec:
  scaleTargetRef: {apiVersion: v1, kind: ReplicationController, name: old}
  maxReplicas: 3
  metrics:
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 4Ki}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: roadstead/echo, resources: {requests: {cpu: 1m}}}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: due}
spec:
  schedule: '* * * * *'
  timeZone: Etc/UTC
  concurrencyPolicy: Forbid
  suspend: true
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: 1
          containers: [{name: c, image: roadstead/echo, command: [sleep, '1000']}]
";

#[test]
fn as_many_as_there_is_work_for() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply(OBJECTS);
        kubectl.run("autoscale deployment/web --min=2 --max=3 --cpu-percent=50");
        by_the_clock(&kubectl);
        scaled(&kubectl);
    });
}

fn by_the_clock(kubectl: &Kubectl) {
    kubectl.run("create job by-hand --from=cronjob/due");
    let owner = "get job by-hand -o jsonpath='{.metadata.ownerReferences[0].name}'";
    assert_eq!(kubectl.run(owner).trim(), "due");
    // A minute is long: the last time was an hour ago, and many were missed since.
    let hour_ago = "$(date -u -d '-1 hour' +%Y-%m-%dT%H:%M:%SZ)";
    let status = format!(r#"{{\"status\":{{\"lastScheduleTime\":\"{hour_ago}\"}}}}"#);
    kubectl.run(&format!("patch cronjob due --subresource=status --type=merge -p \"{status}\""));
    kubectl.run(r#"patch cronjob due -p '{"spec":{"suspend":false}}'"#);
    let active = || kubectl.run("get cronjob due -o jsonpath='{.status.active[*].name}'");
    let job = eventually("a Job was made", PATIENCE, active, |names| names.contains("due-"));
    let time = format!(
        "get job {} -o jsonpath='{{.metadata.annotations.batch\\.kubernetes\\.io/cronjob-scheduled-timestamp}}'",
        job.trim()
    );
    assert!(kubectl.run(&time).contains(":00Z"), "{job}");
    let told = || kubectl.run("get events --field-selector involvedObject.kind=CronJob");
    let created = format!("Created job {}", job.trim());
    eventually("it is told", PATIENCE, told, |events| events.contains(&created));
    let table = kubectl.run("get cronjobs");
    assert!(table.contains("Etc/UTC") && table.contains("* * * * *"), "{table}");
    kubectl.run("delete cronjob due --timeout=60s");
    let jobs = || kubectl.run("get jobs -o name");
    eventually("its Jobs go with it", PATIENCE, jobs, |jobs| jobs.is_empty());
    let refused =
        kubectl.fails("create cronjob x --image=i --schedule='61 * * * *' --dry-run=server");
    assert!(refused.contains("end of range (61) above maximum (59): 61"), "{refused}");
}

fn scaled(kubectl: &Kubectl) {
    let web = || {
        kubectl.run(
            "get hpa web -o jsonpath='{.status.desiredReplicas} {.status.conditions[0].reason}'",
        )
    };
    eventually("two are asked for", PATIENCE, web, |status| status.starts_with("2 "));
    kubectl.run("rollout status deployment/web --timeout=60s");
    assert_eq!(kubectl.run("get deployment web -o jsonpath='{.spec.replicas}'").trim(), "2");
    let events =
        || kubectl.run("get events --field-selector involvedObject.kind=HorizontalPodAutoscaler");
    let below = "New size: 2; reason: Current number of replicas below Spec.MinReplicas";
    eventually("it is told", PATIENCE, events, |events| events.contains(below));
    // Every pod uses more than four KiB.
    let old = || kubectl.run("get rc old -o jsonpath='{.spec.replicas} {.status.readyReplicas}'");
    eventually("there are three", PATIENCE, old, |replicas| replicas.trim() == "3 3");
    let above = "New size: 3; reason: memory resource above target";
    eventually("it is told why", PATIENCE, events, |events| events.contains(above));
    let described = kubectl.run("describe hpa old");
    for word in ["ScalingActive", "ValidMetricFound", "TooManyReplicas", "memory resource"] {
        assert!(described.contains(word), "{word} is not in {described}");
    }
    let table = kubectl.run("get hpa old");
    assert!(table.contains("ReplicationController/old") && table.contains("/4Ki"), "{table}");
    // Nobody works against those who scale by hand, when there is no autoscaler.
    kubectl.run("delete hpa old web");
    kubectl.run("scale rc/old --replicas=1");
    eventually("one is left", PATIENCE, old, |replicas| replicas.trim() == "1 1");
    let table = kubectl.run("get rc old");
    assert!(table.contains("DESIRED") && table.contains("CURRENT"), "{table}");
}
