//! `--config FILE`: flags from a file. Its keys are the flags of the command, without the dashes; what
//! is given on the command line as well counts there.

use std::ffi::OsString;

use clap::{ArgAction, Command};
use serde_json::{Map, Value};

/// The commands that have such a file. The one of `proxy` is kube-proxy's own.
const COMMANDS: [&str; 2] = ["up", "cleanup"];

/// The arguments with those of the configuration file in them, if they name one.
pub(crate) fn expand(command: &Command, given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let texts: Vec<String> = given.iter().map(|text| text.to_string_lossy().into_owned()).collect();
    let Some((at, part)) = subcommand(command, &texts) else { return Ok(given) };
    let Some(path) = file_of(&texts[at..]) else { return Ok(given) };
    if !COMMANDS.contains(&part.get_name()) {
        return Ok(given);
    }
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let more =
        flags((command, part), &text, &texts[1..]).map_err(|why| format!("{path}: {why}"))?;
    let (before, after) = given.split_at(at);
    Ok(before
        .iter()
        .cloned()
        .chain(more.into_iter().map(Into::into))
        .chain(after.to_vec())
        .collect())
}

/// The subcommand, and where its own arguments begin.
fn subcommand<'a>(command: &'a Command, given: &[String]) -> Option<(usize, &'a Command)> {
    given
        .iter()
        .enumerate()
        .skip(1)
        .find_map(|(at, text)| Some((at + 1, command.find_subcommand(text)?)))
}

/// The last one counts, as with any flag.
fn file_of(given: &[String]) -> Option<String> {
    let next = given.iter().skip(1).map(Some).chain([None]);
    let named = |(text, next): (&String, Option<&String>)| match text.strip_prefix("--config") {
        Some("") => next.cloned(),
        Some(rest) => rest.strip_prefix('=').map(str::to_owned),
        None => None,
    };
    given.iter().zip(next).filter_map(named).last()
}

/// What a file says to a command, one of those that the program has. `given` is what was said besides.
fn flags(
    (program, command): (&Command, &Command),
    text: &str,
    given: &[String],
) -> Result<Vec<String>, String> {
    // Those of all commands may also stand before the command.
    let of_all = || program.get_arguments().filter(|argument| argument.is_global_set());
    let values: Option<Map<String, Value>> =
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let mut flags = Vec::new();
    for (key, value) in values.unwrap_or_default() {
        let mut arguments = command.get_arguments().chain(of_all());
        let known = arguments.find(|argument| argument.get_long() == Some(&key));
        let Some(argument) = known.filter(|_| key != "config") else {
            let name = command.get_name();
            return Err(format!(
                "{key}: no such flag; the keys are those of `roadstead {name} --help`"
            ));
        };
        if is_given(given, &key) {
            continue;
        }
        match (argument.get_action(), value) {
            (_, Value::Null) => {}
            (ArgAction::SetTrue, Value::Bool(true)) => flags.push(format!("--{key}")),
            (ArgAction::SetTrue, Value::Bool(false)) => {}
            (ArgAction::SetTrue, other) => {
                return Err(format!("{key}: {other}: must be true or false"));
            }
            (_, Value::Array(values)) => {
                let values = values.iter().map(|value| scalar(&key, value));
                for value in values.collect::<Result<Vec<_>, _>>()? {
                    flags.push(format!("--{key}={value}"));
                }
            }
            (_, value) => flags.push(format!("--{key}={}", scalar(&key, &value)?)),
        }
    }
    Ok(flags)
}

fn is_given(given: &[String], key: &str) -> bool {
    let rest = |text: &String| {
        text.strip_prefix("--").and_then(|text| text.strip_prefix(key)).map(str::to_owned)
    };
    given.iter().filter_map(rest).any(|rest| rest.is_empty() || rest.starts_with('='))
}

fn scalar(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        _ => Err(format!("{key}: must be a text, a number, true, false, or a list of them")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn keys_are_flags() {
        let cli = Cli::command();
        let up = cli.find_subcommand("up").unwrap();
        // The file, what is given besides, and what it comes to, or why not.
        let cases = [
            ("", "", ""),
            ("listen: 127.0.0.1:7443", "", "--listen=127.0.0.1:7443"),
            ("listen: 127.0.0.1:7443", "--listen 0.0.0.0:1", ""),
            ("listen: 127.0.0.1:7443", "--listen=0.0.0.0:1", ""),
            ("ephemeral: true", "", "--ephemeral"),
            ("ephemeral: false", "", ""),
            ("ephemeral: soon", "", "ephemeral: \"soon\": must be true or false"),
            ("log: debug", "", "--log=debug"),
            ("log: debug", "--log warn", ""),
            ("lisen: x", "", "lisen: no such flag; the keys are those of `roadstead up --help`"),
            (
                "listen: {a: b}",
                "",
                "listen: must be a text, a number, true, false, or a list of them",
            ),
        ];
        for (text, given, want) in cases {
            let given: Vec<String> = given.split_whitespace().map(str::to_owned).collect();
            let flags = flags((&cli, up), text, &given).map(|flags| flags.join(" "));
            assert_eq!(flags.unwrap_or_else(|why| why), want, "{text}");
        }
    }

    #[test]
    fn the_file_of_the_proxy_is_its_own() {
        let cli = Cli::command();
        let given = |text: &str| -> Vec<OsString> { text.split(' ').map(Into::into).collect() };
        let proxy = given("roadstead proxy --config /nowhere.conf");
        assert_eq!(expand(&cli, proxy.clone()), Ok(proxy));
        let up = given("roadstead --log warn up --config /nowhere.yaml");
        assert!(expand(&cli, up).is_err_and(|why| why.starts_with("cannot read /nowhere.yaml: ")));
    }

    #[test]
    fn what_packages_say_is_understood() {
        let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let text = std::fs::read_to_string(packaging.join("config.yaml")).unwrap();
        // What is commented out are examples, next to sentences.
        let is_example =
            |line: &&str| line.split_once(": ").is_some_and(|(key, _)| !key.contains(' '));
        let examples: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix('#')).filter(is_example).collect();
        assert!(examples.len() > 5, "{examples:?}");
        let cli = Cli::command();
        let up = cli.find_subcommand("up").unwrap();
        let flags = flags((&cli, up), &examples.join("\n"), &[]).unwrap();
        let given = ["roadstead".to_owned(), "up".to_owned()].into_iter().chain(flags);
        Cli::try_parse_from(given).unwrap();

        for unit in std::fs::read_dir(packaging.join("systemd")).unwrap() {
            let unit = std::fs::read_to_string(unit.unwrap().path()).unwrap();
            let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
            let words = command.split(' ').filter(|word| *word != "$ROADSTEAD_FLAGS");
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }

    #[test]
    fn the_file_is_found() {
        for (given, want) in [
            ("up --config /etc/a.yaml", Some("/etc/a.yaml")),
            ("up --config=/etc/a.yaml --ephemeral", Some("/etc/a.yaml")),
            ("up --configuration x", None),
            ("up", None),
        ] {
            let given: Vec<String> = given.split(' ').map(str::to_owned).collect();
            assert_eq!(file_of(&given).as_deref(), want, "{given:?}");
        }
    }
}
