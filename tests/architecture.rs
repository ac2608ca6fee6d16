//! The crate's structure, held to a table: who may name whom, and what the core may not know.
//!
//! The scan is textual: comments, literals and unit tests are blanked, then paths that begin at `crate::` are read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use Side::{Core, Shell};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// No I/O, no clock, no runtime.
    Core,
    /// Sockets, time and tasks.
    Shell,
}

/// Every module of the crate with the modules that it may name. A module names only modules that stand above it: arrows point one way.
const MODULES: &[(&str, Side, &[&str])] = &[
    ("limits", Core, &[]),
    ("ids", Core, &[]),
    ("metrics", Core, &[]),
    ("pace", Core, &["limits"]),
    ("pressure", Core, &["limits"]),
    ("log_rate", Core, &[]),
    ("topic", Core, &["limits"]),
    ("config", Core, &["limits", "topic"]),
    ("codec", Core, &["limits"]),
    ("auth", Core, &["topic"]),
    ("proxy", Core, &[]),
    ("websocket", Core, &[]),
    ("session", Core, &["limits", "ids", "codec", "auth", "pressure"]),
    ("stp", Core, &["limits", "ids"]),
    ("link", Core, &["limits"]),
    ("healing", Core, &[]),
    ("neighbours", Core, &["limits", "ids"]),
    ("frame", Core, &["limits", "ids", "codec", "stp"]),
    ("shared", Core, &["limits", "ids", "codec", "frame"]),
    ("interest", Core, &["limits", "ids", "metrics", "topic", "shared"]),
    ("replication", Core, &["limits", "ids", "metrics", "codec", "session", "frame", "interest"]),
    (
        "router",
        Core,
        &[
            "limits",
            "ids",
            "metrics",
            "config",
            "pressure",
            "log_rate",
            "codec",
            "topic",
            "auth",
            "session",
            "frame",
            "shared",
            "interest",
            "replication",
        ],
    ),
    ("resources", Shell, &["limits"]),
    ("crl", Shell, &[]),
    ("clock", Shell, &[]),
    ("task", Shell, &[]),
    ("bell", Shell, &["task"]),
    ("store", Shell, &["ids", "metrics", "config", "codec", "session", "clock", "task"]),
    ("backends", Shell, &["limits", "log_rate", "metrics", "config", "auth", "clock", "task"]),
    (
        "connection",
        Shell,
        &[
            "limits",
            "metrics",
            "pace",
            "pressure",
            "codec",
            "topic",
            "auth",
            "backends",
            "session",
            "interest",
            "replication",
            "router",
            "clock",
            "task",
        ],
    ),
    (
        "bridge",
        Shell,
        &[
            "limits",
            "ids",
            "log_rate",
            "metrics",
            "config",
            "codec",
            "topic",
            "auth",
            "session",
            "shared",
            "router",
            "clock",
            "task",
            "connection",
        ],
    ),
    ("policies", Shell, &["config", "auth"]),
    (
        "listener",
        Shell,
        &[
            "limits",
            "log_rate",
            "metrics",
            "pace",
            "config",
            "codec",
            "proxy",
            "websocket",
            "router",
            "crl",
            "clock",
            "task",
            "connection",
        ],
    ),
    ("memory", Shell, &["pressure", "resources", "router"]),
    (
        "mesh",
        Shell,
        &[
            "limits",
            "ids",
            "metrics",
            "config",
            "codec",
            "stp",
            "shared",
            "link",
            "healing",
            "neighbours",
            "frame",
            "interest",
            "replication",
            "crl",
            "clock",
            "task",
        ],
    ),
    ("sys", Shell, &["metrics", "shared", "router", "clock", "mesh"]),
    ("drain", Shell, &["pace", "session", "router", "clock", "task"]),
    ("admin", Shell, &["limits", "metrics", "config", "shared", "clock", "task", "drain"]),
    (
        "server",
        Shell,
        &[
            "limits",
            "ids",
            "metrics",
            "topic",
            "config",
            "codec",
            "session",
            "shared",
            "interest",
            "replication",
            "router",
            "resources",
            "clock",
            "task",
            "bell",
            "store",
            "backends",
            "connection",
            "bridge",
            "policies",
            "listener",
            "memory",
            "mesh",
            "sys",
            "drain",
            "admin",
        ],
    ),
    (
        "cli",
        Shell,
        &[
            "limits",
            "ids",
            "metrics",
            "config",
            "codec",
            "auth",
            "shared",
            "resources",
            "crl",
            "clock",
            "task",
            "backends",
            "policies",
            "listener",
            "mesh",
            "drain",
            "admin",
            "server",
        ],
    ),
];

