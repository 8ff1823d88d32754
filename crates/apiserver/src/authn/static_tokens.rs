//! Bearer tokens from a file: `token,user,uid,"group1,group2"` per line.

use std::collections::HashMap;

use portolan_strategy::rbac::User;
use sha2::{Digest as _, Sha256};

use crate::config::StaticToken;

use super::with_authenticated;

/// Tokens by hash, so that the time of a look-up reveals nothing about a common prefix.
pub struct StaticTokens(HashMap<[u8; 32], User>);

impl StaticTokens {
    /// Creates the table.
    pub fn new(tokens: Vec<StaticToken>) -> Self {
        let entry = |token: StaticToken| {
            let user = User { groups: with_authenticated(token.user.groups.clone()), ..token.user };
            (Sha256::digest(token.token.as_bytes()).into(), user)
        };
        Self(tokens.into_iter().map(entry).collect())
    }

    /// Returns the user of a token.
    pub fn user(&self, token: &str) -> Option<User> {
        if self.0.is_empty() {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        self.0.get(&hash).cloned()
    }
}

/// Parses a token file.
///
/// # Errors
/// The number of an invalid line, without its content.
pub fn parse_token_file(text: &str) -> Result<Vec<StaticToken>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(at, line)| {
            parse_line(line)
                .ok_or_else(|| format!("line {} does not have the form token,user,uid[,\"groups\"]", at + 1))
        })
        .collect()
}

fn parse_line(line: &str) -> Option<StaticToken> {
    let mut parts = line.splitn(4, ',').map(str::trim);
    let (token, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let groups = parts.next().unwrap_or_default().trim_matches('"');
    let groups = groups.split(',').map(str::trim).filter(|g| !g.is_empty()).map(str::to_owned).collect();
    let user = User { name: name.into(), uid: uid.into(), groups, ..User::default() };
    (!token.is_empty() && !name.is_empty()).then(|| StaticToken { token: token.into(), user })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files_name_users_and_groups() {
        let tokens = StaticTokens::new(parse_token_file("s3cret,ann,7,\"dev,ops\"\n\n# x\nother,bob,8\n").unwrap());
        let ann = tokens.user("s3cret").unwrap();
        assert_eq!(
            (ann.name.as_str(), ann.groups),
            ("ann", vec!["dev".into(), "ops".into(), "system:authenticated".into()])
        );
        assert_eq!(tokens.user("s3cre"), None);
        assert_eq!(
            parse_token_file("a,b,c\nbroken").err(),
            Some("line 2 does not have the form token,user,uid[,\"groups\"]".into())
        );
    }
}
