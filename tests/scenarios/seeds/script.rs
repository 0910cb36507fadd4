//! Each document from top to bottom: its fenced blocks are typed as they stand there. What cannot be typed as
//! it stands is stated here and printed, not hidden.

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::laboratory_of;

use super::documents::{DOCUMENTS, Part, to_type};
use super::typing::{PATIENCE, Reader, Typed};
use super::{IMAGES, outside, prepare};
use crate::images::{LAYER, up_with_images_and};

/// What is typed instead of what stands there, or what must come of it.
#[derive(Clone, Copy, Debug)]
enum Instead {
    /// It fails, with these words.
    Fails(&'static str),
    /// A placeholder, and what has its place: an object, and one of its fields.
    Of(&'static str, &'static str, &'static str),
    /// It needs a terminal; in it these lines are typed, and this is shown.
    Terminal(&'static str, &'static str),
    /// In an editor, this is done.
    Edit(&'static str),
    /// It is not typed, because of this.
    Not(&'static str),
}

use Instead::{Edit, Fails, Not, Of, Terminal};

/// By document and line.
const EXCEPTIONS: &[(usize, usize, Instead)] = &[
    (0, 92, Of("10.96.123.456", "service web-service", "{.spec.clusterIP}")),
    (0, 248, Fails("unknown command \"services\"")),
    (0, 252, Terminal("", "web-service.default.svc.cluster.local")),
    (0, 268, Terminal("\necho $((6 * 7)) of it\nexit\n", "42 of it")),
    (0, 269, Not("it is typed in the shell of a pod: row B4")),
    (0, 276, Fails("metadata.annotations: Invalid value")),
    (2, 281, Of("172.16.73.164", "service nginx-svc -n week", "{.spec.clusterIP}")),
    (2, 330, Edit("s/^    mode: .*/    mode: \"ipvs\"/")),
    (2, 341, Not("the kernel has no IPVS, or it would do what row B7 tells")),
    (3, 471, Edit("s/8080/8081/")),
    (3, 487, Of("my-service-abc", MY_SLICES, "{.items[0].metadata.name}")),
    (3, 490, Of("my-service-abc", MY_SLICES, "{.items[0].metadata.name}")),
    (3, 541, Of("my-pod-name", "pods -l app=my-app", "{.items[0].metadata.name}")),
    (3, 547, Terminal("", "Hello Kubernetes bootcamp!")),
    (3, 550, Terminal("", "my-service.default.svc.cluster.local")),
    (3, 690, Fails("no matches for kind \"ServiceMonitor\"")),
    (3, 710, Fails("no matches for kind \"PrometheusRule\"")),
];

const MY_SLICES: &str = "endpointslices -l kubernetes.io/service-name=my-service";

/// What the documents take for granted besides pods.
const GRANTED: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: nginx-service}\nspec:\n  \
    selector: {run: my-nginx}\n  ports: [{port: 80}]\n";

#[test]
fn documents_are_typed_from_top_to_bottom() {
    laboratory_of(LAYER, || {
        outside::make();
        let flags = "--service-cidr 172.16.0.0/16 --proxy-mode iptables";
        let roadstead = up_with_images_and(&IMAGES, flags);
        let reader = Reader::new(&roadstead);
        prepare(&reader);
        reader.types("kubectl create ns sampleapp").ok();
        let mut met = 0;
        for (number, document) in DOCUMENTS.iter().enumerate() {
            reader.applies_text(GRANTED).ok();
            let parts = to_type(document);
            for part in &parts {
                met += usize::from(types(&reader, number, part));
            }
            eprintln!("S{number}: {} typed from top to bottom", parts.len());
            // Some names are in several documents.
            reader.types("kubectl delete services,endpoints,endpointslices --all").ok();
        }
        assert_eq!(met, EXCEPTIONS.len(), "an exception is about a line that is not there");
    });
}

/// Types a part of a document; returns whether it was an exception.
fn types(reader: &Reader, document: usize, part: &Part) -> bool {
    let (Part::Manifest(line, text) | Part::Command(line, text)) = part;
    let exception = EXCEPTIONS.iter().find(|(of, at, _)| (of, at) == (&document, line));
    let place = format!("S{document}:{line}");
    let instead = exception.map(|(.., instead)| *instead);
    if let Some(instead) = instead {
        eprintln!("{place} exception: {instead:?}");
    }
    let describes = text.starts_with("kubectl describe endpointslice");
    if describes && !reader.kubectl.is_at_least(21, "kubectl describe endpointslice") {
        return instead.is_some();
    }
    let typed = |text: &str| match part {
        Part::Manifest(..) => reader.applies_text(text),
        // Where names are looked up, it would list names.
        Part::Command(..) if text.starts_with("iptables -t") => reader.types_on_the_node(text),
        Part::Command(..) => reader.types(text),
    };
    match instead {
        None => goes_well(&place, || typed(text)),
        Some(Fails(words)) => {
            let typed = typed(text);
            let all = format!("{}{}", typed.said, typed.complained);
            assert!(typed.code != 0 && all.contains(words), "{place}: {typed:?}");
        }
        Some(Of(placeholder, object, field)) => {
            goes_well(&place, || typed(&text.replace(placeholder, &reader.field(object, field))))
        }
        Some(Terminal(keys, shown)) => {
            let mut typist = reader.in_terminal(text);
            if !keys.is_empty() {
                typist.shows("If you don't see a command prompt, try pressing enter.");
                typist.types(keys);
            }
            typist.shows(shown);
            typist.ends();
        }
        Some(Edit(expression)) => {
            reader.will_edit(expression);
            let said = typed(text).ok();
            assert!(said.contains(" edited"), "{place}: {said}");
        }
        Some(Not(why)) => eprintln!("{place} is not typed: {why}"),
    }
    instead.is_some()
}

/// A moment after a change it may still be as before.
fn goes_well(place: &str, typed: impl FnMut() -> Typed) {
    eventually(place, PATIENCE, typed, |typed| typed.code == 0);
}
