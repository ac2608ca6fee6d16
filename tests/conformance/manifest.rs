//! Holds `statements.txt` to what it says: every normative statement is there, and every test that is named there exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const STATEMENTS: &str = include_str!("statements.txt");
/// How many normative statements each version's Appendix B has.
const COUNTS: [(&str, usize); 2] = [("5.0", 251), ("3.1.1", 144)];
/// Statements whose number is not in the specification: the numbers before and after them are.
const SKIPPED: [(&str, &str, usize); 1] = [("5.0", "2.2.1", 1)];

#[derive(Debug)]
struct Statement {
    version: &'static str,
    section: &'static str,
    number: usize,
    words: &'static str,
    /// Tests, or one `none: ...`.
    tests: Vec<&'static str>,
}

fn statements() -> Vec<Statement> {
    let mut version = "";
    let mut statements: Vec<Statement> = Vec::new();
    for line in STATEMENTS.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        if let Some(name) = line.strip_prefix("## ") {
            version = name;
        } else if let Some(test) = line.strip_prefix("    ") {
            statements.last_mut().expect("a test belongs to a statement").tests.push(test);
        } else {
            let (id, words) = line.split_once(' ').expect("an id and words");
            let (section, number) = id.rsplit_once('-').expect("a section and a number");
            statements.push(Statement { version, section, number: number.parse().unwrap(), words, tests: Vec::new() });
        }
    }
    statements
}

/// Every test of a file, behind the name of the file's module.
fn tests_of(file: &Path, module: &str, tests: &mut BTreeSet<String>) {
    let mut is_test = false;
    for line in fs::read_to_string(file).unwrap().lines() {
        match line.trim() {
            "#[test]" => is_test = true,
            line if line.starts_with("#[") || line.starts_with("//") => {}
            line => {
                if let (true, Some(rest)) = (is_test, line.strip_prefix("fn ")) {
                    tests.insert(format!("{module}::{}", rest.split('(').next().unwrap()));
                }
                is_test = false;
            }
        }
    }
}

fn tests_below(folder: &Path, module: &str, tests: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let inner = if module.is_empty() { name.clone() } else { format!("{module}::{name}") };
        if path.is_dir() {
            tests_below(&path, &inner, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = if matches!(name.as_str(), "mod" | "lib" | "main") { module } else { &inner };
            tests_of(&path, module, tests);
        }
    }
}

#[test]
fn every_statement_has_its_tests_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for folder in ["tests/conformance", "tests/e2e", "src"] {
        tests_below(&root.join(folder), "", &mut tests);
    }
    assert!(tests.contains("manifest::every_statement_has_its_tests_or_a_reason"), "the scan finds tests: {tests:?}");
    let mut missing = Vec::new();
    for Statement { version, section, number, words, tests: named } in statements() {
        let id = format!("{version} [MQTT-{section}-{number}]");
        assert!(!words.is_empty() && !named.is_empty(), "{id} has no words, or neither test nor reason");
        match named.iter().find_map(|test| test.strip_prefix("none: ")) {
            Some(reason) => assert!(named.len() == 1 && reason.len() > 10, "{id} has a reason and tests"),
            None => missing.extend(named.iter().filter(|test| !tests.contains(**test)).map(|test| format!("{id}: {test}"))),
        }
    }
    assert!(missing.is_empty(), "tests that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn no_statement_is_left_out() {
    let mut sections: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for statement in statements() {
        sections.entry((statement.version, statement.section)).or_default().push(statement.number);
    }
    for ((version, section), numbers) in &sections {
        let skipped = SKIPPED.iter().find(|(v, s, _)| (v, s) == (version, section)).map_or(0, |(.., count)| *count);
        let expected: Vec<_> = (1 + skipped..=numbers.len() + skipped).collect();
        assert_eq!(*numbers, expected, "{version}, section {section}");
    }
    for (version, count) in COUNTS {
        let held: usize = sections.iter().filter(|((of, _), _)| *of == version).map(|(_, numbers)| numbers.len()).sum();
        assert_eq!(held, count, "statements of {version}");
    }
}
