//! Endpoints: deprecated, which operators may know already.

use crate::config::Services;
use crate::kinds::Strategy;

pub(super) struct Endpoints;

impl Strategy for Endpoints {
    fn hides_deprecation(&self, services: &Services) -> bool {
        !services.warn_about_endpoints
    }
}
