//! Who this machine is in the cluster: the authority that it trusts, its key and certificates, how it gets
//! them and gets new ones in time.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use roadstead_server::identity::authority::{known_by, public_key_hash, validity_of};
use roadstead_server::identity::node_request::NodeRequest;
use roadstead_server::identity::secret_file::write_secret;
use serde_json::{Value, json};
use tokio::time;
use tracing::{info, warn};

use crate::join::Args;
use crate::servers::archive::Archive;
use crate::servers::known::Servers;
use crate::servers::{self, Server};
use crate::token::cluster_of;
use crate::token_text::{JoinToken, Pin};

/// A server that does not answer in this time is not there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Somebody may have to approve a request by hand.
const APPROVAL: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(200);
/// How soon a renewal is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// Between the certificate of a node and its key.
const SEAM: &str = "# and its key\n";
/// That of the agent's port.
const SERVING: &str = "serving.pem";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// What makes this machine a member of a cluster.
#[derive(Clone)]
pub(crate) struct Membership {
    /// The name of the node.
    pub(crate) node: String,
    /// Where its API servers are, as somebody has said it.
    pub(crate) server: String,
    /// All of its API servers, and what they said last.
    pub(crate) api: ApiServers,
    /// The cluster's authority, in PEM.
    pub(crate) authority: String,
    /// The node's own, in PEM.
    pub(crate) certificate: String,
    key: String,
}

/// The API servers of a node's cluster.
#[derive(Clone)]
pub(crate) struct ApiServers {
    pub(crate) servers: Arc<Servers>,
    /// What they have said to the node, and to who enforces policies.
    pub(crate) said: Arc<Archive>,
    pub(crate) said_of_policies: Arc<Archive>,
}

impl ApiServers {
    /// Those that somebody has named, and those that were found since.
    fn of(files: &Files, server: &str) -> anyhow::Result<Self> {
        let servers = Servers::kept_in(files.path("servers"), named(server)?);
        let archive = |name: &str| {
            let path = files.path("offline").join(name);
            Archive::at(path.clone()).with_context(|| format!("cannot make {}", path.display()))
        };
        Ok(Self { servers, said: archive("node")?, said_of_policies: archive("policies")? })
    }

    /// Keeps what they say, for ever.
    pub(crate) async fn keep(self) {
        tokio::join!(self.said.keep(), self.said_of_policies.keep());
    }
}

