//! An admin of one namespace: may write roles there, and wants more, or our end.
