//! The ExternalNames that lead from the name in a question to the one that has records.

use crate::name::Name;

/// An ExternalName may lead to another one; so many times at most.
pub(crate) const MAX_ALIASES: usize = 16;

/// The names that one leads to after the other, in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aliases<'a> {
    names: [Option<&'a Name>; MAX_ALIASES],
}

impl<'a> Aliases<'a> {
    /// Appends one, if there is room.
    pub(crate) fn push(&mut self, name: &'a Name) -> bool {
        let free = self.names.iter_mut().find(|slot| slot.is_none());
        free.map(|slot| *slot = Some(name)).is_some()
    }

    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a Name> + '_ {
        self.names.iter().map_while(|name| *name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names[0].is_none()
    }
}
