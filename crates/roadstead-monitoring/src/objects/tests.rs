//! Tables: an object as a manifest, and lines that the page has then.

use k8s_openapi::serde::de::DeserializeOwned;

use super::family::Measured;
use super::*;

fn read<K: DeserializeOwned>(yaml: &str) -> K {
    serde_saphyr::from_str(yaml).unwrap()
}

fn page(yaml: &str) -> String {
    let kind = yaml.lines().find_map(|line| line.trim().strip_prefix("kind: ")).unwrap();
    let object = match kind {
        "Service" => Object::Service(read(yaml)),
        "Endpoints" => Object::Endpoints(read(yaml)),
        "EndpointSlice" => Object::Slice(read(yaml)),
        "Pod" => Object::Pod(read(yaml)),
        "Deployment" => Object::Deployment(read(yaml)),
        other => panic!("no kind {other}"),
    };
    let mut objects = Objects::default();
    objects.observe(&ObjectKey::new("default", "web"), &object);
    objects.text()
}

fn has(yaml: &str, lines: &[&str]) {
    let page = page(yaml);
    for line in lines {
        assert!(page.lines().any(|own| own == *line), "{line}\nis not in\n{page}");
    }
}

#[test]
fn services() {
    has(
        "
kind: Service
metadata: {name: web, namespace: default, uid: u1, creationTimestamp: '2026-11-19T00:00:00Z'}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.7
  externalTrafficPolicy: Local
  externalIPs: [192.0.2.1]
  ports: [{name: http, port: 80, targetPort: web, nodePort: 30080, protocol: TCP}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}
",
        &[
            "# TYPE kube_service_info gauge",
            "kube_service_info{namespace=\"default\",service=\"web\",uid=\"u1\",cluster_ip=\"10.96.0.7\",external_name=\"\",external_traffic_policy=\"Local\",load_balancer_ip=\"\"} 1",
            "kube_service_created{namespace=\"default\",service=\"web\",uid=\"u1\"} 1795046400",
            "kube_service_spec_type{namespace=\"default\",service=\"web\",uid=\"u1\",type=\"LoadBalancer\"} 1",
            "kube_service_spec_external_ip{namespace=\"default\",service=\"web\",uid=\"u1\",external_ip=\"192.0.2.1\"} 1",
            "kube_service_status_load_balancer_ingress{namespace=\"default\",service=\"web\",uid=\"u1\",ip=\"192.0.2.9\",hostname=\"\"} 1",
            "kube_service_ports{namespace=\"default\",service=\"web\",uid=\"u1\",port_name=\"http\",port_protocol=\"TCP\",port_number=\"80\",port_target=\"web\",port_app_protocol=\"\",port_node_number=\"30080\"} 1",
        ],
    );
}

#[test]
fn endpoints_count_an_address_once_for_each_port() {
    let one = |subsets: &str, available: u32, not_ready: u32| {
        let yaml =
            format!("kind: Endpoints\nmetadata: {{name: web, namespace: default}}\n{subsets}\n");
        let line = |what: &str, count| {
            format!(
                "kube_endpoint_address_{what}{{namespace=\"default\",endpoint=\"web\"}} {count}"
            )
        };
        has(&yaml, &[&line("available", available), &line("not_ready", not_ready)]);
    };
    one("", 0, 0);
    one("subsets: [{addresses: [{ip: 10.0.0.1}]}]", 0, 0);
    one("subsets: [{addresses: [{ip: 10.0.0.1}, {ip: 10.0.0.2}], ports: [{port: 80}]}]", 2, 0);
    one("subsets: [{notReadyAddresses: [{ip: 10.0.0.1}], ports: [{port: 80}, {port: 81}]}]", 0, 2);
    one(
        "subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}, \
         {addresses: [{ip: 10.0.0.2}], notReadyAddresses: [{ip: 10.0.0.3}], ports: [{port: 80}]}]",
        2,
        1,
    );
}

#[test]
fn addresses_of_endpoints() {
    has(
        "
kind: Endpoints
metadata: {name: web, namespace: default}
subsets:
- addresses: [{ip: 10.0.0.1}]
  notReadyAddresses: [{ip: 10.0.0.2}]
  ports: [{name: http, port: 80}]
",
        &[
            "kube_endpoint_info{namespace=\"default\",endpoint=\"web\"} 1",
            "kube_endpoint_address{namespace=\"default\",endpoint=\"web\",port_name=\"http\",port_protocol=\"TCP\",port_number=\"80\",ip=\"10.0.0.1\",ready=\"true\"} 1",
            "kube_endpoint_address{namespace=\"default\",endpoint=\"web\",port_name=\"http\",port_protocol=\"TCP\",port_number=\"80\",ip=\"10.0.0.2\",ready=\"false\"} 1",
            "kube_endpoint_ports{namespace=\"default\",endpoint=\"web\",port_name=\"http\",port_protocol=\"TCP\",port_number=\"80\"} 1",
        ],
    );
}

