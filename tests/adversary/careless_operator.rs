//! A careless operator: the right command in the wrong place.
