//! `roadstead image`: the images of this machine. Every command may be used while `up` runs: whoever
//! changes the store waits for the others, and nothing goes that a container uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};
use roadstead_images::archive;
use roadstead_images::digest::Digest;
use roadstead_images::reference::Reference;
use roadstead_images::registry::credentials::Keyring;
use roadstead_images::registry::hosts::{Hosts, Mirror};
use roadstead_images::registry::pull::Puller;
use roadstead_images::store::{Image, ImageStore};
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time;

use crate::data_directory::DataDirectory;
use crate::machine;

/// Load, pull, list, save and remove the images of this machine.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Where images are kept, with everything else.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir(), global = true)]
    data_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load images from files: OCI layouts, or what `docker save` writes.
    Load {
        /// Archives, or directories with an OCI layout.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// What to call the image, instead of what the file calls it.
        #[arg(long, value_name = "IMAGE")]
        name: Option<Reference>,
    },
    /// Pull images from their registries.
    Pull(PullArgs),
    /// List the images that are here.
    #[command(visible_alias = "ls")]
    List {
        /// How to show them.
        #[arg(long, short, value_name = "wide|json|name")]
        output: Option<Output>,
    },
    /// Save an image in a file that every tool can load.
    Save {
        /// Which one.
        image: Reference,
        /// Where to; - is the standard output.
        file: PathBuf,
    },
    /// Remove images, and what only they needed. A container that uses one keeps it.
    Rm {
        /// Which ones.
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<Reference>,
    },
    /// Remove what no image and no container needs.
    Gc,
}

#[derive(Debug, Parser)]
struct PullArgs {
    /// Which ones: [HOST[:PORT]/]PATH[:TAG][@DIGEST].
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<Reference>,
    /// A registry that speaks plain HTTP, for example localhost:5000.
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',')]
    plain_http: Vec<String>,
    /// Which servers to ask before a registry, as JSON: {"REGISTRY": [{"url": ..., "caFile": ...}]}.
    #[arg(long, value_name = "FILE")]
    registry_config: Option<PathBuf>,
    /// Names and passwords for registries, in the form of ~/.docker/config.json.
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Wide,
    Json,
    Name,
}

/// Carries out `roadstead image`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let store = Arc::new(open(&args.data_dir)?);
    match args.command {
        Command::Load { files, name } => load(&store, &files, name).await,
        Command::Pull(pull) => self::pull(&store, &pull).await,
        Command::List { output } => print(&list(&store, output)?),
        Command::Save { image, file } => {
            spawn_blocking(move || save(&store, &image, &file)).await?
        }
        Command::Rm { images } => {
            for image in &images {
                store.forget(image)?;
                eprintln!("{image} removed");
            }
            collect(store, &args.data_dir).await
        }
        Command::Gc => collect(store, &args.data_dir).await,
    }
}

/// Opens the store in a data directory, and makes both if need be.
pub(crate) fn open(data_dir: &Path) -> anyhow::Result<ImageStore> {
    DataDirectory::make(data_dir)?;
    Ok(ImageStore::open(&data_dir.join("images"))?)
}

/// Loads all archives of a directory that are not here yet; returns how many there were.
pub(crate) fn load_directory(store: &ImageStore, directory: &Path) -> anyhow::Result<usize> {
    let read = || format!("cannot read {}", directory.display());
    let entries = directory.read_dir().with_context(read)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let layout = path.join("index.json").is_file();
        layout || [".tar", ".tar.gz", ".tgz"].iter().any(|ending| name.ends_with(ending))
    });
    paths.sort();
    let missing = paths.iter().filter(|path| !archive::is_loaded(store, path));
    let mut loaded = 0;
    for path in missing {
        archive::load(store, path, None)
            .with_context(|| format!("cannot load {}", path.display()))?;
        loaded += 1;
    }
    Ok(loaded)
}

async fn load(
    store: &Arc<ImageStore>,
    files: &[PathBuf],
    name: Option<Reference>,
) -> anyhow::Result<()> {
    if name.is_some() && files.len() > 1 {
        bail!("--name is for one file");
    }
    for file in files {
        let (from, to, name) = (file.clone(), store.clone(), name.clone());
        let work = spawn_blocking(move || archive::load(&to, &from, name.as_ref()));
        let what = file.display().to_string();
        let loaded = with_progress(store, &what, async { Ok(work.await??) });
        let loaded = loaded.await.with_context(|| format!("cannot load {what}"))?;
        for (names, image) in loaded {
            match names.as_slice() {
                [] => eprintln!("loaded {} without a name: give it one by --name", image.digest),
                names => {
                    names.iter().for_each(|name| eprintln!("loaded {}", summary(name, &image)))
                }
            }
        }
    }
    Ok(())
}

