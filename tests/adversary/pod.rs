//! A pod: what runs in a container tries to reach the node, other pods and us.
