//! kube-proxy and we, in processes of their own, following the same API server.
//!
//! Both write a map `service-ips` with the same keys, and every commit raises the kernel's
//! generation number: so when something is in the kernel is asked of the kernel, not of them.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use roadstead_netlink::attributes::{Attributes, attribute};
use roadstead_netlink::socket::{NetlinkFamily, Request, Socket};
use roadstead_netlink::{NFTABLES, netfilter};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cluster::{self, PODS, address, service_object, slice_object};
use crate::resident;

/// Names the program to compare with.
pub(crate) const KUBE_PROXY: &str = "KUBE_PROXY";
/// Names our own, which also serves the API.
pub(crate) const ROADSTEAD: &str = "ROADSTEAD";
const CHANGES: u32 = 5;
/// kube-proxy cleans up a second after a change.
const PAUSE: Duration = Duration::from_millis(2_500);
const KUBECONFIG: &str = "/run/bench.kubeconfig";

pub(crate) fn measure(sizes: &str) {
    println!(
        "{:>12} {:>9} {:>12} {:>9} {:>14} {:>14} {:>9}",
        "", "services", "cold", "its CPU", "change median", "CPU per change", "RSS"
    );
    for services in sizes.split(',').map(|size| size.parse().expect("a number")) {
        let runtime = Runtime::new().expect("a runtime");
        let (_server, client) = runtime.block_on(serve(services, |n| vec![2 * n, 2 * n + 1]));
        let subjects = [Subject::KubeProxy, Subject::Roadstead];
        let there = |subject: &Subject| env::var_os(subject.variable()).is_some();
        for subject in subjects.into_iter().filter(there) {
            subject.measure(services, &runtime, &client);
        }
    }
}

/// Ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// kube-proxy in the mode nftables, with the API server that it follows.
pub(crate) struct KubeProxy {
    _proxy: Running,
    _server: Running,
    _runtime: Runtime,
}

impl KubeProxy {
    /// Returns when the rules are there. Whoever is in `local` is not masqueraded.
    pub(crate) fn start(services: u32, targets: impl Fn(u32) -> Vec<u32>, local: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let (server, _) = runtime.block_on(serve(services, targets));
        let proxy = Subject::KubeProxy.start(local);
        wait_for(services);
        // It tidies up afterwards.
        sleep(PAUSE);
        Self { _proxy: proxy, _server: server, _runtime: runtime }
    }
}

/// Waits until the kernel has the last Service.
fn wait_for(services: u32) {
    let started = Instant::now();
    let mut kernel = Socket::open(NetlinkFamily::Netfilter).expect("a netlink socket");
    while !serves(&mut kernel, services - 1) {
        assert!(started.elapsed() < Duration::from_secs(600), "nobody serves service {services}");
        sleep(Duration::from_millis(5));
    }
}

/// An API server that has the objects.
async fn serve(services: u32, targets: impl Fn(u32) -> Vec<u32>) -> (Running, Client) {
    let _ = fs::remove_file(KUBECONFIG);
    let program = env::var(ROADSTEAD).expect("ROADSTEAD names the API server");
    let server = Command::new(program)
        .args(["apiserver", "--ephemeral", "--log", "warn", "--kubeconfig-out", KUBECONFIG])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the API server starts");
    let server = Running(server);
    while !Path::new(KUBECONFIG).exists() {
        sleep(Duration::from_millis(20));
    }
    let file = kube::config::Kubeconfig::read_from(KUBECONFIG).expect("just written");
    let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await;
    let client = Client::try_from(config.expect("a kubeconfig")).expect("a client");
    let nodes: Api<Node> = Api::all(client.clone());
    create(&nodes, json!({"metadata": {"name": "node-1"}})).await;
    // kube-proxy waits until its node has an address.
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    let status = Patch::Merge(json!({"status": {"addresses": addresses}}));
    let patched = nodes.patch_status("node-1", &PatchParams::default(), &status).await;
    patched.expect("the server takes it");
    let of_services = Api::default_namespaced(client.clone());
    let of_slices = Api::default_namespaced(client.clone());
    stream::iter(0..services)
        .for_each_concurrent(32, |n| {
            let (of_services, of_slices, targets) = (&of_services, &of_slices, &targets);
            async move {
                create::<Service>(of_services, service_object(n)).await;
                let slice = slice_object(n, targets(n).into_iter());
                create::<EndpointSlice>(of_slices, slice).await;
            }
        })
        .await;
    (server, client)
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: kube::Resource + DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("the server takes it");
}

#[derive(Clone, Copy)]
enum Subject {
    KubeProxy,
    Roadstead,
}