async fn pull(store: &Arc<ImageStore>, args: &PullArgs) -> anyhow::Result<()> {
    let puller = Puller::new(store.clone(), args.hosts()?)?;
    let keys = args.keys()?;
    for image in &args.images {
        let what = image.to_string();
        let work =
            async { puller.pull(image, &keys).await.map_err(|e| anyhow::anyhow!(e.in_full())) };
        let pulled = with_progress(store, &what, work).await;
        let pulled = pulled.with_context(|| format!("cannot pull {what}"))?;
        eprintln!("pulled {}", summary(image, &pulled));
    }
    Ok(())
}

impl PullArgs {
    fn hosts(&self) -> anyhow::Result<Hosts> {
        let mut hosts = match &self.registry_config {
            None => Hosts::default(),
            Some(path) => serde_json::from_slice(&read(path)?)
                .with_context(|| format!("{} does not describe mirrors", path.display()))?,
        };
        for host in &self.plain_http {
            hosts.add(host, Mirror { url: format!("http://{host}"), ca_file: None });
        }
        Ok(hosts)
    }

    fn keys(&self) -> anyhow::Result<Keyring> {
        let mut keys = Keyring::default();
        if let Some(path) = &self.authfile {
            let wrong = || format!("{} holds no names and passwords", path.display());
            keys.add(&read(path)?).with_context(wrong)?;
        }
        Ok(keys)
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn save(store: &ImageStore, image: &Reference, file: &Path) -> anyhow::Result<()> {
    if file == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("an archive is not for a terminal: name a file");
        }
        return Ok(archive::save(store, image, io::stdout().lock())?);
    }
    let cannot = || format!("cannot write {}", file.display());
    let new = file.with_added_extension("new");
    archive::save(store, image, File::create(&new).with_context(cannot)?)
        .inspect_err(|_| drop(std::fs::remove_file(&new)))?;
    std::fs::rename(&new, file).with_context(cannot)?;
    eprintln!("saved {image} in {}", file.display());
    Ok(())
}

async fn collect(store: Arc<ImageStore>, data_dir: &Path) -> anyhow::Result<()> {
    let node = data_dir.join("node");
    let freed = spawn_blocking(move || store.collect(&BTreeSet::new(), Some(&node))).await??;
    eprintln!("{} freed", size(freed));
    Ok(())
}

/// Does long work; if it takes longer than a second, says every second how much has come.
async fn with_progress<T>(
    store: &ImageStore,
    what: &str,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let (began, before) = (Instant::now(), store.size());
    let mut work = std::pin::pin!(work);
    let mut ticks = time::interval_at((began + TICK).into(), TICK);
    let line = io::stderr().is_terminal();
    loop {
        tokio::select! {
            result = &mut work => {
                if line && began.elapsed() > TICK {
                    eprintln!();
                }
                return result;
            }
            _ = ticks.tick() => {
                let come = size(store.size().saturating_sub(before));
                let seconds = began.elapsed().as_secs();
                match line {
                    true => eprint!("\r{what}: {come} in {seconds} s "),
                    false => eprintln!("{what}: {come} in {seconds} s"),
                }
            }
        }
    }
}

const TICK: Duration = Duration::from_secs(1);

fn summary(name: &Reference, image: &Image) -> String {
    format!("{name} ({}, {})", short(&image.digest), size(image.size))
}

fn short(digest: &Digest) -> String {
    digest.hex()[..12].to_owned()
}

