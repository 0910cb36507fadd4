//! The messages of the Container Runtime Interface (`runtime.v1`) that we send and read, by their numbers.
//!
//! Fields that we do not use are left out: on the wire they need no place.

use std::collections::BTreeMap;

use prost::Message;

/// Makes messages from a table: a name, and its fields with their types and numbers.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($(#[$field:meta])+ $member:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, PartialEq, Message)]
            pub(crate) struct $name { $($(#[$field])+ pub(crate) $member: $kind,)* }
        )*
    };
}

/// Namespaces of a sandbox or container: `NamespaceMode` in the interface.
pub(crate) const NAMESPACE_POD: i32 = 0;
pub(crate) const NAMESPACE_CONTAINER: i32 = 1;
pub(crate) const NAMESPACE_NODE: i32 = 2;
pub(crate) const NAMESPACE_TARGET: i32 = 3;
/// `SecurityProfile.ProfileType`.
pub(crate) const PROFILE_UNCONFINED: i32 = 1;
pub(crate) const PROFILE_LOCALHOST: i32 = 2;
/// `MountPropagation`.
pub(crate) const PROPAGATION_PRIVATE: i32 = 0;
pub(crate) const PROPAGATION_HOST_TO_CONTAINER: i32 = 1;
pub(crate) const PROPAGATION_BIDIRECTIONAL: i32 = 2;
/// `PodSandboxState`.
pub(crate) const SANDBOX_READY: i32 = 0;
/// `ContainerState`.
pub(crate) const CONTAINER_RUNNING: i32 = 1;
pub(crate) const CONTAINER_EXITED: i32 = 2;