/// Where all that is kept.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn of(data_dir: &Path) -> Self {
        Self(data_dir.join("join"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// For us only, and whole or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.with_context(|| format!("cannot make {}", self.0.display()))?;
        let path = self.path(name);
        write_secret(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// How a cluster is reached.
fn kubeconfig(cluster: Value, user: Value) -> anyhow::Result<Kubeconfig> {
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "roadstead",
        "clusters": [{"name": "roadstead", "cluster": cluster}],
        "contexts": [{"name": "roadstead", "context": {"cluster": "roadstead", "user": "node"}}],
        "users": [{"name": "node", "user": user}]});
    serde_json::from_value(config).context("cannot describe how the cluster is reached")
}

async fn client_of(
    config: Kubeconfig,
    servers: &Arc<Servers>,
    archive: Option<Arc<Archive>>,
) -> anyhow::Result<Client> {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(config, &options).await?;
    servers::client(&config, servers, archive)
}

/// The servers that somebody has named.
fn named(server: &str) -> anyhow::Result<Vec<Server>> {
    let named = Server::list(server).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(!named.is_empty(), "--server names no API server");
    Ok(named)
}

/// Where one of them is, for configurations that take one.
fn first(server: &str) -> &str {
    server.split(',').next().unwrap_or(server).trim()
}

impl Membership {
    /// What there is already, or what a token brings.
    pub(crate) async fn establish(args: &Args) -> anyhow::Result<Self> {
        let files = Files::of(&args.data_dir);
        let node = args.node.name();
        if let Some(present) = Self::present(&files, &node)? {
            match &args.server {
                Some(server) if *server != present.server => {
                    let api = ApiServers::of(&files, server)?;
                    let moved = Self { server: server.clone(), api, ..present };
                    moved.keep(&files)?;
                    return Ok(moved);
                }
                _ => return Ok(present),
            }
        }
        let Some(token) = args.given_token()? else {
            bail!(
                "this machine is no node yet: give it --server and --token, as `roadstead token create` \
                 prints them"
            );
        };
        let server = args.server.clone();
        let server = server.context("which cluster? give --server https://HOST:PORT")?;
        let api = ApiServers::of(&files, &server)?;
        let member = Self::join(&token, (server, api), node).await?;
        member.keep(&files)?;
        Ok(member)
    }

    /// What is on the disk, unless it is over, or for another name.
    fn present(files: &Files, node: &str) -> anyhow::Result<Option<Self>> {
        let all = ["server", "ca.crt", "node.pem", "node"].map(|name| files.read(name));
        let [Some(server), Some(authority), Some(pair), Some(known)] = all else {
            return Ok(None);
        };
        let Some((certificate, key)) = pair.split_once(SEAM) else { return Ok(None) };
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        if known.trim() != node {
            bail!(
                "this machine is the node {:?}: start it with --node-name {}, or let it leave first \
                 (`roadstead leave`)",
                known.trim(),
                known.trim()
            );
        }
        let end = validity_of(&certificate).map(|(_, end)| end);
        let is_good = end.is_some_and(|end| end > Timestamp::now());
        if !is_good {
            warn!(?end, "the certificate of this node is over: it joins anew");
        }
        let (server, node) = (server.trim().to_owned(), node.to_owned());
        let api = ApiServers::of(files, &server)?;
        Ok(is_good.then_some(Self { node, server, api, authority, certificate, key }))
    }

    /// What there is, whether or not it is still good: for whoever leaves.
    pub(crate) fn left(files: &Files) -> Option<Self> {
        let node = files.read("node")?;
        Self::present(files, node.trim()).ok().flatten()
    }

    /// Becomes a node, by a token.
    async fn join(
        token: &JoinToken,
        (server, api): (String, ApiServers),
        node: String,
    ) -> anyhow::Result<Self> {
        let authority = trusted_authority((&server, &api.servers), token.pin).await?;
        let cluster = json!({"server": first(&server),
            "certificate-authority-data": STANDARD.encode(&authority)});
        let user = json!({"token": token.token});
        let client = client_of(kubeconfig(cluster, user)?, &api.servers, None).await?;
        let request = NodeRequest::new(&node, Vec::new())?;
        let certificate = certificate_for(&client, CLIENT_SIGNER, &request).await;
        let certificate = certificate.context("the cluster does not take this machine")?;
        Ok(Self { node, server, api, authority, certificate, key: request.key })
    }

    /// Writes everything down. Certificate and key are one file: after a power cut there are both of one time.
    fn keep(&self, files: &Files) -> anyhow::Result<()> {
        files.write("node", &self.node)?;
        files.write("server", &self.server)?;
        files.write("ca.crt", &self.authority)?;
        files.write("node.pem", &format!("{}{SEAM}{}", self.certificate, self.key))?;
        // For people, who look with it at what this node may see.
        files.write("node.kubeconfig", &serde_json::to_string_pretty(&self.kubeconfig()?)?)
    }

    fn cluster(&self) -> Value {
        json!({"server": first(&self.server),
            "certificate-authority-data": STANDARD.encode(&self.authority)})
    }

    fn kubeconfig(&self) -> anyhow::Result<Kubeconfig> {
        let user = json!({"client-certificate-data": STANDARD.encode(&self.certificate),
            "client-key-data": STANDARD.encode(&self.key)});
        kubeconfig(self.cluster(), user)
    }

    /// A client with the rights of the node.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        client_of(self.kubeconfig()?, &self.api.servers, Some(self.api.said.clone())).await
    }

    /// A client with the token that is in a file at that moment.
    pub(crate) async fn client_of_policies(&self, token_file: &Path) -> anyhow::Result<Client> {
        let user = json!({"tokenFile": token_file.display().to_string()});
        let said = Some(self.api.said_of_policies.clone());
        client_of(kubeconfig(self.cluster(), user)?, &self.api.servers, said).await
    }

    /// A certificate for the agent's port, under these names and addresses; without an API server, the last one.
    pub(crate) async fn serving(
        &self,
        files: &Files,
        names: Vec<String>,
    ) -> anyhow::Result<NodeRequest> {
        let request = NodeRequest::new(&self.node, names)?;
        let client = self.client().await?;
        let last = files.read(SERVING).filter(|_| self.api.servers.is_offline());
        if let Some((certificate, key)) = last.as_deref().and_then(|pair| pair.split_once(SEAM)) {
            return Ok(NodeRequest { request: certificate.to_owned(), key: key.to_owned() });
        }
        let certificate = certificate_for(&client, SERVING_SIGNER, &request).await?;
        files.write(SERVING, &format!("{certificate}{SEAM}{}", request.key))?;
        Ok(NodeRequest { request: certificate, key: request.key })
    }
}

