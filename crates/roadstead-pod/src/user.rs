//! Who a container runs as, after its image's own list of users: pure.

use crate::image::LayeredImage;

/// A user of an image.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
    /// More groups that the image puts the user in.
    pub(crate) groups: Vec<u32>,
    /// Where its files are; `/` for one that the image does not know.
    pub(crate) home: String,
}

/// One line of /etc/passwd.
struct Entry<'a> {
    name: &'a str,
    user: u32,
    group: u32,
    home: &'a str,
}

fn entries(passwd: &str) -> impl Iterator<Item = Entry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, user, group) = (fields.next()?, fields.nth(1)?, fields.next()?);
        let home = fields.nth(1).filter(|home| !home.is_empty()).unwrap_or("/");
        Some(Entry { name, user: user.parse().ok()?, group: group.parse().ok()?, home })
    })
}

/// The groups of the image that list this name.
fn groups_of(image: &LayeredImage, name: &str) -> Vec<u32> {
    let lines = image.group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let number = fields.nth(2)?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(number)
    });
    lines.collect()
}

/// The account with this number, whether the image knows it or not.
pub(crate) fn with_number(image: &LayeredImage, user: u32) -> Account {
    match entries(&image.passwd).find(|entry| entry.user == user) {
        Some(entry) => Account {
            user,
            group: entry.group,
            groups: groups_of(image, entry.name),
            home: entry.home.to_owned(),
        },
        None => Account { user, group: 0, groups: vec![], home: "/".into() },
    }
}

/// The account that the image wants to run as; the error says what it does not have.
pub(crate) fn of_image(image: &LayeredImage) -> Result<Account, String> {
    let (user, group) = match image.user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (image.user.as_str(), None),
    };
    let number = match user {
        "" => Some(0),
        user => user.parse().ok(),
    };
    let mut account = match number {
        Some(number) => with_number(image, number),
        None => {
            let entry = entries(&image.passwd).find(|entry| entry.name == user);
            let missing =
                || format!("unable to find user {user}: no matching entries in passwd file");
            with_number(image, entry.ok_or_else(missing)?.user)
        }
    };
    if let Some(group) = group.filter(|group| !group.is_empty()) {
        account.group = group_number(image, group)?;
    }
    Ok(account)
}

fn group_number(image: &LayeredImage, group: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let mut lines = image.group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&group));
    let number = line.and_then(|fields| fields.get(2)?.parse().ok());
    number.ok_or_else(|| format!("unable to find group {group}: no matching entries in group file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(user: &str) -> LayeredImage {
        LayeredImage {
            user: user.into(),
            passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:101:33:w:/var/www:/bin/sh\nbad\n".into(),
            group: "root:x:0:\nwww:x:33:\nlog:x:4:web,other\nssl:x:9:web\n".into(),
            ..LayeredImage::default()
        }
    }

    #[test]
    fn users_of_images() {
        for (user, want) in [
            ("", "0:0 [] /root"),
            ("web", "101:33 [4, 9] /var/www"),
            ("101", "101:33 [4, 9] /var/www"),
            ("web:log", "101:4 [4, 9] /var/www"),
            ("1000", "1000:0 [] /"),
            ("1000:1001", "1000:1001 [] /"),
            ("nobody", "unable to find user nobody: no matching entries in passwd file"),
            ("web:staff", "unable to find group staff: no matching entries in group file"),
        ] {
            let found = match of_image(&image(user)) {
                Ok(a) => format!("{}:{} {:?} {}", a.user, a.group, a.groups, a.home),
                Err(why) => why,
            };
            assert_eq!(found, want, "{user}");
        }
    }
}
