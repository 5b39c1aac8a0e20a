//! Asking a person before something that cannot be undone: on a terminal by a question, elsewhere by `--yes`.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anyhow::{Result, bail};

use crate::trouble::Trouble;

/// Somebody who can agree: a person at the terminal, or the one who wrote `--yes`.
pub struct Ask {
    yes: bool,
}

impl Ask {
    /// Errors: nobody is there to be asked.
    pub fn person(yes: bool, verb: &str) -> Result<Self> {
        Self::of(yes, io::stdin().is_terminal() && io::stderr().is_terminal(), verb)
    }

    fn of(yes: bool, at_terminal: bool, verb: &str) -> Result<Self> {
        if yes || at_terminal {
            return Ok(Self { yes });
        }
        bail!(Trouble::usage(format!("{verb} asks before it acts, and this is no terminal: add --yes")))
    }

    /// Errors: the answer is no.
    pub fn agrees(&self, question: &str) -> Result<()> {
        if self.yes || answer(question, &mut io::stdin().lock(), &mut io::stderr().lock())? {
            return Ok(());
        }
        bail!("nothing was changed")
    }
}

fn answer(question: &str, from: &mut dyn BufRead, to: &mut dyn Write) -> io::Result<bool> {
    write!(to, "{question} [y/N] ")?;
    to.flush()?;
    let mut line = String::new();
    from.take(100).read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn where_nobody_can_be_asked_yes_must_be_written() {
        let refused = Ask::of(false, false, "cancel").err().unwrap();
        assert_eq!(Exit::of(&refused), Exit::Usage);
        assert!(refused.to_string().ends_with("add --yes"), "{refused}");
        assert!(Ask::of(true, false, "cancel").unwrap().agrees("Sure?").is_ok());
        assert!(Ask::of(false, true, "cancel").is_ok());
    }

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        let mut shown = Vec::new();
        for (line, expected) in [
            ("y\n", true),
            (" YES \n", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("yesterday\n", false),
        ] {
            assert_eq!(answer("Sure?", &mut line.as_bytes(), &mut shown).unwrap(), expected, "{line:?}");
        }
        assert!(shown.starts_with(b"Sure? [y/N] "));
    }
}
