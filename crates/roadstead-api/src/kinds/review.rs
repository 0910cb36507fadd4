//! Questions in the form of objects: who am I, may I do that.

use crate::kind::{Info, Kind};

/// A kind of question.
pub(super) struct Review(Info);

impl Kind for Review {
    fn info(&self) -> &Info {
        &self.0
    }
}

const fn review(group: &'static str, kind: &'static str, plural: &'static str) -> Review {
    let info = Info::new(group, "v1", kind, plural, "");
    Review(Info { namespaced: false, review: true, ..info })
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// All of them.
pub(super) static ALL: [Review; 6] = [
    review(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews"),
    review(AUTHENTICATION, "TokenReview", "tokenreviews"),
    review(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    review(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    review(AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews"),
    Review(Info {
        review: true,
        ..Info::new(
            AUTHORIZATION,
            "v1",
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
            "",
        )
    }),
];
