//! A name taken apart into its labels, without allocating.

/// No name in the zone has more labels than this in front of the zone's own.
const MAX_LABELS: usize = 10;

/// The labels of a name in front of the zone, from right to left, because that is how the tree
/// grows; and where each begins.
pub(crate) struct LabelPath<'n> {
    name: &'n [u8],
    starts: [usize; MAX_LABELS + 1],
    pub depth: usize,
}

impl<'n> LabelPath<'n> {
    /// `None` if there are more labels than any name of ours has.
    pub(crate) fn read(name: &'n [u8], end: usize) -> Option<Self> {
        let mut forward = [0; MAX_LABELS + 1];
        let (mut at, mut depth) = (0, 0);
        while at < end {
            if depth == MAX_LABELS {
                return None;
            }
            forward[depth] = at;
            depth += 1;
            at += 1 + usize::from(name[at]);
        }
        // Position 0 is the end of the whole, the last one the first label.
        let mut starts = [end; MAX_LABELS + 1];
        for back in 1..=depth {
            starts[back] = forward[depth - back];
        }
        Some(Self { name, starts, depth })
    }

    /// As if there were one more label between these and the zone: `web.shop` becomes
    /// `web.shop.svc`, though nobody may ask for that label.
    pub(crate) fn shifted(self) -> Option<Self> {
        let Self { name, starts, depth } = self;
        if depth == MAX_LABELS {
            return None;
        }
        let mut shifted = [starts[0]; MAX_LABELS + 1];
        shifted[1..].copy_from_slice(&starts[..MAX_LABELS]);
        Some(Self { name, starts: shifted, depth: depth + 1 })
    }

    /// A label without its length; 0 is the rightmost.
    pub(crate) fn label(&self, at: usize) -> &'n [u8] {
        if at < self.depth { &self.name[self.starts[at + 1] + 1..self.starts[at]] } else { &[] }
    }

    /// Several labels in wire form, `from` being the rightmost of them.
    pub(crate) fn wire(&self, from: usize, to: usize) -> &'n [u8] {
        &self.name[self.starts[to + 1]..self.starts[from]]
    }
}
