//! A lesson: what is there at its beginning, and its steps.

use serde::Deserialize;
use serde_json::Value;

use crate::check::Question;
use crate::language::Text;

/// The files, in the order in which they are listed.
const FILES: [&str; 5] = [
    include_str!("../data/service-and-endpoints.yaml"),
    include_str!("../data/slices.yaml"),
    include_str!("../data/forwarding.yaml"),
    include_str!("../data/endpoints.yaml"),
    include_str!("../data/mapping.yaml"),
];

/// A lesson.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    /// As it is called on the command line.
    pub name: String,
    /// The document that it goes through.
    pub document: String,
    /// What it is about.
    pub title: Text,
    /// What is there at its beginning.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// One after the other.
    pub steps: Vec<LessonStep>,
}

/// One thing to do or to find out.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LessonStep {
    /// What to do.
    pub task: Text,
    /// Commands that help.
    #[serde(default)]
    pub commands: Vec<String>,
    /// Whether it is done.
    pub check: Question,
    /// What was to be seen.
    pub seen: Text,
    /// How the tests do it: a command, or an answer by `$(…)` or as it is.
    pub solution: String,
}

/// All lessons.
///
/// # Panics
///
/// Never: a test reads them.
pub fn all() -> Vec<Lesson> {
    let read = |text: &&str| -> Lesson {
        let value: Value = serde_saphyr::from_str(text).expect("the file was read by a test");
        serde_json::from_value(value).expect("the file was understood by a test")
    };
    FILES.iter().map(read).collect()
}

/// The lesson with that name.
pub fn find(name: &str) -> Option<Lesson> {
    all().into_iter().find(|lesson| lesson.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Evidence;
    use crate::kind::LessonKind;
    use crate::language::Language;

    #[test]
    fn lessons_are_whole_in_both_languages() {
        for lesson in all() {
            let name = &lesson.name;
            assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-'));
            assert!(lesson.steps.len() >= 4, "{name} has {} steps", lesson.steps.len());
            let steps = lesson.steps.iter().flat_map(|step| [&step.task, &step.seen]);
            for text in steps.chain([&lesson.title]) {
                let (en, zh) =
                    (text.in_language(Language::English), text.in_language(Language::Chinese));
                assert!(en.is_ascii() && !en.is_empty(), "{name}: {en}");
                assert!(!zh.is_ascii(), "{name}: {zh} is no Chinese");
            }
            for object in &lesson.objects {
                let kind = object["kind"].as_str().unwrap_or_default();
                assert!(LessonKind::of(kind).is_some(), "{name}: {kind} is not known");
            }
            for step in &lesson.steps {
                assert!(!step.solution.is_empty(), "{name}: {:?}", step.task);
            }
        }
    }

    #[test]
    fn no_step_is_done_by_doing_nothing() {
        for lesson in all() {
            let kind = |object: &Value| LessonKind::of(object["kind"].as_str().unwrap()).unwrap();
            let objects = lesson.objects.iter().map(|object| (kind(object), object.clone()));
            let world = Evidence { objects: objects.collect(), answer: Some("nothing".into()) };
            for (number, step) in lesson.steps.iter().enumerate() {
                // What is to be gone is there only once the step before it was done.
                let is_removal = matches!(step.check, Question::Gone(_));
                let missing = step.check.missing(&world);
                assert!(missing.is_some() || is_removal, "{} {number}", lesson.name);
            }
        }
    }
}