#[test]
fn slices() {
    has(
        "
kind: EndpointSlice
metadata: {name: web-1, namespace: default}
addressType: IPv4
endpoints:
- addresses: [10.0.0.1]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: n1
  zone: a
  targetRef: {kind: Pod, name: web-x, namespace: default}
  hints: {forZones: [{name: a}]}
- addresses: [10.0.0.2]
ports: [{name: '', port: 80, protocol: TCP}]
",
        &[
            "kube_endpointslice_info{namespace=\"default\",endpointslice=\"web-1\",addresstype=\"IPv4\"} 1",
            "kube_endpointslice_endpoints{namespace=\"default\",endpointslice=\"web-1\",ready=\"true\",serving=\"true\",terminating=\"false\",hostname=\"\",targetref_kind=\"Pod\",targetref_name=\"web-x\",targetref_namespace=\"default\",nodename=\"n1\",endpoint_zone=\"a\",address=\"10.0.0.1\"} 1",
            "kube_endpointslice_endpoints{namespace=\"default\",endpointslice=\"web-1\",ready=\"\",serving=\"\",terminating=\"\",hostname=\"\",targetref_kind=\"\",targetref_name=\"\",targetref_namespace=\"\",nodename=\"\",endpoint_zone=\"\",address=\"10.0.0.2\"} 1",
            "kube_endpointslice_endpoints_hints{namespace=\"default\",endpointslice=\"web-1\",address=\"10.0.0.1\",for_zone=\"a\"} 1",
            "kube_endpointslice_ports{namespace=\"default\",endpointslice=\"web-1\",port_name=\"\",port_protocol=\"TCP\",port_number=\"80\"} 1",
        ],
    );
}

#[test]
fn pods() {
    let common = "namespace=\"default\",pod=\"web\",uid=\"u2\"";
    let lines = [
        "kube_pod_info{COMMON,host_ip=\"192.0.2.1\",pod_ip=\"10.0.0.1\",node=\"n1\",created_by_kind=\"ReplicaSet\",created_by_name=\"web-1\",priority_class=\"\",host_network=\"false\"} 1",
        "kube_pod_owner{COMMON,owner_kind=\"ReplicaSet\",owner_name=\"web-1\",owner_is_controller=\"true\"} 1",
        "kube_pod_ips{COMMON,ip=\"10.0.0.1\",ip_family=\"4\"} 1",
        "kube_pod_status_phase{COMMON,phase=\"Running\"} 1",
        "kube_pod_status_phase{COMMON,phase=\"Pending\"} 0",
        "kube_pod_status_ready{COMMON,condition=\"true\"} 0",
        "kube_pod_status_ready{COMMON,condition=\"false\"} 1",
        "kube_pod_status_ready{COMMON,condition=\"unknown\"} 0",
        "kube_pod_container_info{COMMON,container=\"c\",image_spec=\"nginx:1\",image=\"nginx:1\",image_id=\"i\",container_id=\"x://1\"} 1",
        "kube_pod_container_status_ready{COMMON,container=\"c\"} 0",
        "kube_pod_container_status_running{COMMON,container=\"c\"} 0",
        "kube_pod_container_status_waiting{COMMON,container=\"c\"} 1",
        "kube_pod_container_status_waiting_reason{COMMON,container=\"c\",reason=\"CrashLoopBackOff\"} 1",
        "kube_pod_container_status_last_terminated_reason{COMMON,container=\"c\",reason=\"Error\"} 1",
        "# TYPE kube_pod_container_status_restarts_total counter",
        "kube_pod_container_status_restarts_total{COMMON,container=\"c\"} 4",
        "kube_pod_container_resource_requests{COMMON,container=\"c\",node=\"n1\",resource=\"cpu\",unit=\"core\"} 0.25",
        "kube_pod_container_resource_limits{COMMON,container=\"c\",node=\"n1\",resource=\"memory\",unit=\"byte\"} 67108864",
    ]
    .map(|line| line.replace("COMMON", common));
    has(
        "
kind: Pod
metadata:
  name: web
  namespace: default
  uid: u2
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: r, controller: true}]
spec:
  nodeName: n1
  containers:
  - {name: c, image: 'nginx:1', resources: {requests: {cpu: 250m}, limits: {memory: 64Mi}}}
