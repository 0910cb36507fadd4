//! The cluster's DNS zone: from Services and EndpointSlices to answers.
//!
//! Pure: objects in, a zone out; a question in, an answer out. Sockets, forwarding and caching
//! belong to `roadstead-dns`.
