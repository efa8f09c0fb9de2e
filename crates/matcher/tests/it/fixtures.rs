//! Files of the release that made a format or a rules number: what they lead to does not change.
#![allow(clippy::disallowed_methods, reason = "a test may read and write the repository's files")]

use std::path::PathBuf;

use throng_matcher::record::{Input, parse_input, read_record};
use throng_matcher::{Config, Matcher, Notices, RULES, WallMs};

use crate::snapshots::Source;

/// Inputs of a recorded log, and those of which one record has the hash of answers and notices.
const INPUTS: usize = 2_500;
const HASHED: usize = 16;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/matcher")).join(name)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Records a log of inputs by chance. Only for a rules number or format that has none yet.
fn record() -> (Vec<u8>, Matcher) {
    let mut source = Source::new(7);
    source.log(Input::Rules { number: RULES, release: env!("CARGO_PKG_VERSION") });
    source.log(Input::Begin { secret: [7; 32] });
    let config = serde_json::to_vec(&crate::snapshots::config()).unwrap();
    source.log(Input::Configure(&config));
    let mut all = vec![Matcher::new(Config::default(), [7; 32], WallMs(crate::world::START))];
    all[0].reconfigure(crate::snapshots::config());
    source.put_queues(&mut all);
    let has_all = |matcher: &Matcher| {
        let counts = matcher.counts();
        counts.tickets > 3 && counts.rooms > 3 && counts.teams > 0
    };
    for input in 0.. {
        if input >= INPUTS && has_all(&all[0]) {
            break;
        }
        assert!(input < 4 * INPUTS, "{:?}", all[0].counts());
        source.step(&mut all);
        if input % HASHED == 0
            && let Some(hash) = all[0].take_outputs()
        {
            source.log(Input::Outputs(hash));
        }
    }
    (source.recorded, all.remove(0))
}

#[test]
fn a_log_of_these_rules_leads_where_it_led() {
    let (log, told) = (file(&format!("rules-{RULES}.log")), file(&format!("rules-{RULES}.digest")));
    if std::env::var_os("THRONG_UPDATE").is_some() && !log.exists() {
        let (recorded, matcher) = record();
        std::fs::write(&log, recorded).unwrap();
        std::fs::write(&told, hex(&matcher.digest()) + "\n").unwrap();
        let snapshot = file("format-1.snap");
        if !snapshot.exists() {
            std::fs::write(snapshot, matcher.snapshot()).unwrap();
        }
    }
    let bytes = std::fs::read(&log).expect("THRONG_UPDATE=1 records a log for a new rules number");
    let (mut rest, mut hashes) = (&bytes[..], 0);
    let mut matcher = Matcher::new(Config::default(), [0; 32], WallMs(0));
    while let Some(record) = read_record(rest) {
        rest = &rest[record.len..];
        match parse_input(record.kind, record.body).unwrap() {
            Input::Begin { secret } => matcher = Matcher::new(Config::default(), secret, WallMs(record.time)),
            Input::Configure(json) => matcher.reconfigure(serde_json::from_slice(json).unwrap()),
            Input::Outputs(hash) => {
                assert_eq!(
                    matcher.take_outputs(),
                    Some(hash),
                    "record {} answers otherwise than rules {RULES} did: raise `RULES`, then record a log for it",
                    record.sequence
                );
                hashes += 1;
            }
            input => {
                matcher.apply(WallMs(record.time), input, &mut Vec::new(), &mut Notices::default());
                while matcher.poll_question().is_some() || matcher.poll_answered().is_some() {}
            }
        }
    }
    assert!(rest.is_empty() && hashes > 100, "{hashes} hashes");
    let wanted = std::fs::read_to_string(told).unwrap();
    assert_eq!(
        hex(&matcher.digest()),
        wanted.trim(),
        "the state is not that of rules {RULES}: raise `RULES`, then record a log for it"
    );
}
