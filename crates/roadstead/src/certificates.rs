//! `roadstead certificates`: the authority, the administrator's certificate and the keys of tokens.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Parser, Subcommand};
use jiff::Timestamp;
use kube::config::Kubeconfig;
use roadstead_server::identity::authority::{Authority, end_of};
use roadstead_server::identity::secret_file::write_secret;
use roadstead_server::identity::token_keys::{Keys, Previous, rotate};

use crate::renewal::{AdminConfig, CertificateArgs};
use crate::{apiserver, identities, machine};

/// Show or renew certificates, and the keys of service-account tokens.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say when certificates end, and which keys tokens are signed and checked with.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Give the admin's kubeconfig a new certificate. (The server renews its own certificate, and
    /// this one, at every start and while it runs.)
    Renew {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        certificates: CertificateArgs,
    },
    /// Write a kubeconfig for a part that runs alone (`roadstead proxy`, `controllers` and so on), with the
    /// rights of that part and no others.
    Kubeconfig {
        /// proxy, dns, netpol, node, or one of the controllers.
        #[arg(value_name = "PART")]
        part: String,
        /// For a node: which one.
        #[arg(long, value_name = "NAME")]
        node_name: Option<String>,
        /// Where to write it [default: PART.kubeconfig in the data directory].
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        certificates: CertificateArgs,
    },
    /// Sign service-account tokens with a new key. A running server takes it up within ten seconds;
    /// tokens signed before stay valid.
    RotateServiceAccountKey {
        #[command(flatten)]
        place: Place,
        /// Let no token be valid that was signed before, because somebody may have seen the key.
        #[arg(long)]
        forget_previous: bool,
    },
}

#[derive(Debug, Parser)]
struct Place {
    /// Where certificates are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    data_dir: PathBuf,
    /// The admin's kubeconfig [default: admin.kubeconfig in the data directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Place {
    /// Where the authority is, which must be there already.
    fn pki(&self) -> anyhow::Result<PathBuf> {
        let pki = apiserver::pki(&self.data_dir);
        if !pki.join("ca.key").exists() {
            bail!("there are no certificates in {}; see --data-dir", self.data_dir.display());
        }
        Ok(pki)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone().unwrap_or_else(|| self.data_dir.join("admin.kubeconfig"))
    }

    /// Where the server is, as the admin's kubeconfig says.
    fn url(&self) -> anyhow::Result<String> {
        let path = self.kubeconfig();
        let config = Kubeconfig::read_from(&path)
            .with_context(|| format!("cannot read {}; see --kubeconfig", path.display()))?;
        let cluster = config.clusters.into_iter().find_map(|named| named.cluster);
        let server = cluster.and_then(|cluster| cluster.server);
        server.with_context(|| format!("{} names no server", path.display()))
    }
}

/// Carries out `roadstead certificates`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List { place } => list(&place),
        Command::Renew { place, certificates } => renew(&place, certificates),
        Command::Kubeconfig { part, node_name, out, place, certificates } => {
            let (name, group) = identities::of_part(&part, node_name.as_deref())?;
            let out = out.unwrap_or_else(|| place.data_dir.join(format!("{part}.kubeconfig")));
            issue(&place, &certificates, (&name, group), &out)
        }
        Command::RotateServiceAccountKey { place, forget_previous } => {
            let previous = if forget_previous { Previous::Forget } else { Previous::Keep };
            let pki = place.pki()?;
            rotate(&pki, previous)?;
            eprintln!("tokens are signed with {}", Keys::in_directory(&pki)?.id());
            Ok(())
        }
    }
}

fn list(place: &Place) -> anyhow::Result<()> {
    let pki = place.pki()?;
    let now = Timestamp::now();
    let authority = Authority::in_directory(&pki)?;
    let until = |end: Option<Timestamp>| end.map_or("unreadable".into(), |end| remaining(end, now));
    let end = end_of(authority.certificate());
    let mut lines = vec![("authority", until(end), pki.join("ca.crt"))];
    let kubeconfig = place.kubeconfig();
    if kubeconfig.exists() {
        let end = client_certificate(&kubeconfig).as_deref().and_then(end_of);
        lines.push(("administrator", until(end), kubeconfig));
    }
    for (index, id) in Keys::in_directory(&pki)?.ids().enumerate() {
        let name = if index == 0 { "signs tokens" } else { "checks older tokens" };
        lines.push((name, id.to_owned(), pki.clone()));
    }
    for (name, what, path) in lines {
        writeln!(io::stdout(), "{name:<20} {what:<44} {}", path.display())?;
    }
    Ok(())
}

fn remaining(end: Timestamp, now: Timestamp) -> String {
    let days = (end.as_second() - now.as_second()).div_euclid(24 * 3600);
    let day = end.strftime("%Y-%m-%d");
    if days < 0 { format!("expired on {day}") } else { format!("until {day} ({days} days)") }
}

/// The certificate in a kubeconfig of ours.
fn client_certificate(path: &Path) -> Option<String> {
    let config = Kubeconfig::read_from(path).ok()?;
    let user = config.auth_infos.into_iter().find_map(|named| named.auth_info)?;
    String::from_utf8(STANDARD.decode(user.client_certificate_data?).ok()?).ok()
}

/// Writes the kubeconfig of somebody who is not the administrator.
fn issue(
    place: &Place,
    certificates: &CertificateArgs,
    (name, group): (&str, &str),
    out: &Path,
) -> anyhow::Result<()> {
    let authority = certificates.limit(Authority::in_directory(&place.pki()?)?);
    let client = authority.client(name, group)?;
    write_secret(out, &authority.kubeconfig(&place.url()?, &client))
        .with_context(|| format!("cannot write the kubeconfig {}", out.display()))?;
    let end = end_of(&client.certificate);
    let end = end.map_or_else(String::new, |end| remaining(end, Timestamp::now()));
    eprintln!("{} is for {name}, valid {end}", out.display());
    Ok(())
}

fn renew(place: &Place, certificates: CertificateArgs) -> anyhow::Result<()> {
    let authority = certificates.limit(Authority::in_directory(&place.pki()?)?);
    let path = place.kubeconfig();
    AdminConfig { path: path.clone(), url: place.url()? }.write(&authority)?;
    let end = client_certificate(&path).as_deref().and_then(end_of);
    let end = end.map_or_else(String::new, |end| remaining(end, Timestamp::now()));
    eprintln!("{} has a new certificate, valid {end}", path.display());
    Ok(())
}

#[test]
fn days_that_remain() {
    let at = |text: &str| text.parse().unwrap();
    let now = at("2026-11-18T12:00:00Z");
    assert_eq!(remaining(at("2027-11-18T12:00:00Z"), now), "until 2027-11-18 (365 days)");
    assert_eq!(remaining(at("2026-11-18T11:59:59Z"), now), "expired on 2026-11-18");
}
