//! What differs between two configurations: for a reload, which applies some keys and names the others.

use toml::{Table, Value};

use super::Config;

impl Config {
    /// The keys, dotted, whose values differ in `other`, in the order of the alphabet. A table that only one of them has is one key, and so
    /// is a list.
    #[must_use]
    pub fn changes(&self, other: &Self) -> Vec<String> {
        // Every configuration can be written: what is read from TOML has a form in it.
        let table = |config| Table::try_from(config).unwrap_or_default();
        let mut keys = Vec::new();
        compare("", &table(self), &table(other), &mut keys);
        keys
    }
}

fn compare(prefix: &str, a: &Table, b: &Table, keys: &mut Vec<String>) {
    let missing_in_a = b.keys().filter(|key| !a.contains_key(*key));
    let mut all: Vec<&String> = a.keys().chain(missing_in_a).collect();
    all.sort();
    for key in all {
        let name = format!("{prefix}{key}");
        match (a.get(key), b.get(key)) {
            (Some(Value::Table(a)), Some(Value::Table(b))) => compare(&format!("{name}."), a, b, keys),
            (a, b) if a == b => {}
            _ => keys.push(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Listener, Mesh};

    #[test]
    fn each_key_that_differs_is_named_once() {
        let mesh = |change: fn(&mut Mesh)| {
            let mut mesh = Mesh { name: "m".to_owned(), ..Mesh::default() };
            change(&mut mesh);
            Config { mesh: Some(mesh), ..Config::default() }
        };
        let plain = mesh(|_| {});
        for (other, keys) in [
            (plain.clone(), &[][..]),
            (mesh(|mesh| (mesh.priority, mesh.crlfile) = (1, Some("x".into()))), &["mesh.crlfile", "mesh.priority"]),
            (Config { mesh: None, name: "b".to_owned(), ..plain.clone() }, &["mesh", "name"]),
            (Config { listeners: vec![Listener::default()], ..plain.clone() }, &["listener"]),
        ] {
            assert_eq!(plain.changes(&other), keys);
            assert_eq!(other.changes(&plain), keys);
        }
    }
}
