//! A stranger on the network: no credentials, only packets.
