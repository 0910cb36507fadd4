//! How much work a request is, in seats.

use std::time::Duration;

use super::shares::Discipline;

/// How many objects of a list are the work of one seat.
const OBJECTS: usize = 100;

/// How many seats a request takes at most.
const MOST: u32 = 10;

/// What comes of a write when it is done, for those who watch: as much again as one seat for a usual request.
pub const AFTERMATH: Duration = Duration::from_millis(3);

/// A list, or a watch that begins with one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListSize {
    /// How many objects there are.
    pub objects: usize,
    /// How many are asked for; `None` for all.
    pub limit: Option<usize>,
    /// Whether it is about one object only.
    pub named: bool,
    /// Whether objects have to be looked into to know which.
    pub selects: bool,
}

/// How many seats a list takes, of which a request may take `most`.
pub fn seats_of_list(list: &ListSize, most: u32) -> u32 {
    let read = match (list.named, list.selects) {
        (true, _) => 1,
        (false, true) => list.objects,
        (false, false) => list.limit.unwrap_or(usize::MAX).min(list.objects),
    };
    u32::try_from(read.div_ceil(OBJECTS)).unwrap_or(u32::MAX).clamp(1, most.max(1))
}

/// How many seats one request of a level may take, of the `nominal` ones that the level has: so few that
/// its hand of queues can be served at once.
pub fn most_seats(discipline: Discipline, nominal: u32) -> u32 {
    let Discipline::Queue(queuing) = discipline else { return MOST };
    let part = nominal.saturating_mul(15).div_ceil(100);
    part.min(nominal / queuing.hand.max(1)).clamp(1, MOST)
}

#[test]
fn lists_are_weighed() {
    let all = ListSize { objects: 1000, ..ListSize::default() };
    let cases = [
        ("a few", ListSize { objects: 7, ..all }, 10, 1),
        ("none", ListSize { objects: 0, ..all }, 10, 1),
        ("a thousand", all, 10, 10),
        ("one more", ListSize { objects: 101, ..all }, 10, 2),
        ("as many as the level bears", all, 4, 4),
        ("a page", ListSize { limit: Some(500), ..all }, 10, 5),
        ("a page of a selection", ListSize { limit: Some(5), selects: true, ..all }, 10, 10),
        ("one by name", ListSize { named: true, selects: true, ..all }, 10, 1),
        ("a level without seats", all, 0, 1),
    ];
    for (name, list, most, want) in cases {
        assert_eq!(seats_of_list(&list, most), want, "{name}");
    }
}

#[test]
fn no_request_takes_a_whole_level() {
    use super::shares::Queuing;
    let queue = |hand: u32| Discipline::Queue(Queuing { queues: 64, hand, length: 50 });
    let cases = [(6, 74, 10), (6, 49, 8), (6, 13, 2), (6, 3, 1), (1, 10, 2), (0, 600, 10)];
    for (hand, nominal, want) in cases {
        assert_eq!(most_seats(queue(hand), nominal), want, "{hand} {nominal}");
    }
    assert_eq!(most_seats(Discipline::Reject, 5), 10);
}