/// What only the shell may know: the runtime, the network, files, threads, and the clock.
const SHELL_ONLY: &[&str] = &[
    "tokio",
    "quinn",
    "quinn_proto",
    "rustls",
    "rcgen",
    "clap",
    "axum",
    "socket2",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "Instant::now",
    "SystemTime::now",
];

/// From here on a function or a file is worth a look. Printed, never failed: a state machine is not cut to please a number.
const FUNCTION_LINES: usize = 70;
/// See [`FUNCTION_LINES`]; without unit tests.
const FILE_LINES: usize = 600;

#[test]
fn the_table_lists_every_module_once_and_its_arrows_point_up() {
    let listed: Vec<_> = MODULES.iter().map(|(name, ..)| *name).collect();
    let present: BTreeSet<_> = children(&root().join("src"))
        .iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "lib" && name != "main")
        .collect();
    assert_eq!(listed.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), present);
    assert_eq!(listed.len(), present.len(), "a module is listed twice");
    for (place, (name, side, may_name)) in MODULES.iter().enumerate() {
        for target in *may_name {
            let above = listed.iter().position(|listed| listed == target).filter(|above| *above < place);
            let above = above.unwrap_or_else(|| panic!("{name} may name {target}, which does not stand above it"));
            assert!(*side == Shell || MODULES[above].1 == Core, "{name} is of the core, {target} is not");
        }
    }
}

