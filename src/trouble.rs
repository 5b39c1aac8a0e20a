//! What kind of trouble an error is, for the few cases in which the exit code depends on it. Attached to an
//! error as its context; everything else is plain trouble. Numbers are in exit.rs.

use std::fmt;

/// One sentence for a person, and its kind. `anyhow::Error::new(Trouble::usage(..))`, or `.context(..)`.
#[derive(Debug)]
pub struct Trouble {
    pub kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command line, the configuration or the set-up is wrong; trying again does not help.
    Usage,
    /// Nothing is wrong here; the same command may work in a minute.
    TryLater,
}

impl Trouble {
    pub fn usage(text: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, text: text.into() }
    }

    pub fn try_later(text: impl Into<String>) -> Self {
        Self { kind: Kind::TryLater, text: text.into() }
    }

    /// The kind of an error, wherever in its chain it was attached.
    pub fn kind_of(error: &anyhow::Error) -> Option<Kind> {
        error.downcast_ref::<Self>().map(|trouble| trouble.kind)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Trouble {}

/// Ends a sentence about an unknown word: with the nearest one known, or with all when none is near.
pub fn neighbour(word: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(&word.to_lowercase(), known), known))
        .filter(|(likeness, _)| *likeness > 0.5)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    match near {
        Some((_, near)) => format!(": did you mean `{near}`?"),
        None => format!("; known here: {}", known.join(", ")),
    }
}
