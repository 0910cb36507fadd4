//! `roadstead snapshot`: the store in a file of its own, to be kept elsewhere.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{ArgGroup, Parser, Subcommand};
use http_body_util::BodyExt;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use roadstead_store::error::OpenError;
use roadstead_store::kv::{Options, Store};
use roadstead_store::snapshot::{self, Saved};

use crate::data_directory::DataDirectory;
use crate::{apiserver, machine};

/// Save all objects in a file, or restore them from one.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Save all objects, whether or not a server is running.
    Save(Save),
    /// Make the store anew from a snapshot. The server must be stopped.
    Restore(Restore),
    /// Check that a snapshot, or the store of a server that is stopped, is complete and undamaged.
    #[command(group = ArgGroup::new("what").required(true))]
    Verify {
        /// The snapshot.
        #[arg(group = "what")]
        file: Option<PathBuf>,
        /// Read everything that is in the store of this data directory.
        #[arg(long, value_name = "DIRECTORY", group = "what")]
        data_dir: Option<PathBuf>,
    },
}

#[derive(Debug, Parser)]
struct Save {
    /// Where to save; must not exist.
    file: PathBuf,
    /// Where the store is.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    data_dir: PathBuf,
    /// If a server is running, how to reach it as an administrator [default: admin.kubeconfig in
    /// the data directory]. Of a server that keeps its objects in etcd, all of them are saved, too.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Parser)]
struct Restore {
    /// The snapshot.
    file: PathBuf,
    /// Where the store is to be.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    data_dir: PathBuf,
    /// Restore although there are objects already; their store is kept under another name.
    #[arg(long)]
    force: bool,
}

/// Carries out `roadstead snapshot`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Save(save) => self::save(save).await,
        Command::Restore(restore) => self::restore(&restore),
        Command::Verify { file, data_dir } => {
            if let Some(file) = file {
                eprintln!("{} is complete: {}", file.display(), summary(&read(&file)?));
            }
            data_dir.map_or(Ok(()), |data_dir| verify(&data_dir))
        }
    }
}

/// Reads everything in a store that nobody has open.
fn verify(data_dir: &Path) -> anyhow::Result<()> {
    let path = apiserver::store_file(data_dir);
    if !snapshot::is_store(&path) {
        bail!("there is no store in {}", data_dir.display());
    }
    let found = Store::verify(&path).map_err(|error| match error {
        in_use @ OpenError::InUse { .. } => anyhow::Error::new(in_use).context(
            "stop the server first; a running one reads its store every hour, and says in /readyz \
             what is wrong with it",
        ),
        other => other.into(),
    })?;
    // What has no namespace in its path is no object.
    let objects: Vec<_> = found.entries.iter().filter(|e| e.key.path.contains('/')).collect();
    let wrong = objects.iter().filter_map(|entry| {
        let why = serde_json::from_slice::<serde_json::Value>(&entry.value).err()?;
        Some(format!("\n  {} at revision {}: {why}", entry.key, entry.revision))
    });
    let wrong: Vec<_> = wrong.collect();
    if !wrong.is_empty() {
        let all = wrong.concat();
        bail!("{} objects cannot be read (delete them when the server runs):{all}", wrong.len());
    }
    let (store, count, revision) = (path.display(), objects.len(), found.revision);
    eprintln!("{store} is complete: {count} objects at revision {revision}");
    Ok(())
}

async fn save(args: Save) -> anyhow::Result<()> {
    let path = apiserver::store_file(&args.data_dir);
    let elsewhere = args.kubeconfig.as_deref().filter(|_| !path.exists());
    if !path.exists() && elsewhere.is_none() {
        bail!(
            "there is no store in {}; of a server that keeps its objects in etcd, --kubeconfig says how to \
             reach it",
            args.data_dir.display()
        );
    }
    let file = &args.file;
    let mut options = File::options();
    let created = options.write(true).create_new(true).mode(0o600).open(file);
    let created = created.with_context(|| format!("cannot create {}", file.display()))?;
    let written = match elsewhere {
        Some(kubeconfig) => fetch(kubeconfig).await.and_then(|pieces| write(created, [pieces])),
        None => save_store(&args, &path, created).await,
    };
    let saved = written.and_then(|()| read(file));
    if saved.is_err() {
        // It is ours, and worth nothing.
        let _ = fs::remove_file(file);
    }
    eprintln!("saved {} to {}", summary(&saved?), file.display());
    Ok(())
}

/// Saves the store of a data directory, whether or not a server has it open.
async fn save_store(args: &Save, path: &Path, created: File) -> anyhow::Result<()> {
    match Store::open(path, Options::default()) {
        Ok(store) => write(created, snapshot::write(&store)),
        Err(in_use @ OpenError::InUse { .. }) => {
            let usual = || args.data_dir.join("admin.kubeconfig");
            let kubeconfig = args.kubeconfig.clone().unwrap_or_else(usual);
            let pieces = fetch(&kubeconfig).await.with_context(|| {
                format!("{in_use}, and could not be asked for a snapshot (see --kubeconfig)")
            });
            pieces.and_then(|pieces| write(created, [pieces]))
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks a running server.
async fn fetch(kubeconfig: &Path) -> anyhow::Result<Bytes> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options).await?;
    let client = Client::try_from(config)?;
    let request = http::Request::get("/debug/snapshot").body(kube::client::Body::empty())?;
    let response = client.send(request).await?;
    let (status, body) = (response.status(), response.into_body().collect().await?.to_bytes());
    if !status.is_success() {
        bail!("{status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

fn write(mut file: File, pieces: impl IntoIterator<Item = Bytes>) -> anyhow::Result<()> {
    for piece in pieces {
        file.write_all(&piece).context("cannot write the snapshot")?;
    }
    file.sync_all().context("cannot write the snapshot")
}

fn restore(args: &Restore) -> anyhow::Result<()> {
    let saved = read(&args.file)?;
    let _directory = DataDirectory::claim(&args.data_dir)?;
    let path = apiserver::store_file(&args.data_dir);
    if snapshot::is_store(&path) {
        set_aside(&path, args.force)?;
    }
    let what = summary(&saved);
    let revision = snapshot::restore(saved, &path)?;
    eprintln!("restored {what} to {}", path.display());
    eprintln!("revisions go on from {revision}, so that none is used twice");
    Ok(())
}

/// Makes room for another store. Whatever is there must not be in use.
fn set_aside(path: &Path, force: bool) -> anyhow::Result<()> {
    let objects = match Store::verify(path) {
        Ok(found) => format!("{} objects", found.entries.len()),
        Err(error @ OpenError::InUse { .. }) => return Err(error).context("stop the server first"),
        Err(error) => {
            let error = error.to_string();
            format!("something that cannot be read ({})", error.lines().next().unwrap_or_default())
        }
    };
    if !force && objects != "0 objects" {
        bail!("{} holds {objects}: use --force to replace it", path.display());
    }
    let old = snapshot::set_aside(path);
    let old = old.with_context(|| format!("cannot move {} away", path.display()))?;
    eprintln!("the store that was there, with {objects}, is now {}", old.display());
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<Saved> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    snapshot::read(&bytes.into()).with_context(|| format!("cannot use {}", file.display()))
}

fn summary(saved: &Saved) -> String {
    let (objects, revision) = (saved.objects(), saved.revision);
    format!("{objects} objects at revision {revision}, taken {:.0}", saved.taken)
}
