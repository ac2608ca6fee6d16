//! Good packets made bad at random: nothing panics, nothing reads outside, and whatever is still accepted means one thing only.

#![expect(clippy::print_stdout, reason = "a failure is found again by its seed")]

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::*;

/// Each row of the vectors that is a packet of its version, good or bad.
fn corpus() -> Vec<(ProtocolVersion, Vec<u8>)> {
    let rows = vectors::TABLES.iter().copied().flatten();
    rows.flat_map(|(_, versions, notation, _)| versions.iter().map(|version| (*version, bytes(notation)))).collect()
}

fn mutate(random: &mut StdRng, packet: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..=packet.len());
        match random.random_range(0..6) {
            0 => packet.truncate(at),
            1 => packet.insert(at, random.random()),
            2 => packet.extend_from_slice(&other[..random.random_range(0..=other.len())]),
            3 if at < packet.len() => packet[at] ^= 1 << random.random_range(0..8),
            4 if at < packet.len() => packet[at] = [0, 1, 0x7f, 0x80, 0xff][random.random_range(0..5)],
            _ if at < packet.len() => drop(packet.remove(at)),
            _ => {}
        }
    }
}

/// What must hold of any input; returns whether it was a packet.
fn check(version: ProtocolVersion, input: &[u8]) -> bool {
    let Ok(Some((packet, length))) = decode(input, version, u32::MAX) else { return false };
    assert_eq!(frame_length(input), Ok(Some(length)));
    let again = encoded(version, &packet);
    assert_eq!(decode_whole(version, &again).as_ref(), Ok(&packet), "{version}: {input:02x?}, again {again:02x?}");
    true
}

fn run(seed: u64, rounds: usize) {
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let corpus = corpus();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..rounds {
        let (version, packet) = &corpus[random.random_range(0..corpus.len())];
        let (_, other) = &corpus[random.random_range(0..corpus.len())];
        let mut packet = packet.clone();
        mutate(&mut random, &mut packet, other);
        // Half of the mutants get a length that fits, else most would be refused for that alone.
        if random.random() && packet.len() > 2 && packet.len() < 129 {
            packet[1] = packet.len() as u8 - 2;
        }
        if check(*version, &packet) { accepted += 1 } else { refused += 1 }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > rounds / 100 && refused > rounds / 100, "the mutants are all alike: {accepted} accepted, {refused} refused");
}

#[test]
fn mutants_of_a_fixed_seed() {
    run(0x6d71_7474, 100_000);
}

#[test]
fn mutants_of_a_fresh_seed() {
    run(rand::rng().next_u64(), 50_000);
}

/// Bytes that are random from the start never get far, but must not get too far either.
#[test]
fn noise() {
    let seed = rand::rng().next_u64();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut input = [0; 64];
    for _ in 0..50_000 {
        random.fill_bytes(&mut input);
        for version in ALL {
            check(*version, &input);
        }
    }
}
