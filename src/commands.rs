//! The verbs: what the operator types, one file each.

mod ask;
mod import;
mod output;
