//! The lease of the area, in a bucket of the bus.
//!
//! The rules are those of [`throng_cluster`]; this module provides the bucket and the clock.

use std::time::Duration;

use async_nats::jetstream::context::{GetStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::kv;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, StorageType, Stream};
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;
use throng_cluster::{LOSS, Record, Request, State, Written};

use super::NatsError;
use crate::gate::boot_time;

/// The bucket of all areas.
const BUCKET: &str = "throng-matcher";
/// Its stream.
const STREAM: &str = "KV_throng-matcher";
/// A request to the directory has this time.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two looks at a record that may have lost its holder.
const LOOK: Duration = Duration::from_millis(500);

/// Answer of the directory.
pub(crate) enum Answer {
    Read(Result<Option<(u64, Record)>, ()>),
    Write(Written),
}

/// The record of one area in the directory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Directory {
    context: Context,
    stream: Stream<()>,
    subject: String,
}

impl Directory {
    /// Opens the directory. The first write makes the bucket, if there is none.
    ///
    /// # Errors
    /// A server without JetStream.
    pub(crate) async fn open(client: &async_nats::Client, area: &str) -> Result<Directory, NatsError> {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(TIMEOUT);
        let failed = |error: String| NatsError::Bucket(BUCKET.to_owned(), error);
        match context.get_stream(STREAM).await {
            Err(error) if !is_absent(&error.kind()) => return Err(failed(error.to_string())),
            _ => {}
        }
        let stream = context.get_stream_no_info(STREAM).await.map_err(|error| failed(error.to_string()))?;
        Ok(Directory { context, stream, subject: format!("$KV.{BUCKET}.matcher.{area}") })
    }

    /// Does what a lease asks for.
    pub(crate) async fn execute(self, request: Request) -> Answer {
        match request {
            Request::Read => {
                let read = tokio::time::timeout(TIMEOUT, self.read()).await;
                Answer::Read(read.unwrap_or(Err(())))
            }
            Request::Write { expected, record } => {
                let written = tokio::time::timeout(TIMEOUT, self.write(expected, &record)).await;
                Answer::Write(written.unwrap_or(Written::Unknown))
            }
        }
    }

    /// Reads through the leader, not a replica that may lag.
    async fn read(&self) -> Result<Option<(u64, Record)>, ()> {
        match self.stream.get_last_raw_message_by_subject(&self.subject).await {
            Ok(message) => match Record::parse(&message.payload) {
                Ok(record) => Ok(Some((message.sequence, record))),
                Err(why) => {
                    tracing::warn!(
                        subject = self.subject,
                        why,
                        "the record of the area cannot be read; it is left alone"
                    );
                    Err(())
                }
            },
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                // The bus has lost the bucket, or never had one.
                LastRawMessageErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                _ => Err(()),
            },
        }
    }

    async fn write(&self, expected: u64, record: &Record) -> Written {
        if expected == 0 && self.make_bucket().await.is_err() {
            return Written::Unknown;
        }
        let message = PublishMessage::build()
            .payload(Bytes::from(record.to_bytes()))
            .expected_last_subject_sequence(expected);
        let outcome = |error: jetstream::context::PublishError| match error.kind() {
            // Without a stream nothing is written. A read tells whether it is lost.
            PublishErrorKind::WrongLastSequence | PublishErrorKind::StreamNotFound => Written::Refused,
            _ => Written::Unknown,
        };
        match self.context.send_publish(self.subject.clone(), message).await {
            Err(error) => outcome(error),
            Ok(acknowledged) => acknowledged.await.map_or_else(outcome, |at| Written::At(at.sequence)),
        }
    }

    async fn make_bucket(&self) -> Result<(), ()> {
        let config = kv::Config {
            bucket: BUCKET.to_owned(),
            history: 1,
            storage: StorageType::File,
            ..kv::Config::default()
        };
        self.context.create_or_update_key_value(config).await.map(drop).map_err(drop)
    }

    /// Gives the last holder up, if it is lost: the next matcher serves, with an empty state if it
    /// is another. If no matcher has marked the record lost, this looks at it for as long as one
    /// would.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) async fn give_up(&self, nonce: u64) -> Result<Record, String> {
        let unreachable = || "the bus did not answer; try again".to_owned();
        let first = boot_time();
        let mut seen = None;
        let (revision, old) = loop {
            let Some((revision, record)) = self.read().await.map_err(|()| unreachable())? else {
                return Err("no matcher has ever served this area: there is nothing to take over".to_owned());
            };
            let lost = record.state != State::Serving || boot_time().since(first) >= LOSS;
            if record.state == State::Serving && seen.is_some_and(|seen| seen != revision) {
                return Err(format!(
                    "{} serves it; stop it first",
                    record.addresses.first().map_or(record.incarnation.as_str(), String::as_str)
                ));
            }
            if lost {
                break (revision, record);
            }
            seen = Some(revision);
            tokio::time::sleep(LOOK).await;
        };
        let given = Record { state: State::Given, nonce, ..old };
        match self.write(revision, &given).await {
            Written::At(_) => Ok(given),
            Written::Refused => Err("the record has changed meanwhile; look again".to_owned()),
            Written::Unknown => Err(unreachable()),
        }
    }
}

/// Returns whether the bus answers that there is no such stream.
fn is_absent(error: &GetStreamErrorKind) -> bool {
    matches!(error, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}
