//! Whose requests are served now, and whose wait (KEP-1040).
//!
//! A request belongs to a priority level and, in it, to a flow (`classify`). Levels divide the seats of the
//! server among them (`shares`); in each, the flows take turns for its seats (`queues`), and requests that
//! are more work take more of them (`work`). What every cluster has of levels and schemas is kept as it is
//! meant to be, and says whether it makes sense (`maintain`).

pub mod classify;
pub mod maintain;
pub mod queues;
pub mod shares;
pub mod work;
