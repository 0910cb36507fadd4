//! The programs that are built into the binary, for use in containers.
//!
//! They use the standard library only, start in a millisecond and need little memory. Nothing of
//! the agent runs in their processes.

mod curl;
mod echo;
mod lookup;
mod message;
mod nslookup;
mod sleep;

use std::env;
use std::path::Path;

use crate::container::forker;

/// As the first argument it selects a program by the second, whatever the executable's name.
pub const SELECT: &str = "--roadstead-applet";
/// What makes the processes around containers, which only the agent starts.
pub(crate) const FORKER: &str = "pod-forker";
/// What a runtime of containers asks for the address of a pod.
#[cfg(feature = "cri")]
pub(crate) const CNI: &str = "cni";

/// Runs a built-in program if the command line asks for one, and returns its exit code.
///
/// The binary calls this first in `main`, before any thread is made, and exits with the code. A
/// program is selected by the executable's name (`/bin/curl` linked to the binary), or by
/// [`SELECT`] as first argument.
pub fn applet_main() -> Option<i32> {
    let mut words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    let own = words.next().unwrap_or_default();
    let mut arguments: Vec<String> = words.collect();
    if arguments.first().map(String::as_str) == Some(SELECT) {
        let name = arguments.get(1).cloned().unwrap_or_default();
        arguments.drain(..arguments.len().min(2));
        return Some(run(&name, &arguments).unwrap_or_else(|| {
            eprintln!("roadstead: there is no applet {name:?}");
            127
        }));
    }
    let name = Path::new(&own).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if [FORKER, "cni"].contains(&name.as_str()) { None } else { run(&name, &arguments) }
}

fn run(name: &str, arguments: &[String]) -> Option<i32> {
    Some(match name {
        "curl" => curl::main(arguments),
        "echo" => echo::main(arguments),
        "nslookup" => nslookup::main(arguments),
        "sleep" => sleep::main(arguments),
        FORKER => forker::main(),
        #[cfg(feature = "cri")]
        CNI => crate::runtime::cri::cni::main(arguments),
        _ => return None,
    })
}
