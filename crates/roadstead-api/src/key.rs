//! The name of an object within its kind.

use std::fmt;

/// Namespace and name; the namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// Joins a namespace and a name.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Both in one text, for those who remember very many.
    pub fn packed(&self) -> Box<str> {
        format!("{}/{}", self.namespace, self.name).into()
    }

    /// The key in such a text. No namespace contains a slash.
    pub fn unpacked(text: &str) -> Self {
        let (namespace, name) = text.split_once('/').unwrap_or_default();
        Self::new(namespace, name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_for_both() {
        for (namespace, name) in [("shop", "web"), ("", "node-1"), ("", "")] {
            let key = ObjectKey::new(namespace, name);
            assert_eq!(ObjectKey::unpacked(&key.packed()), key);
        }
    }
}
