//! Configurations and what they mean.

use roadstead_zone::record_type::RecordType;
use roadstead_zone::settings::{Namespaces, Outside, PodNames, Reverse};

use super::*;
use crate::encode::hosts;
use crate::respond::Stage;

/// What kubeadm installs.
const STOCK: &str = "\
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
";

fn file(path: &str) -> std::io::Result<String> {
    match path {
        "/etc/resolv.conf" => Ok("search lan\nnameserver 192.0.2.53\nnameserver fd00::53\n".into()),
        "/etc/hosts" => Ok("127.0.0.1 localhost # me\n".into()),
        "custom/" => Ok("a.override\nb.server\nz.override\n.hidden.override".into()),
        "custom/a.override" => Ok("log\n".into()),
        "custom/z.override" => Ok("rewrite name regex ^a{1,2}$ b\n".into()),
        "custom/b.server" => Ok("acme.local, other.local {\n forward . 192.0.2.1\n}\n".into()),
        "bad" => Ok("\nwhoami\n".into()),
        "itself" => Ok("import itself\n".into()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

fn parsed(text: &str) -> Result<Corefile, String> {
    read(text, false, &CorefileEnvironment::files(&file)).map_err(|error| error.to_string())
}

#[test]
fn the_stock_configuration() {
    let corefile = parsed(STOCK).unwrap();
    let settings = corefile.settings.unwrap();
    assert_eq!(settings.origin, Name::parse("cluster.local").unwrap());
    assert_eq!((settings.pods, settings.reverse), (PodNames::Insecure, Reverse::FallThrough));
    let zones = ["in-addr.arpa", "ip6.arpa"].map(|zone| Name::parse(zone).unwrap());
    assert_eq!(settings.reverse_zones, zones);
    assert_eq!(settings.lifetimes.cluster_ip, 30);
    let addresses = [corefile.health, corefile.ready, corefile.metrics];
    let ports = addresses.map(|address| address.map(|address| address.port()));
    assert_eq!(ports, [Some(8080), Some(8181), Some(9153)]);
    assert_eq!(corefile.port, 53);
    let block = &corefile.setup.blocks[0];
    assert!(!block.fixed_order && block.logs.is_empty() && block.kubernetes.is_some());
    let servers = block.forwards[0].upstreams.addresses.clone();
    assert_eq!(servers, ["192.0.2.53:53".parse().unwrap(), "[fd00::53]:53".parse().unwrap()]);
    let seconds = Duration::from_secs;
    assert_eq!(
        block.cache.as_ref().unwrap().rule,
        CacheRule { success: seconds(30), denial: seconds(30), stale: seconds(0) }
    );
}

#[test]
fn what_is_refused() {
    let cases = [
        ("", "line 1: there is no server block"),
        ("errors", "line 1: a server block with rules in braces is expected"),
        (".:53 {\n errors", "line 1: the brace that is opened here is not closed"),
        (".:53 {\n errors\n}\n}", "line 4: a closing brace without an opening one"),
        (".:53 {\n errors } x\n}", "line 2: a brace in the middle of a line"),
        (".:53 {\n errors\n} x", "line 3: nothing may follow a closing brace"),
        (".:53 {\n\n errors\n whoami\n}", "line 4: unknown plugin \"whoami\""),
        (".:53 {\n import x\n}", "line 2: x: entity not found"),
        (".:53 {\n import */x\n}", "line 2: */x: only one * in a file's name is understood"),
        (".:53 {\n import bad\n}", "line 2: bad, line 2: unknown plugin \"whoami\""),
        (
            ".:53 {\n autopath /etc/resolv.conf\n}",
            "line 2: only `autopath @kubernetes` is understood",
        ),
        (".:53 {\n bind eth0\n}", "line 2: bind eth0: not an address"),
        (".:53 {\n k8s_external a.org\n}", "line 2: k8s_external needs kubernetes beside it"),
        (
            ".:53 {\n kubernetes c\n k8s_external a.org {\n  apex x\n }\n}",
            "line 4: k8s_external: \"apex\" is not understood",
        ),
        (".:53 {\n transfer {\n  to me\n }\n}", "line 3: me: not an address"),
        (".:53 {\n bufsize 100\n}", "line 2: bufsize must be between 512 and 4096"),
        (".:53 {\n health {\n  lameduck soon\n }\n}", "line 3: soon: not a duration"),
        (".:53 {\n template IN MX\n}", "line 2: template MX: this type is not understood"),
        (
            ".:53 {\n template IN A {\n  answer \"a.b 60 IN A 192.0.2.1\"\n }\n}",
            "line 3: a.b 60 IN A 192.0.2.1: only \"{{ .Name }} TTL IN A|AAAA ADDRESS\" is understood",
        ),
        (".:53 {\n template IN A {\n  rcode WHAT\n }\n}", "line 3: rcode WHAT: unknown"),
        (".:x {\n errors\n}", "line 1: .:x: not a port"),
        ("tls://. {\n errors\n}", "line 1: tls://.: only plain DNS is served"),
        (
            ".:53 {\n errors\n}\na:54 {\n errors\n}",
            "line 4: all server blocks must have the same port",
        ),
        (".:53 {\n errors\n}\n. {\n errors\n}", "line 4: zone . is there twice"),
        ("a..b {\n errors\n}", "line 1: \"a..b\" is not a domain name"),
        (".:53 {\n forward .\n}", "line 2: forward needs between 1 and 15 upstreams"),
        (
            ".:53 {\n forward . tls://1.1.1.1\n}",
            "line 2: tls://1.1.1.1: only plain DNS is spoken to upstreams",
        ),
        (".:53 {\n forward . /no/file\n}", "line 2: /no/file: entity not found"),
        (".:53 {\n forward . 1.1.1.1 {\n  policy best\n }\n}", "line 3: policy best: unknown"),
        (
            ".:53 {\n forward . 1.1.1.1 {\n  speed\n }\n}",
            "line 3: forward: unknown option \"speed\"",
        ),
        (".:53 {\n kubernetes a b\n}", "line 2: only one zone for Services is served"),
        (".:53 {\n kubernetes in-addr.arpa\n}", "line 2: there is no zone for Services"),
        (".:53 {\n kubernetes a {\n  pods maybe\n }\n}", "line 3: pods maybe: not a mode"),
        (".:53 {\n kubernetes a {\n  ttl 9999\n }\n}", "line 3: ttl must be between 0 and 3600"),
        (
            ".:53 {\n kubernetes a {\n  endpoint x\n }\n}",
            "line 3: endpoint: which cluster to follow is said by --kubeconfig",
        ),
        (".:53 {\n cache {\n  serve_stale soon\n }\n}", "line 3: soon: not a duration"),
        (".:53 {\n rewrite type ANY HINFO\n}", "line 2: only `rewrite name` is understood"),
        (
            ".:53 {\n rewrite name regex ( b\n}",
            "line 2: ( is no regular expression: unclosed group",
        ),
        (".:53 {\n rewrite name a b c\n}", "line 2: rewrite name: \"c\" is not understood"),
        (
            ".:53 {\n rewrite name a b answer value c d\n}",
            "line 2: rewrite name: answer value is not understood",
        ),
        (
            ".:53 {\n rewrite name a b answer name b a answer value c d\n}",
            "line 2: rewrite name: answer value is not understood",
        ),
        (".:53 {\n cache 30 a..b\n}", "line 2: \"a..b\" is not a domain name"),
        (
            ".:53 {\n cache {\n  success 9984 30 5\n }\n}",
            "line 3: cache: a shortest time is not understood",
        ),
        (".:53 {\n cache {\n  disable\n }\n}", "line 3: cache: disable needs success or denial"),
        (".:53 {\n health nowhere\n}", "line 2: nowhere: not an address with a port"),
        (".:53 {\n log {\n  class odd\n }\n}", "line 3: log: unknown class \"odd\""),
        (".:53 {\n log \"x\n}", "line 2: a quotation mark is not closed"),
        (".:53 {\n loadbalance weighted f\n}", "line 2: loadbalance weighted: unknown policy"),
    ];
    for (text, want) in cases {
        assert_eq!(parsed(text).map(|_| ()).unwrap_err(), want, "{text}");
    }
}

#[test]
fn what_is_understood() {
    let corefile = parsed(
        "# a comment\nacme.local:53, eu.acme.local:53 {\n  forward . 192.0.2.1:5353 192.0.2.2 {\n    \
         policy sequential\n    max_fails 0\n    except x.acme.local\n  }\n}\n\
         .:53 {\n  log\n  hosts {\n    192.0.2.9 db.corp db\n    ttl 60\n    fallthrough\n  }\n  \
         rewrite stop name suffix .old.corp .new.corp answer auto\n  rewrite name a.corp b.corp\n  \
         rewrite name regex ^(.*)\\.was$ {1}.is answer name (.*)\\.is {1}.was\n  \
         rewrite stop {\n    name exact x.corp y.corp\n    answer auto\n  }\n  \
         cache {\n    success 100 1h30m\n    denial 5 10\n    serve_stale\n  }\n  \
         kubernetes k8s.example {\n    namespaces a b\n    labels app=web\n    ignore empty_service\n    \
         endpoint_pod_names\n    zonal\n    pods verified\n  }\n}\n",
    );
    let corefile = corefile.unwrap();
    let [acme, root] = corefile.setup.blocks.as_slice() else { panic!("two blocks") };
    assert_eq!((acme.zones.len(), acme.forwards[0].except.len()), (2, 1));
    assert!(acme.fixed_order && acme.kubernetes.is_none() && !root.logs.is_empty());
    let hosts = root.hosts.as_ref().unwrap();
    assert_eq!((hosts.addresses.len(), hosts.lifetime), (2, 60));
    assert!(hosts.fall_through.as_ref().unwrap().covers(b"\x01x\0"));
    assert_eq!(root.rewrites.len(), 4);
    let cache = root.cache.as_ref().unwrap().rule;
    assert_eq!(cache.success, Duration::from_secs(5400));
    assert_eq!((cache.denial, cache.stale), (Duration::from_secs(10), Duration::from_secs(3600)));
    let settings = corefile.settings.unwrap();
    assert_eq!(settings.reverse, Reverse::NotServed);
    assert!(settings.ignore_empty_services && settings.endpoint_pod_names && settings.zonal);
    assert_eq!(settings.pods, PodNames::Verified);
    let listed = ["a", "b"].map(str::to_owned).into();
    assert_eq!(settings.namespaces, Namespaces::Listed(listed));
    assert_eq!(corefile.service_selector.as_deref(), Some("app=web"));
}

#[test]
fn imports() {
    let text = "(common) {\n errors\n import custom/*.override\n}\n\
                .:53 {\n import common\n kubernetes cluster.local\n import nowhere/*.override\n}\n\
                import custom/*.server\n";
    let corefile = parsed(text).unwrap();
    let [root, other] = corefile.setup.blocks.as_slice() else { panic!("two blocks") };
    assert!(!root.logs.is_empty() && root.rewrites.len() == 1 && root.kubernetes.is_some());
    assert_eq!((other.zones.len(), other.forwards.len()), (2, 1));
    let endless = parsed(".:53 {\n import itself\n}").unwrap_err();
    assert!(endless.starts_with("line 2: itself, line 1: itself, line 1: "), "{endless}");
    assert!(endless.ends_with("imports lead too deep"), "{endless}");
}

#[test]
fn a_zone_for_outsiders() {
    let text =
        ".:53 {\n k8s_external a.org {\n  ttl 60\n  headless\n  fallthrough\n }\n kubernetes c\n}";
    let corefile = parsed(text).unwrap();
    let outside = corefile.settings.unwrap().outside.unwrap();
    let origin = Name::parse("a.org").unwrap();
    assert_eq!(outside, Outside { origin: origin.clone(), lifetime: 60, headless: true });
    let fall_through = corefile.setup.blocks[0].kubernetes.as_ref().unwrap();
    assert!(fall_through.covers(origin.wire()));
}

/// Other plugins of configurations that are around.
#[test]
fn the_rest_of_it() {
    let corefile = parsed(
        ".:53 {\n health {\n  lameduck 5s\n }\n autopath @kubernetes\n minimal\n any\n nsid here\n bufsize 1400\n \
         bind 127.0.0.1 ::1\n kubernetes cluster.local {\n  upstream\n }\n \
         template ANY ANY internal.cloudapp.net {\n  \
         match \"^(?:[^.]+\\.){4,}internal\\.cloudapp\\.net\\.$\"\n  rcode NXDOMAIN\n  fallthrough\n }\n \
         template IN A blocked.example {\n  answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n }\n \
         template IN AAAA {\n  rcode NOERROR\n }\n}",
    )
    .unwrap();
    assert_eq!(corefile.setup.lame_duck, Duration::from_secs(5));
    assert_eq!((corefile.setup.udp_size, &*corefile.setup.identity), (1400, "here"));
    assert_eq!(corefile.bind, ["127.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
    let templates = &corefile.setup.blocks[0].templates;
    let cases = [
        ("a.b.c.d.internal.cloudapp.net", RecordType::A, "NoName"),
        ("a.internal.cloudapp.net", RecordType::A, "next"),
        ("x.blocked.example", RecordType::A, "60 192.0.2.1 NoError"),
        ("x.blocked.example", RecordType::Aaaa, "NoError"),
        ("web.example", RecordType::Aaaa, "NoError"),
        ("web.example", RecordType::A, "next"),
    ];
    for (name, kind, want) in cases {
        let name = Name::parse(name).unwrap();
        let found = templates.iter().find_map(|template| template.apply(name.wire(), kind));
        let got = found.map_or("next".to_owned(), |(answers, code)| {
            let texts = answers.iter().map(|(lifetime, address)| format!("{lifetime} {address} "));
            texts.collect::<String>() + &format!("{code:?}")
        });
        assert_eq!(got, want, "{name} {kind:?}");
    }
}

#[test]
fn the_way_back_follows_fallthrough() {
    let reverse = |options: &str| {
        let text = format!(".:53 {{\n kubernetes c in-addr.arpa {{\n {options}\n }}\n}}");
        parsed(&text).unwrap().settings.unwrap().reverse
    };
    assert_eq!(reverse("pods insecure"), Reverse::Authoritative);
    assert_eq!(reverse("fallthrough"), Reverse::FallThrough);
    assert_eq!(reverse("fallthrough in-addr.arpa"), Reverse::FallThrough);
    assert_eq!(reverse("fallthrough c"), Reverse::Authoritative);
}

#[test]
fn the_zones_of_a_table_of_hosts() {
    let stage = |rule: &str, name: &str| {
        let text = format!(".:53 {{\n hosts {rule} {{\n  192.0.2.1 a.corp a.lab\n }}\n}}");
        let corefile = parsed(&text).unwrap();
        let hosts = corefile.setup.blocks[0].hosts.as_ref().unwrap();
        match hosts::look_up(hosts, Name::parse(name).unwrap().wire()) {
            None => "next",
            Some(Stage::Hosts(..)) => "address",
            Some(Stage::HostName(..)) => "name",
            Some(_) => "missing",
        }
    };
    for (rule, name, want) in [
        ("/etc/hosts corp", "a.corp", "address"),
        ("/etc/hosts corp", "b.corp", "missing"),
        ("/etc/hosts corp", "a.lab", "next"),
        ("/etc/hosts corp lab", "a.lab", "address"),
        ("/etc/hosts corp", "www.example", "next"),
        ("/etc/hosts corp", "1.2.0.192.in-addr.arpa", "name"),
        ("/etc/hosts", "www.example", "missing"),
        ("", "a.lab", "address"),
    ] {
        assert_eq!(stage(rule, name), want, "hosts {rule}: {name}");
    }
}

#[test]
fn rules_that_go_on() {
    let rewritten = |rules: &str| {
        let corefile = parsed(&format!(".:53 {{\n{rules}\n}}")).unwrap();
        let name = corefile.setup.blocks[0].rewritten(Name::parse("a.b").unwrap().wire());
        name.map_or_else(String::new, |name| name.to_string())
    };
    for (rules, want) in [
        ("rewrite name a.b c.d\nrewrite name c.d e.f", "c.d."),
        ("rewrite stop name a.b c.d\nrewrite name c.d e.f", "c.d."),
        ("rewrite continue name a.b c.d\nrewrite name c.d e.f", "e.f."),
        ("rewrite continue name a.b c.d\nrewrite name a.b e.f", "c.d."),
        ("rewrite continue name x.b c.d\nrewrite name suffix .b .c", "a.c."),
        ("rewrite name x.b c.d", ""),
    ] {
        assert_eq!(rewritten(rules), want, "{rules}");
    }
}

#[test]
fn what_is_remembered() {
    let rules = "cache 30 org lan {\n disable denial x.org\n disable success y.org\n}";
    let corefile = parsed(&format!(".:53 {{\n{rules}\n}}")).unwrap();
    let block = &corefile.setup.blocks[0];
    for (name, want) in [
        ("a.org", (true, false, false)),
        ("a.lan", (true, false, false)),
        ("a.com", (false, false, false)),
        ("a.x.org", (true, false, true)),
        ("a.y.org", (true, true, false)),
    ] {
        let name = Name::parse(name).unwrap();
        let forgets = |absence| block.forgets(name.wire(), absence);
        let got = (block.cache(name.wire()).is_some(), forgets(false), forgets(true));
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn what_is_logged() {
    // Replies by their code and number of answers.
    let cases = [
        ("log", "a.org", (0, 1), true),
        ("log org lan", "a.lan", (0, 1), true),
        ("log org lan", "a.com", (0, 1), false),
        ("log . {combined}", "a.org", (0, 1), true),
        ("log . {\n class error\n}", "a.org", (0, 1), false),
        ("log . {\n class error\n}", "a.org", (2, 0), true),
        ("log . {\n class denial error\n}", "a.org", (3, 0), true),
        ("log . {\n class denial error\n}", "a.org", (0, 0), true),
        ("log . {\n class denial all\n}", "a.org", (0, 1), true),
        ("errors", "a.org", (2, 0), false),
    ];
    for (rules, name, (code, answers), want) in cases {
        let corefile = parsed(&format!(".:53 {{\n{rules}\n}}")).unwrap();
        let reply = [0, 0, 0x80, code, 0, 1, 0, answers, 0, 0, 0, 0];
        let name = Name::parse(name).unwrap();
        let got = corefile.setup.blocks[0].logs(name.wire(), LoggedEnd::of(&reply));
        assert_eq!(got, want, "{rules}: {name} {code} {answers}");
    }
}
