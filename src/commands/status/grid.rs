//! A small table as wide as its terminal: where room lacks, long texts are cut, then columns are left out, the least needed
//! first. Off a terminal everything is whole. Rows in their millions are for `targets`, whose table is table.rs.

use crate::commands::output::plain;
use crate::commands::screen::{Screen, Tint};
use crate::commands::table::{cut, width};

const GAP: usize = 2;

pub struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

pub struct Column {
    pub name: &'static str,
    /// Numbers stand to the right.
    pub right: bool,
    /// Down to so many cells it may be cut; None: never.
    pub least: Option<usize>,
    /// Cut only where no other column can be cut any more.
    pub kept: bool,
    /// Left out, the highest first; None: never.
    pub spare: Option<u8>,
}

pub struct Cell {
    text: String,
    tint: Tint,
}

impl Cell {
    pub fn new(tint: Tint, text: impl AsRef<str>) -> Self {
        Self { text: plain(text.as_ref()).into_owned(), tint }
    }
}

impl Column {
    pub fn number(name: &'static str) -> Self {
        Self { name, right: true, least: None, kept: false, spare: None }
    }

    pub fn text(name: &'static str) -> Self {
        Self { name, right: false, least: None, kept: false, spare: None }
    }

    pub fn least(self, cells: usize) -> Self {
        Self { least: Some(cells), ..self }
    }

    pub fn kept(self) -> Self {
        Self { kept: true, ..self }
    }

    pub fn spare(self, rank: u8) -> Self {
        Self { spare: Some(rank), ..self }
    }
}

impl Grid {
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The heading, if a column has a name, and the rows.
    pub fn lines(&self, screen: &Screen) -> Vec<String> {
        let shown = self.fit(screen.size.map(|size| size.columns));
        let line = |cell: &dyn Fn(usize) -> (String, Tint)| {
            let mut line = String::new();
            let mut blank = 0;
            for (at, (column, room)) in shown.iter().enumerate() {
                let (text, tint) = cell(*column);
                let text = cut(&text, *room);
                let space = room - width(&text);
                let right = self.columns[*column].right;
                // Blanks are written before what follows them alone: none stand at the end.
                blank += if at == 0 { 0 } else { GAP } + if right { space } else { 0 };
                if !text.is_empty() {
                    line += &" ".repeat(blank);
                    line += &screen.paint(tint, &text);
                    blank = 0;
                } else {
                    blank += room - space;
                }
                blank += if right { 0 } else { space };
            }
            line
        };
        let heading = self.columns.iter().any(|column| !column.name.is_empty());
        let heading = heading.then(|| line(&|at| (self.columns[at].name.into(), Tint::Heading)));
        let rows = self.rows.iter().map(|row| line(&|at| (row[at].text.clone(), row[at].tint)));
        heading.into_iter().chain(rows).collect()
    }

    /// Which columns are shown, and how wide each is.
    fn fit(&self, most: Option<usize>) -> Vec<(usize, usize)> {
        let widest = |at: usize| {
            let cells = self.rows.iter().map(|row| width(&row[at].text));
            cells.chain([width(self.columns[at].name)]).max().unwrap_or(0)
        };
        let whole: Vec<(usize, usize)> = (0..self.columns.len()).map(|at| (at, widest(at))).collect();
        let Some(most) = most else { return whole };
        let mut left_out: Vec<usize> = Vec::new();
        loop {
            let mut shown: Vec<(usize, usize)> =
                whole.iter().copied().filter(|(at, _)| !left_out.contains(at)).collect();
            let gaps = GAP * shown.len().saturating_sub(1);
            let over = |shown: &[(usize, usize)]| {
                (shown.iter().map(|(_, room)| room).sum::<usize>() + gaps).saturating_sub(most)
            };
            // The widest is cut first.
            while over(&shown) > 0
                && let Some((_, room)) = shown
                    .iter_mut()
                    .filter(|(at, room)| self.columns[*at].least.is_some_and(|least| *room > least))
                    .max_by_key(|(at, room)| (!self.columns[*at].kept, *room))
            {
                *room -= 1;
            }
            let spare = shown.iter().filter_map(|(at, _)| Some((self.columns[*at].spare?, *at))).max();
            match spare {
                Some((_, at)) if over(&shown) > 0 => left_out.push(at),
                _ => return shown,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::screen::Size;

    fn grid() -> Grid {
        let mut grid = Grid::new([
            Column::number("id"),
            Column::text("name").least(6),
            Column::number("sent"),
            Column::number("total").spare(1),
            Column::text("state").least(8),
        ]);
        let cells = |texts: [&str; 5]| texts.map(|text| Cell::new(Tint::Plain, text));
        grid.row(cells(["7", "Spring and all of it", "12345", "20000", "waiting until noon"]));
        grid.row(cells(["12", "王小明", "0", "0", ""]));
        grid
    }

    fn at(columns: usize) -> String {
        let size = Some(Size { columns, rows: 24 });
        let lines = grid().lines(&Screen { size, colours: false });
        assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
        lines.join("\n")
    }

    #[test]
    fn off_a_terminal_it_is_whole() {
        let whole = "\
id  name                   sent  total  state
 7  Spring and all of it  12345  20000  waiting until noon
12  王小明                    0      0";
        assert_eq!(grid().lines(&Screen::default()).join("\n"), whole);
        assert_eq!(at(60), whole);
    }

    #[test]
    fn it_is_cut_to_the_terminal_and_then_loses_its_least_column() {
        assert_eq!(
            at(45),
            "\
id  name            sent  total  state
 7  Spring and a…  12345  20000  waiting unt…
12  王小明             0      0"
        );
        assert_eq!(
            at(29),
            "\
id  name       sent  state
 7  Spring …  12345  waiting…
12  王小明        0"
        );
    }

    #[test]
    fn what_is_kept_is_cut_last() {
        let columns = |state: Column| Grid::new([Column::text("name").least(6), state.least(8)]);
        let cut = |state: Column| {
            let mut grid = columns(state);
            grid.row(
                ["Spring and all of it", "waiting until 09:00Z, in 3m"]
                    .map(|text| Cell::new(Tint::Plain, text)),
            );
            let size = Some(Size { columns: 32, rows: 24 });
            grid.lines(&Screen { size, colours: false }).pop().unwrap()
        };
        assert_eq!(cut(Column::text("state")), "Spring and all…  waiting until …");
        assert_eq!(cut(Column::text("state").kept()), "Sprin…  waiting until 09:00Z, i…");
    }

    #[test]
    fn colours_take_no_room() {
        let mut grid = Grid::new([Column::text(""), Column::number("")]);
        grid.row([Cell::new(Tint::Bad, "a\x1b[2J"), Cell::new(Tint::Faint, "1")]);
        let plain = grid.lines(&Screen::default());
        assert_eq!(plain, ["a\\u{1b}[2J  1"]);
        let coloured = grid.lines(&Screen { size: None, colours: true });
        assert_eq!(coloured, ["\x1b[1m\x1b[31ma\\u{1b}[2J\x1b[0m  \x1b[2m1\x1b[0m"]);
    }
}
