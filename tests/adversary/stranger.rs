//! A stranger on the network: no credentials, only packets.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roadstead_testkit::netns::{laboratory, run};
use tokio::time;

use crate::attacks;
use crate::client::{Door, Server};

/// How many of them, and how many files the server may open: `STRANGERS=5000 FILES=1024`.
fn setting(name: &str, usual: u32) -> u32 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn idle_strangers_keep_nobody_out() {
    laboratory(|| {
        let files = setting("FILES", 256);
        let server = Server::start(files, &[]);
        tokio::runtime::Runtime::new().unwrap().block_on(story(&server, files));
    });
}

async fn story(server: &Server, files: u32) {
    let door = server.door();
    let silent = door.lurk([127, 0, 0, 1].into(), "root").await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let users = tokio::spawn(users(door.clone(), over.clone()));
    let count = setting("STRANGERS", 300);
    // One after the other from one address, and from several.
    let mut strangers = Vec::new();
    for number in 0..count {
        let last = if number < count / 2 { 1 } else { u8::try_from(2 + number % 50).unwrap() };
        let from: IpAddr = [127, 0, 0, last].into();
        strangers.push(door.lurk(from, "").await);
    }
    let came = strangers.iter().filter(|stranger| stranger.is_ok()).count();
    time::sleep(Duration::from_secs(1)).await;
    over.store(true, Ordering::Relaxed);
    let mut took = users.await.unwrap();
    took.sort();
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let stay = strangers.iter().flatten().filter(|stranger| !stranger.is_closed()).count();
    eprintln!(
        "{count} strangers came, {came} were answered, {stay} stay; {open} of {files} files, {} MB; \
         {} users beside them, none refused, half in {:?}, the slowest {:?}",
        server.memory(),
        took.len(),
        took[took.len() / 2],
        took[took.len() - 1],
    );
    assert!(u32::try_from(open).unwrap() < files, "{open} files");
    assert!(stay > 0 && stay < usize::try_from(count).unwrap(), "{stay} stay");
    assert!(!silent.is_closed(), "whom we know stays, however silent");
    attacks::refused(2);
}

/// One user after the other: how long each waited, from the first packet to the answer.
async fn users(door: Door, over: Arc<AtomicBool>) -> Vec<Duration> {
    let mut took = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let mut user = door.enter("root").await.expect("users come in");
        let answer = user.read("GET /api/v1/namespaces/default", &[]).await;
        assert_eq!(answer.expect("users are answered").0, 200);
        took.push(began.elapsed());
        time::sleep(Duration::from_millis(20)).await;
    }
    took
}

/// Silent strangers at the agent's port leave room for those whom it knows.
#[test]
fn idle_strangers_keep_nobody_from_the_agent() {
    laboratory(|| {
        let roadstead = crate::process::Roadstead::up();
        let directory = roadstead.directory().display();
        let strangers: Vec<_> =
            (0..300).map(|_| std::net::TcpStream::connect("127.0.0.1:10250").unwrap()).collect();
        let scrape = |from: &str| {
            run(&format!(
                "curl -s -m 8 -o /dev/null -w '%{http_code}' --interface {from} \
                 --cacert {directory}/data/pki/ca.crt https://127.0.0.1:10250/healthz || true",
                http_code = "{http_code}",
            ))
        };
        assert_eq!(scrape("127.0.0.2"), "401", "another address is answered at once");
        // Who says nothing goes, and then there is room again.
        let begin = Instant::now();
        while scrape("127.0.0.1") != "401" {
            assert!(begin.elapsed() < Duration::from_secs(30), "there is no room");
        }
        drop(strangers);
        attacks::refused(1);
    });
}
