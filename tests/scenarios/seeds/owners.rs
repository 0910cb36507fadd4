//! The document about Services, Endpoints and slices (S1): objects that somebody exported, with their past.

use super::ledger::Story;

pub(super) fn play(story: &mut Story) {
    story.row("C13", |reader| {
        let said = reader.applies(13).fails();
        assert!(said.contains("Error from server (NotFound)"), "{said}");
        assert!(said.contains("namespaces \"sampleapp\" not found"), "{said}");
        reader.types("kubectl create ns sampleapp").ok();
        assert_eq!(reader.applies(13).warned(), "endpoints/frontend created");
        let own = reader.field(
            "endpoints frontend -n sampleapp",
            "{.metadata.uid} {.metadata.resourceVersion}",
        );
        let (uid, version) = own.split_once(' ').unwrap();
        assert!(uid.len() == 36 && uid != "4a8381ac-a4b6-477e-a1ed-ddf3d9f47d2c", "{own}");
        assert!(!version.is_empty() && version != "1655960", "{own}");
    });
    // Its owner is no Service of this cluster, and so it goes.
    story.row("C14", |reader| {
        let text = reader.manifest(14).to_owned();
        std::fs::write("/run/reader/slice.yaml", text).unwrap();
        let line = "kubectl apply -f /run/reader/slice.yaml -o jsonpath='{.metadata.name} {.metadata.generation}'";
        assert_eq!(reader.types(line).ok(), "frontend-xq96c 1");
        reader.until("kubectl get endpointslices -n sampleapp -o name", str::is_empty);
    });
}
