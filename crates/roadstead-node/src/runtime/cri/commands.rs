//! Commands in containers, and whoever looks at a container.

use roadstead_grpc::status::Status;
use roadstead_pod::pod_name::PodName;
use tokio::sync::watch;
use tokio::{io, task};

use super::CriRuntime;
use super::client::PATIENT;
use super::messages::*;
use super::streaming::{self, WantedStreams};
use crate::runtime::attach::{AttachOrder, AttachSession};
use crate::runtime::exec::{ExecError, ExecOrder, ExecProcess, ExecSession};

impl CriRuntime {
    pub(super) async fn exec_in(
        &self,
        pod: &PodName,
        container: &str,
        order: ExecOrder,
    ) -> Result<ExecSession, ExecError> {
        let run = self.run(pod, container).filter(|run| !run.has_ended());
        let run =
            run.ok_or_else(|| ExecError::new(format!("container not found ({container:?})")))?;
        let ExecOrder { command: cmd, stdin, tty, output_only } = order;
        let container_id = run.id.clone();
        if output_only {
            return Ok(self.exec_sync(ExecSyncRequest { container_id, cmd, timeout: 0 }));
        }
        let question = ExecRequest { container_id, cmd, tty, stdin, stdout: true, stderr: !tty };
        let answer = self.client.ask::<StreamingUrl>("Exec", &question).await;
        let answer = answer.map_err(|status| ExecError::new(status.message))?;
        let wanted = WantedStreams { stdin, stdout: true, stderr: !tty, tty };
        streaming::exec(&answer.url, wanted).await
    }

    /// A command of which only the outcome is wanted. The runtime ends it when nobody waits any more.
    fn exec_sync(&self, question: ExecSyncRequest) -> ExecSession {
        let client = self.client.clone();
        let (said, exit) = watch::channel(None);
        let (stdout, mut out) = io::duplex(64 * 1024);
        let (stderr, mut err) = io::duplex(64 * 1024);
        let running = task::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let answer = client.ask_within("ExecSync", &question, PATIENT).await;
            let answer = answer.unwrap_or_else(|status: Status| ExecSyncResponse {
                stderr: status.message.into(),
                exit_code: 126,
                ..ExecSyncResponse::default()
            });
            said.send_replace(Some(answer.exit_code));
            let _ = tokio::join!(out.write_all(&answer.stdout), err.write_all(&answer.stderr));
        });
        ExecSession {
            stdin: None,
            stdout: Box::pin(stdout),
            stderr: Some(Box::pin(stderr)),
            window: None,
            process: ExecProcess::new(exit, move || running.abort()),
        }
    }

    pub(super) async fn attach_to(
        &self,
        pod: &PodName,
        container: &str,
        order: AttachOrder,
    ) -> Result<AttachSession, ExecError> {
        let missing = || ExecError::new(format!("container not found ({container:?})"));
        let run = self.run(pod, container).filter(|run| !run.has_ended());
        let run = run.ok_or_else(missing)?;
        let AttachOrder { stdin, stdout, stderr } = order;
        let (tty, stderr) = (run.terminal, stderr && !run.terminal);
        let container_id = run.id.clone();
        let question = AttachRequest { container_id, stdin, tty, stdout, stderr };
        let answer = self.client.ask::<StreamingUrl>("Attach", &question).await;
        let answer = answer.map_err(|status| ExecError::new(status.message))?;
        let wanted = WantedStreams { stdin, stdout, stderr, tty };
        streaming::attach(&answer.url, wanted).await
    }
}
