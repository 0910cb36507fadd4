//! An editor of one namespace: may create pods and Services there, and wants what belongs to
//! others.
