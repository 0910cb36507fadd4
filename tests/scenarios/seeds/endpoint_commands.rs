//! The commands of the document "Endpoint" (S3), in its order.

use roadstead_testkit::kubectl::eventually;

use super::ledger::Story;
use super::service::{field, settled};
use super::typing::{DEPRECATED, PATIENCE, Reader, row, sorted};

const MY_SERVICE: &str = "endpoints my-service";
const ADDRESSES: &str = "{.subsets[*].addresses[*].ip}";

pub(super) fn play(story: &mut Story) {
    looked_at(story);
    edited(story);
    deleted(story);
    slices(story);
    debugging(story);
    pods(story);
    in_pods(story);
    statements(story);
}

fn looked_at(story: &mut Story) {
    story.row("A8", |reader| {
        let short = reader.types("kubectl get ep  # 简写").warned();
        assert_eq!(row(&short, "NAME"), ["NAME", "ENDPOINTS", "AGE"]);
        assert_eq!(row(&short, "external-db")[1], "192.168.1.100:3306");
    });
    story.row("A9", |reader| {
        let said = reader.types("kubectl get endpoints my-service").warned();
        let pods = reader.pods("app=my-app").join(":8080,") + ":8080";
        assert_eq!(row(&said, "my-service")[1], pods);
        assert_eq!(said.lines().count(), 2);
        // Three of four are listed.
        let said = reader.types("kubectl get endpoints hybrid-service").ok();
        assert!(row(&said, "hybrid-service")[1].ends_with(" + 1 more..."), "{said}");
    });
    story.row("A10", |reader| {
        let said = reader.types("kubectl describe endpoints my-service").warned();
        assert_eq!(field(&said, "Addresses"), reader.pods("app=my-app").join(","));
        assert!(said.contains("http  8080  TCP"), "{said}");
    });
    story.row("A11", |reader| {
        let said = reader.types("kubectl get endpoints my-service -o yaml").warned();
        assert!(said.contains("kind: Endpoints") && said.contains("name: http"), "{said}");
        let reference = said.split("targetRef:").nth(1).unwrap_or_default();
        let reference: Vec<_> = reference.lines().skip(1).take(4).collect();
        assert!(reference.iter().any(|line| line.contains("uid: ")), "{said}");
        assert!(!reference.iter().any(|line| line.contains("resourceVersion")), "{said}");
        if reader.kubectl.is_at_least(21, "hiding managedFields") {
            assert!(!said.contains("managedFields"), "{said}");
        }
    });
}

fn edited(story: &mut Story) {
    // With a selector the edit holds until the next change of pods or Service, and reaches no slice.
    story.row("A12", |reader| {
        let pods = settled(reader, "my-service", "app=my-app");
        reader.will_edit(&format!("s/ip: {}$/ip: 10.244.0.99/", pods[0]));
        let said = reader.types("kubectl edit endpoints my-service").ok();
        assert_eq!(said, "endpoints/my-service edited");
        assert!(reader.field(MY_SERVICE, ADDRESSES).contains("10.244.0.99"));
        assert_eq!(reader.sliced("my-service"), pods);
        reader.touch("my-service");
        reader.field_becomes(MY_SERVICE, ADDRESSES, |said| sorted(said.split(' ')) == pods);
    });
    // Without one it is mirrored at once.
    story.row("A12", |reader| {
        reader.will_edit("s/ip: 192.168.1.101$/ip: 10.244.2.5/");
        let said = reader.types("kubectl edit endpoints external-service").ok();
        assert_eq!(said, "endpoints/external-service edited");
        let ask = || reader.sliced("external-service");
        eventually("mirrored", PATIENCE, ask, |found| found == &["10.244.2.5", "192.168.1.100"]);
    });
}

fn deleted(story: &mut Story) {
    story.row("A13", |reader| {
        let before = reader.field(MY_SERVICE, "{.metadata.uid}");
        let said = reader.types("kubectl delete endpoints my-service").warned();
        assert!(said.starts_with("endpoints \"my-service\" deleted"), "{said}");
        let new = |uid: &str| !uid.is_empty() && uid != before;
        reader.field_becomes(MY_SERVICE, "{.metadata.uid}", new);
        let said = reader.types("kubectl delete endpoints external-db").ok();
        assert!(said.starts_with("endpoints \"external-db\" deleted"), "{said}");
        eventually("no slice", PATIENCE, || reader.sliced("external-db"), Vec::is_empty);
    });
}

