//! How figures are printed, and the few numbers that are made of others.

use std::fmt::Display;
use std::time::Duration;

use crate::site::Server;

/// One measurement.
pub fn line(section: &str, what: &str, value: impl Display) {
    println!("{section:<7} {what:<27} {value}");
}

/// What comes of a section's measurements, with what is wanted of it and the server it was taken on.
pub fn figure(section: &str, what: &str, value: impl Display, wanted: &str, server: &Server) {
    println!("{section:<7} {what:<27} {value}   wanted: {wanted}   {server}");
}

pub fn rate(rows: u64, took: Duration) -> f64 {
    rows as f64 / took.as_secs_f64()
}

/// For reading: how many in a second.
pub fn per_second(what: &str, rate: f64) -> String {
    format!("{rate:>10.0} {what}/s")
}

pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The smallest value that is not below the given part of all.
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}
