//! The table of bad inputs: what a careless or hostile peer, file or operator may give us, row by
//! row, with the answer that is expected. Each module has the rows of one door and a test that
//! tries them all and reports every difference.
//!
//! To add a row: write the input, and the answer that the protocol or the documentation asks for;
//! then run.

mod cpr;
mod data;
mod files;
mod frames;
mod messages;
mod packets;
mod schemas;
mod websocket;

/// Every table and its size, so that rows cannot get lost unnoticed.
const TABLES: &[(&str, usize)] = &[
    ("channel data", data::ROWS.len()),
    ("channel settings", files::SETTINGS.len()),
    ("frames", frames::ROWS.len()),
    ("handshakes", websocket::HANDSHAKES.len()),
    ("packets", packets::ROWS.len()),
    ("recordings", cpr::ROWS.len()),
    ("schemas", schemas::ROWS.len()),
    ("state machines", files::STATE_MACHINES.len()),
    ("WebSocket frames", websocket::FRAMES.len()),
];

#[test]
fn the_table_has_hundreds_of_rows() {
    let total = TABLES.iter().map(|(_, rows)| rows).sum::<usize>() + messages::rows().len();
    assert!(total >= 400, "rows got lost: {TABLES:?}");
}

/// Compares the answer to each row with what the row expects, and reports all differences at once.
fn check<'a, Row: 'a>(
    rows: impl IntoIterator<Item = &'a Row>,
    name_and_expected: impl Fn(&'a Row) -> (&'a str, &'a str),
    answer: impl Fn(&'a Row) -> String,
) {
    let mut wrong = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for row in rows {
        let (name, expected) = name_and_expected(row);
        assert!(names.insert(name), "two rows are named `{name}`");
        let found = answer(row);
        if found != expected {
            wrong.push(format!("{name}\n    expected: {expected}\n    found:    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Reads hexadecimal bytes; blanks separate, `xx*n` repeats a byte.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        let (digits, times) =
            word.split_once('*').map_or((word, 1), |(d, n)| (d, n.parse().expect("a count")));
        assert!(digits.len() % 2 == 0, "`{word}` has half a byte");
        let run: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| {
                u8::from_str_radix(&digits[at..at + 2], 16).unwrap_or_else(|_| panic!("`{word}` is not hex"))
            })
            .collect();
        bytes.extend(run.repeat(times));
    }
    bytes
}
