//! A table for people: columns in line, control characters made harmless. Wide characters (Chinese, Japanese, Korean,
//! emoji) take two cells, as terminals draw them.

use std::io::{self, Write};

use super::output::plain;
use super::screen::Screen;

/// Rows are kept until so many are there; the widths seen by then hold for all that follow, so that a table of
/// millions of rows is written in flat memory.
const KEPT_MOST: usize = 500;

pub struct Table<'a> {
    out: &'a mut dyn Write,
    columns: &'a [Column],
    /// None: the widths are settled, rows are written as they come.
    kept: Option<Vec<Vec<String>>>,
    widths: Vec<usize>,
    /// Cells of a line, on a terminal: what does not fit is cut, the last columns first.
    most: Option<usize>,
}

#[derive(Clone, Copy)]
pub enum Column {
    /// Words, to the left.
    Text(&'static str),
    /// Numbers, to the right.
    Number(&'static str),
}

impl<'a> Table<'a> {
    pub fn new(out: &'a mut dyn Write, columns: &'a [Column], screen: &Screen) -> Self {
        let header: Vec<String> = columns.iter().map(|column| column.name().to_owned()).collect();
        let widths = header.iter().map(|name| width(name)).collect();
        Self { out, columns, kept: Some(vec![header]), widths, most: screen.size.map(|size| size.columns) }
    }

    pub fn row(&mut self, cells: &[&str]) -> io::Result<()> {
        let cells: Vec<String> = cells.iter().map(|cell| plain(cell).into_owned()).collect();
        let Some(kept) = &mut self.kept else { return self.write(&cells) };
        for (widest, cell) in self.widths.iter_mut().zip(&cells) {
            *widest = width(cell).max(*widest);
        }
        kept.push(cells);
        if kept.len() > KEPT_MOST { self.end() } else { Ok(()) }
    }

    /// Writes the rows that are still kept.
    pub fn end(&mut self) -> io::Result<()> {
        for cells in self.kept.take().unwrap_or_default() {
            self.write(&cells)?;
        }
        Ok(())
    }

    fn write(&mut self, cells: &[String]) -> io::Result<()> {
        let mut line = String::new();
        for ((column, cell), widest) in self.columns.iter().zip(cells).zip(&self.widths) {
            let space = " ".repeat(widest.saturating_sub(width(cell)));
            line += &match column {
                Column::Text(_) => format!("{cell}{space}  "),
                Column::Number(_) => format!("{space}{cell}  "),
            };
        }
        let line = line.trim_end();
        match self.most {
            Some(most) => writeln!(self.out, "{}", cut(line, most)),
            None => writeln!(self.out, "{line}"),
        }
    }
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Self::Text(name) | Self::Number(name) => name,
        }
    }
}

/// Cells of a terminal. Blocks, not the whole Unicode table: a column out of line is the worst that can happen.
pub fn width(text: &str) -> usize {
    text.chars().map(cells).sum()
}

fn cells(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0x200b..=0x200d | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// The text in at most so many cells; what was cut away is one of three dots.
pub fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    if most == 0 {
        return String::new();
    }
    let mut taken = 1;
    let kept = text.chars().take_while(|c| {
        taken += cells(*c);
        taken <= most
    });
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::screen::Size;

    const COLUMNS: &[Column] = &[Column::Number("id"), Column::Text("name"), Column::Text("state")];

    #[test]
    fn columns_stand_in_line_whatever_is_in_them() {
        let mut out = Vec::new();
        let mut table = Table::new(&mut out, COLUMNS, &Screen::default());
        for cells in [["7", "王小明", "draft"], ["12345", "a\nb", ""]] {
            table.row(&cells).unwrap();
        }
        table.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "   id  name    state\n    7  王小明  draft\n12345  a\\nb\n");
    }

    #[test]
    fn what_does_not_fit_is_cut_by_cells() {
        assert_eq!(
            ["abcd", "abcde", "王小明", "e\u{301}clair"].map(|text| cut(text, 4)),
            ["abcd", "abc…", "王…", "e\u{301}cl…"]
        );
        assert_eq!((cut("ab", 1), cut("ab", 0)), ("…".into(), String::new()));
    }

    #[test]
    fn a_line_is_no_wider_than_its_terminal() {
        let mut out = Vec::new();
        let screen = Screen { size: Some(Size { columns: 12, rows: 24 }), colours: false };
        let mut table = Table::new(&mut out, COLUMNS, &screen);
        table.row(&["7", "王小明", "draft"]).unwrap();
        table.end().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "id  name    …\n 7  王小明  …\n".replace("  …", " …"));
    }

    #[test]
    fn a_long_table_is_written_as_it_comes() {
        let mut out = Vec::new();
        let mut table = Table::new(&mut out, COLUMNS, &Screen::default());
        for _ in 0..KEPT_MOST {
            table.row(&["1", "name", "sent"]).unwrap();
        }
        table.row(&["2", "a longer name", "sent"]).unwrap();
        assert!(table.kept.is_none());
        table.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), KEPT_MOST + 2);
        assert_eq!(text.lines().last(), Some(" 2  a longer name  sent"));
    }
}
