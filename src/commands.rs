//! The verbs: what the operator types, one file each.

mod ask;
mod import;
pub mod migrate;
pub mod output;
pub mod resolve;
pub mod retry;
pub mod status;
mod table;
pub mod targets;
pub mod task;

#[cfg(test)]
mod tests;
