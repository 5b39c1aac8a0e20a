//! Meanings to numbers: what cron, monitors and runbooks see. The only file that knows exit codes.

use std::process::ExitCode;

use crate::trouble::{Kind, Trouble};

/// How a command ended. Ordered: of several, the greatest is the one to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did its duty; "nothing due" and "another run holds the lock" included.
    Done,
    /// It could not do its duty.
    Trouble,
    /// The command line or the configuration is wrong.
    Usage,
    /// It did its duty, and left something for a person.
    ForAPerson,
    /// Try again later.
    TryLater,
}

impl Exit {
    pub fn of(error: &anyhow::Error) -> Self {
        match Trouble::kind_of(error) {
            Some(Kind::Usage) => Self::Usage,
            Some(Kind::TryLater) => Self::TryLater,
            None => Self::Trouble,
        }
    }
}

impl Exit {
    pub fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Trouble => 1,
            Self::Usage => 2,
            Self::ForAPerson => 3,
            Self::TryLater => 75,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_kind_is_found_under_later_contexts() {
        let error = anyhow::Error::new(Trouble::try_later("database unreachable"));
        assert_eq!(Exit::of(&error), Exit::TryLater);
        let wrapped = Err::<(), _>(error).context("recover").unwrap_err();
        assert_eq!(Exit::of(&wrapped), Exit::TryLater);
        let from_inside = anyhow::anyhow!("boom").context(Trouble::usage("no such task")).context("outer");
        assert_eq!(Exit::of(&from_inside), Exit::Usage);
        assert_eq!(Exit::of(&anyhow::anyhow!("boom")), Exit::Trouble);
    }
}
