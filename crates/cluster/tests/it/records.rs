//! Records are input like any other.

use throng_cluster::{Record, State};

#[test]
fn a_record_survives_its_bytes_and_others_are_refused() {
    let record = Record {
        epoch: 3,
        incarnation: "a".to_owned(),
        journal: "j".to_owned(),
        machine: "m".to_owned(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        state: State::Lost,
        nonce: u64::MAX,
    };
    assert_eq!(Record::parse(&record.to_bytes()), Ok(record));
    for bad in [&b""[..], b"{}", b"\xFF", b"[1]", &[b' '; 5_000]] {
        assert!(Record::parse(bad).is_err());
    }
}