fn slices(story: &mut Story) {
    let labelled = "endpointslices -l kubernetes.io/service-name=my-service";
    story.row("A14", |reader| {
        let said = reader.types("kubectl get endpointslices").ok();
        assert_eq!(row(&said, "NAME"), ["NAME", "ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"]);
        let mut lines = said.lines();
        let empty = lines.find(|line| line.starts_with("internal-api-")).unwrap_or_default();
        let words: Vec<_> = empty.split_whitespace().collect();
        assert_eq!(words[1..4], ["IPv4", "<unset>", "<unset>"], "{said}");
    });
    story.row("A15", |reader| {
        let said = reader.types(&format!("kubectl get {labelled}")).ok();
        let words: Vec<_> = said.lines().nth(1).unwrap().split_whitespace().collect();
        assert!(words[0].starts_with("my-service-") && words[2] == "8080", "{said}");
    });
    story.row("A16", |reader| {
        let missing = "\"my-service-abc\" not found";
        let known = reader.kubectl.is_at_least(21, "kubectl describe endpointslice");
        let said = reader.types("kubectl describe endpointslice my-service-abc").fails();
        let other = "the server could not find the requested resource";
        assert!(said.contains(missing) || (!known && said.contains(other)), "{said}");
        if known {
            let name = reader.field(labelled, "{.items[0].metadata.name}");
            let said = reader.types(&format!("kubectl describe endpointslice {name}")).ok();
            for part in [
                "AddressType:",
                "Ports:",
                "http  8080  TCP",
                "Conditions:",
                "Ready:    true",
                "TargetRef:",
                "NodeName:",
                "Zone:",
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
            for pod in reader.pods("app=my-app") {
                assert!(said.contains(&format!("Addresses:  {pod}")), "{said}");
            }
        }
    });
    story.row("A17", |reader| {
        let said = reader.types("kubectl get endpointslice my-service-abc -o yaml").fails();
        let missing = "endpointslices.discovery.k8s.io \"my-service-abc\" not found";
        assert!(said.contains(missing), "{said}");
        let name = reader.field(labelled, "{.items[0].metadata.name}");
        let said = reader.types(&format!("kubectl get endpointslice {name} -o yaml")).ok();
        assert!(said.contains("kind: EndpointSlice") && said.contains("  generation: "), "{said}");
    });
}

fn debugging(story: &mut Story) {
    story.row("A18", |reader| {
        let typed = reader.types("kubectl get svc,ep -o wide");
        assert!(typed.complained.contains(DEPRECATED), "{typed:?}");
        let said = typed.ok();
        let (services, endpoints) = said.split_once("\n\n").expect("two tables");
        assert!(services.lines().next().unwrap().ends_with("SELECTOR"), "{said}");
        assert_eq!(row(services, "service/my-service").last(), Some(&"app=my-app"));
        assert_eq!(
            row(endpoints, "endpoints/external-service")[1],
            "192.168.1.100:80,10.244.2.5:80"
        );
    });
    story.row("A19", |reader| {
        let said = reader.types("kubectl get pods -l app=my-app -o wide").ok();
        assert!(said.contains("NOMINATED NODE") && said.lines().count() == 3, "{said}");
    });
    // Only what is wrong with Endpoints is told of.
    story.row("A21", |reader| {
        let line = "kubectl get events --field-selector involvedObject.kind=Endpoints";
        let said = reader.types(line).ok();
        let others = said.lines().skip(1).filter(|line| !line.contains("endpoints/"));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new());
        let typed = reader.types(&format!("{line} -n week"));
        assert_eq!((typed.code, &*typed.complained), (0, "No resources found in week namespace."));
    });
    story.row("A22", |reader| {
        let said = reader.types("kubectl logs -n kube-system -l k8s-app=kube-proxy").ok();
        let count = said.lines().count();
        assert!((1..=10).contains(&count), "{said}");
        for line in said.lines() {
            assert!(line.starts_with(['I', 'W', 'E']) && line.contains("] \""), "{line}");
        }
        let none = reader.types("kubectl logs -n kube-system -l k8s-app=nothing");
        assert_eq!(none.code, 0, "{none:?}");
        if reader.kubectl.is_at_least(24, "what kubectl says where there are no logs") {
            assert_eq!(none.complained, "No resources found in kube-system namespace.");
        }
    });
    story.row("A2", |reader| {
        let said = reader.types("kubectl describe service my-service").ok();
        assert_eq!(field(&said, "Port"), "http  80/TCP");
        assert_eq!(field(&said, "TargetPort"), "8080/TCP");
    });
}

