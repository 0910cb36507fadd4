//! Real images: nginx and busybox of `scripts/images`, from `kubectl apply` to an answer.

use std::path::Path;
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

/// What `scripts/test` leaves out where the images cannot be made.
pub(crate) const LAYER: &str = "debian-images";
const SECOND: Duration = Duration::from_secs(1);
/// Counts the processes that see the root of a container; the machine may have such mounts of others.
pub(crate) const SEE_A_ROOT: &str =
    "grep -lE '^overlay .*,workdir=\\.\\./' /proc/[0-9]*/mounts 2>&- | wc -l";

/// Starts everything with the archives of these images, as on a machine without internet.
pub(crate) fn up_with_images(names: &[&str]) -> Roadstead {
    up_with_images_and(names, "")
}

/// The same, with more flags.
pub(crate) fn up_with_images_and(names: &[&str], flags: &str) -> Roadstead {
    offer_images(names);
    Roadstead::up_with(format!("--images /run/images {flags}").trim_end())
}

/// Puts the archives of these images where `--images /run/images` finds them.
pub(crate) fn offer_images(names: &[&str]) {
    run("mkdir /run/images");
    for name in names {
        let archive = format!("../../target/images/{name}.tar");
        assert!(
            Path::new(&archive).exists(),
            "{archive} is made by scripts/images (set ROADSTEAD_SKIP={LAYER} to leave this out)"
        );
        run(&format!("cp {archive} /run/images/"));
    }
}

#[test]
fn nginx_answers_through_its_service() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["nginx"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/nginx.yaml");
        let done = kubectl.run("rollout status deployment/nginx --timeout=90s");
        assert!(done.contains("successfully rolled out"), "{done}");
        let address = kubectl.run("get service nginx -o jsonpath='{.spec.clusterIP}'");
        let curl = format!("curl -s -m 2 http://{address}/");
        let page = || String::from_utf8(try_run(&curl).stdout).unwrap();
        eventually("nginx answers", 10 * SECOND, page, |page| page.contains("Welcome to nginx!"));
        let events = kubectl.run("get events -o jsonpath='{.items[*].message}'");
        assert!(
            events.contains("Container image \"nginx:1.19\" already present on machine"),
            "{events}"
        );
        // What is deleted is gone, with its mounts.
        let mounts = || run(SEE_A_ROOT);
        assert_ne!(mounts(), "0", "each container has one");
        kubectl.run("delete -f ../../examples/nginx.yaml --wait=true --timeout=60s");
        eventually("no mount is left", 20 * SECOND, mounts, |count| count == "0");
    });
}

#[test]
fn a_missing_image_says_so_and_harms_nobody() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.run("create deployment fine --image=busybox -- sleep 1000");
        kubectl.run("create deployment missing --image=nowhere.invalid/none:1");
        kubectl.apply(
            "{apiVersion: v1, kind: Pod, metadata: {name: wrong, labels: {app: wrong}}, \
             spec: {containers: [{name: wrong, image: BUSYBOX}]}}",
        );
        let reason = |app: &str| {
            let path = "{.items[*].status.containerStatuses[*].state.waiting.reason}";
            kubectl.run(&format!("get pods -l app={app} -o jsonpath='{path}'"))
        };
        let pulls = |reason: &String| reason == "ErrImagePull" || reason == "ImagePullBackOff";
        eventually("the pull fails", 30 * SECOND, || reason("missing"), pulls);
        eventually(
            "no such name",
            10 * SECOND,
            || reason("wrong"),
            |reason| reason == "InvalidImageName",
        );
        kubectl.run("rollout status deployment/fine --timeout=60s");
        let pod = kubectl.run("get pods -l app=fine -o jsonpath='{.items[0].status.phase}'");
        assert_eq!(pod, "Running");
    });
}
