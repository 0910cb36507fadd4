//! Brings an image in: index, manifest, configuration and layers, each checked before it is kept.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::challenge::Challenge;
use super::connection::{Connector, Location, unavailable};
use super::credentials::{Credentials, Keyring};
use super::error::PullError;
use super::hosts::{Hosts, Server};
use crate::digest::Digest;
use crate::error::ImageError;
use crate::manifest::{self, Descriptor, Document, LONGEST_DOCUMENT, Platform};
use crate::reference::Reference;
use crate::store::{Image, ImageStore};

/// So many layers come at a time.
const AT_ONCE: usize = 3;
/// A body that brings nothing for so long has broken off.
const IDLE: Duration = Duration::from_secs(60);
/// How often a layer that broke off is taken up again.
const MOST_RESUMES: usize = 3;

/// Brings images into a store.
pub struct Puller {
    store: Arc<ImageStore>,
    hosts: Hosts,
    connector: Connector,
    /// Who pulls what now: the second of two waits, and finds it there.
    busy: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Puller {
    /// Pulls into `store` from where `hosts` says.
    pub fn new(store: Arc<ImageStore>, hosts: Hosts) -> Result<Self, PullError> {
        let busy = Mutex::default();
        Ok(Self { store, hosts, connector: Connector::new()?, busy })
    }

    /// Brings an image in, and what it lacks only. The name is looked up anew each time.
    pub async fn pull(&self, reference: &Reference, keys: &Keyring) -> Result<Image, PullError> {
        let name = reference.to_string();
        let turn = self.turn(&name);
        let held = turn.lock().await;
        let store = self.store.clone();
        let incoming = apart(move || store.incoming()).await;
        let result = match incoming {
            Ok(_incoming) => self.pull_in_turn(reference, keys).await,
            Err(error) => Err(error.into()),
        };
        drop(held);
        self.end_turn(&name, turn);
        result
    }

    async fn pull_in_turn(
        &self,
        reference: &Reference,
        keys: &Keyring,
    ) -> Result<Image, PullError> {
        let servers = self.hosts.servers(reference).map_err(PullError::Unavailable)?;
        let mut last: Option<PullError> = None;
        for server in servers {
            for credentials in keys.find(reference).into_iter().map(Some).chain([None]) {
                let visit = Visit {
                    puller: self,
                    server: &server,
                    reference,
                    credentials,
                    authorization: Mutex::default(),
                };
                match visit.bring().await {
                    Ok(image) => return Ok(image),
                    // Another password, or another server, may do.
                    Err(error @ PullError::Unauthorized(_)) => last = Some(error),
                    Err(PullError::Image(error)) if !error.is_server_to_blame() => {
                        return Err(error.into());
                    }
                    Err(error) => {
                        // That one has lied says more than that the next one is silent.
                        let has_lied = matches!(last, Some(PullError::Image(_)));
                        last = last.filter(|_| has_lied).or(Some(error));
                        break;
                    }
                }
            }
        }
        Err(last.expect("there is a server for every registry"))
    }

    fn turn(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.busy.lock().expect("nobody panics with it");
        busy.entry(name.to_owned()).or_default().clone()
    }

    fn end_turn(&self, name: &str, turn: Arc<tokio::sync::Mutex<()>>) {
        let mut busy = self.busy.lock().expect("nobody panics with it");
        drop(turn);
        if busy.get(name).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            busy.remove(name);
        }
    }
}

/// One image from one server, as one user.
struct Visit<'a> {
    puller: &'a Puller,
    server: &'a Server,
    reference: &'a Reference,
    credentials: Option<&'a Credentials>,
    authorization: Mutex<Option<HeaderValue>>,
}

