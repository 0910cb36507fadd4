//! Who sends a request.

use std::collections::BTreeMap;

const NODE: &str = "system:node:";
const NODES: &str = "system:nodes";
const ACCOUNT: &str = "system:serviceaccount:";

/// Who is asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// `system:anonymous` if nobody knows.
    pub name: String,
    /// Groups decide what the user may do.
    pub groups: Vec<String>,
    /// Tells apart users who had the same name at different times.
    pub uid: String,
    /// What else is known about the user.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Whether it is a part of this process, which nobody can say of themselves over a connection. It
    /// gives no rights; requests of parts wait for nobody else's.
    pub in_process: bool,
}

impl User {
    /// Somebody of whom no more is known than name and groups.
    pub fn new(name: impl Into<String>, groups: Vec<String>) -> Self {
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// Whoever has this process: it may do everything.
    pub fn component() -> Self {
        let user = Self::new("system:roadstead", vec!["system:masters".into()]);
        Self { in_process: true, ..user }
    }

    /// A part of this process that may do what roles give to that name, and nothing else.
    pub fn part(name: &str) -> Self {
        let account = name.strip_prefix(ACCOUNT).and_then(|account| account.split_once(':'));
        let mut groups = vec!["system:authenticated".to_owned()];
        if let Some((namespace, _)) = account {
            groups.push("system:serviceaccounts".into());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        Self { in_process: true, ..Self::new(name, groups) }
    }

    /// Somebody without a certificate.
    pub fn anonymous() -> Self {
        Self::new("system:anonymous", vec!["system:unauthenticated".into()])
    }

    /// The agent of a node.
    pub fn of_node(node: &str) -> Self {
        let groups = [NODES, "system:authenticated"].map(str::to_owned);
        Self::new(format!("{NODE}{node}"), groups.to_vec())
    }

    /// The node whose agent it is, if it is one.
    pub(crate) fn node(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE).filter(|name| !name.is_empty())?;
        self.groups.iter().any(|group| group == NODES).then_some(name)
    }

    /// Whether nobody knows who it is.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.name.is_empty() || self.name == "system:anonymous"
    }

    /// Whether everything is allowed.
    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}
