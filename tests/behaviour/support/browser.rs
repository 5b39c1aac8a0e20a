//! A page as a browser shows it: Chromium without a window, at the width of a phone and of a desk, in light and in dark. The page is
//! looked at from a frame around it, so that nothing is added to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use tempfile::TempDir;

use super::process::{Process, bare};

/// How one frame shows one page.
#[derive(Debug, Deserialize)]
pub struct Shown {
    pub width: f64,
    pub dark: bool,
    /// Of all that is in the page, whether it can be seen or must be scrolled to.
    pub scroll_width: f64,
    pub background: String,
    /// The text of each table by its id, row by row.
    pub tables: BTreeMap<String, Vec<Vec<String>>>,
    /// How often each drawing has something drawn, and which of its labels meet another or stand outside.
    pub drawings: Vec<usize>,
    pub collisions: Vec<String>,
    /// The smallest text, in pixels.
    pub smallest: f64,
    /// Texts that are hard to tell from what is behind them, with the ratio.
    pub faint: Vec<String>,
    /// What it fetched.
    pub fetched: Vec<String>,
    /// h1 is 1.
    pub headings: Vec<u32>,
}

pub const PHONE: u32 = 380;
pub const DESK: u32 = 1280;

const LOOK: &str = r#"
const light = (colour) => {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (view, element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = view.getComputedStyle(e).backgroundColor;
    if (!/, 0\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const look = (frame) => {
  const view = frame.contentWindow, doc = frame.contentDocument;
  const shown = { width: view.innerWidth, dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    scroll_width: doc.documentElement.scrollWidth, background: view.getComputedStyle(doc.body).backgroundColor,
    tables: {}, drawings: [], collisions: [], smallest: 1000, faint: [],
    fetched: view.performance.getEntriesByType("resource").map((entry) => entry.name),
    headings: [...doc.querySelectorAll("h1,h2,h3,h4,h5,h6")].map((h) => Number(h.tagName[1])) };
  for (const table of doc.querySelectorAll("table"))
    shown.tables[table.id] = [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
  for (const svg of doc.querySelectorAll("svg")) {
    shown.drawings.push(svg.querySelectorAll("rect, polyline").length);
    const frame = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll("text")].map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
    labels.forEach(([name, a], at) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        shown.collisions.push(name + " stands outside");
      for (const [other, b] of labels.slice(at + 1))
        if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)
          shown.collisions.push(name + " meets " + other);
    });
  }
  for (const element of doc.querySelectorAll("body *")) {
    if (!/^(?!title|desc)/.test(element.tagName) || ![...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const style = view.getComputedStyle(element), inside = element.ownerSVGElement;
    const scale = inside ? inside.getBoundingClientRect().width / inside.viewBox.baseVal.width : 1;
    shown.smallest = Math.min(shown.smallest, parseFloat(style.fontSize) * scale);
    const [a, b] = [light(inside ? style.fill : style.color), light(behind(view, element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) shown.faint.push(element.textContent.trim().slice(0, 40) + ": " + ratio.toFixed(2));
  }
  return shown;
};
addEventListener("load", () => {
  document.getElementById("seen").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
});
"#;

/// Each page four times: at both widths, in light and in dark.
#[track_caller]
pub fn look(pages: &[&Path]) -> Vec<Vec<Shown>> {
    let program = std::env::var("BATCH_SEND_TEST_CHROMIUM")
        .expect("BATCH_SEND_TEST_CHROMIUM names no Chromium; tests/run brings one");
    let dir = TempDir::new().unwrap();
    let mut frames = String::new();
    for page in pages {
        for (width, scheme) in [(PHONE, "light"), (PHONE, "dark"), (DESK, "light"), (DESK, "dark")] {
            frames += &format!(
                "<iframe style=\"width:{width}px;height:900px;border:0;color-scheme:{scheme}\" src=\"file://{}\"></iframe>\n",
                page.display()
            );
        }
    }
    let around = dir.path().join("around.html");
    let text =
        format!("<!doctype html><meta charset=utf-8><script>{LOOK}</script>{frames}<pre id=seen></pre>");
    fs::write(&around, text).unwrap();
    let mut command = bare(program);
    command.env("HOME", dir.path()).args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
    ]);
    command.args(["--no-first-run", "--disable-background-networking", "--allow-file-access-from-files"]);
    command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
    command.args(["--window-size=1400,1000", "--dump-dom"]).arg(format!("file://{}", around.display()));
    let seen = Process::start(command, dir.path().join("browser"), "chromium".into()).wait().exits(0);
    let json = seen.stdout.split_once("<pre id=\"seen\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let json = unescape(json.unwrap_or_else(|| panic!("nothing was seen: {seen}")).0);
    let mut shown: Vec<Shown> =
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}\n{}", seen.stderr));
    assert_eq!(shown.len(), pages.len() * 4);
    pages.iter().map(|_| shown.drain(..4).collect()).collect()
}

/// Text of HTML as it is read.
pub fn unescape(html: &str) -> String {
    let mut text = html.to_owned();
    for (name, c) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'"), ("&#x2f;", "/"), ("&amp;", "&")]
    {
        text = text.replace(name, c);
    }
    text
}
