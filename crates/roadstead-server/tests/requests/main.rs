//! Requests to an API server without a socket: what goes in, what comes out.

mod admission;
mod audit;
mod certificates;
mod definitions;
mod documents;
mod dry_runs;
mod impersonate;
mod lists;
mod methods;
mod pods;
mod proxy;
mod removal;
mod rights;
mod room;
mod samples;
mod server;
mod services;
mod slices;
mod statuses;
mod strangers;
mod strict;
mod tokens;
mod transitions;
mod unenforced;
mod unreadable;
mod views;
