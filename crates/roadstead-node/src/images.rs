//! The images that are built into the binary: pure.
//!
//! Images from registries will come from an image store; what both have in common is an entry
//! point and a default command.

/// The programs in a built-in image, as `/bin/<name>`.
pub(crate) const PROGRAMS: [&str; 4] = ["curl", "echo", "nslookup", "sleep"];

/// A built-in image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Image {
    /// An HTTP server that answers with its host name.
    Echo,
    /// The same programs; does nothing by itself.
    Tools,
}

impl Image {
    /// What `imageID` shows.
    pub(crate) fn id(self) -> String {
        let name = match self {
            Image::Echo => "echo",
            Image::Tools => "tools",
        };
        format!("roadstead.local/{name}@built-in:{}", env!("CARGO_PKG_VERSION"))
    }

    fn default_command(self) -> &'static [&'static str] {
        match self {
            Image::Echo => &["echo"],
            Image::Tools => &["sleep", "infinity"],
        }
    }
}

/// Returns the built-in image of that name, with any tag or digest.
pub(crate) fn find(reference: &str) -> Option<Image> {
    let name = reference.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.strip_prefix("roadstead/").or_else(|| name.strip_prefix("roadstead.local/"))? {
        "echo" => Some(Image::Echo),
        "tools" => Some(Image::Tools),
        _ => None,
    }
}

/// Why an image cannot be used: the reason and message of a waiting container.
pub(crate) fn refusal(reference: &str, pull_policy: Option<&str>) -> (&'static str, String) {
    let have = "this node has the built-in images roadstead/echo and roadstead/tools";
    match pull_policy {
        Some("Never") => (
            "ErrImageNeverPull",
            format!(
                "Container image {reference:?} is not present with pull policy of Never; {have}"
            ),
        ),
        _ => (
            "ErrImagePull",
            format!("failed to pull image {reference:?}: registries are not supported yet; {have}"),
        ),
    }
}

/// Returns the program to run and its arguments, the first being the program's path.
///
/// `command` replaces the image's command. Arguments alone are handed to the image's program,
/// unless they name a program of the image themselves, so that `kubectl run … -- curl web` works.
pub(crate) fn command_line(
    image: Image,
    command: &[String],
    args: &[String],
) -> Result<Vec<String>, String> {
    let defaults = image.default_command().iter().map(|word| (*word).to_owned());
    let names_program = args.first().is_some_and(|first| program(first).is_some());
    let mut line: Vec<String> = match (command.is_empty(), args.is_empty()) {
        (false, _) => command.iter().chain(args).cloned().collect(),
        (true, true) => defaults.collect(),
        (true, false) if names_program || image == Image::Tools => args.to_vec(),
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
            ("roadstead/echo", Some(Image::Echo)),
            ("roadstead.local/echo:v1", Some(Image::Echo)),
            ("roadstead/tools@sha256:00", Some(Image::Tools)),
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
            (Image::Echo, "", "", "/bin/echo"),
            (Image::Echo, "", "--port 9090", "/bin/echo --port 9090"),
            (Image::Echo, "", "curl web", "/bin/curl web"),
            (Image::Echo, "sleep", "5", "/bin/sleep 5"),
            (Image::Echo, "/bin/sleep 5", "", "/bin/sleep 5"),
            (Image::Tools, "", "", "/bin/sleep infinity"),
            (Image::Tools, "", "nslookup web", "/bin/nslookup web"),
        ];
        for (image, command, args, want) in cases {
            let words = |text: &str| text.split_whitespace().map(Into::into).collect::<Vec<_>>();
            let line = command_line(image, &words(command), &words(args)).unwrap();
            assert_eq!(line.join(" "), want, "{image:?} {command:?} {args:?}");
        }
        let error = command_line(Image::Tools, &["bash".into()], &[]).unwrap_err();
        assert!(error.starts_with("exec: \"bash\": executable file not found"), "{error}");
    }
}
