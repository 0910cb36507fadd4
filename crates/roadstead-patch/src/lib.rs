//! Merging a change into an object: JSON patch, JSON merge patch and strategic merge patch.
//!
//! Pure functions over JSON values; which lists are merged by which key comes from the schema in
//! `roadstead-api`. Routing a request to the right kind of patch, retrying on conflict and
//! validating the result belong to `roadstead-server`.
