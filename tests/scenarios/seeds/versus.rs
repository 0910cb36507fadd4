//! The document "Service VS Endpoint" (S0).

use super::ledger::Story;
use super::service::{described, field, settled};
use super::typing::{DNS, Reader, row};

const NAME: &str = "web-service.default.svc.cluster.local";

pub(super) fn play(story: &mut Story) {
    web_service(story);
    use_cases(story);
    settings(story);
    commands(story);
    endpoints_commands(story);
    host_and_pods(story);
    statements(story);
}

fn web_service(story: &mut Story) {
    story.row("C1", |reader| {
        assert_eq!(reader.applies(1).ok(), "service/web-service created");
        let pods = settled(reader, "web-service", "app=web-server");
        let listed = |said: &str| pods.iter().all(|pod| said.contains(&format!("{pod}:8080")));
        reader.until("kubectl get endpoints web-service", listed);
        let of = "endpointslices -l kubernetes.io/service-name=web-service";
        assert_eq!(reader.field(of, "{.items[*].metadata.name}").split(' ').count(), 1);
        reader.is_answered("web-service", 80, "Hello Kubernetes bootcamp!");
    });
    // Whoever writes them by hand has them until the controller looks again.
    story.row("C2", |reader| {
        assert_eq!(reader.applies(2).warned(), "endpoints/web-service configured");
        let addresses = "{.subsets[*].addresses[*].ip}";
        assert_eq!(reader.field("endpoints web-service", addresses), "10.244.1.5 10.244.1.6");
        let pods = reader.pods("app=web-server");
        assert_eq!(reader.sliced("web-service"), pods);
        reader.touch("web-service");
        let again = |said: &str| super::typing::sorted(said.split(' ')) == pods;
        reader.field_becomes("endpoints web-service", addresses, again);
        assert_eq!(reader.sliced("web-service"), pods);
    });
}

fn use_cases(story: &mut Story) {
    story.row("C3", |reader| {
        assert_eq!(reader.applies(3).ok(), "service/internal-api created");
        assert_eq!(reader.field("service internal-api", "{.spec.ports[0].targetPort}"), "8080");
    });
    story.row("C4", |reader| {
        assert_eq!(reader.applies(4).ok(), "service/external-web created");
        assert_eq!(reader.field("service external-web", "{.spec.ports[0].nodePort}"), "30080");
        let other = "apiVersion: v1\nkind: Service\nmetadata: {name: second}\nspec:\n  type: NodePort\n  \
            ports: [{port: 80, nodePort: 30080}]\n";
        let said = reader.applies_text(other).fails();
        assert!(said.contains("provided port is already allocated"), "{said}");
    });
    story.row("C5", |reader| {
        assert_eq!(reader.applies(5).ok(), "service/external-database created");
        assert_eq!(reader.cluster_ip("external-database"), "");
        let said = reader.types("kubectl get endpoints external-database").fails();
        assert!(said.contains("NotFound"), "{said}");
        assert_eq!(alias(reader, "external-database"), ["database.example.com."]);
    });
    story.row("C6", |reader| {
        assert_eq!(reader.applies(6).ok(), "service/legacy-system created");
        assert_eq!(reader.sliced("legacy-system"), Vec::<String>::new());
        let said = reader.types("kubectl get endpoints legacy-system").fails();
        assert!(said.contains("endpoints \"legacy-system\" not found"), "{said}");
    });
    story.row("C7", |reader| {
        assert_eq!(reader.applies(7).warned(), "endpoints/legacy-system created");
        let of = "endpointslices -l kubernetes.io/service-name=legacy-system";
        let name = r"{.items[*].metadata.name} {.items[*].metadata.labels.endpointslice\.kubernetes\.io/managed-by}";
        let said = reader.field_becomes(of, name, |said| said.contains("mirroring"));
        assert!(said.starts_with("legacy-system-") && said.split('-').count() > 2, "{said}");
        reader.is_answered("legacy-system", 3306, "served by 192.168.1.100:3306");
    });
    story.row("C8", |reader| {
        assert_eq!(reader.applies(8).ok(), "service/complex-app created");
        let ports = reader.field("service complex-app", "{.spec.ports[*].name}");
        assert_eq!(ports, "http https metrics");
        assert_eq!(reader.sliced("complex-app"), Vec::<String>::new());
        let said = reader.types("kubectl get endpoints complex-app").fails();
        assert!(said.contains("NotFound"), "{said}");
    });
}

