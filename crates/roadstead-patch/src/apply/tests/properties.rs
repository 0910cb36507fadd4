//! What holds for server-side apply whatever is applied.

use proptest::prelude::*;

use super::*;

fn maps() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c]", "[x-y]", 0..3).prop_map(|map| json!(map))
}

fn ports() -> impl Strategy<Value = Value> {
    let port = (0..4u8, prop::option::of("TCP|UDP"), prop::option::of("[a-b]"), 0..3u8);
    prop::collection::vec(port, 0..4).prop_map(|ports| {
        let mut list: Vec<Value> = Vec::new();
        for (port, protocol, name, target) in ports {
            let mut entry = json!({"port": port, "targetPort": target});
            if let Some(protocol) = protocol {
                entry["protocol"] = protocol.into();
            }
            if let Some(name) = name {
                entry["name"] = name.into();
            }
            let key = |entry: &Value| {
                (entry["port"].clone(), entry["protocol"].as_str().unwrap_or("TCP").to_owned())
            };
            if list.iter().all(|other| key(other) != key(&entry)) {
                list.push(entry);
            }
        }
        json!(list)
    })
}

fn specs() -> impl Strategy<Value = Value> {
    let set = prop::collection::btree_set("[f-h]", 0..3).prop_map(|set| json!(set));
    let fields = (
        prop::option::of(maps()),
        prop::option::of(set),
        prop::option::of(ports()),
        prop::option::of(maps()),
        prop::option::of("[A-B]".prop_map(Value::from)),
        prop::option::of(prop::collection::vec("[1-2]", 0..3).prop_map(|list| json!(list))),
    );
    fields.prop_map(|(labels, finalizers, ports, selector, kind, ips)| {
        let names = ["labels", "finalizers", "ports", "selector", "type", "externalIPs"];
        let values = [labels, finalizers, ports, selector, kind, ips];
        let pairs = names.into_iter().zip(values);
        pairs.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<(String, Value)>> {
    prop::collection::vec(("=?[a-c]!|a", specs()), 1..6).prop_map(|steps| {
        steps
            .into_iter()
            .map(|(who, spec)| {
                let who =
                    if who.starts_with('=') { who.trim_end_matches('!').to_owned() } else { who };
                (who, spec)
            })
            .collect()
    })
}

/// Applies the steps that are possible.
fn history(steps: &[(String, Value)]) -> Cluster {
    let mut cluster = Cluster::default();
    for (who, spec) in steps {
        match who.strip_prefix('=') {
            Some(who) => cluster.put(who, spec.clone()),
            None => {
                let force = who.ends_with('!');
                let _ = cluster.apply(who.trim_end_matches('!'), spec.clone(), force);
            }
        }
    }
    cluster
}

/// Whether a path leads to something.
fn exists(typing: Typing<'_>, value: &Value, path: &[Element]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match (first, value) {
        (Element::Field(name), Value::Object(fields)) => {
            fields.get(&**name).is_some_and(|value| exists(typing.child(name).typing, value, rest))
        }
        (_, Value::Array(items)) => items.iter().enumerate().any(|(index, item)| {
            typing.element_at(index, item) == *first && exists(typing.items(), item, rest)
        }),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: u32::MAX, ..Default::default() })]

    #[test]
    fn the_same_intent_twice_is_nothing(steps in steps(), spec in specs()) {
        let mut cluster = history(&steps);
        cluster.apply("a", spec.clone(), true).unwrap();
        let once = cluster.live.clone();
        cluster.apply("a", spec.clone(), false).unwrap();
        prop_assert_eq!(&cluster.live, &once);
        let mut same = once.clone().unwrap();
        track(service(), once.as_ref(), &mut same, &manager("x", "later"));
        prop_assert_eq!(Some(same), once);
    }

    #[test]
    fn force_makes_it_so(steps in steps(), spec in specs()) {
        let mut cluster = history(&steps);
        cluster.apply("a", spec.clone(), true).unwrap();
        let (live, config) = (cluster.live.unwrap(), object(spec));
        let mut changes = compare(service(), Some(&live), &config);
        strip(&mut changes.added);
        let asked = typed::set_of(service(), &config);
        prop_assert!(asked.intersection(&changes.set()).is_empty(), "{changes:?}");
    }

    #[test]
    fn whatever_is_owned_is_there(steps in steps()) {
        let cluster = history(&steps);
        let live = cluster.live.clone().unwrap_or_default();
        for entry in Managers::decode(live["metadata"]["managedFields"].clone()).unwrap_or_default().0 {
            entry.set().visit(&mut |path| {
                assert!(exists(service(), &live, path), "{:?} in {live}", entry.set().shown());
            });
        }
    }

    #[test]
    fn the_order_of_strangers_does_not_matter(a in specs(), b in specs()) {
        prop_assume!(a != json!({}) && b != json!({}));
        let sets = [&a, &b].map(|spec| typed::set_of(service(), &object(spec.clone())));
        let mut both = sets[0].intersection(&sets[1]);
        strip(&mut both);
        prop_assume!(both.is_empty());
        let result = |order: [(&str, &Value); 2]| {
            let mut cluster = Cluster::default();
            for (who, spec) in order {
                cluster.apply(who, spec.clone(), false).unwrap();
            }
            let mut live = cluster.live.unwrap();
            let mut owners = Managers::decode(live["metadata"]["managedFields"].clone())
                .unwrap_or_default().0;
            owners.iter_mut().for_each(|entry| entry.time = String::new());
            owners.sort_by(|a, b| a.manager.cmp(&b.manager));
            track::take(&mut live);
            (live, owners)
        };
        let (one, one_owners) = result([("a", &a), ("b", &b)]);
        let (two, two_owners) = result([("b", &b), ("a", &a)]);
        prop_assert_eq!(one_owners, two_owners);
        prop_assert!(compare(service(), Some(&one), &two).is_same(), "{one} {two}");
    }

    #[test]
    fn the_order_of_elements_makes_no_difference(a in ports(), b in ports(), by in 0..3usize) {
        let (a, b) = (object(json!({"ports": a})), object(json!({"ports": b})));
        let mut turned = b.clone();
        let list = turned["spec"]["ports"].as_array_mut().unwrap();
        let by = by.min(list.len());
        list.rotate_left(by);
        prop_assert!(compare(service(), Some(&b), &turned).is_same());
        let (one, two) = (compare(service(), Some(&a), &b), compare(service(), Some(&a), &turned));
        prop_assert_eq!(one, two);
    }
}
