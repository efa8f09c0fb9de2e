//! The replication log and snapshots, over HTTP.
//!
//! A reader begins with a snapshot or with the oldest event, remembers the last event that it has
//! seen, and asks for what follows. When that was forgotten meanwhile it is told to begin with a
//! snapshot again.
//!
//! A snapshot is a blob of lines of JSON: first `{"namespace", "lastBucket", "lastEvent"}`, where
//! to go on reading events, then `{"bucket", "key", "blob"}` for each finalised ref.

use std::io::Write as _;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::json;
use throng_ddc::api::query_values;
use throng_ddc::{Bucket, Key, Namespace};
use throng_ddc_store::{Cursor, Event, LargeWriter, Snapshot, StoreError};
use tokio::sync::oneshot;

use crate::answer::{Answer, Problem};
use crate::blocking;
use crate::service::{ApiRequest, Service, json};
use crate::upload::Received;

/// Events of one answer, and what one may ask for.
const COUNT: usize = 1000;
const COUNT_MAX: usize = 10_000;
/// Refs that one step of a snapshot reads.
const STEP: usize = 512;
/// Bytes of a snapshot that are written in one step.
const PIECE_BYTES: usize = 1 << 20;

impl Service {
    pub(crate) fn incremental(&self, request: &ApiRequest<'_>, namespace: &Namespace) -> Answer {
        self.check_replication()?;
        let parameter = |name| query_values(request.query, name).next();
        let count = match parameter("count") {
            None => COUNT,
            Some(text) => text.parse::<usize>().map_err(Problem::bad)?.clamp(1, COUNT_MAX),
        };
        let after = match (parameter("lastBucket"), parameter("lastEvent")) {
            (None, None) => None,
            (Some(bucket), event)
                if bucket == "now" && event.as_ref().is_none_or(|event| event.is_empty()) =>
            {
                Some(Cursor::at(self.now()))
            }
            (Some(bucket), Some(event)) => Some(read_cursor(&bucket, &event)?),
            _ => return Err(Problem::bad("give both lastBucket and lastEvent, or none")),
        };
        let forgotten = self.store.forgotten(namespace)?;
        if let (Some(after), Some(forgotten)) = (after, forgotten)
            && after < forgotten
        {
            return Err(self.use_snapshot(namespace)?);
        }
        let events = self.store.events(namespace, after, count)?;
        let events: Vec<_> = events.iter().map(|event| event_json(namespace, event)).collect();
        Ok(json(&json!({ "events": events })))
    }

    pub(crate) fn snapshots(&self, namespace: &Namespace) -> Answer {
        self.check_replication()?;
        let snapshots: Vec<_> = self
            .store
            .snapshots(namespace)?
            .iter()
            .map(|snapshot| {
                json!({
                    "snapshottedNamespace": namespace.as_str(),
                    "blobNamespace": namespace.as_str(),
                    "snapshotBlob": format!("{:X}", snapshot.blob),
                    "timestamp": snapshot.at.iso_8601(),
                })
            })
            .collect();
        Ok(json(&json!({ "snapshots": snapshots })))
    }

    pub(crate) async fn create_snapshot(self: &Arc<Service>, namespace: &Namespace) -> Answer {
        self.check_replication()?;
        let at = self.now();
        let (service, of) = (Arc::clone(self), namespace.clone());
        let written = blocking::elsewhere(move || service.write_snapshot(&of)).await;
        let writer = written.unwrap_or(Err(StoreError::Busy))?;
        let received = Received::Large(Box::new(writer));
        let blob = received.hash();
        self.keep(namespace, received).await?;
        let (sender, receiver) = oneshot::channel();
        let done = Box::new(move |outcome| drop(sender.send(outcome)));
        self.store.put_snapshot(namespace, Snapshot { at, blob }, done)?;
        receiver.await.unwrap_or(Err(StoreError::Busy))?;
        Ok(json(&json!({ "snapshotBlobId": format!("{blob:X}") })))
    }