impl Subject {
    /// Names its program.
    fn variable(self) -> &'static str {
        match self {
            Subject::KubeProxy => KUBE_PROXY,
            Subject::Roadstead => ROADSTEAD,
        }
    }

    fn start(self, local: &str) -> Running {
        let mut command = match self {
            Subject::KubeProxy => Command::new(env::var(KUBE_PROXY).expect("it was set")),
            Subject::Roadstead => {
                let mut command = Command::new(env::var(ROADSTEAD).expect("it was set"));
                command.args(["proxy", "--no-lease"]);
                command
            }
        };
        command.args(["--proxy-mode=nftables", "--hostname-override=node-1"]);
        command.args(["--kubeconfig", KUBECONFIG, "--cluster-cidr", local]);
        // These settings belong to the machine, which is not ours to set.
        command.args(["--conntrack-max-per-core=0", "--conntrack-min=0"]);
        command.arg("--conntrack-tcp-timeout-established=0");
        command.arg("--conntrack-tcp-timeout-close-wait=0");
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().expect("it starts"))
    }

    fn measure(self, services: u32, runtime: &Runtime, client: &Client) {
        let name = match self {
            Subject::KubeProxy => "kube-proxy",
            Subject::Roadstead => "roadstead",
        };
        let started = Instant::now();
        let process = self.start(PODS);
        let id = process.0.id().to_string();
        wait_for(services);
        let mut kernel = Socket::open(NetlinkFamily::Netfilter).expect("a netlink socket");
        let (cold, cold_cpu) = (started.elapsed(), cpu(&id));
        sleep(PAUSE);
        let before = cpu(&id);
        let slices = Api::default_namespaced(client.clone());
        let mut times: Vec<_> = (0..CHANGES)
            .map(|i| {
                let took =
                    change(runtime, &slices, (services, self as u32 * CHANGES + i), &mut kernel);
                sleep(PAUSE);
                took
            })
            .collect();
        times.sort();
        let per_change = (cpu(&id) - before) / CHANGES;
        println!(
            "{name:>12} {services:>9} {cold:>12.1?} {cold_cpu:>9.1?} {:>14.1?} {per_change:>14.1?} {:>6} MB",
            times[times.len() / 2],
            resident(&id) >> 10,
        );
        drop(process);
        cluster::cleanup();
    }
}

/// Replaces one endpoint; returns how long it took from the request to the kernel.
fn change(
    runtime: &Runtime,
    slices: &Api<EndpointSlice>,
    (services, i): (u32, u32),
    kernel: &mut Socket,
) -> Duration {
    let n = services / 2 + i;
    let fresh = 2 * services + i;
    let object = slice_object(n, [2 * n, fresh].into_iter());
    let patch = Patch::Merge(json!({"endpoints": object["endpoints"]}));
    let name = format!("service-{n:05}-x");
    let before = generation(kernel);
    let started = Instant::now();
    runtime
        .block_on(slices.patch(&name, &PatchParams::default(), &patch))
        .expect("the server takes it");
    while generation(kernel) == before {
        assert!(started.elapsed() < Duration::from_secs(60), "the change never arrives");
        sleep(Duration::from_micros(50));
    }
    started.elapsed()
}

/// The number of the last commit to the kernel's nftables.
fn generation(kernel: &mut Socket) -> Vec<u8> {
    const GET_GENERATION: u8 = 16;
    const ID: u16 = 1;
    let kind = netfilter(NFTABLES, GET_GENERATION);
    let request = Request { kind, flags: 0, header: &[0; 4] };
    let id =
        kernel.ask(&request, |_| {}, |answer| attribute(answer.attributes, ID).map(<[u8]>::to_vec));
    id.expect("the kernel answers").pop().unwrap_or_default()
}

/// Whether the kernel serves a Service.
fn serves(kernel: &mut Socket, n: u32) -> bool {
    const GET_ELEMENTS: u8 = 13;
    const INTERNET: u8 = 2;
    const UDP: u8 = 17;
    let mut key = address(n).octets().to_vec();
    key.extend([UDP, 0, 0, 0, 0, 80, 0, 0]);
    let kind = netfilter(NFTABLES, GET_ELEMENTS);
    let request = Request { kind, flags: 0, header: &[INTERNET, 0, 0, 0] };
    let fill = |message: &mut Attributes<'_>| {
        message.text(1, "kube-proxy");
        message.text(2, "service-ips");
        message.nest(3, |list| list.nest(1, |item| item.nest(1, |key_nest| key_nest.put(1, &key))));
    };
    kernel.ask(&request, fill, |_| Some(())).is_ok_and(|answer| !answer.is_empty())
}

/// The time that a process and its finished children have spent on a processor.
fn cpu(process: &str) -> Duration {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let rest = line.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields: Vec<u64> = rest.split(' ').map(|text| text.parse().unwrap_or(0)).collect();
    let ticks: u64 = fields.get(12..16).unwrap_or_default().iter().sum();
    Duration::from_millis(10 * ticks)
}
