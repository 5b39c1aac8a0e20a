//! SHOW GRANTS, read: what this user may do with our tables. The lines may hold the hash of a password: nothing else of them goes on.

use crate::store::facts::{Grant, On};

/// The grants of these lines that reach the tables of `database`. Rights on single columns are none on the table.
pub(super) fn read(lines: &[String], database: &str) -> Vec<Grant> {
    lines.iter().filter_map(|line| grant(line, database)).collect()
}

fn grant(line: &str, database: &str) -> Option<Grant> {
    let rest = line.strip_prefix("GRANT ")?;
    // A role, too, is granted TO somebody, but ON nothing.
    let (privileges, rest) = split_outside(rest, " ON ")?;
    let (object, rest) = split_outside(rest, " TO ")?;
    let object = object.strip_prefix("TABLE ").unwrap_or(object);
    let (of, table) = split_outside(object, ".")?;
    let on = match (of, table) {
        ("*", "*") => On::Everything,
        (of, "*") if is_like(database, &unquoted(of)) => On::Database,
        (of, table) if unquoted(of) == database => On::Table(unquoted(table)),
        _ => return None,
    };
    let mut privileges: Vec<String> = split_all(privileges, ", ")
        .into_iter()
        .filter(|privilege| !privilege.contains('('))
        .map(|privilege| privilege.trim().to_uppercase())
        .collect();
    privileges
        .iter_mut()
        .filter(|privilege| *privilege == "ALL")
        .for_each(|all| *all = "ALL PRIVILEGES".into());
    Some(Grant { privileges, on, grantable: rest.contains("WITH GRANT OPTION") })
}

/// Splits at the first of `at` that is neither inside backticks nor inside brackets.
fn split_outside<'a>(text: &'a str, at: &str) -> Option<(&'a str, &'a str)> {
    let (mut quoted, mut deep) = (false, 0_u32);
    for (position, c) in text.char_indices() {
        match c {
            '`' => quoted = !quoted,
            '(' if !quoted => deep += 1,
            ')' if !quoted => deep = deep.saturating_sub(1),
            _ => {}
        }
        if !quoted && deep == 0 && text[position..].starts_with(at) {
            return Some((&text[..position], &text[position + at.len()..]));
        }
    }
    None
}

fn split_all<'a>(mut text: &'a str, at: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    while let Some((part, rest)) = split_outside(text, at) {
        parts.push(part);
        text = rest;
    }
    parts.push(text);
    parts
}

fn unquoted(name: &str) -> String {
    match name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) {
        Some(inside) => inside.replace("``", "`"),
        None => name.to_owned(),
    }
}

/// LIKE, as the database of a grant is read: `%` and `_`, and a backslash before what means itself.
fn is_like(name: &str, pattern: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => name.is_empty(),
        Some('%') => name
            .char_indices()
            .map(|(at, _)| at)
            .chain([name.len()])
            .any(|at| is_like(&name[at..], rest.as_str())),
        Some(c) => {
            let (any, c) = if c == '\\' { (false, rest.next().unwrap_or('\\')) } else { (c == '_', c) };
            let mut name = name.chars();
            name.next().is_some_and(|first| any || first == c) && is_like(name.as_str(), rest.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Option<Grant> {
        read(&[line.to_owned()], "shop_1").pop()
    }

    fn of(privileges: &[&str], on: On) -> Option<Grant> {
        Some(Grant {
            privileges: privileges.iter().map(|word| (*word).to_owned()).collect(),
            on,
            grantable: false,
        })
    }

    #[test]
    fn grants_that_reach_our_tables_are_read() {
        let hash = "IDENTIFIED BY PASSWORD '*2470C0C06DEE42FD1618BB99005ADCA2EC9D1E19'";
        assert_eq!(one(&format!("GRANT USAGE ON *.* TO `app`@`%` {hash}")), of(&["USAGE"], On::Everything));
        let all = one("GRANT ALL PRIVILEGES ON *.* TO 'root'@'localhost' WITH GRANT OPTION").unwrap();
        assert!(all.grantable && all.on == On::Everything && all.privileges == ["ALL PRIVILEGES"]);
        for database in ["`shop\\_1`", "`shop_1`", "`shop%`", "`%`"] {
            let line = format!("GRANT SELECT, INSERT ON {database}.* TO `app`@`%`");
            assert_eq!(one(&line), of(&["SELECT", "INSERT"], On::Database), "{line}");
        }
        for other in ["`shop`", "`shop\\_`", "`shopx1`", "`shop\\%`", "`a.b`"] {
            assert_eq!(one(&format!("GRANT SELECT ON {other}.* TO `app`@`%`")), None, "{other}");
        }
        let table = On::Table("batch_task".into());
        let line = "GRANT SELECT, INSERT (`name`, `channel`), UPDATE ON `shop_1`.`batch_task` TO `app`@`%`";
        assert_eq!(one(line), of(&["SELECT", "UPDATE"], table), "a right on columns is none on the table");
        assert_eq!(one("GRANT `reader`@`%` TO `app`@`%`"), None);
        assert_eq!(one("GRANT PROXY ON ``@`%` TO 'root'@'localhost' WITH GRANT OPTION"), None);
        assert_eq!(one("REVOKE SELECT ON `shop_1`.* FROM `app`@`%`"), None);
    }
}
