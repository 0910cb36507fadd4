//! `kubectl logs`: finds the log that is meant, and sends it as it is read.

use futures::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateWaiting, ContainerStatus, Pod};
use roadstead_pod::logs::{LogOptions, LogStream, waiting_words};
use roadstead_pod::pod_name::PodName;

use super::log_reader::{LogReader, LogSource};
use super::query::Query;
use super::{Body, PodServer, Refusal, Target, text};

impl PodServer {
    pub(super) async fn logs(
        &self,
        target: &Target,
        query: &Query,
    ) -> Result<Response<Body>, Refusal> {
        let options = LogOptions {
            stream: stream(query)?,
            since: since(query)?,
            timestamps: query.has("timestamps"),
            limit_bytes: query.parsed("limitBytes")?,
        };
        let source = self.source(target, query.has("previous"))?;
        let tail = query.parsed("tailLines")?;
        let follow = query.has("follow");
        let reader = LogReader::open(source, options, (tail, follow)).await;
        let reader = reader.map_err(|error| {
            Refusal(
                hyper::StatusCode::INTERNAL_SERVER_ERROR,
                format!("cannot read the log of container {:?}: {error}", target.container),
            )
        })?;
        let pieces = unfold(reader, async |mut reader| {
            let piece = reader.next().await?;
            Some((Ok(Frame::data(piece)), reader))
        });
        Ok(text(StreamBody::new(pieces).boxed_unsync()))
    }

    fn source(&self, target: &Target, previous: bool) -> Result<LogSource, Refusal> {
        let Target { pod, container } = target;
        let name = PodName::of(pod);
        let status = status_of(pod, container);
        let log = self.containers.log(&name, container);
        if !previous {
            let log = log.ok_or_else(|| {
                Refusal::bad(waiting_words(&name.name, container, &waiting(pod, status)))
            })?;
            return Ok(LogSource { path: log.path, ended: log.ended });
        }
        // Between two runs, the newest one is the one before.
        let last = status.and_then(|status| status.last_state.as_ref()?.terminated.as_ref());
        let last = last.and_then(|last| last.container_id.as_deref()).unwrap_or_default();
        let path = log.and_then(|log| match last.ends_with(&format!("//{}", log.id)) {
            true => Some(log.path),
            false => log.previous,
        });
        let path = path.ok_or_else(|| {
            Refusal::bad(format!(
                "previous terminated container {container:?} in pod {:?} not found",
                name.name
            ))
        })?;
        Ok(LogSource { path, ended: Box::new(|| true) })
    }
}

/// Which outputs are wanted; an error, in upstream's words, if they do not go with the rest.
fn stream(query: &Query) -> Result<LogStream, Refusal> {
    let stream: LogStream = query.parsed("stream")?.unwrap_or_default();
    let excluded = stream.excludes_tail().filter(|_| query.all("tailLines").next().is_some());
    excluded.map_or(Ok(stream), |why| Err(Refusal::bad(why.to_owned())))
}

fn since(query: &Query) -> Result<Option<Timestamp>, Refusal> {
    if let Some(time) = query.parsed("sinceTime")? {
        return Ok(Some(time));
    }
    let seconds = query.parsed::<u32>("sinceSeconds")?;
    Ok(seconds.map(|seconds| Timestamp::now() - SignedDuration::from_secs(seconds.into())))
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let main = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    main.chain(init).find(|status| status.name == container)
}

/// Why a container that has never run does not, as far as anybody knows.
fn waiting(pod: &Pod, status: Option<&ContainerStatus>) -> ContainerStateWaiting {
    let state: Option<&ContainerState> = status.and_then(|status| status.state.as_ref());
    let known = state.and_then(|state| state.waiting.clone());
    known.unwrap_or_else(|| {
        let first = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
        let has_init = first.is_some_and(|init| !init.is_empty());
        let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
        ContainerStateWaiting { reason: Some(reason.to_owned()), message: None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_outputs_are_wanted() {
        let tail = "`tailLines` and specific `stream` are mutually exclusive for now";
        for (text, want) in [
            ("", Ok(LogStream::All)),
            ("stream=All&tailLines=3", Ok(LogStream::All)),
            ("stream=Stderr&limitBytes=3", Ok(LogStream::Stderr)),
            ("stream=Stdout&tailLines=3", Err(tail)),
            ("stream=stdout", Err("invalid value \"stdout\" of stream")),
        ] {
            let query = Query::of(&format!("/x?{text}").parse().unwrap());
            assert_eq!(stream(&query).map_err(|refusal| refusal.1), want.map_err(str::to_owned));
        }
    }
}