/// What DNS says the name of a Service is another word for.
pub(super) fn alias(reader: &Reader, service: &str) -> Vec<String> {
    reader.dig(&format!("CNAME @{DNS} {service}.default.svc.cluster.local"))
}

fn settings(story: &mut Story) {
    story.row("C9", |reader| {
        assert_eq!(reader.applies(9).ok(), "service/optimized-service created");
        let path = "{.spec.sessionAffinity} {.spec.sessionAffinityConfig.clientIP.timeoutSeconds} \
            {.spec.ports[0].nodePort} {.spec.healthCheckNodePort}";
        let said = reader.field("service optimized-service", path);
        let words: Vec<_> = said.split(' ').collect();
        assert_eq!(words[..2], ["ClientIP", "10800"]);
        let port = |word: &str| word.parse::<u16>().unwrap_or_else(|_| panic!("{said}"));
        assert!((30000..=32767).contains(&port(words[2])), "{said}");
        // No pod of it is on this node.
        let health = format!("curl -s -m 2 http://127.0.0.1:{}/", port(words[3]));
        let empty = |said: &str| {
            said.contains("\"localEndpoints\": 0") || said.contains("\"localEndpoints\":0")
        };
        reader.until(&health, empty);
    });
    story.row("C10", |reader| {
        assert_eq!(reader.applies(10).warned(), "endpoints/custom-endpoints created");
        let ports = reader.field("endpoints custom-endpoints", "{.subsets[*].ports[*].name}");
        assert_eq!(super::typing::sorted(ports.split(' ')), ["health", "http", "metrics"]);
    });
    story.row("C11", |reader| {
        let said = reader.applies(11).fails();
        let wrong = "metadata.annotations: Invalid value: \
            \"service.kubernetes.io/service.beta.kubernetes.io/ipvs-scheduler\": a valid label key must consist of";
        assert!(said.contains("The Service \"high-performance\" is invalid: "), "{said}");
        assert!(said.contains(wrong), "{said}");
        let lines = reader.manifest(11).lines();
        let rest: Vec<_> = lines.filter(|line| !line.contains("ipvs-scheduler")).collect();
        let said = reader.applies_text(&rest.join("\n")).ok();
        assert_eq!(said, "service/high-performance created");
        let fields = reader.field("service high-performance", "{.spec.clusterIP}{.spec.ports}");
        assert_eq!(fields, "None");
    });
    story.row("C12", |reader| {
        let said = reader.applies(12).ok();
        assert_eq!(said, "endpointslice.discovery.k8s.io/web-service-abc123 created");
        let of = "endpointslices -l kubernetes.io/service-name=web-service";
        assert_eq!(reader.field(of, "{.items[*].metadata.name}").split(' ').count(), 2);
        // Its port is called http, the Service's has no name.
        leads_to_pods(reader, "web-service", 80, "Hello Kubernetes bootcamp!");
    });
}

/// Nobody who calls the Service meets anything else than its pods.
pub(super) fn leads_to_pods(reader: &Reader, service: &str, port: u16, want: &str) {
    let address = reader.cluster_ip(service);
    let many =
        format!("for i in $(seq 8); do curl -s -m 3 http://{address}:{port}/ || echo NOBODY; done");
    let said = reader.types(&many).ok();
    assert!(said.contains(want) && !said.contains("NOBODY"), "{said}");
}