/// Bytes as kubectl's friends show them.
fn size(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// What `list` shows.
fn list(store: &ImageStore, output: Option<Output>) -> anyhow::Result<String> {
    let names: BTreeMap<String, Digest> = store.names()?;
    let mut images = Vec::new();
    for (name, digest) in names {
        // What is damaged is shown without its size; a pull makes it whole.
        let image = store.find(&name.parse()?).ok().flatten();
        images.push((name, digest, image.map(|image| image.size)));
    }
    Ok(match output {
        Some(Output::Json) => {
            let item = |(name, digest, size): &(String, Digest, Option<u64>)| json!({"name": name, "digest": digest.to_string(), "size": size});
            let items: Vec<_> = images.iter().map(item).collect();
            serde_json::to_string_pretty(&json!({"images": items}))? + "\n"
        }
        Some(Output::Name) => images.iter().map(|(name, ..)| format!("{name}\n")).collect(),
        wide => table(&images, wide.is_some()),
    })
}

fn table(images: &[(String, Digest, Option<u64>)], wide: bool) -> String {
    let digest = |digest: &Digest| if wide { digest.to_string() } else { short(digest) };
    let size = |bytes: Option<u64>| bytes.map_or("damaged".to_owned(), size);
    let rows = images.iter().map(|(name, id, bytes)| [name.clone(), digest(id), size(*bytes)]);
    let heading = ["NAME", "DIGEST", "SIZE"].map(str::to_owned);
    let rows: Vec<[String; 3]> = std::iter::once(heading).chain(rows).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let line = |[name, digest, size]: &[String; 3]| {
        format!("{name:<first$}   {digest:<second$}   {size}\n")
    };
    rows.iter().map(line).collect()
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, want) in [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (6_338_560, "6.3 MB")]
        {
            assert_eq!(size(bytes), want);
        }
    }

    /// Makes an OCI layout of an image without layers, under that name.
    fn layout(directory: &Path, name: &str) {
        let blobs = directory.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        let put = |value: serde_json::Value, kind: &str| {
            let bytes = serde_json::to_vec(&value).unwrap();
            let digest = Digest::of(&bytes);
            std::fs::write(blobs.join(digest.hex()), &bytes).unwrap();
            json!({"mediaType": format!("application/vnd.oci.image.{kind}.v1+json"),
                "digest": digest.to_string(), "size": bytes.len()})
        };
        let config = put(json!({"rootfs": {"diff_ids": []}, "config": {"Cmd": [name]}}), "config");
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": []});
        let mut entry = put(manifest, "manifest");
        entry["annotations"] = json!({"io.containerd.image.name": name});
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        std::fs::write(directory.join("index.json"), index.to_string()).unwrap();
    }

    #[tokio::test]
    async fn the_life_of_an_image() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        layout(&place.path().join("web"), "docker.io/library/web:1");
        let cases = [
            ("list", ""),
            ("load PLACE/nothing", "cannot load PLACE/nothing"),
            ("load PLACE/web", ""),
            ("list -o json", ""),
            ("save web:1 PLACE/saved.tar", ""),
            ("save web:2 PLACE/other.tar", "docker.io/library/web:2 is not here"),
            ("rm web:1", ""),
            ("rm web:1", "docker.io/library/web:1 is not here"),
            ("load PLACE/saved.tar --name mine.example/web:2", ""),
            ("gc", ""),
            ("rm mine.example/web:2", ""),
        ];
        for (line, want) in cases {
            let line = line.replace("PLACE", &place.path().display().to_string());
            let line = format!("image {line} --data-dir {}", at("data"));
            let outcome = run(Args::try_parse_from(line.split(' ')).unwrap()).await;
            let said = outcome.err().map(|error| error.to_string()).unwrap_or_default();
            let said = said.replace(&place.path().display().to_string(), "PLACE");
            assert_eq!(said, want, "{line}");
        }
        let left = std::fs::read_dir(place.path().join("data/images/blobs/sha256")).unwrap();
        assert_eq!(left.count(), 0, "nothing is left");
        assert!(!place.path().join("other.tar.new").exists(), "nor of what failed");
    }

    #[test]
    fn a_directory_of_archives_is_loaded_once() {
        let (data, archives) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        layout(&archives.path().join("web"), "docker.io/library/web:1");
        let store = open(data.path()).unwrap();
        assert_eq!(list(&store, Some(Output::Name)).unwrap(), "");
        assert_eq!(load_directory(&store, archives.path()).unwrap(), 1);
        let web = "web:1".parse().unwrap();
        save(&store, &web, &archives.path().join("web.tar")).unwrap();
        std::fs::remove_dir_all(archives.path().join("web")).unwrap();
        std::fs::write(archives.path().join("README"), "no image").unwrap();
        assert_eq!(load_directory(&store, archives.path()).unwrap(), 0, "it is here");
        store.forget(&web).unwrap();
        assert_eq!(load_directory(&store, archives.path()).unwrap(), 1, "it was not");
        let table = list(&store, None).unwrap();
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["NAME", "DIGEST", "SIZE"]);
        assert_eq!((lines.len(), lines[1][0]), (2, "docker.io/library/web:1"));
        let json: serde_json::Value =
            serde_json::from_str(&list(&store, Some(Output::Json)).unwrap()).unwrap();
        assert_eq!(json["images"][0]["name"], "docker.io/library/web:1");
    }
}
