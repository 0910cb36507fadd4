//! A node: a machine that holds the credentials of its node agent, and wants those of others.