/// The cluster's authority, as the server says it, if it is the one that we were told of.
async fn trusted_authority(
    (server, servers): (&str, &Arc<Servers>),
    pin: Option<Pin>,
) -> anyhow::Result<String> {
    let Some(pin) = pin else {
        bail!(
            "nothing says by what this cluster is known, so anybody could be it: take a token that begins \
             with rt1, or give --ca-hash sha256:…"
        );
    };
    // Nothing is believed but what has that hash; nothing secret is sent.
    let cluster = json!({"server": first(server), "insecure-skip-tls-verify": true});
    let client = client_of(kubeconfig(cluster, json!({}))?, servers, None).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    let asked = time::timeout(PATIENCE, maps.get("cluster-info")).await;
    let map = asked.with_context(|| format!("{server} does not answer"))?;
    let map = map.with_context(|| format!("{server} does not say which cluster it is"))?;
    let text = map.data.and_then(|mut data| data.remove("kubeconfig")).unwrap_or_default();
    let said = cluster_of(&text).map(|(_, authority)| authority);
    let said = said.with_context(|| format!("{server} does not say whom to trust"))?;
    if let Some(known) = known_by(&said, &pin.0) {
        return Ok(known);
    }
    match public_key_hash(&said).map(Pin) {
        Some(hash) => bail!(
            "{server} is another cluster than the one of this token, or somebody pretends to be it: its \
             authority is {hash}, expected {pin}"
        ),
        None => bail!("{server} names an authority that is none"),
    }
}

