//! The newcomer's first command.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::broker::{program, run};

#[test]
fn the_demo_shows_delivery_healing_and_return() {
    let said = run(&["demo", "--seconds", "0", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let events: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["started", "tree", "delivered", "crashed", "tree", "delivered", "returned", "tree", "delivered", "serving"]);
    let delivered = events.iter().filter(|event| event["event"] == "delivered");
    let counts: Vec<_> = delivered.map(|event| event["deliveries"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [9, 4, 9]);
    let roots: Vec<_> = events.iter().filter_map(|event| event["topology"]["root"].as_str()).collect();
    assert_eq!((roots[0], roots[0] == roots[1]), (roots[2], false), "the best broker is the root again");
    assert_eq!(said.err, "", "nothing went wrong");
}

#[test]
fn a_base_port_that_was_asked_for_and_is_taken_is_an_error() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let said = run(&["demo", "--base-port", &address.port().to_string()]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("cannot start broker-1") && said.err.contains(&address.to_string()), "{said:?}");
}

#[test]
fn ctrl_c_ends_the_demo_at_any_time() {
    for (event, code) in [("started", 130), ("serving", 0)] {
        let mut child = program().args(["demo", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines {
            if serde_json::from_str::<Value>(&line.unwrap()).unwrap()["event"] == event {
                assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "after {event}");
    }
}
