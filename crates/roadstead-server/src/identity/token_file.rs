//! Tokens that an operator gives to the server in a file: `token,user,uid,"group1,group2"` on each
//! line. They are kept, and compared, by their hashes only.

use std::collections::HashMap;

use aws_lc_rs::digest;

use crate::identity::user::User;

/// Why a file of tokens is refused: a line that is misread lets in the wrong people, or everybody.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct TokenFileError {
    line: usize,
    why: String,
}

/// The tokens of a file, and whose they are.
#[derive(Debug, Default)]
pub struct TokenFile(HashMap<[u8; digest::SHA256_OUTPUT_LEN], User>);

impl TokenFile {
    /// Reads a file; all of it or nothing.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut known = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |why: &str| TokenFileError { line: at + 1, why: why.into() };
            if line.trim().is_empty() {
                continue;
            }
            let (token, user) = entry(line).map_err(|why| wrong(&why))?;
            if known.insert(hash(&token), user).is_some() {
                return Err(wrong("this token is in an earlier line already"));
            }
        }
        Ok(Self(known))
    }

    /// Whose a token is.
    pub(crate) fn user(&self, token: &str) -> Option<&User> {
        // The time that it takes tells something about the hash, and nothing about the token.
        self.0.get(&hash(token))
    }
}

fn hash(token: &str) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn entry(line: &str) -> Result<(String, User), String> {
    let fields = fields(line)?;
    let (token, name, uid, groups) = match &fields[..] {
        [token, name, uid] => (token, name, uid, ""),
        [token, name, uid, groups] => (token, name, uid, groups.as_str()),
        _ => {
            return Err(format!(
                "there are {} fields, and not token,user,uid[,\"group1,group2\"]",
                fields.len()
            ));
        }
    };
    if token.is_empty() {
        return Err("the token is empty".into());
    }
    if token.contains(|c: char| !c.is_ascii_graphic()) {
        return Err("a token has no spaces, and only ASCII".into());
    }
    if name.is_empty() {
        return Err("the name of the user is empty".into());
    }
    let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty());
    let groups = groups.map(str::to_owned).chain(["system:authenticated".to_owned()]).collect();
    Ok((token.clone(), User { uid: uid.clone(), ..User::new(name.clone(), groups) }))
}

/// The fields of a line, some of them in quotes.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut rest = line.trim();
    let mut fields = Vec::new();
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (field, after) =
                    quoted.split_once('"').ok_or("a quote is opened and not closed")?;
                (field, after.trim_start())
            }
            None => rest.split_at(rest.find(',').unwrap_or(rest.len())),
        };
        if field.contains('"') {
            return Err("there is a quote in the middle of a field".into());
        }
        fields.push(field.trim().to_owned());
        match after.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if after.is_empty() => return Ok(fields),
            None => return Err("something follows a closing quote".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_tokens() {
        let file = "sesame,jane,1,\"dev, ops\"\n\n  \"t2\" , bob ,2\nt3,eve,,admins\r\n";
        let known = TokenFile::parse(file).unwrap();
        let show = |token: &str| {
            let user = known.user(token)?;
            Some(format!("{} {} {}", user.name, user.uid, user.groups.join("+")))
        };
        assert_eq!(show("sesame").unwrap(), "jane 1 dev+ops+system:authenticated");
        assert_eq!(show("t2").unwrap(), "bob 2 system:authenticated");
        assert_eq!(show("t3").unwrap(), "eve  admins+system:authenticated");
        for nobody in ["", "sesam", "sesame ", "jane", "#", "\"t2\""] {
            assert_eq!(show(nobody), None, "{nobody:?}");
        }
    }

    #[test]
    fn lines_that_are_refused() {
        for (file, want) in [
            (",root,0,\"system:masters\"", "line 1: the token is empty"),
            ("\"\",root,0", "line 1: the token is empty"),
            ("a,b,c\n ,root,0,\"system:masters\"", "line 2: the token is empty"),
            ("a,,0", "line 1: the name of the user is empty"),
            ("a b,root,0", "line 1: a token has no spaces, and only ASCII"),
            (
                "# the team",
                "line 1: there are 1 fields, and not token,user,uid[,\"group1,group2\"]",
            ),
            ("secret", "line 1: there are 1 fields, and not token,user,uid[,\"group1,group2\"]"),
            ("a,b", "line 1: there are 2 fields, and not token,user,uid[,\"group1,group2\"]"),
            ("a,b,c,d,e", "line 1: there are 5 fields, and not token,user,uid[,\"group1,group2\"]"),
            ("a,b,c,\"d,e", "line 1: a quote is opened and not closed"),
            ("a,b,c,\"d\"e", "line 1: something follows a closing quote"),
            ("a,b,c,d\"e", "line 1: there is a quote in the middle of a field"),
            ("\n\na,b,c\na,d,e", "line 4: this token is in an earlier line already"),
        ] {
            assert_eq!(TokenFile::parse(file).unwrap_err().to_string(), want, "{file:?}");
        }
    }
}
