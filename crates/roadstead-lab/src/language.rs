//! English and Chinese.

use serde::Deserialize;

/// What is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// English.
    #[default]
    English,
    /// Chinese, as it is written in the mainland.
    Chinese,
}

impl Language {
    /// What a locale such as `zh_CN.UTF-8` or a name such as `zh` means; nothing, if it is neither.
    pub fn of(locale: &str) -> Option<Self> {
        let language = locale.split(['_', '-', '.', '@']).next().unwrap_or_default();
        match language {
            "zh" => Some(Self::Chinese),
            "en" | "C" | "POSIX" => Some(Self::English),
            _ => None,
        }
    }

    /// The first of these locales that says something, in the order in which programs look at them.
    pub fn chosen<'a>(locales: impl IntoIterator<Item = &'a str>) -> Self {
        let first = locales.into_iter().find(|locale| !locale.is_empty());
        first.and_then(Self::of).unwrap_or_default()
    }
}

/// The same in both languages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    en: String,
    zh: String,
}

impl Text {
    /// Both at once.
    pub fn new(en: impl Into<String>, zh: impl Into<String>) -> Self {
        Self { en: en.into(), zh: zh.into() }
    }

    /// What is said in that language.
    pub fn in_language(&self, language: Language) -> &str {
        match language {
            Language::English => &self.en,
            Language::Chinese => &self.zh,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales() {
        let cases: [(&[&str], Language); 6] = [
            (&[], Language::English),
            (&["", "zh_CN.UTF-8"], Language::Chinese),
            (&["zh-Hans"], Language::Chinese),
            (&["C", "zh_CN.UTF-8"], Language::English),
            (&["de_DE.UTF-8"], Language::English),
            (&["en_GB"], Language::English),
        ];
        for (locales, want) in cases {
            assert_eq!(Language::chosen(locales.iter().copied()), want, "{locales:?}");
        }
    }
}
