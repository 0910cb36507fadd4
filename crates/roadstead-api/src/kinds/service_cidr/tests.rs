use super::*;

fn said(ranges: Value, old: Option<Value>) -> String {
    let object = json!({"spec": {"cidrs": ranges}});
    let old = old.map(|ranges| json!({"spec": {"cidrs": ranges}}));
    let mut causes = Causes::default();
    ServiceCidr.validate(&object, old.as_ref(), &mut causes);
    causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn new_ranges() {
    let cases = [
        (json!(["10.96.0.0/16"]), ""),
        (json!(["10.96.0.0/16", "fd00::/64"]), ""),
        (json!([]), "spec.cidrs: Required value: at least one CIDR required"),
        (
            json!(["10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8"]),
            "spec.cidrs: Invalid value: {\"CIDRs\":[\"10.0.0.0/8\",\"11.0.0.0/8\",\
             \"12.0.0.0/8\"]}: may only hold up to 2 values",
        ),
        (
            json!(["10.0.0.0/8", "11.0.0.0/8"]),
            "spec.cidrs: Invalid value: [\"10.0.0.0/8\",\"11.0.0.0/8\"]: may specify no more than \
             one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
        ),
        (
            json!(["10.0.0.1/8"]),
            "spec.cidrs[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the \
             prefix length",
        ),
        (
            json!(["FD00::/64"]),
            "spec.cidrs[0]: Invalid value: \"FD00::/64\": must be in canonical form \
             (\"fd00::/64\")",
        ),
        (
            json!(["10.0.0.0"]),
            "spec.cidrs[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. \
             10.9.8.0/24 or 2001:db8::/64)",
        ),
    ];
    for (ranges, want) in cases {
        assert_eq!(said(ranges.clone(), None), want, "{ranges}");
    }
}

#[test]
fn changed_ranges() {
    let (four, six) = ("10.0.0.0/8", "fd00::/64");
    let cases = [
        (json!([four]), json!([four]), ""),
        (json!([four]), json!([four, six]), ""),
        (
            json!([four]),
            json!(["11.0.0.0/8"]),
            "spec.cidrs[0]: Invalid value: \"11.0.0.0/8\": field is immutable",
        ),
        (
            json!([four]),
            json!([six, four]),
            "spec.cidrs[0]: Invalid value: \"fd00::/64\": field is immutable",
        ),
        (
            json!([four, six]),
            json!([four]),
            "spec.cidrs: Invalid value: [\"10.0.0.0/8\"]: field is immutable",
        ),
    ];
    for (was, is, want) in cases {
        assert_eq!(said(is.clone(), Some(was.clone())), want, "{was} to {is}");
    }
}
