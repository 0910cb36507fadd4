//! The document about Services in detail (S2): types, load balancing, headless ones.

use super::ledger::Story;
use super::typing::{DNS, PATIENCE, Reader, row, sorted};

const ROLLED_OUT: &str = "successfully rolled out";

/// Everything up to the switch of modes.
pub(super) fn play(story: &mut Story) {
    manifests(story);
    commands(story);
    statements(story);
}

fn manifests(story: &mut Story) {
    story.row("C15", |reader| {
        assert_eq!(reader.applies(15).ok(), "service/my-nginx created");
        let of = "endpointslices -l kubernetes.io/service-name=my-nginx";
        reader.field_becomes(of, "{.items[*].metadata.labels.run}", |run| run == "my-nginx");
    });
    story.row("C16", |reader| {
        assert_eq!(reader.applies(16).ok(), "deployment.apps/nginx created");
        let done = reader.types("kubectl rollout status deployment/nginx -n week --timeout=120s");
        assert!(done.ok().contains(ROLLED_OUT));
    });
    story.row("C17", |reader| {
        assert_eq!(reader.applies(17).ok(), "service/nginx-svc created");
        assert_eq!(reader.field("service nginx-svc -n week", "{.spec.ports[0].name}"), "nginx");
        reader.is_answered("nginx-svc -n week", 80, "Welcome to nginx!");
    });
    story.row("C18", |reader| {
        assert_eq!(reader.applies(18).ok(), "service/my-headless-service created");
        let label = r"{.metadata.labels.service\.kubernetes\.io/headless}{.metadata.name}";
        let named = |text: &str| text == "my-headless-service";
        reader.field_becomes("endpoints my-headless-service", label, named);
        let slices = "endpointslices -l service.kubernetes.io/headless";
        let label = r"{.items[*].metadata.labels.kubernetes\.io/service-name}";
        reader.field_becomes(slices, label, |text| text.contains("my-headless-service"));
        let port = format!("dig +short SRV @{DNS} my-headless-service.default.svc.cluster.local");
        reader
            .until(&port, |said| said.lines().filter(|line| line.contains(" 8080 ")).count() == 2);
    });
}

fn commands(story: &mut Story) {
    story.row("A31", |reader| {
        let said = reader.types("kubectl get svc my-nginx").ok();
        let columns = row(&said, "NAME");
        assert_eq!(columns, ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]);
        let cells = row(&said, "my-nginx");
        assert_eq!((cells[1], cells[3], cells[4]), ("ClusterIP", "<none>", "80/TCP"));
        let said = reader.types("kubectl get svc -n week").ok();
        assert!(row(&said, "nginx-svc")[2].starts_with("172.16."), "{said}");
    });
    story.row("A32", |reader| {
        let addresses = reader.pods("run=my-nginx").join(":80,") + ":80";
        let whole = |said: &str| field(said, "Endpoints") == addresses;
        let said = reader.until("kubectl describe svc my-nginx", whole);
        described(reader, &said);
        let address = reader.cluster_ip("my-nginx");
        for (name, want) in [
            ("Name", "my-nginx"),
            ("Namespace", "default"),
            ("Labels", "run=my-nginx"),
            ("Annotations", "<none>"),
            ("Selector", "run=my-nginx"),
            ("Type", "ClusterIP"),
            ("IP", &address),
            ("IPs", &address),
            ("Port", "<unset>  80/TCP"),
            ("TargetPort", "80/TCP"),
            ("Session Affinity", "None"),
            ("Events", "<none>"),
        ] {
            assert_eq!(field(&said, name), want, "{name}");
        }
        if reader.kubectl.is_at_least(21, "the line IP Families of kubectl describe") {
            assert_eq!(field(&said, "IP Family Policy"), "SingleStack");
            assert_eq!(field(&said, "IP Families"), "IPv4");
        }
    });
    story.row("A33", |reader| {
        let said = reader.types("kubectl get pod -n week").ok();
        let pods = said.lines().filter(|line| line.starts_with("nginx-"));
        let pods: Vec<Vec<_>> = pods.map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(pods.len(), 3, "{said}");
        for pod in pods {
            assert_eq!(pod[1..4], ["1/1", "Running", "0"]);
            let parts: Vec<_> = pod[0].split('-').collect();
            assert!(parts.len() == 3 && parts[2].len() == 5, "{said}");
        }
    });
    story.row("A15", |reader| {
        let line = "kubectl get endpointslices -l kubernetes.io/service-name=my-nginx";
        let addresses = reader.pods("run=my-nginx").join(",");
        let said = reader.until(line, |said| said.contains(&addresses));
        assert_eq!(row(&said, "NAME"), ["NAME", "ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"]);
        let slice = said.lines().nth(1).unwrap();
        assert!(slice.starts_with("my-nginx-"), "{said}");
        let words: Vec<_> = slice.split_whitespace().collect();
        assert_eq!(words[1..4], ["IPv4", "80", &addresses]);
        let line = "kubectl get endpointslices -l kubernetes.io/service-name=nothing";
        let typed = reader.types(line);
        assert_eq!(typed.code, 0);
        assert_eq!(typed.complained, "No resources found in default namespace.");
    });
    story.row("A9", |reader| {
        let said = reader.types("kubectl get endpoints nginx-service").fails();
        let missing = "Error from server (NotFound): endpoints \"nginx-service\" not found";
        assert!(said.contains(missing), "{said}");
    });
}