messages! {
    Empty {}
    VersionRequest { #[prost(string, tag = "1")] version: String, }
    VersionResponse {
        #[prost(string, tag = "2")] runtime_name: String,
        #[prost(string, tag = "3")] runtime_version: String,
    }
    StatusResponse { #[prost(message, tag = "1")] status: Option<RuntimeStatus>, }
    RuntimeStatus { #[prost(message, repeated, tag = "1")] conditions: Vec<RuntimeCondition>, }
    RuntimeCondition {
        #[prost(string, tag = "1")] kind: String,
        #[prost(bool, tag = "2")] status: bool,
        #[prost(string, tag = "3")] reason: String,
        #[prost(string, tag = "4")] message: String,
    }

    Int64Value { #[prost(int64, tag = "1")] value: i64, }
    UInt64Value { #[prost(uint64, tag = "1")] value: u64, }
    KeyValue { #[prost(string, tag = "1")] key: String, #[prost(string, tag = "2")] value: String, }
    SecurityProfile {
        #[prost(int32, tag = "1")] profile_type: i32,
        #[prost(string, tag = "2")] localhost_ref: String,
    }
    SeLinuxOption {
        #[prost(string, tag = "1")] user: String,
        #[prost(string, tag = "2")] role: String,
        #[prost(string, tag = "3")] kind: String,
        #[prost(string, tag = "4")] level: String,
    }
    NamespaceOption {
        #[prost(int32, tag = "1")] network: i32,
        #[prost(int32, tag = "2")] pid: i32,
        #[prost(int32, tag = "3")] ipc: i32,
        #[prost(string, tag = "4")] target_id: String,
    }

    PodSandboxMetadata {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] uid: String,
        #[prost(string, tag = "3")] namespace: String,
        #[prost(uint32, tag = "4")] attempt: u32,
    }
    LinuxSandboxSecurityContext {
        #[prost(message, tag = "1")] namespace_options: Option<NamespaceOption>,
        #[prost(bool, tag = "6")] privileged: bool,
        #[prost(message, tag = "9")] seccomp: Option<SecurityProfile>,
    }
    LinuxPodSandboxConfig {
        #[prost(string, tag = "1")] cgroup_parent: String,
        #[prost(message, tag = "2")] security_context: Option<LinuxSandboxSecurityContext>,
        #[prost(btree_map = "string, string", tag = "3")] sysctls: BTreeMap<String, String>,
    }
    PodSandboxConfig {
        #[prost(message, tag = "1")] metadata: Option<PodSandboxMetadata>,
        #[prost(string, tag = "2")] hostname: String,
        #[prost(string, tag = "3")] log_directory: String,
        #[prost(btree_map = "string, string", tag = "6")] labels: BTreeMap<String, String>,
        #[prost(message, tag = "8")] linux: Option<LinuxPodSandboxConfig>,
    }
    RunPodSandboxRequest { #[prost(message, tag = "1")] config: Option<PodSandboxConfig>, }
    /// Of all questions about one sandbox, and of the answer that names one.
    SandboxId { #[prost(string, tag = "1")] pod_sandbox_id: String, }
    PodSandboxStatusRequest {
        #[prost(string, tag = "1")] pod_sandbox_id: String,
        #[prost(bool, tag = "2")] verbose: bool,
    }
    PodSandboxStatusResponse {
        #[prost(btree_map = "string, string", tag = "2")] info: BTreeMap<String, String>,
    }
    PodSandboxFilter {
        #[prost(btree_map = "string, string", tag = "3")] label_selector: BTreeMap<String, String>,
    }
    ListPodSandboxRequest { #[prost(message, tag = "1")] filter: Option<PodSandboxFilter>, }
    PodSandbox {
        #[prost(string, tag = "1")] id: String,
        #[prost(message, tag = "2")] metadata: Option<PodSandboxMetadata>,
        #[prost(int32, tag = "3")] state: i32,
    }
    ListPodSandboxResponse { #[prost(message, repeated, tag = "1")] items: Vec<PodSandbox>, }

    ImageSpec { #[prost(string, tag = "1")] image: String, }
    ContainerMount {
        #[prost(string, tag = "1")] container_path: String,
        #[prost(string, tag = "2")] host_path: String,
        #[prost(bool, tag = "3")] readonly: bool,
        #[prost(int32, tag = "5")] propagation: i32,
    }
    LinuxContainerResources {
        #[prost(int64, tag = "1")] cpu_period: i64,
        #[prost(int64, tag = "2")] cpu_quota: i64,
        #[prost(int64, tag = "3")] cpu_shares: i64,
        #[prost(int64, tag = "4")] memory_limit_in_bytes: i64,
        #[prost(int64, tag = "5")] oom_score_adj: i64,
    }
    UpdateContainerResourcesRequest {
        #[prost(string, tag = "1")] container_id: String,
        #[prost(message, tag = "2")] linux: Option<LinuxContainerResources>,
    }
    Capability {
        #[prost(string, repeated, tag = "1")] add_capabilities: Vec<String>,
        #[prost(string, repeated, tag = "2")] drop_capabilities: Vec<String>,
    }
    LinuxContainerSecurityContext {
        #[prost(message, tag = "1")] capabilities: Option<Capability>,
        #[prost(bool, tag = "2")] privileged: bool,
        #[prost(message, tag = "3")] namespace_options: Option<NamespaceOption>,
        #[prost(message, tag = "4")] selinux_options: Option<SeLinuxOption>,
        #[prost(message, tag = "5")] run_as_user: Option<Int64Value>,
        #[prost(string, tag = "6")] run_as_username: String,
        #[prost(bool, tag = "7")] readonly_rootfs: bool,
        #[prost(int64, repeated, tag = "8")] supplemental_groups: Vec<i64>,
        #[prost(string, tag = "9")] apparmor_profile: String,
        #[prost(bool, tag = "11")] no_new_privs: bool,
        #[prost(message, tag = "12")] run_as_group: Option<Int64Value>,
        #[prost(string, repeated, tag = "13")] masked_paths: Vec<String>,
        #[prost(string, repeated, tag = "14")] readonly_paths: Vec<String>,
        #[prost(message, tag = "15")] seccomp: Option<SecurityProfile>,
        #[prost(message, tag = "16")] apparmor: Option<SecurityProfile>,
    }
    LinuxContainerConfig {
        #[prost(message, tag = "1")] resources: Option<LinuxContainerResources>,
        #[prost(message, tag = "2")] security_context: Option<LinuxContainerSecurityContext>,
    }
    ContainerMetadata {
        #[prost(string, tag = "1")] name: String,
        #[prost(uint32, tag = "2")] attempt: u32,
    }
    CriContainerConfig {
        #[prost(message, tag = "1")] metadata: Option<ContainerMetadata>,
        #[prost(message, tag = "2")] image: Option<ImageSpec>,
        #[prost(string, repeated, tag = "3")] command: Vec<String>,
        #[prost(string, repeated, tag = "4")] args: Vec<String>,
        #[prost(string, tag = "5")] working_dir: String,
        #[prost(message, repeated, tag = "6")] envs: Vec<KeyValue>,
        #[prost(message, repeated, tag = "7")] mounts: Vec<ContainerMount>,
        #[prost(btree_map = "string, string", tag = "9")] labels: BTreeMap<String, String>,
        #[prost(string, tag = "11")] log_path: String,
        #[prost(bool, tag = "12")] stdin: bool,
        #[prost(bool, tag = "13")] stdin_once: bool,
        #[prost(bool, tag = "14")] tty: bool,
        #[prost(message, tag = "15")] linux: Option<LinuxContainerConfig>,
    }
    CreateContainerRequest {
        #[prost(string, tag = "1")] pod_sandbox_id: String,
        #[prost(message, tag = "2")] config: Option<CriContainerConfig>,
        #[prost(message, tag = "3")] sandbox_config: Option<PodSandboxConfig>,
    }
    /// Of all questions about one container, and of the answer that names one.
    ContainerId { #[prost(string, tag = "1")] container_id: String, }
    StopContainerRequest {
        #[prost(string, tag = "1")] container_id: String,
        #[prost(int64, tag = "2")] timeout: i64,
    }
    ContainerFilter {
        #[prost(btree_map = "string, string", tag = "4")] label_selector: BTreeMap<String, String>,
    }
    ListContainersRequest { #[prost(message, tag = "1")] filter: Option<ContainerFilter>, }
    ListedContainer {
        #[prost(string, tag = "1")] id: String,
        #[prost(string, tag = "2")] pod_sandbox_id: String,
        #[prost(message, tag = "3")] metadata: Option<ContainerMetadata>,
        #[prost(int32, tag = "6")] state: i32,
    }
    ListContainersResponse { #[prost(message, repeated, tag = "1")] containers: Vec<ListedContainer>, }
    ContainerStatusRequest {
        #[prost(string, tag = "1")] container_id: String,
        #[prost(bool, tag = "2")] verbose: bool,
    }
    ContainerStatus {
        #[prost(int32, tag = "3")] state: i32,
        #[prost(int64, tag = "4")] created_at: i64,
        #[prost(int64, tag = "5")] started_at: i64,
        #[prost(int64, tag = "6")] finished_at: i64,
        #[prost(int32, tag = "7")] exit_code: i32,
        #[prost(string, tag = "10")] reason: String,
        #[prost(string, tag = "11")] message: String,
    }
    ContainerStatusResponse {
        #[prost(message, tag = "1")] status: Option<ContainerStatus>,
        #[prost(btree_map = "string, string", tag = "2")] info: BTreeMap<String, String>,
    }
    ListContainerStatsRequest { #[prost(message, tag = "1")] filter: Option<ContainerStatsFilter>, }
    ContainerStatsFilter {
        #[prost(btree_map = "string, string", tag = "3")] label_selector: BTreeMap<String, String>,
    }
    ListContainerStatsResponse { #[prost(message, repeated, tag = "1")] stats: Vec<ContainerStats>, }
    ContainerStats {
        #[prost(message, tag = "1")] attributes: Option<ContainerAttributes>,
        #[prost(message, tag = "2")] cpu: Option<CpuUsage>,
        #[prost(message, tag = "3")] memory: Option<CriMemoryUsage>,
        #[prost(message, tag = "4")] writable_layer: Option<FilesystemUsage>,
    }
    ContainerAttributes { #[prost(string, tag = "1")] id: String, }
    CpuUsage { #[prost(message, tag = "2")] usage_core_nano_seconds: Option<UInt64Value>, }
    CriMemoryUsage {
        #[prost(message, tag = "2")] working_set_bytes: Option<UInt64Value>,
        #[prost(message, tag = "4")] usage_bytes: Option<UInt64Value>,
        #[prost(message, tag = "5")] rss_bytes: Option<UInt64Value>,
        #[prost(message, tag = "6")] page_faults: Option<UInt64Value>,
        #[prost(message, tag = "7")] major_page_faults: Option<UInt64Value>,
    }
    FilesystemUsage { #[prost(message, tag = "3")] used_bytes: Option<UInt64Value>, }

    ExecSyncRequest {
        #[prost(string, tag = "1")] container_id: String,
        #[prost(string, repeated, tag = "2")] cmd: Vec<String>,
        #[prost(int64, tag = "3")] timeout: i64,
    }
    ExecSyncResponse {
        #[prost(bytes = "bytes", tag = "1")] stdout: bytes::Bytes,
        #[prost(bytes = "bytes", tag = "2")] stderr: bytes::Bytes,
        #[prost(int32, tag = "3")] exit_code: i32,
    }
    ExecRequest {
        #[prost(string, tag = "1")] container_id: String,
        #[prost(string, repeated, tag = "2")] cmd: Vec<String>,
        #[prost(bool, tag = "3")] tty: bool,
        #[prost(bool, tag = "4")] stdin: bool,
        #[prost(bool, tag = "5")] stdout: bool,
        #[prost(bool, tag = "6")] stderr: bool,
    }
    AttachRequest {
        #[prost(string, tag = "1")] container_id: String,
        #[prost(bool, tag = "2")] stdin: bool,
        #[prost(bool, tag = "3")] tty: bool,
        #[prost(bool, tag = "4")] stdout: bool,
        #[prost(bool, tag = "5")] stderr: bool,
    }
    StreamingUrl { #[prost(string, tag = "1")] url: String, }

    ListImagesResponse { #[prost(message, repeated, tag = "1")] images: Vec<CriImage>, }
    CriImage {
        #[prost(string, tag = "1")] id: String,
        #[prost(string, repeated, tag = "2")] repo_tags: Vec<String>,
        #[prost(string, repeated, tag = "3")] repo_digests: Vec<String>,
        #[prost(uint64, tag = "4")] size: u64,
        #[prost(message, tag = "5")] uid: Option<Int64Value>,
        #[prost(string, tag = "6")] username: String,
        #[prost(bool, tag = "8")] pinned: bool,
    }
    ImageStatusRequest {
        #[prost(message, tag = "1")] image: Option<ImageSpec>,
        #[prost(bool, tag = "2")] verbose: bool,
    }
    ImageStatusResponse {
        #[prost(message, tag = "1")] image: Option<CriImage>,
        #[prost(btree_map = "string, string", tag = "2")] info: BTreeMap<String, String>,
    }
    AuthConfig {
        #[prost(string, tag = "1")] username: String,
        #[prost(string, tag = "2")] password: String,
    }
    PullImageRequest {
        #[prost(message, tag = "1")] image: Option<ImageSpec>,
        #[prost(message, tag = "2")] auth: Option<AuthConfig>,
    }
    PullImageResponse { #[prost(string, tag = "1")] image_ref: String, }
    RemoveImageRequest { #[prost(message, tag = "1")] image: Option<ImageSpec>, }
}