fn commands(story: &mut Story) {
    story.row("A1", |reader| {
        let said = reader.types("kubectl get services").ok();
        let columns = row(&said, "NAME");
        assert_eq!(columns, ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]);
        assert_eq!(row(&said, "kubernetes")[1], "ClusterIP");
        let database = row(&said, "external-database");
        assert_eq!(database[1..5], ["ExternalName", "<none>", "database.example.com", "<none>"]);
        let web = row(&said, "external-web");
        let given = web[3] == "<pending>" || web[3].parse::<std::net::IpAddr>().is_ok();
        assert!(web[1] == "LoadBalancer" && given && web[4] == "80:30080/TCP", "{said}");
    });
    story.row("A2", |reader| {
        let said = reader.types("kubectl describe service web-service").ok();
        described(reader, &said);
        let pods = reader.pods("app=web-server").join(":8080,") + ":8080";
        assert_eq!(field(&said, "Endpoints"), pods);
        let blank = reader.types("kubectl describe service internal-api").ok();
        assert!(["", "<none>"].contains(&field(&blank, "Endpoints")), "{blank}");
    });
    story.row("A3", |reader| {
        let typed = reader.types("kubectl top services  # 如果支持");
        let all = format!("{}{}", typed.said, typed.complained);
        assert!(typed.code == 1 && all.contains("unknown command \"services\""), "{all}");
    });
    story.row("A4", |reader| {
        let path = "/api/v1/namespaces/default/services/web-service/proxy/metrics";
        let said = reader.types(&format!("kubectl get --raw {path}")).ok();
        assert!(said.contains("Hello Kubernetes bootcamp!"), "{said}");
        let typed = reader.types(&format!("kubectl get --raw {}", path.replace("web-service", "internal-api")));
        let none = "Error from server (ServiceUnavailable): no endpoints available for service \"internal-api\"";
        assert_eq!((typed.code, &*typed.complained), (1, none));
    });
    story.row("A5", |reader| {
        let address = reader.cluster_ip("web-service");
        let line = "kubectl run test-$RANDOM --image=busybox --rm -it -- nslookup web-service";
        let mut typist = reader.in_terminal(line);
        typist.shows(NAME);
        typist.shows(&format!("Address: {address}"));
        typist.shows("\" deleted");
        typist.ends();
    });
}

fn endpoints_commands(story: &mut Story) {
    story.row("A7", |reader| {
        let said = reader.types("kubectl get endpoints").warned();
        assert_eq!(row(&said, "NAME"), ["NAME", "ENDPOINTS", "AGE"]);
        assert_eq!(row(&said, "internal-api")[1], "<none>");
        assert_eq!(row(&said, "legacy-system")[1], "192.168.1.100:3306");
        assert_eq!(row(&said, "web-service")[1].split(',').count(), 2);
    });
    story.row("A10", |reader| {
        let said = reader.types("kubectl describe endpoints web-service").warned();
        let managed = "endpoints.kubernetes.io/managed-by=endpoint-controller";
        assert!(said.contains(managed), "{said}");
        assert_eq!(field(&said, "Addresses"), reader.pods("app=web-server").join(","));
        assert_eq!(field(&said, "NotReadyAddresses"), "<none>");
        let ports = said.split("Ports:").nth(1).unwrap_or_default();
        let words: Vec<_> = ports.split_whitespace().collect();
        assert!(words.starts_with(&["Name", "Port", "Protocol"]), "{said}");
        assert!(ports.contains("<unset>  8080  TCP"), "{said}");
        assert_eq!(field(&said, "Events"), "<none>");
        // Those that nobody has touched since their pods came say when that was.
        let said = reader.types("kubectl describe endpoints svc-8091").ok();
        assert!(said.contains("endpoints.kubernetes.io/last-change-trigger-time: "), "{said}");
    });
    story.row("A19", |reader| {
        let said = reader.types("kubectl get pods -l app=web-server -o wide").ok();
        let columns = [
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "AGE",
            "IP",
            "NODE",
            "NOMINATED NODE",
            "READINESS GATES",
        ];
        // Of one blank each where the cells are wide.
        let first = said.lines().next().unwrap_or_default();
        assert!(columns.iter().all(|column| first.contains(column)), "{said}");
        for pod in reader.pods("app=web-server") {
            assert!(said.contains(&format!("{pod} ")), "{said}");
        }
    });
    story.row("A20", |reader| {
        let path = "jsonpath='{.items[*].spec.containers[*].readinessProbe}'";
        let said = reader.types(&format!("kubectl get pods -l app=web-server -o {path}")).ok();
        let probe = "\"failureThreshold\":3";
        assert_eq!(said.matches(probe).count(), 2, "{said}");
        for part in [
            "\"timeoutSeconds\":1",
            "\"periodSeconds\":10",
            "\"successThreshold\":1",
            "\"path\":\"/\"",
        ] {
            assert_eq!(said.matches(part).count(), 2, "{part}: {said}");
        }
        let none = reader.types(&format!("kubectl get pods -l app=nothing -o {path}"));
        assert_eq!(none.ok(), "");
    });
}

