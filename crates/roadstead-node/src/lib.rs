//! The node agent: runs the pods of one node.
//!
//! A pod is a network namespace with its own address on the node's bridge, and processes in it.
//! The agent starts and stops them, probes them, and reports their status. Which pods run on the
//! node is decided by the scheduler, through `spec.nodeName`.
