//! Amounts of processors and memory, as text such as `500m` or `1.5Gi`.

pub mod exact;

/// The amount as a number; `None` if the text is no quantity.
pub fn read(text: &str) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let power = |base: f64, exponent: i32| Some(base.powi(exponent));
    let factor = match suffix {
        "" => Some(1.0),
        "n" => power(1000.0, -3),
        "u" => power(1000.0, -2),
        "m" => power(1000.0, -1),
        "k" => power(1000.0, 1),
        "M" => power(1000.0, 2),
        "G" => power(1000.0, 3),
        "T" => power(1000.0, 4),
        "P" => power(1000.0, 5),
        "E" => power(1000.0, 6),
        "Ki" => power(1024.0, 1),
        "Mi" => power(1024.0, 2),
        "Gi" => power(1024.0, 3),
        "Ti" => power(1024.0, 4),
        "Pi" => power(1024.0, 5),
        "Ei" => power(1024.0, 6),
        exponent => power(10.0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    factor.map(|factor| number * factor)
}

#[test]
fn amounts() {
    let cases = [
        ("1", Some(1.0)),
        ("1000m", Some(1.0)),
        (".5", Some(0.5)),
        ("1.5Gi", Some(1.5 * 1024.0 * 1024.0 * 1024.0)),
        ("1e3", Some(1000.0)),
        ("1E", Some(1e18)),
        ("-2k", Some(-2000.0)),
        ("x", None),
        ("1Gb", None),
        ("", None),
    ];
    for (text, want) in cases {
        assert_eq!(read(text), want, "{text}");
    }
}
