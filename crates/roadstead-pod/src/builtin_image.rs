//! The images that are built into the binary: pure.
//!
//! All others come from the image store, by an archive or a registry.

/// The programs in a built-in image, as `/bin/<name>`.
pub const PROGRAMS: [&str; 4] = ["curl", "echo", "nslookup", "sleep"];

/// A built-in image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BuiltInImage {
    /// An HTTP server that answers with its host name.
    Echo,
    /// The same programs; does nothing by itself.
    Tools,
    /// The proxy of `roadstead up`: no program, but a part of that very process.
    KubeProxy,
    /// The DNS server of `roadstead up`, the same way.
    CoreDns,
}

impl BuiltInImage {
    /// What `imageID` shows.
    pub fn id(self) -> String {
        let name = match self {
            BuiltInImage::Echo => "echo",
            BuiltInImage::Tools => "tools",
            BuiltInImage::KubeProxy => "kube-proxy",
            BuiltInImage::CoreDns => "coredns",
        };
        format!("roadstead.local/{name}@built-in:{}", env!("CARGO_PKG_VERSION"))
    }

    /// Whether it has no program, and stands for a part of `roadstead up`.
    pub(crate) fn is_part(self) -> bool {
        matches!(self, BuiltInImage::KubeProxy | BuiltInImage::CoreDns)
    }

    fn default_command(self) -> &'static [&'static str] {
        match self {
            BuiltInImage::Echo => &["echo"],
            BuiltInImage::Tools => &["sleep", "infinity"],
            BuiltInImage::KubeProxy | BuiltInImage::CoreDns => &[],
        }
    }
}

/// Returns the built-in image of that name, with any tag or digest.
pub fn find(reference: &str) -> Option<BuiltInImage> {
    let name = reference.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.strip_prefix("roadstead/").or_else(|| name.strip_prefix("roadstead.local/"))? {
        "echo" => Some(BuiltInImage::Echo),
        "tools" => Some(BuiltInImage::Tools),
        "kube-proxy" => Some(BuiltInImage::KubeProxy),
        "coredns" => Some(BuiltInImage::CoreDns),
        _ => None,
    }
}

/// Returns the program to run and its arguments, the first being the program's path.
///
/// `command` replaces the image's command. Arguments alone are handed to the image's program,
/// unless they name a program of the image themselves, so that `kubectl run … -- curl web` works.
pub fn command_line(
    image: BuiltInImage,
    command: &[String],
    args: &[String],
) -> Result<Vec<String>, String> {
    let defaults = image.default_command().iter().map(|word| (*word).to_owned());
    let names_program = args.first().is_some_and(|first| program(first).is_some());
    if image.default_command().is_empty() {
        return Err("the image is a part of `roadstead up`, and runs nowhere else".into());
    }
    let mut line: Vec<String> = match (command.is_empty(), args.is_empty()) {
        (false, _) => command.iter().chain(args).cloned().collect(),
        (true, true) => defaults.collect(),
        (true, false) if names_program || image == BuiltInImage::Tools => args.to_vec(),
        (true, false) => defaults.chain(args.iter().cloned()).collect(),
    };
    let Some(name) = program(&line[0]) else {
        return Err(format!(
            "exec: {:?}: executable file not found in $PATH; the image has {}",
            line[0],
            PROGRAMS.join(", ")
        ));
    };
    line[0] = format!("/bin/{name}");
    Ok(line)
}

fn program(word: &str) -> Option<&'static str> {
    let name = word.strip_prefix("/bin/").unwrap_or(word);
    PROGRAMS.into_iter().find(|program| *program == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names() {
        let cases = [
            ("roadstead/echo", Some(BuiltInImage::Echo)),
            ("roadstead.local/echo:v1", Some(BuiltInImage::Echo)),
            ("roadstead/tools@sha256:00", Some(BuiltInImage::Tools)),
            ("roadstead/kube-proxy", Some(BuiltInImage::KubeProxy)),
            ("roadstead/coredns:v1", Some(BuiltInImage::CoreDns)),
            ("nginx", None),
            ("localhost:5000/roadstead/echo", None),
        ];
        for (name, want) in cases {
            assert_eq!(find(name), want, "{name}");
        }
    }

    #[test]
    fn command_lines() {
        let cases = [
            (BuiltInImage::Echo, "", "", "/bin/echo"),
            (BuiltInImage::Echo, "", "--port 9090", "/bin/echo --port 9090"),
            (BuiltInImage::Echo, "", "curl web", "/bin/curl web"),
            (BuiltInImage::Echo, "sleep", "5", "/bin/sleep 5"),
            (BuiltInImage::Echo, "/bin/sleep 5", "", "/bin/sleep 5"),
            (BuiltInImage::Tools, "", "", "/bin/sleep infinity"),
            (BuiltInImage::Tools, "", "nslookup web", "/bin/nslookup web"),
        ];
        for (image, command, args, want) in cases {
            let words = |text: &str| text.split_whitespace().map(Into::into).collect::<Vec<_>>();
            let line = command_line(image, &words(command), &words(args)).unwrap();
            assert_eq!(line.join(" "), want, "{image:?} {command:?} {args:?}");
        }
        let error = command_line(BuiltInImage::Tools, &["bash".into()], &[]).unwrap_err();
        assert!(error.starts_with("exec: \"bash\": executable file not found"), "{error}");
        for part in [BuiltInImage::KubeProxy, BuiltInImage::CoreDns] {
            let error = command_line(part, &["sleep".into()], &[]).unwrap_err();
            assert!(error.contains("a part of `roadstead up`"), "{error}");
        }
    }
}
