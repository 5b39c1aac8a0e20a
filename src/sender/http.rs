//! skeleton
pub struct Settings {}
