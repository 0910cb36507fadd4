//! Who may do what, as seen through kubectl.

use roadstead_testkit::netns::{is_left_out, run, try_run};

use crate::process::Roadstead;

#[test]
fn roles_decide_what_users_may_do() {
    if is_left_out("L5") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens.csv");
    std::fs::write(&tokens, "sesame,jane,1,\"dev\"\n").unwrap();
    let roadstead = Roadstead::apiserver_with(&format!("--token-auth-file {}", tokens.display()));
    let kubectl = roadstead.kubectl();
    let config = std::fs::read_to_string(roadstead.kubeconfig()).unwrap();
    let field = |name: &str| {
        let line = config.lines().find(|line| line.trim().starts_with(name)).unwrap();
        line.split_once(": ").unwrap().1.trim().to_owned()
    };
    let ca = directory.path().join("ca.crt");
    run(&format!("echo {} | base64 -d > {}", field("certificate-authority-data"), ca.display()));
    let server = field("server");
    let get = |token: &str, path: &str| {
        let flags = format!("--cacert {} -H 'Authorization: Bearer {token}'", ca.display());
        run(&format!("curl -s -w ' %{{http_code}}' {flags} '{server}{path}'"))
    };
    let pods = "/api/v1/namespaces/default/pods";

    assert!(get("wrong", pods).ends_with("401"));
    let refused = get("sesame", pods);
    let words = "pods is forbidden: User \\\"jane\\\" cannot list resource \\\"pods\\\" in API group \\\"\\\" in the namespace \\\"default\\\"";
    assert!(refused.contains(words) && refused.ends_with("403"), "{refused}");
    let refused = kubectl.fails("get pods --as=jane");
    assert!(refused.contains("User \"jane\" cannot list resource \"pods\""), "{refused}");
    kubectl.run("create rolebinding jane --clusterrole=view --user=jane");
    assert!(get("sesame", pods).ends_with("200"), "a binding counts at once");
    let can = |what: &str| {
        let output = kubectl.try_run(&format!("auth can-i {what} --as=jane"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!((can("list pods").as_str(), can("delete pods").as_str()), ("yes", "no"));
    assert!(
        get("sesame", "/api/v1/namespaces/default/secrets").ends_with("403"),
        "view sees no secrets"
    );
    assert!(get("sesame", "/api/v1/namespaces/kube-system/pods").ends_with("403"), "only here");
    kubectl.run("delete rolebinding jane");
    assert!(get("sesame", pods).ends_with("403"), "and no longer");

    // A service account with a token of its own.
    kubectl.run("create serviceaccount robot");
    let request =
        "{\"kind\":\"TokenRequest\",\"apiVersion\":\"authentication.k8s.io/v1\",\"spec\":{}}";
    let path = directory.path().join("request.json");
    std::fs::write(&path, request).unwrap();
    let url = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let created = kubectl.try_run(&format!("create --raw {url} -f {}", path.display()));
    let created: serde_json::Value = serde_json::from_slice(&created.stdout).unwrap();
    let token = created["status"]["token"].as_str().unwrap();
    assert!(get(token, pods).contains("system:serviceaccount:default:robot"));
    kubectl
        .run("create clusterrolebinding robot --clusterrole=view --serviceaccount=default:robot");
    assert!(get(token, pods).ends_with("200"));
    kubectl.run("delete serviceaccount robot");
    assert!(get(token, pods).ends_with("401"), "a token dies with its account");

    // Nobody gives away what they do not have.
    kubectl
        .run("create role binder --verb=create --resource=rolebindings.rbac.authorization.k8s.io");
    kubectl.run("create rolebinding binder --role=binder --user=jane");
    let binding = "{\"kind\":\"RoleBinding\",\"apiVersion\":\"rbac.authorization.k8s.io/v1\",\
        \"metadata\":{\"name\":\"more\"},\"roleRef\":{\"apiGroup\":\"rbac.authorization.k8s.io\",\
        \"kind\":\"ClusterRole\",\"name\":\"admin\"},\"subjects\":[{\"kind\":\"User\",\"name\":\"jane\"}]}";
    std::fs::write(&path, binding).unwrap();
    let url = format!("{server}/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings");
    let output = try_run(&format!(
        "curl -s --cacert {} -H 'Authorization: Bearer sesame' -H 'Content-Type: application/json' \
         -d @{} {url}",
        ca.display(),
        path.display()
    ));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is attempting to grant RBAC permissions not currently held"), "{said}");
    assert!(kubectl.fails("get rolebinding more").contains("NotFound"));
}
