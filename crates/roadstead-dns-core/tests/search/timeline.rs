//! Pods that become known, or are not helped any more, while they ask: at any moment between two
//! packets.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use roadstead_api::key::ObjectKey;
use roadstead_dns_core::clients::{AddressOwner, Clients};
use roadstead_zone::search::SearchList;

use super::resolver::{DOTS, SEARCHES, STYLES, Said, Style, look_up};
use super::{BOTH, World, client, names, outside, services};

/// What the server learns about the pod that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// It is there.
    Known,
    /// It may not be helped any more: it is being deleted, or the node's resolv.conf has changed.
    Unhelped,
    /// It has been replaced by another one of the same namespace, which will ask from now on.
    Replaced,
}

/// What happens around a packet.
#[derive(Clone, Copy, Debug)]
struct Step {
    before: Duration,
    news: Option<News>,
    /// The reply is lost, and the packet comes again.
    lost: bool,
}

/// The server's view of the pods behind one address, while steps are made.
struct Timeline<'a> {
    world: &'a World,
    steps: RefCell<std::vec::IntoIter<Step>>,
    pod: Cell<u32>,
    /// One packet of a lookup may be late: a resolver with a whole search of late ones is not in a
    /// hurry that we know of.
    late: Cell<bool>,
}

const RETRY: Duration = Duration::from_millis(4900);

impl Timeline<'_> {
    fn learn(&self, news: News) {
        if news == News::Replaced {
            self.pod.set(self.pod.get() + 1);
        }
        let search = SearchList::new(&SEARCHES.map(str::to_owned), DOTS).unwrap();
        let owner = AddressOwner {
            key: ObjectKey::new("shop", format!("pod-{}", self.pod.get())),
            address: client(),
            search: Some(search).filter(|_| news == News::Known),
        };
        let owners = if news == News::Replaced { vec![] } else { vec![owner] };
        let next = self.world.clients.borrow().next(&owners, self.world.now.get());
        self.world.clients.replace(next);
    }

    fn wait(&self, time: Duration) {
        self.world.now.set(self.world.now.get() + time);
    }

    /// Lets one packet through.
    fn ask(&self, name: &str, kind: u16) -> Said {
        let step = self.steps.borrow_mut().next();
        if let Some(step) = step {
            if step.before < Duration::from_secs(1) || !self.late.replace(true) {
                self.wait(step.before);
            }
            // A pod is replaced when nobody waits for an answer.
            step.news
                .filter(|news| *news != News::Replaced)
                .into_iter()
                .for_each(|news| self.learn(news));
            if step.lost && !self.late.replace(true) {
                self.world.ask(name, kind, true);
                self.wait(RETRY);
                return self.world.ask_again(name, kind, true);
            }
        }
        self.world.ask(name, kind, true)
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let before = select(vec![0, 0, 0, 1, 20, 4900, 9900]).prop_map(Duration::from_millis);
    let news = prop_oneof![
        3 => Just(None),
        2 => Just(Some(News::Known)),
        1 => Just(Some(News::Unhelped)),
    ];
    let lost = prop::bool::weighted(0.1);
    let step = (before, news, lost).prop_map(|(before, news, lost)| Step { before, news, lost });
    prop::collection::vec(step, 0..60)
}

/// A name, a resolver, whether it sends the question for IPv6 first, and how long it waits before.
type Lookup = (String, Style, bool, u64, bool);

fn lookups() -> impl Strategy<Value = Vec<Lookup>> {
    let few = select(vec!["www.com", "web.other", "www.a.com", "www.com.shop"]);
    let name = prop_oneof![2 => few.prop_map(str::to_owned), 1 => names()];
    let pause = select(vec![0, 1, 8, 14, 16, 40]);
    let replaced = prop::bool::weighted(0.1);
    let one = (name, select(STYLES.to_vec()), any::<bool>(), pause, replaced);
    prop::collection::vec(one, 1..10)
}

proptest! {
    #![proptest_config(ProptestConfig { max_local_rejects: u32::MAX, ..ProptestConfig::with_cases(300) })]

    /// Whenever the server learns what about the pod.
    #[test]
    fn a_program_gets_the_same_whenever_the_pod_is_known(
        services in services(),
        outside in outside(),
        lookups in lookups(),
        steps in steps(),
    ) {
        let world = World::new(&services, outside);
        world.clients.replace(Clients::default());
        let (steps, pod) = (RefCell::new(steps.into_iter()), Cell::new(0));
        let timeline = Timeline { world: &world, steps, pod, late: Cell::new(false) };
        for (name, style, swapped, pause, replaced) in lookups {
            timeline.wait(Duration::from_secs(pause));
            if replaced {
                timeline.learn(News::Replaced);
            }
            timeline.late.set(false);
            let mut kinds = BOTH;
            if swapped && style == Style::Glibc {
                kinds.reverse();
            }
            let (alone, _) = world.look_up(style, &kinds, &name, false);
            let (helped, _) = look_up(style, &kinds, &name, |name, kind| timeline.ask(name, kind));
            prop_assert_eq!(helped, alone, "{} {:?}", name, style);
        }
    }
}

/// The case that users saw: the pod becomes known between its two first questions.
#[test]
fn a_fresh_pod_finds_what_it_looks_for() {
    let at_once = |news| Step { before: Duration::ZERO, news, lost: false };
    for known_after in 0..4 {
        for style in STYLES {
            let world = super::small_world();
            world.clients.replace(Clients::default());
            let mut steps = vec![at_once(None); 4];
            steps[known_after].news = Some(News::Known);
            let (steps, pod) = (RefCell::new(steps.into_iter()), Cell::new(0));
            let timeline = Timeline { world: &world, steps, pod, late: Cell::new(false) };
            for name in ["www.example.com", "web.other", "web.other.svc.cluster.local"] {
                let (alone, _) = world.look_up(style, &BOTH, name, false);
                let (found, _) = look_up(style, &BOTH, name, |name, kind| timeline.ask(name, kind));
                assert_eq!(found, alone, "{name} {style:?} {known_after}");
            }
        }
    }
}