fn host_and_pods(story: &mut Story) {
    story.row("B1", |reader| {
        let line = format!("curl http://{NAME}");
        reader.until(&line, |said| said.contains("Hello Kubernetes bootcamp!"));
        let said = reader.types(&format!("kubectl exec test-pod -- {line}")).ok();
        assert!(said.contains("Hello Kubernetes bootcamp!"), "{said}");
    });
    story.row("B2", |reader| {
        let said = reader.types(&format!("nslookup {NAME}")).ok();
        let address = format!("Address: {}", reader.cluster_ip("web-service"));
        assert!(said.contains(&address), "{said}");
    });
    let mut shown = String::new();
    story.row("A6", |reader| {
        let pod = reader.pods("app=web-server").remove(0);
        let mut typist =
            reader.in_terminal("kubectl run test-$RANDOM --image=busybox --rm -it -- ");
        typist.shows("If you don't see a command prompt, try pressing enter.");
        typist.types(&format!("\necho $((6 * 7)) of it\ntelnet {pod} 8080\n"));
        typist.shows("42 of it");
        typist.shows("Connected to");
        typist.types("GET / HTTP/1.0\n\n");
        typist.shows("Connection closed by foreign host");
        typist.types("exit\n");
        typist.ends();
        shown = typist.shown();
    });
    // What it said in that shell, from pod to pod.
    story.row("B4", |_| {
        assert!(
            shown.contains("HTTP/1.") && shown.contains("Hello Kubernetes bootcamp!"),
            "{shown}"
        );
    });
}

fn statements(story: &mut Story) {
    // The name is the only link: these have no Service of their name.
    story.row("D1", |reader| {
        assert_eq!(reader.sliced("custom-endpoints"), Vec::<String>::new());
        assert_eq!(reader.sliced("legacy-system"), ["192.168.1.100"]);
    });
    story.row("D4", |reader| {
        let owners = "{.metadata.ownerReferences}";
        assert_eq!(reader.field("endpoints web-service", owners), "");
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: owner}\nspec:\n  selector: {app: web-server}\n  \
            ports: [{port: 80}]\n";
        reader.applies_text(service).ok();
        settled(reader, "owner", "app=web-server");
        let of = "endpointslices -l kubernetes.io/service-name=owner";
        let owner = "{.items[*].metadata.ownerReferences[0].kind}/{.items[*].metadata.ownerReferences[0].name}";
        assert_eq!(reader.field(of, owner), "Service/owner");
        reader.types("kubectl delete service owner").ok();
        reader.field_becomes(of, "{.items[*].metadata.name}", str::is_empty);
        reader.until("kubectl get endpoints owner --ignore-not-found -o name", str::is_empty);
    });
    story.row("D10", |reader| {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: low}\nspec:\n  type: NodePort\n  \
            ports: [{port: 80, nodePort: 29999}]\n";
        let said = reader.applies_text(service).fails();
        let wrong = "provided port is not in the valid range. The range of valid ports is 30000-32767";
        assert!(said.contains(wrong), "{said}");
        let given = reader.field("service optimized-service", "{.spec.ports[0].nodePort}");
        assert!((30000..=32767).contains(&given.parse::<u16>().unwrap()), "{given}");
    });
    // No name matches no name, and nothing else.
    story.row("D17", |reader| {
        reader.is_answered("legacy-system", 3306, "served by 192.168.1.100:3306");
        leads_to_pods(reader, "web-service", 80, "Hello Kubernetes bootcamp!");
        reader.is_answered("svc-8091", 8091, "Hello Kubernetes bootcamp!");
    });
    // There is nothing to forward to, whatever slices say.
    story.row("D18", |reader| {
        let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: stale\n  \
            labels: {kubernetes.io/service-name: external-database}\naddressType: IPv4\n\
            ports: [{port: 80}]\nendpoints: [{addresses: [10.9.8.7]}]\n";
        reader.applies_text(slice).ok();
        assert_eq!(alias(reader, "external-database"), ["database.example.com."]);
        // What was written after it is there: so the proxy has seen the slice, too.
        let later = "apiVersion: v1\nkind: Service\nmetadata: {name: later}\nspec:\n  \
            clusterIP: 172.16.73.201\n  ports: [{port: 80}]\n";
        reader.applies_text(later).ok();
        reader.until("nft list ruleset; iptables-save", |said| said.contains("172.16.73.201"));
        assert_eq!(reader.cluster_ip("external-database"), "");
        let rules = reader.types("nft list ruleset; iptables-save").said;
        assert!(!rules.contains("10.9.8.7") && !rules.contains("external-database"), "{rules}");
        reader.types("kubectl delete service later").ok();
        reader.types("kubectl delete endpointslice stale").ok();
    });
}