#[test]
fn modules_name_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for (name, _, may_name) in MODULES {
        for file in sources_of(name) {
            for target in named_modules(&file.code) {
                if target != *name && !may_name.contains(&target.as_str()) {
                    wrong.push(format!("{}: `{name}` names `{target}`", file.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the table in tests/architecture.rs:\n{}", wrong.join("\n"));
}

#[test]
fn the_core_knows_no_io_no_clock_and_no_runtime() {
    let mut wrong = Vec::new();
    for (name, side, _) in MODULES {
        for file in sources_of(name).iter().filter(|_| *side == Core) {
            for (number, line) in file.code.lines().enumerate() {
                for word in SHELL_ONLY.iter().filter(|word| has_word(line, word)) {
                    wrong.push(format!("{}:{}: {word}", file.path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "of the shell only:\n{}", wrong.join("\n"));
}

#[test]
fn no_file_points_out_of_the_repository() {
    let outside = ["..", "shared"].join("/");
    for path in files_below(&root()) {
        let is_text =
            path.extension().is_some_and(|kind| ["rs", "md", "toml", "json", "yaml", "py"].iter().any(|text| kind == *text));
        let text = if is_text { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        assert!(!text.contains(&outside), "{} names {outside}", path.display());
    }
}

#[test]
fn sizes() {
    for file in MODULES.iter().flat_map(|(name, ..)| sources_of(name)) {
        let lines = file.code.lines().count();
        if lines > FILE_LINES {
            println!("{}: {lines} lines", file.path.display());
        }
        for (function, first, lines) in functions(&file.code) {
            if lines > FUNCTION_LINES {
                println!("{}:{first}: fn {function}: {lines} lines", file.path.display());
            }
        }
    }
}

/// The scan itself is tested, for a scan that sees nothing would pass everything.
#[test]
fn the_scan_sees_paths_and_nothing_else() {
    let code = without_tests(&blank(concat!(
        "//! [`crate::comment`]\n",
        "use crate::one;\nuse crate::{two, three::{a, b}, four::c};\n/* crate::comment /* nested */ crate::comment */\n",
        "fn f<'a>(x: &'a str) { crate::five::g(\"crate::literal \\\" crate::literal\", '\"', crate::SIX); r#\"crate::\"raw\"#; }\n",
        "pub(in crate::seven) fn g() {}\n#[cfg(all(test, loom))]\n#[expect(a, reason = \"[b]\")]\npub(super) mod tests {\n    use crate::{tests_only};\n}\n",
        "#[cfg(not(test))]\nmod real { use crate::eight; }\n#[cfg(test)]\nmod elsewhere;\nuse crate::nine;\n",
    )));
    let expected = ["SIX", "eight", "five", "four", "nine", "one", "seven", "three", "two"].map(str::to_owned);
    assert_eq!(named_modules(&code).into_iter().collect::<Vec<_>>(), expected);
    assert!(has_word("let x = tokio::spawn();", "tokio") && !has_word("let not_tokio = 1;", "tokio"));
    assert!(has_word("std::time::Instant::now()", "Instant::now") && !has_word("Instant::nowhere()", "Instant::now"));
    assert_eq!(functions("fn a() {\n  {}\n}\ntrait T { fn b(); }\nfn c() {}\n"), [("a".to_owned(), 1, 3), ("c".to_owned(), 5, 1)]);
}

struct Source {
    /// Relative to the repository.
    path: PathBuf,
    /// Without comments, literals and unit tests, line by line as in the file.
    code: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a top-level module.
fn sources_of(module: &str) -> Vec<Source> {
    let single = root().join("src").join(module).with_extension("rs");
    let mut paths = if single.exists() { vec![single] } else { files_below(&root().join("src").join(module)) };
    paths.retain(|path| path.strip_prefix(root()).unwrap().with_extension("").iter().all(|name| name != "tests"));
    assert!(!paths.is_empty(), "{module} has no source");
    let source = |path: PathBuf| Source {
        code: without_tests(&blank(&fs::read_to_string(&path).unwrap())),
        path: path.strip_prefix(root()).unwrap().to_owned(),
    };
    paths.into_iter().map(source).collect()
}

/// Every file below `dir`, except what git and builds put there.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        for path in children(&dir) {
            let name = path.file_name().unwrap_or_default();
            let is_foreign =
                name.to_string_lossy().starts_with('.') || ["target", "data", "corpus", "artifacts"].iter().any(|it| name == *it);
            match path.is_dir() {
                true if !is_foreign => waiting.push(path),
                true => {}
                false => files.push(path),
            }
        }
    }
    files.sort();
    files
}

fn children(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The first names of all paths that begin at `crate::`.
fn named_modules(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (start, prefix) in code.match_indices("crate::") {
        let path = code[start + prefix.len()..].trim_start();
        let Some(group) = path.strip_prefix('{') else {
            names.insert(identifier(path));
            continue;
        };
        let (mut depth, mut begins) = (0_usize, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    names.insert(identifier(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    names.remove("");
    names
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| is_word(*c)).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word))
}

/// Cuts the modules that only a test build has, as far as they stand in the file itself.
fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find("#[cfg(") {
        let (before, item) = rest.split_at(start);
        out.push_str(before);
        let condition = &item[..item.find(']').map_or(item.len(), |end| end + 1)];
        let is_test = has_word(condition, "test") && !condition.contains("not(test)");
        let head = without_attributes(&item[condition.len()..]).split('{').next().unwrap_or_default();
        let is_module = head.split_whitespace().rev().nth(1) == Some("mod");
        let body = if is_test && is_module { block_length(item) } else { 0 };
        out.push_str(if body == 0 { condition } else { "" });
        rest = &item[body.max(condition.len())..];
    }
    out + rest
}

/// What follows the attributes with which `item` may begin.
fn without_attributes(item: &str) -> &str {
    let mut rest = item.trim_start();
    while let Some(attribute) = rest.strip_prefix("#[") {
        let mut depth = 1_usize;
        let end = attribute.find(|c| {
            depth = match c {
                '[' => depth + 1,
                ']' => depth - 1,
                _ => depth,
            };
            depth == 0
        });
        rest = end.map_or("", |end| attribute[end + 1..].trim_start());
    }
    rest
}

/// The length of an item up to the end of its block; zero if it ends without one.
fn block_length(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in item.char_indices() {
        match c {
            ';' if depth == 0 => return 0,
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    0
}

/// Name, first line and number of lines of every function that has a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (start, prefix) in code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(is_word)) {
        let body = block_length(&code[start..]);
        if body > 0 {
            let first = code[..start].matches('\n').count() + 1;
            found.push((identifier(&code[start + prefix.len()..]), first, code[start..start + body].lines().count()));
        }
    }
    found
}

/// Puts a space for every character of a comment or of a literal, and keeps the lines.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after_word = out.ends_with(is_word);
        let length = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment_length(rest),
            '"' => string_length(rest),
            'r' if !after_word => raw_string_length(rest),
            '\'' => char_length(rest),
            _ => 0,
        };
        if length == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..length].chars().map(|c| if c == '\n' { c } else { ' ' }));
            rest = &rest[length..];
        }
    }
    out
}

fn comment_length(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    text.len()
}

fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Zero if no raw string begins here.
fn raw_string_length(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    text[body..].find(&end).map_or(text.len(), |at| body + at + end.len())
}

/// Zero for a lifetime.
fn char_length(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let body = at + escaped.len_utf8();
            text[body..].find('\'').map_or(0, |end| body + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}