fn pods(story: &mut Story) {
    story.row("A23", |reader| {
        let said = reader.types("kubectl get pods --show-labels").ok();
        assert!(said.lines().next().unwrap().ends_with("LABELS"), "{said}");
        assert_eq!(row(&said, "web-pod").last(), Some(&"app=web"));
    });
    story.row("A24", |reader| {
        let said = reader.types("kubectl get pods -o wide").ok();
        let address = reader.field("pod web-pod", "{.status.podIP}");
        assert!(row(&said, "web-pod").contains(&&*address), "{said}");
    });
    story.row("A25", |reader| {
        let unhealthy = |said: &str| {
            said.contains("Readiness probe failed: HTTP probe failed with statuscode: 404")
        };
        let said = reader.until("kubectl describe pod web-pod", unhealthy);
        // From 1.37 on, kubectl has whole words for it.
        let said =
            said.replace("successThreshold", "#success").replace("failureThreshold", "#failure");
        for part in [
            "http-get http://:80/healthz delay=5s timeout=1s period=10s #success=1 #failure=3",
            "http-get http://:80/healthz delay=15s timeout=1s period=20s #success=1 #failure=3",
            "Scheduled",
            "Pulled",
            "Created",
            "Started",
            "Unhealthy",
            "ContainersReady",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let said = reader.types("kubectl describe pod my-pod-name").fails();
        assert!(said.contains("pods \"my-pod-name\" not found"), "{said}");
    });
    // It is never ready: its address is with those that are not.
    story.row("C38", |reader| {
        let address = reader.field("pod web-pod", "{.status.podIP}");
        let not_ready =
            reader.field("endpoints web-service", "{.subsets[0].notReadyAddresses[*].ip}");
        assert_eq!(not_ready, address);
        let of = "endpointslices -l kubernetes.io/service-name=web-service";
        let path = "{.items[*].endpoints[?(@.conditions.ready==false)].addresses[0]}";
        assert_eq!(reader.field(of, path), address);
        let said = reader.types("kubectl get pod web-pod").ok();
        assert!(row(&said, "web-pod").contains(&"0/1"), "{said}");
    });
}

fn in_pods(story: &mut Story) {
    story.row("A26", |reader| {
        let typed = || {
            let mut typist = reader.in_terminal("kubectl exec -it test-pod -- curl my-service:80");
            (typist.ends(), typist.shown())
        };
        eventually("an answer", PATIENCE, typed, |(code, shown)| {
            *code == 0 && shown.contains("Hello Kubernetes bootcamp!")
        });
        let mut typist = reader.in_terminal("kubectl exec -it test-pod -- curl no-service:80");
        assert_eq!(typist.ends(), 6, "{}", typist.shown());
    });
    story.row("A27", |reader| {
        let address = reader.cluster_ip("my-service");
        let mut typist = reader.in_terminal("kubectl exec -it test-pod -- nslookup my-service");
        assert_eq!(typist.ends(), 0, "{}", typist.shown());
        assert!(typist.shown().contains(&address), "{}", typist.shown());
    });
    story.row("A28", |reader| {
        let said = reader.types("kubectl -n kube-system describe configmap kube-proxy").ok();
        for part in ["Data\n====\nconfig.conf:\n----", "kind: KubeProxyConfiguration"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    });
    story.row("C45", |reader| {
        assert_eq!(reader.applies(45).ok(), "configmap/kube-proxy configured");
        let before = super::modes::proxy_pod(reader, "");
        reader.types("kubectl delete pod -l k8s-app=kube-proxy -n kube-system").ok();
        super::modes::proxy_pod(reader, &before);
        let log = "kubectl logs -n kube-system -l k8s-app=kube-proxy --tail=-1";
        reader.until(log, |said| said.contains("unknown field logging.level"));
        let events =
            "kubectl get events -n kube-system --field-selector involvedObject.name=kube-proxy";
        reader.until(events, |said| said.contains("unknown field logging.level"));
        reader.is_answered("my-service", 80, "Hello Kubernetes bootcamp!");
    });
}

fn statements(story: &mut Story) {
    // Not only ready pods are there, but they are apart.
    story.row("D2", |reader: &Reader| {
        let ready = sorted(reader.field("endpoints web-service", ADDRESSES).split(' '));
        let web_pod = reader.field("pod web-pod", "{.status.podIP}");
        let mut all = reader.pods("app=web");
        all.retain(|pod| *pod != web_pod);
        assert_eq!((ready.len(), ready), (3, all));
    });
    // Who is not ready gets no connections, and answers whoever calls it directly.
    story.row("D14", |reader| {
        let address = reader.field("pod web-pod", "{.status.podIP}");
        let asked = || reader.types(&format!("curl -s -m 2 http://{address}/"));
        eventually("nginx", PATIENCE, asked, |typed| typed.said.contains("Welcome to nginx!"));
        let rules = reader.types("nft list ruleset; iptables-save").said;
        let pods = reader.pods("app=my-app");
        assert!(pods.iter().all(|pod| rules.contains(pod)), "{pods:?}");
        assert!(
            !rules.contains(&format!("{address}:80"))
                && !rules.contains(&format!("{address} . 80"))
        );
    });
}
