//! What others are asked on behalf of a query, and the reply that comes of it.

use std::sync::Arc;

use roadstead_zone::answer::AnswerEnd;
use roadstead_zone::record_type::RecordType;

use crate::cache::{QuestionKey, StoredAnswer};
use crate::message::{NameBuffer, Query};
use crate::reply::ResponseCode;
use crate::respond::{QueryContext, Response, Stage, key, respond};
use crate::setup::Block;
use crate::upstream::UpstreamFailure;

/// What has to be asked of others for a query.
#[derive(Debug)]
pub struct UpstreamPlan<'a> {
    /// The rules for it: those of the name in the question, even if that stands for another one; but
    /// an alias leads to where its name belongs.
    pub block: &'a Block,
    /// The question.
    pub key: QuestionKey,
    /// The name that the one in the query stands for.
    rewritten: Option<Box<[u8]>>,
    /// Whether an alias of ours led to it.
    alias: bool,
}

/// What came of a question.
#[derive(Debug)]
pub enum LookedUp {
    /// An answer that holds.
    Fresh(Arc<StoredAnswer>),
    /// An answer that does not hold any more, for want of a newer one.
    Stale(Arc<StoredAnswer>),
    /// No answer.
    Nothing(UpstreamFailure),
}

impl<'a> QueryContext<'a> {
    /// What has to be asked of others; `None` if nothing.
    pub fn plan_upstream(&self, query: &Query<'_>) -> Option<UpstreamPlan<'a>> {
        let block = self.setup.block(query.name.wire())?;
        let rewritten = block.rewritten(query.name.wire());
        let name = match &rewritten {
            Some(name) => NameBuffer::from_wire(name.wire())?,
            None => query.name,
        };
        let kind = RecordType::from_number(query.kind);
        let rewritten = rewritten.map(|name| name.wire().into());
        match self.stage(block, name.wire(), kind) {
            Stage::Others => {
                Some(UpstreamPlan { block, key: key(query, name.wire()), rewritten, alias: false })
            }
            Stage::Zone(answer) if matches!(answer.end, AnswerEnd::Elsewhere) => {
                let target = answer.aliases.iter().last()?.to_lowercase();
                let block = self.setup.block(target.wire()).unwrap_or(block);
                let key = key(query, target.wire());
                Some(UpstreamPlan { block, key, rewritten, alias: true })
            }
            _ => None,
        }
    }

    /// Writes what came of the question to others; returns how long that is.
    pub fn reply_with(
        &self,
        query: &Query<'_>,
        plan: &UpstreamPlan<'_>,
        found: &LookedUp,
        buffer: &mut [u8],
    ) -> usize {
        let (stored, stale) = match found {
            LookedUp::Fresh(stored) => (stored, None),
            LookedUp::Stale(stored) => (stored, Some((3, "no newer answer could be had"))),
            LookedUp::Nothing(failure) => {
                let (code, number) = match failure {
                    UpstreamFailure::Busy | UpstreamFailure::Share => (ResponseCode::Refused, 0),
                    UpstreamFailure::Silent(_) => (ResponseCode::ServerFailure, 22),
                    UpstreamFailure::Loop(_) => (ResponseCode::ServerFailure, 0),
                };
                return self.fail(query, code, (number, failure), buffer);
            }
        };
        let answer = stored.aged(self.now);
        if plan.alias || plan.rewritten.is_some() {
            return self.complete(query, plan.rewritten.as_deref(), Some(answer), buffer);
        }
        self.pass_on(query, answer, stale, buffer)
    }

    /// Answers without anybody else; returns how long the reply is.
    pub(crate) fn reply_alone(&self, query: &Query<'_>, buffer: &mut [u8]) -> usize {
        match respond(self, query.bytes, buffer) {
            Response::Reply(length) | Response::Remembered(length) => length,
            // The guard came back, or the rules have changed in between.
            Response::Ignore | Response::Forward => {
                let reason = (0, "this server forwards to itself");
                self.fail(query, ResponseCode::ServerFailure, reason, buffer)
            }
        }
    }
}
