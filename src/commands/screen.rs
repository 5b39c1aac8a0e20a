//! What stdout is: a terminal of so many columns, perhaps with colours; or a file or a pipe, for which nothing is cut and nothing
//! coloured.

use std::io::{self, IsTerminal};

use anstyle::{AnsiColor, Style};
use rustix::termios::tcgetwinsize;

use crate::config;

/// The default is a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// None: no terminal.
    pub size: Option<Size>,
    pub colours: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// What a colour says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tint {
    #[default]
    Plain,
    /// A heading, or a name.
    Heading,
    /// It goes on.
    Good,
    /// It waits.
    Waits,
    /// A person is to look at it.
    Bad,
    /// Nothing to look at.
    Faint,
}

impl Screen {
    pub fn of_stdout() -> Self {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Self::default();
        }
        // A terminal that does not know says 0.
        let known = |number: u16, otherwise| if number == 0 { otherwise } else { usize::from(number) };
        let size = match tcgetwinsize(&stdout) {
            Ok(size) => Size { columns: known(size.ws_col, 80), rows: known(size.ws_row, 24) },
            Err(_) => Size { columns: 80, rows: 24 },
        };
        Self { size: Some(size), colours: config::colours() }
    }

    pub fn paint(&self, tint: Tint, text: &str) -> String {
        let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        let style = match tint {
            _ if !self.colours || text.is_empty() => return text.to_owned(),
            Tint::Plain => return text.to_owned(),
            Tint::Heading => Style::new().bold(),
            Tint::Good => colour(AnsiColor::Green),
            Tint::Waits => colour(AnsiColor::Yellow),
            Tint::Bad => colour(AnsiColor::Red).bold(),
            Tint::Faint => Style::new().dimmed(),
        };
        format!("{style}{text}{style:#}")
    }
}
