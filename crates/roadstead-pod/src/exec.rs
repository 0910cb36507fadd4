//! A command that is run in a container that runs already: what it is told, and where its program is.
//! Pure.

/// The environment of such a command: the container's, and what a terminal can do.
pub fn exec_environment(container: &[(String, String)], terminal: bool) -> Vec<(String, String)> {
    let mut all = container.to_vec();
    if terminal && !all.iter().any(|(name, _)| name == "TERM") {
        all.push(("TERM".into(), "xterm".into()));
    }
    all
}

/// Where to look for a program, in this order: it itself if it is a path, or else all of `$PATH`.
pub fn program_paths(program: &str, environment: &[(String, String)]) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let path = environment.iter().rev().find(|(name, _)| name == "PATH");
    let places = path.map_or("", |(_, value)| value).split(':');
    // An empty part would be the working directory; programs that happen to be there are not meant.
    places.filter(|place| !place.is_empty()).map(|place| format!("{place}/{program}")).collect()
}

/// Why a program could not be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// It is nowhere.
    Missing,
    /// It may not be run, or is a directory.
    Forbidden,
    /// The kernel does not understand it.
    Format,
    /// Something else, by the kernel's number.
    Other(i32),
}

impl ProgramError {
    /// What shells exit with in this case.
    pub fn code(self) -> i32 {
        if self == Self::Missing { 127 } else { 126 }
    }

    /// In the words that people search for.
    pub fn words(self, program: &str) -> String {
        match self {
            Self::Missing if program.contains('/') => {
                format!("exec: {program:?}: stat {program}: no such file or directory")
            }
            Self::Missing => format!("exec: {program:?}: executable file not found in $PATH"),
            Self::Forbidden => format!("exec: {program:?}: permission denied"),
            Self::Format => format!("exec: {program:?}: exec format error"),
            Self::Other(number) => format!("exec: {program:?}: error {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(text: &str) -> Vec<(String, String)> {
        let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn where_programs_are() {
        let cases = [
            ("a path", "/bin/sh", "PATH=/usr/bin", "/bin/sh"),
            ("a relative path", "./sh", "PATH=/usr/bin", "./sh"),
            ("a name", "sh", "PATH=/usr/bin:/bin", "/usr/bin/sh /bin/sh"),
            ("an empty part is nothing", "sh", "PATH=:/bin:", "/bin/sh"),
            ("no path", "sh", "HOME=/", ""),
            ("the last one counts", "sh", "PATH=/a PATH=/b", "/b/sh"),
        ];
        for (name, program, environment, want) in cases {
            assert_eq!(program_paths(program, &variables(environment)).join(" "), want, "{name}");
        }
    }

    #[test]
    fn a_terminal_has_a_name() {
        let own = variables("A=1 TERM=vt100");
        assert_eq!(exec_environment(&own, true), own);
        assert_eq!(exec_environment(&own[..1], false), own[..1]);
        assert_eq!(exec_environment(&own[..1], true), variables("A=1 TERM=xterm"));
    }

    #[test]
    fn failures() {
        let missing = "exec: \"x\": executable file not found in $PATH";
        assert_eq!(ProgramError::Missing.words("x"), missing);
        let no_file = "exec: \"/x\": stat /x: no such file or directory";
        assert_eq!(ProgramError::Missing.words("/x"), no_file);
        assert_eq!(ProgramError::Forbidden.words("/x"), "exec: \"/x\": permission denied");
        assert_eq!((ProgramError::Missing.code(), ProgramError::Format.code()), (127, 126));
    }
}
