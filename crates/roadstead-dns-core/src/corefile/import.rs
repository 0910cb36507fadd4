//! `import`: rules from snippets and from other files, put in its place before anything is given a
//! meaning.

use std::collections::BTreeMap;

use super::parse::{self, Directive};
use super::{CorefileEnvironment, CorefileError};

/// What is imported may import in turn; so many times at most.
const DEEPEST: usize = 8;

type Snippets = BTreeMap<String, Vec<Directive>>;

/// Replaces every `import`, and takes the snippets `(name) { ... }` away.
pub(super) fn expand(
    blocks: Vec<Directive>,
    environment: &CorefileEnvironment<'_>,
) -> Result<Vec<Directive>, CorefileError> {
    let mut snippets = Snippets::new();
    let mut rest = Vec::new();
    for block in blocks {
        match snippet(&block) {
            Some(name) => drop(snippets.insert(name.to_owned(), block.body)),
            None => rest.push(block),
        }
    }
    Importer { snippets, environment }.all(rest, 0, 0)
}

fn snippet(block: &Directive) -> Option<&str> {
    match block.words.as_slice() {
        [only] => only.strip_prefix('(')?.strip_suffix(')'),
        _ => None,
    }
}

struct Importer<'a> {
    snippets: Snippets,
    environment: &'a CorefileEnvironment<'a>,
}

impl Importer<'_> {
    /// `level` is 0 for server blocks and 1 for the rules in them.
    fn all(
        &self,
        directives: Vec<Directive>,
        level: usize,
        depth: usize,
    ) -> Result<Vec<Directive>, CorefileError> {
        let mut done = Vec::new();
        for mut directive in directives {
            if directive.name() == "import" {
                done.extend(self.import(&directive, level, depth)?);
                continue;
            }
            if level == 0 {
                let body = std::mem::take(&mut directive.body);
                directive.body = self.all(body, 1, depth)?;
            }
            done.push(directive);
        }
        Ok(done)
    }

    fn import(
        &self,
        directive: &Directive,
        level: usize,
        depth: usize,
    ) -> Result<Vec<Directive>, CorefileError> {
        if depth >= DEEPEST {
            return Err(directive.wrong("imports lead too deep"));
        }
        let what = directive.only()?;
        if let Some(body) = self.snippets.get(what) {
            return self.all(body.clone(), level, depth + 1);
        }
        let mut all = Vec::new();
        for path in self.paths(directive, what)? {
            let text = (self.environment.file)(&path);
            let text = text.map_err(|error| directive.wrong(format!("{path}: {error}")))?;
            // Lines are those of that file, but the reader of the error looks at this one.
            let within = |CorefileError { line, reason }| {
                directive.wrong(format!("{path}, line {line}: {reason}"))
            };
            let found = parse::fragment(&text, level, self.environment.variable).map_err(within)?;
            let mut found = self.all(found, level, depth + 1).map_err(within)?;
            found.iter_mut().for_each(|one| mark(one, &path, directive.line));
            all.extend(found);
        }
        Ok(all)
    }

    /// The files that are meant. A pattern may match none; a file must be there.
    fn paths(&self, directive: &Directive, what: &str) -> Result<Vec<String>, CorefileError> {
        let (folder, pattern) = what.rsplit_once('/').unwrap_or((".", what));
        if folder.contains('*') || pattern.matches('*').count() > 1 {
            let reason = format!("{what}: only one * in a file's name is understood");
            return Err(directive.wrong(reason));
        }
        let Some((before, after)) = pattern.split_once('*') else { return Ok(vec![what.into()]) };
        // A folder is read as the names in it.
        let names = (self.environment.file)(&format!("{folder}/")).unwrap_or_default();
        let fits = |name: &&str| {
            let rest = name.strip_prefix(before).filter(|_| !name.starts_with('.'));
            rest.is_some_and(|rest| rest.ends_with(after))
        };
        let mut names: Vec<&str> = names.lines().filter(fits).collect();
        names.sort_unstable();
        Ok(names.into_iter().map(|name| format!("{folder}/{name}")).collect())
    }
}

/// Notes where a rule comes from, for errors about what it means.
fn mark(directive: &mut Directive, path: &str, line: usize) {
    let inner = directive.within.take().map(|inner| format!(": {inner}")).unwrap_or_default();
    directive.within = Some(format!("{path}, line {}{inner}", directive.line));
    directive.line = line;
    directive.body.iter_mut().for_each(|one| mark(one, path, line));
}
