//! The Kubernetes API over HTTPS.
//!
//! A request is decoded and routed (`http`), turned into a change of one object (`verbs`), given
//! defaults and validated by its kind (`roadstead-api`), merged where it is a patch
//! (`roadstead-patch`), completed with addresses and ports (`allocate`), committed
//! (`roadstead-store`) and told to every watcher (`watch`). Components in the same process use the
//! same router through a `kube::Client` without a socket.