impl Visit<'_> {
    async fn bring(&self) -> Result<Image, PullError> {
        let (digest, document) = self.manifest().await?;
        let (digest, manifest) = match document {
            Document::Manifest(manifest) => (digest, manifest),
            Document::Index(entries) => {
                let entry = manifest::choose(&entries, &Platform::own())
                    .map_err(|error| PullError::NotFound(error.to_string()))?;
                match self.document(&entry.digest.to_string(), Some(entry.digest)).await? {
                    (digest, Document::Manifest(manifest)) => (digest, manifest),
                    (_, Document::Index(_)) => {
                        let why = "it leads to another index".to_owned();
                        let what = "index".to_owned();
                        return Err(ImageError::Malformed { what, why }.into());
                    }
                }
            }
        };
        let blobs = manifest.layers.iter().chain([&manifest.config]);
        let missing: Vec<_> =
            blobs.filter(|blob| !self.puller.store.has_blob(&blob.digest)).cloned().collect();
        stream::iter(missing)
            .map(|blob| self.blob(blob))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        let (store, names) = (self.puller.store.clone(), vec![self.reference.clone()]);
        Ok(apart(move || store.install(&digest, &names)).await?)
    }

    async fn manifest(&self) -> Result<(Digest, Document), PullError> {
        match (&self.reference.digest, &self.reference.tag) {
            (Some(digest), _) => self.document(&digest.to_string(), Some(*digest)).await,
            (None, tag) => self.document(tag.as_deref().unwrap_or("latest"), None).await,
        }
    }

    /// Fetches, checks and keeps a manifest or index.
    async fn document(
        &self,
        name: &str,
        expected: Option<Digest>,
    ) -> Result<(Digest, Document), PullError> {
        let accepted = manifest::accepted().join(", ");
        let accept = HeaderValue::from_str(&accepted).expect("media types are plain text");
        let headers = HeaderMap::from_iter([(header::ACCEPT, accept)]);
        let path = format!("/v2/{}/manifests/{name}", self.reference.path);
        let response = self.get(&path, headers).await?;
        let location = Location::on(self.server, &path);
        let body = Limited::new(response.into_body(), LONGEST_DOCUMENT as usize).collect();
        let bytes = tokio::time::timeout(IDLE, body)
            .await
            .map_err(|_| unavailable(&location, "its answer breaks off"))?
            .map_err(|error| unavailable(&location, &error.to_string()))?
            .to_bytes();
        let expected = expected.map(|digest| (digest, bytes.len() as u64));
        let document = manifest::parse(&bytes);
        let store = self.puller.store.clone();
        let (digest, _) = apart(move || store.put_blob(bytes.as_ref(), expected)).await?;
        Ok((digest, document?))
    }

    /// Fetches a blob into the store, and goes on where it broke off.
    async fn blob(&self, blob: Descriptor) -> Result<(), PullError> {
        let (pieces, arrived) = mpsc::channel(8);
        let store = self.puller.store.clone();
        let keeping = apart(move || {
            store.put_blob(Arriving { arrived, rest: Bytes::new() }, Some((blob.digest, blob.size)))
        });
        let path = format!("/v2/{}/blobs/{}", self.reference.path, blob.digest);
        let (fetched, kept) = futures::join!(self.fetch(&path, blob.size, pieces), keeping);
        fetched?;
        kept.map(drop).map_err(PullError::from)
    }

    async fn fetch(
        &self,
        path: &str,
        size: u64,
        pieces: mpsc::Sender<io::Result<Bytes>>,
    ) -> Result<(), PullError> {
        let mut done = 0;
        for attempt in 0.. {
            match self.fetch_from(path, &mut done, &pieces).await {
                Ok(()) => return Ok(()),
                Err(PullError::Unavailable(_)) if attempt < MOST_RESUMES && done < size => {
                    tokio::time::sleep(Duration::from_millis(200 << attempt)).await;
                }
                Err(error) => {
                    // So that nobody takes what came for all of it.
                    let broken = io::Error::other("the registry broke off");
                    let _ = pieces.send(Err(broken)).await;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn fetch_from(
        &self,
        path: &str,
        done: &mut u64,
        pieces: &mpsc::Sender<io::Result<Bytes>>,
    ) -> Result<(), PullError> {
        let mut headers = HeaderMap::new();
        if *done > 0 {
            let range = HeaderValue::from_str(&format!("bytes={done}-"));
            headers.insert(header::RANGE, range.expect("a number is plain text"));
        }
        let response = self.get(path, headers).await?;
        // Who does not know ranges begins anew.
        let mut skip = if response.status() == StatusCode::PARTIAL_CONTENT { 0 } else { *done };
        let location = Location::on(self.server, path);
        let mut body = response.into_body();
        loop {
            let frame = tokio::time::timeout(IDLE, body.frame())
                .await
                .map_err(|_| unavailable(&location, "its answer breaks off"))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|error| unavailable(&location, &error.to_string()))?;
            let Ok(mut data) = frame.into_data() else { continue };
            let known = skip.min(data.len() as u64);
            skip -= known;
            data = data.slice(known as usize..);
            *done += data.len() as u64;
            if !data.is_empty() && pieces.send(Ok(data)).await.is_err() {
                return Ok(()); // The store says why.
            }
        }
    }

    /// Asks the server; if it wants to know who asks, tells it, once.
    async fn get(&self, path: &str, headers: HeaderMap) -> Result<Response<Incoming>, PullError> {
        let location = Location::on(self.server, path);
        let mut response = self.ask(&location, &headers).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.authorize(&response, &location).await?;
            response = self.ask(&location, &headers).await?;
        }
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::NOT_FOUND => {
                Err(PullError::NotFound(format!("manifest unknown: {}", self.reference)))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(PullError::Unauthorized(format!(
                    "pull access denied for {}, repository does not exist or may require authorization",
                    self.reference.repository()
                )))
            }
            status => Err(unavailable(&location, &format!("unexpected status: {status}"))),
        }
    }

    async fn ask(
        &self,
        location: &Location,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, PullError> {
        let mut headers = headers.clone();
        let authorization = self.authorization.lock().expect("nobody panics with it").clone();
        headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
        self.puller.connector.get(location, self.server.ca_file.as_deref(), &headers).await
    }

    async fn authorize(
        &self,
        response: &Response<Incoming>,
        location: &Location,
    ) -> Result<(), PullError> {
        let asked = response.headers().get_all(header::WWW_AUTHENTICATE).iter();
        let challenge = asked.filter_map(|value| Challenge::parse(value.to_str().ok()?)).next();
        let value = match challenge {
            Some(Challenge::Basic) => self.credentials.map(Credentials::basic),
            Some(Challenge::Bearer { realm, service, scope }) => {
                let query = [("service", service), ("scope", scope)];
                Some(format!("Bearer {}", self.token(&realm, &query, location).await?))
            }
            None => None,
        };
        let value = value.and_then(|value| {
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        *self.authorization.lock().expect("nobody panics with it") = value;
        Ok(())
    }

    async fn token(
        &self,
        realm: &str,
        query: &[(&str, Option<String>)],
        from: &Location,
    ) -> Result<String, PullError> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let asked = query
            .iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", escaped(value.as_deref()?))));
        let separator = if realm.contains('?') { '&' } else { '?' };
        let url = format!("{realm}{separator}{}", asked.collect::<Vec<_>>().join("&"));
        let location = Location::parse(&url, from)
            .ok_or_else(|| unavailable(from, "its tokens are had where we do not go"))?;
        let mut headers = HeaderMap::new();
        if let Some(credentials) = self.credentials {
            let mut value = HeaderValue::from_str(&credentials.basic())
                .map_err(|error| PullError::Unauthorized(error.to_string()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let ca_file = self.server.ca_file.as_deref();
        let ca_file = ca_file.filter(|_| location.authority == self.server.authority);
        let response = self.puller.connector.get(&location, ca_file, &headers).await?;
        if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(PullError::Unauthorized(format!(
                "failed to authorize: {} gives no token for {}",
                location.authority,
                self.reference.repository()
            )));
        }
        let body = Limited::new(response.into_body(), 1 << 20).collect().await;
        let bytes = body.map_err(|error| unavailable(&location, &error.to_string()))?.to_bytes();
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| {
            unavailable(&location, &format!("its token cannot be read: {error}"))
        })?;
        answer
            .token
            .or(answer.access_token)
            .ok_or_else(|| unavailable(&location, "its answer has no token"))
    }
}

/// Runs what waits for the disk where it holds nobody up.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(ImageError::Stream("the store", io::Error::other(error))))
}

/// Percent-encodes a value of a query.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b':'
            | b'/'
            | b',' => {
                text.push(char::from(byte));
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

/// Pieces from a task, read by a thread.
struct Arriving {
    arrived: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.arrived.blocking_recv() {
                Some(piece) => self.rest = piece?,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}