/// Asks for a certificate, and waits for it.
async fn certificate_for(
    client: &Client,
    signer: &str,
    request: &NodeRequest,
) -> anyhow::Result<String> {
    let purpose = if signer == SERVING_SIGNER { "server auth" } else { "client auth" };
    let asked = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("node-csr-".into()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.request.clone().into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["digital signature".into(), purpose.into()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let asking = time::timeout(PATIENCE, requests.create(&PostParams::default(), &asked)).await;
    let made = match asking.context("the API server does not answer")? {
        Err(kube::Error::Api(status)) if status.code == 401 => {
            bail!(
                "the token is not (or no longer) good: make another with `roadstead token create`"
            )
        }
        made => made.context("cannot ask for a certificate")?,
    };
    let name = made.name_any();
    let waiting = async {
        let mut is_told = false;
        loop {
            let now = requests.get(&name).await.context("cannot see what became of the request")?;
            let status = now.status.unwrap_or_default();
            if let Some(ByteString(certificate)) = status.certificate {
                return String::from_utf8(certificate).context("the certificate is unreadable");
            }
            let mut conditions = status.conditions.unwrap_or_default().into_iter();
            let no = conditions.find(|one| ["Denied", "Failed"].contains(&&*one.type_));
            if let Some(no) = no {
                bail!("the request {name} was refused: {}", no.message.unwrap_or(no.type_));
            }
            time::sleep(LOOK).await;
            if !std::mem::replace(&mut is_told, true) {
                info!(request = name, "waiting for a certificate");
            }
        }
    };
    let limit = format!(
        "nobody has signed the request {name}: is there a controller certificate-signing, with the key of the \
         authority?"
    );
    time::timeout(APPROVAL, waiting).await.context(limit)?
}

/// Gets a new certificate when most of the old one's time has passed.
pub(crate) struct Renewal {
    files: Files,
    member: Membership,
}

impl Renewal {
    pub(crate) fn new(args: &Args, member: Membership) -> Self {
        Self { files: Files::of(&args.data_dir), member }
    }

    /// Ends when there is a new certificate on the disk.
    pub(crate) async fn run(self) {
        let due = due(&self.member.certificate).unwrap_or(Timestamp::MAX);
        loop {
            // By the clock on the wall: a machine that slept has not waited.
            if Timestamp::now() < due {
                time::sleep(Duration::from_secs(10)).await;
                continue;
            }
            match self.renew().await {
                Ok(()) => {
                    info!(node = self.member.node, "the certificate of this node is renewed");
                    return;
                }
                Err(error) => warn!("the certificate of this node is not renewed: {error:#}"),
            }
            time::sleep(RETRY).await;
        }
    }

    async fn renew(&self) -> anyhow::Result<()> {
        let request = NodeRequest::new(&self.member.node, Vec::new())?;
        let client = self.member.client().await?;
        let certificate = certificate_for(&client, CLIENT_SIGNER, &request).await?;
        // Both or none: a key without its certificate would be no member any more.
        let renewed = Membership { certificate, key: request.key, ..self.member.clone() };
        renewed.keep(&self.files)
    }
}

/// When a certificate is to be renewed: at 70 to 90 % of its time, not all machines at once.
fn due(certificate: &str) -> Option<Timestamp> {
    let (begin, end) = validity_of(certificate)?;
    let mut chance = [0; 1];
    aws_lc_rs::rand::fill(&mut chance).ok()?;
    let share = 0.7 + 0.2 * f64::from(chance[0]) / 255.0;
    let seconds = (end.as_second() - begin.as_second()) as f64 * share;
    let due = begin.as_second() + seconds as i64;
    // One that is valid for minutes has been so from before it was made.
    let now = Timestamp::now().as_second();
    let soonest = now + ((end.as_second() - now) / 10).clamp(0, 3600);
    Timestamp::from_second(due.max(soonest)).ok()
}

#[test]
fn certificates_are_renewed_in_time() {
    use roadstead_server::identity::authority::Authority;
    let authority = Authority::ephemeral().unwrap().valid_for(Duration::from_secs(1000 * 3600));
    let pair = authority.client("system:node:n1", "system:nodes").unwrap();
    let hours = (due(&pair.certificate).unwrap().as_second() - Timestamp::now().as_second()) / 3600;
    assert!((698..=901).contains(&hours), "{hours}");
    assert_eq!(due("nonsense"), None);
    let short = Authority::ephemeral().unwrap().valid_for(Duration::from_secs(60));
    let pair = short.client("system:node:n1", "system:nodes").unwrap();
    let seconds = due(&pair.certificate).unwrap().as_second() - Timestamp::now().as_second();
    assert!((5..=25).contains(&seconds), "{seconds}");
}

#[test]
fn a_membership_is_found_again() {
    use roadstead_server::identity::authority::Authority;
    let place = tempfile::tempdir().unwrap();
    let files = Files::of(place.path());
    let member = |lifetime: u64| {
        let authority = Authority::ephemeral().unwrap().valid_for(Duration::from_secs(lifetime));
        let pair = authority.client("system:node:n1", "system:nodes").unwrap();
        Membership {
            node: "n1".into(),
            server: "https://192.0.2.1:6443".into(),
            api: ApiServers::of(&files, "https://192.0.2.1:6443").unwrap(),
            authority: authority.certificate().to_owned(),
            certificate: pair.certificate,
            key: pair.key,
        }
    };
    assert!(Membership::present(&files, "n1").unwrap().is_none());
    let own = member(3600);
    own.keep(&files).unwrap();
    let found = Membership::present(&files, "n1").unwrap().unwrap();
    assert_eq!((found.certificate, found.key), (own.certificate, own.key));
    let mode = std::os::unix::fs::PermissionsExt::mode;
    for name in ["node.pem", "node.kubeconfig"] {
        let file = fs::metadata(files.path(name)).unwrap().permissions();
        assert_eq!(mode(&file) & 0o777, 0o600, "{name}");
    }
    let said = Membership::present(&files, "n2").err().unwrap().to_string();
    assert!(said.contains("is the node \"n1\"") && said.contains("roadstead leave"), "{said}");
    member(0).keep(&files).unwrap();
    assert!(Membership::present(&files, "n1").unwrap().is_none(), "it is over");
}
