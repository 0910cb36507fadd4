//! The file that a container writes its termination message to, and what is read of it at the end.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use roadstead_pod::termination_message::{
    ENOUGH_OF_LOG, MOST_OF_FILE, TerminationMessage, from_log,
};

use crate::container::{LAST_WORDS, RECIPE, Recipe, read_json};

/// Makes an empty file for the next run, which whoever runs in the container may write to.
pub(super) fn prepare(recipe: &Recipe) -> io::Result<()> {
    match recipe.termination_message {
        None => Ok(()),
        Some(_) => make(&recipe.directory),
    }
}

/// Makes that file in a container's directory.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    let path = directory.join(LAST_WORDS);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(&path)?.set_permissions(Permissions::from_mode(0o666))
}

/// What the run that ended with this code has to say.
pub(super) fn read(directory: &Path, id: &str, code: i32) -> Option<String> {
    let recipe = read_json::<Recipe>(&directory.join(RECIPE)).ok()?;
    let wish = recipe.termination_message.filter(|_| recipe.id == id)?;
    take(&wish, directory, &recipe.log, code)
}

/// What a run has to say that wishes so, from its directory or from its log.
pub(super) fn take(
    wish: &TerminationMessage,
    directory: &Path,
    log: &Path,
    code: i32,
) -> Option<String> {
    let mut words = end_of(&directory.join(LAST_WORDS), MOST_OF_FILE).unwrap_or_default();
    if wish.wants_log(&words, code) {
        words = from_log(&end_of(log, ENOUGH_OF_LOG).unwrap_or_default());
    }
    Some(String::from_utf8_lossy(&words).into_owned()).filter(|words| !words.is_empty())
}

fn end_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut end = Vec::new();
    file.take(most).read_to_end(&mut end)?;
    Ok(end)
}