/// The lines of the document's block, in its order; newer versions of kubectl have one more.
pub(super) fn described(reader: &Reader, said: &str) {
    const LINES: [&str; 15] = [
        "Name",
        "Namespace",
        "Labels",
        "Annotations",
        "Selector",
        "Type",
        "IP Family Policy",
        "IP Families",
        "IP",
        "IPs",
        "Port",
        "TargetPort",
        "Endpoints",
        "Session Affinity",
        "Events",
    ];
    let mut labels: Vec<_> = said.lines().filter_map(|line| line.split(':').next()).collect();
    labels.retain(|label| *label != "Internal Traffic Policy");
    let mut wanted = LINES.to_vec();
    if !reader.kubectl.is_at_least(21, "the line IP Family Policy of kubectl describe") {
        labels.retain(|label| LINES.contains(label) && !label.starts_with("IP "));
        wanted.retain(|label| !label.starts_with("IP "));
    }
    assert_eq!(labels, wanted, "{said}");
}

/// A line of what kubectl described.
#[track_caller]
pub(super) fn field<'a>(said: &'a str, name: &str) -> &'a str {
    let mut lines = said.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(label, _)| label.trim() == name);
    found.unwrap_or_else(|| panic!("no {name} in {said}")).1.trim()
}

fn statements(story: &mut Story) {
    // With a selector: the pods. Without: what Endpoints say, which S3 shows with hostname-service.
    story.row("D5", |reader| {
        let name = "my-headless-service.default.svc.cluster.local";
        assert_eq!(reader.dig(&format!("@{DNS} {name}")), reader.pods("app=my-app"));
    });
    // "DNS is not involved" is wrong for headless ones: its answers are the slices.
    story.row("D3", |reader| {
        let name = "my-headless-service.default.svc.cluster.local";
        let found = reader.dig(&format!("@{DNS} {name}"));
        assert_eq!((found.len(), &found), (2, &reader.sliced("my-headless-service")));
    });
    story.row("D6", |reader| {
        let of = "endpointslices -l kubernetes.io/service-name=my-nginx";
        let name = reader.field(of, "{.items[*].metadata.name}");
        let rest = name.strip_prefix("my-nginx-").unwrap_or_else(|| panic!("{name}"));
        assert!(rest.len() == 5 && rest.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
    });
    story.row("D13", |reader| {
        reader.is_answered("my-nginx", 80, "Welcome to nginx!");
        let address = reader.cluster_ip("my-nginx");
        let call = format!("ip netns exec outside curl -s -S -m 2 http://{address}/");
        let said = reader.types(&call).fails();
        assert!(said.contains("unreachable") || said.contains("connect"), "{said}");
        // Unless somebody routes it there.
        reader.types(&format!("ip -n outside route add {address}/32 via 192.168.7.1")).ok();
        reader.until(&call, |said| said.contains("Welcome to nginx!"));
        reader.types(&format!("ip -n outside route del {address}/32 via 192.168.7.1")).ok();
    });
}

/// What the document sees on a node, in mode iptables, with its own address of the Service and its own pods.
pub(super) fn host_checks(story: &mut Story) {
    let fixed = |reader: &Reader| {
        let own = reader
            .manifest(17)
            .replace("spec:\n  selector", "spec:\n  clusterIP: 172.16.73.164\n  selector");
        reader.types("kubectl delete svc nginx-svc -n week").ok();
        assert_eq!(reader.applies_text(&own).ok(), "service/nginx-svc created");
    };
    story.row("B5", |reader| {
        fixed(reader);
        let said = reader.until("iptables-save | grep 172.16.73.164", |said| {
            said.lines().count() == 2
        });
        let rules = [
            "-A KUBE-SERVICES -d 172.16.73.164/32 -p tcp -m comment --comment \"week/nginx-svc:nginx cluster IP\" \
             -m tcp --dport 80 -j KUBE-SVC-4LRRYOSSZE5QDVLA",
            "-A KUBE-SVC-4LRRYOSSZE5QDVLA ! -s 10.244.0.0/16 -d 172.16.73.164/32 -p tcp -m comment --comment \
             \"week/nginx-svc:nginx cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), rules);
        reader.is_answered("nginx-svc -n week", 80, "Welcome to nginx!");
    });
    story.row("B3", |reader| {
        let line = "iptables -t nat -L KUBE-SERVICES | grep 172.16.73.164";
        // Where names are looked up, it would be its name.
        let said = reader.types_on_the_node(line).ok();
        assert!(said.contains("KUBE-SVC-4LRRYOSSZE5QDVLA"), "{said}");
        assert!(said.contains("/* week/nginx-svc:nginx cluster IP */"), "{said}");
    });
    story.row("B6", golden);
}

/// The three rules of the document, byte for byte: the names of their chains are made of these addresses.
fn golden(reader: &Reader) {
    let line = "iptables-save | grep KUBE-SVC-4LRRYOSSZE5QDVLA";
    let balancing = |said: &str| {
        let rules = said.lines().filter(|line| line.contains(" -> "));
        rules.map(str::to_owned).collect::<Vec<_>>()
    };
    let own = reader.until(line, |said| balancing(said).len() == 3);
    for (rule, part) in balancing(&own).iter().zip([
        "--probability 0.33333333349 -j KUBE-SEP-",
        "--probability 0.50000000000 -j KUBE-SEP-",
        ":80\" -j KUBE-SEP-",
    ]) {
        assert!(rule.contains(part), "{own}");
    }
    // Now with pods that have the addresses of the document.
    reader.types("kubectl scale deployment nginx -n week --replicas=0").ok();
    reader.until("kubectl get pod -n week -o name", str::is_empty);
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: nginx-svc-document\n  \
        namespace: week\n  labels: {kubernetes.io/service-name: nginx-svc}\naddressType: IPv4\n\
        ports: [{name: nginx, port: 80}]\nendpoints: [{addresses: [10.208.67.129]}, \
        {addresses: [10.208.67.130]}, {addresses: [10.42.234.135]}]\n";
    reader.applies_text(slice).ok();
    let of = "-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment \"week/nginx-svc:nginx ->";
    let random = "-m statistic --mode random --probability";
    let wanted = [
        format!("{of} 10.208.67.129:80\" {random} 0.33333333349 -j KUBE-SEP-S2NHQD4JFZO6ZT3O"),
        format!("{of} 10.208.67.130:80\" {random} 0.50000000000 -j KUBE-SEP-WCKBX4BRVWPAVTTD"),
        format!("{of} 10.42.234.135:80\" -j KUBE-SEP-2ELJFQOAS5FHEUHZ"),
    ];
    reader.until(line, |said| balancing(said) == wanted);
    reader.types("kubectl delete endpointslice nginx-svc-document -n week").ok();
    reader.types("kubectl scale deployment nginx -n week --replicas=3").ok();
    let status = "kubectl rollout status deployment/nginx -n week --timeout=120s";
    assert!(reader.types(status).ok().contains(ROLLED_OUT));
    reader.is_answered("nginx-svc -n week", 80, "Welcome to nginx!");
}

/// Pods of a node come and go for a moment after a change; returns the addresses once they are in the slices.
pub(super) fn settled(reader: &Reader, service: &str, label: &str) -> Vec<String> {
    let ask = || (reader.sliced(service), reader.pods(label));
    let same = |(slices, pods): &(Vec<String>, Vec<String>)| slices == pods && !pods.is_empty();
    let (found, _) = roadstead_testkit::kubectl::eventually(service, PATIENCE, ask, same);
    sorted(found.iter().map(String::as_str))
}