    fn write_snapshot(&self, namespace: &Namespace) -> Result<LargeWriter, StoreError> {
        // Where the log is before the refs are read: what comes meanwhile is read twice rather than
        // never.
        let mut last = None;
        loop {
            let step = self.store.events(namespace, last, STEP)?;
            let Some(event) = step.last() else { break };
            last = Some(event.cursor);
        }
        let last = last.or(self.store.forgotten(namespace)?).unwrap_or_default();
        let mut writer = self.store.begin_large()?;
        let mut lines = Vec::new();
        let head = json!({
            "namespace": namespace.as_str(), "lastBucket": bucket_name(last), "lastEvent": event_id(last),
        });
        writeln!(lines, "{head}")?;
        let mut after: Option<(Bucket, Key)> = None;
        loop {
            let from = after.as_ref().map(|(bucket, key)| (bucket, key));
            let step = self.store.refs(namespace, None, from, STEP)?;
            let Some((bucket, key, _)) = step.last() else { break };
            after = Some((bucket.clone(), *key));
            for (bucket, key, value) in step.iter().filter(|(_, _, value)| value.finalised) {
                let line = json!({
                    "bucket": bucket.as_str(), "key": key.as_str(), "blob": format!("{:X}", value.object),
                });
                writeln!(lines, "{line}")?;
            }
            if lines.len() >= PIECE_BYTES {
                writer.write(&lines)?;
                lines.clear();
            }
        }
        writer.write(&lines)?;
        Ok(writer)
    }

    fn check_replication(&self) -> Result<(), Problem> {
        if self.store.has_events() {
            return Ok(());
        }
        let why = match self.tier() {
            Some(_) => "nodes on object storage share their refs and keep no replication log",
            None => "this node keeps no replication log (ddc.replication_days)",
        };
        Err(Problem::missing(why).of_kind("http://jupiter.epicgames.com/replication/noReplicationData"))
    }

    fn use_snapshot(&self, namespace: &Namespace) -> Result<Problem, StoreError> {
        let problem = Problem::bad("events after this cursor were forgotten; begin with a snapshot")
            .of_kind("http://jupiter.epicgames.com/replication/useSnapshot")
            .member("BlobNamespace", namespace.as_str());
        Ok(match self.store.snapshots(namespace)?.last() {
            Some(newest) => problem.member("SnapshotId", format!("{:X}", newest.blob)),
            None => problem,
        })
    }
}

fn event_json(namespace: &Namespace, event: &Event) -> serde_json::Value {
    json!({
        "namespace": namespace.as_str(),
        "bucket": event.bucket.as_str(),
        "key": event.key.as_str(),
        "blob": format!("{:X}", event.object),
        "eventId": event_id(event.cursor),
        "timeBucket": bucket_name(event.cursor),
        "timestamp": event.at.iso_8601(),
        "op": u8::from(event.deleted),
    })
}

fn bucket_name(cursor: Cursor) -> String {
    format!("rep-{}", cursor.bucket)
}

/// The sequence number in the form of a GUID.
fn event_id(cursor: Cursor) -> String {
    let sequence = cursor.sequence;
    format!("00000000-0000-0000-{:04x}-{:012x}", sequence >> 48, sequence & 0xFFFF_FFFF_FFFF)
}

fn read_cursor(bucket: &str, event: &str) -> Result<Cursor, Problem> {
    let bad = || {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "no such cursor: lastBucket and lastEvent are those of an event",
        )
    };
    let bucket = bucket.strip_prefix("rep-").and_then(|number| number.parse().ok()).ok_or_else(bad)?;
    let digits: String = event.chars().filter(|each| *each != '-').collect();
    let sequence = u128::from_str_radix(&digits, 16).ok().and_then(|number| u64::try_from(number).ok());
    Ok(Cursor { bucket, sequence: sequence.ok_or_else(bad)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_are_written() {
        for cursor in [
            Cursor::default(),
            Cursor { bucket: 5_900_000, sequence: 7 },
            Cursor { bucket: u32::MAX, sequence: u64::MAX },
        ] {
            let (bucket, event) = (bucket_name(cursor), event_id(cursor));
            assert_eq!(event.len(), 36);
            assert_eq!(read_cursor(&bucket, &event).expect("valid"), cursor);
        }
        for (bucket, event) in [
            ("", ""),
            ("rep-", "0"),
            ("rep-1", ""),
            ("1", "1"),
            ("rep-1", "g"),
            ("rep--1", "1"),
            ("rep-1", "100000000000000000"),
        ] {
            assert!(read_cursor(bucket, event).is_err(), "{bucket} {event}");
        }
    }
}
