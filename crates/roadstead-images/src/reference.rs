//! The names of images: `[host[:port]/]path[:tag][@digest]`.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;
use crate::error::ImageError;

/// The registry of a name that names none.
pub(crate) const DEFAULT_REGISTRY: &str = "docker.io";

const LONGEST_PATH: usize = 255;
const LONGEST_TAG: usize = 128;

/// A name in full: `nginx` is `docker.io/library/nginx:latest`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The host that serves it, with its port.
    pub registry: String,
    /// What it is called there.
    pub path: String,
    /// Which of several; `latest` if there is neither tag nor digest.
    pub tag: Option<String>,
    /// Exactly these bytes.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Registry and path, without tag and digest.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.registry, self.path)
    }

    /// The name with its tag: what a store keeps images under.
    pub fn name(&self) -> Option<String> {
        self.tag.as_ref().map(|tag| format!("{}:{tag}", self.repository()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let wrong = |why| ImageError::Reference(text.to_owned(), why);
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| wrong(""))?)),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong(""));
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if is_host(first) => (first.to_owned(), path.to_owned()),
            Some(_) => (DEFAULT_REGISTRY.to_owned(), name.to_owned()),
            None => (DEFAULT_REGISTRY.to_owned(), format!("library/{name}")),
        };
        let in_library = registry == DEFAULT_REGISTRY && !path.contains('/');
        let path = if in_library { format!("library/{path}") } else { path };
        if path.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(wrong(": repository name must be lowercase"));
        }
        if path.len() > LONGEST_PATH
            || !path.split('/').all(is_component)
            || !is_host_text(&registry)
        {
            return Err(wrong(""));
        }
        let latest = || digest.is_none().then(|| "latest".to_owned());
        let tag = tag.map(str::to_owned).or_else(latest);
        Ok(Self { registry, path, tag, digest })
    }
}

/// The first part of a name is a host if it could not be part of a path on the default registry.
fn is_host(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(|c| c.is_ascii_uppercase())
}

fn is_host_text(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_address = |name: &str| {
        let inside = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inside.is_some_and(|inside| inside.parse::<std::net::Ipv6Addr>().is_ok())
    };
    (name.split('.').all(is_label) || is_address(name))
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= LONGEST_TAG
        && tag.starts_with(word)
        && tag.chars().all(|c| word(c) || c == '.' || c == '-')
}

/// Letters and digits, in groups that one dot, one or two underscores, or any dashes separate.
fn is_component(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part.split(is_word).filter(|separator| !separator.is_empty());
    let mut separators = separators;
    part.starts_with(is_word)
        && part.ends_with(is_word)
        && separators.all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.chars().all(|c| c == '-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let by_digest = format!("docker.io/library/nginx@{digest}");
        let cases = [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.19", "docker.io/library/nginx:1.19"),
            ("library/nginx", "docker.io/library/nginx:latest"),
            ("docker.io/nginx", "docker.io/library/nginx:latest"),
            ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
            ("localhost/x", "localhost/x:latest"),
            ("localhost:5000/x/y:v1", "localhost:5000/x/y:v1"),
            (
                "registry.k8s.io/e2e-test-images/agnhost:2.43",
                "registry.k8s.io/e2e-test-images/agnhost:2.43",
            ),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            ("a__b/c-d--e.f", "docker.io/a__b/c-d--e.f:latest"),
            (&format!("nginx@{digest}"), &by_digest),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), want, "{text}");
        }
    }

    #[test]
    fn names_that_are_none() {
        for text in [
            "",
            ":",
            "/",
            "nginx:",
            ":latest",
            "nginx:a b",
            "a//b",
            "nginx/",
            "../etc",
            "a/../b",
            "a..b",
            "-a",
            "a_",
            "a___b",
            "NGINX",
            "nginx@sha256:1",
            "nginx:-x",
            "host:99999/x",
            "localhost:x/y",
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.starts_with("invalid reference format"), "{text}: {error}");
        }
        let error = "Nginx".parse::<Reference>().unwrap_err().to_string();
        assert!(error.ends_with("repository name must be lowercase"), "{error}");
    }
}