status:
  phase: Running
  hostIP: 192.0.2.1
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}]
  conditions: [{type: Ready, status: 'False'}]
  containerStatuses:
  - name: c
    image: nginx:1
    imageID: i
    containerID: x://1
    ready: false
    restartCount: 4
    state: {waiting: {reason: CrashLoopBackOff}}
    lastState: {terminated: {reason: Error, exitCode: 1}}
",
        &lines.each_ref().map(String::as_str),
    );
}

#[test]
fn deployments() {
    let common = "namespace=\"default\",deployment=\"web\"";
    let lines = [
        "kube_deployment_spec_replicas{COMMON} 5",
        "kube_deployment_spec_paused{COMMON} 0",
        "kube_deployment_status_replicas{COMMON} 5",
        "kube_deployment_status_replicas_available{COMMON} 4",
        "kube_deployment_status_replicas_unavailable{COMMON} 0",
        "kube_deployment_status_condition{COMMON,condition=\"Available\",reason=\"Enough\",status=\"true\"} 1",
        "kube_deployment_status_condition{COMMON,condition=\"Available\",reason=\"Enough\",status=\"unknown\"} 0",
        "kube_deployment_spec_strategy_rollingupdate_max_unavailable{COMMON} 1",
        "kube_deployment_spec_strategy_rollingupdate_max_surge{COMMON} 2",
        "kube_deployment_metadata_generation{COMMON} 3",
    ]
    .map(|line| line.replace("COMMON", common));
    has(
        "
kind: Deployment
metadata: {name: web, namespace: default, generation: 3}
spec:
  replicas: 5
  selector: {}
  template: {}
  strategy: {rollingUpdate: {maxUnavailable: 25%, maxSurge: 25%}}
status:
  replicas: 5
  availableReplicas: 4
  conditions: [{type: Available, status: 'True', reason: Enough}]
",
        &lines.each_ref().map(String::as_str),
    );
}

#[test]
fn every_metric_is_announced_once_and_what_is_gone_is_gone() {
    let mut objects = Objects::default();
    let key = ObjectKey::new("default", "a\"b");
    let endpoints: Endpoints = read("metadata: {name: 'a\"b', namespace: default}");
    objects.observe(&key, &Object::Endpoints(endpoints));
    let page = objects.text();
    assert!(page.contains("endpoint=\"a\\\"b\""), "{page}");
    fn names<K: Measured>() -> impl Iterator<Item = &'static str> {
        K::FAMILIES.iter().map(|family| family.name)
    }
    let names = names::<Service>()
        .chain(names::<Endpoints>())
        .chain(names::<EndpointSlice>())
        .chain(names::<Pod>())
        .chain(names::<Deployment>());
    for name in names {
        let own = page.matches(&format!("# TYPE {name} ")).count();
        assert_eq!(own, 1, "{name}");
    }
    objects.forget(MeasuredKind::Endpoints, &key);
    assert_eq!(objects.bytes(), 0);
    assert!(!objects.text().contains("kube_endpoint_info{"));
}

#[test]
fn what_has_no_room_is_counted() {
    let mut objects = Objects::with_room(700);
    let service: Service = read("metadata: {name: web, namespace: default, uid: u}\nspec: {}");
    let (one, two) = (ObjectKey::new("default", "one"), ObjectKey::new("default", "two"));
    for key in ["one", "two", "three", "four"] {
        let object = Object::Service(service.clone());
        objects.observe(&ObjectKey::new("default", key), &object);
    }
    assert!(objects.bytes() <= 700, "{}", objects.bytes());
    let count = objects.services.count();
    assert!(count.objects > 0 && count.left_out > 0 && count.objects + count.left_out == 4);
    let line =
        format!("roadstead_object_metrics_left_out{{resource=\"services\"}} {}", count.left_out);
    assert!(objects.text().contains(&line));
    objects.forget(MeasuredKind::Service, &one);
    objects.forget(MeasuredKind::Service, &two);
    // There is room again for one that changes.
    objects.observe(&ObjectKey::new("default", "four"), &Object::Service(service));
    assert!(objects.services.count().left_out < count.left_out);
}
