//! The pages of the controllers, and of what is watched for monitoring.

use std::net::SocketAddr;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Request;
use kube::Client;
use roadstead_component::pages::{self, Page};
use roadstead_controllers::{Settings, object_metrics};
use tokio::net::TcpListener;

use crate::compose::Tasks;

/// What the pages are made of.
pub(crate) struct ControllerPages {
    pub(crate) settings: Settings,
    /// The API server of this process, whose metrics are shown, too.
    pub(crate) server: Option<Client>,
}

impl ControllerPages {
    /// Serves them; objects are watched by `client`. Returns where.
    pub(crate) async fn serve(
        self,
        address: SocketAddr,
        client: Client,
        tasks: &mut Tasks,
    ) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| {
            format!("cannot serve metrics on {address}; see --metrics-bind-address")
        })?;
        let address = listener.local_addr().context("a bound socket has an address")?;
        let (asker, writer) = object_metrics::channel();
        tasks.spawn_endless("metrics of objects", writer.run(client));
        let pages = pages::serve_slowly(listener, move |path| self.page(path, &asker));
        tasks.spawn_endless("pages of the controllers", pages);
        Ok(address)
    }

    fn page(&self, path: &str, asker: &object_metrics::Asker) -> BoxFuture<'static, Option<Page>> {
        let settings = &self.settings;
        let now = match path {
            "/metrics/objects" => {
                let asker = asker.clone();
                return async move { Some(of_objects(asker.page().await)) }.boxed();
            }
            "/metrics/apiserver" => match self.server.clone() {
                Some(server) => return of_server(server).map(Some).boxed(),
                None => None,
            },
            _ => settings.component.page(path, || settings.metrics.text()),
        };
        std::future::ready(now).boxed()
    }
}

fn of_objects(page: Option<String>) -> Page {
    match page {
        Some(text) => Page::metrics(text),
        None => Page::text(503, "not all objects have been seen yet\n"),
    }
}

async fn of_server(server: Client) -> Page {
    let question = Request::get("/metrics").body(Vec::new()).expect("a path is a request");
    match server.request_text(question).await {
        Ok(text) => Page::metrics(text),
        Err(error) => Page::text(503, format!("the API server does not say: {error}\n")),
    }
}
