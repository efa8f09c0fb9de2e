//! Recordings of client sessions (`.cpr` files): one serialized `replaypb.ReplaySession`, without
//! header or compression. Spec: gateway §4.8.
//!
//! Both directions work on the bytes: a recorded packet is the packet that was received, unchanged.

use std::time::Duration;

use crate::{
    field::{Fields, WireError, WireType, fields},
    packet::{Packet, len_field_len},
    varint::{Prefix, varint_len},
};

/// One packet of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedPacket<'a> {
    /// Time since the packet before; zero for the first.
    pub offset: Duration,
    /// Packet that the client sent.
    pub packet: Packet<'a>,
}

/// Why bytes are not a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CprError {
    /// The recording or one of its packets is not protobuf.
    #[error("recording is damaged: {0}")]
    Damaged(#[from] WireError),
    /// A packet was received before the one in front of it.
    #[error("packet {0} ns before the one in front of it")]
    NegativeOffset(i64),
}

/// Iterates over the packets of a recording, borrowing them from it; ends after the first error.
///
/// ```
/// use std::time::Duration;
/// use throng_wire::{MessagePack, cpr::{CprReader, CprWriter}, write_entry};
///
/// let mut packet = Vec::new();
/// write_entry(&mut packet, &MessagePack { msg_type: 1, ..Default::default() });
/// let mut writer = CprWriter::new(1 << 20);
/// writer.push(Duration::ZERO, &packet)?;
/// writer.push(Duration::from_millis(20), &packet)?;
///
/// let recording = writer.into_bytes();
/// let offsets: Vec<_> = CprReader::new(&recording).map(|packet| packet.map(|p| p.offset)).collect();
/// assert_eq!(offsets, [Ok(Duration::ZERO), Ok(Duration::from_millis(20))]);
/// # Ok::<(), throng_wire::cpr::RecordingFull>(())
/// ```
#[derive(Debug, Clone)]
pub struct CprReader<'a> {
    fields: Fields<'a>,
}

impl<'a> CprReader<'a> {
    /// Reads the content of a `.cpr` file.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> CprReader<'a> {
        CprReader { fields: fields(bytes) }
    }
}

impl<'a> Iterator for CprReader<'a> {
    type Item = Result<RecordedPacket<'a>, CprError>;

    fn next(&mut self) -> Option<Self::Item> {
        let packet = self.fields.by_ref().find_map(|field| match field {
            Ok(field) if (field.number, field.wire_type) == (1, WireType::Len) => {
                Some(parse_packet(field.value))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error.into())),
        });
        if matches!(packet, Some(Err(_))) {
            self.fields = fields(&[]);
        }
        packet
    }
}

/// Reads a `ReplayPacket`.
fn parse_packet(bytes: &[u8]) -> Result<RecordedPacket<'_>, CprError> {
    let mut offset = 0;
    let mut packet: &[u8] = &[];
    for field in fields(bytes) {
        let field = field?;
        match (field.number, field.wire_type) {
            (1, WireType::Varint) => offset = field.scalar as i64,
            // Protobuf would merge several; no writer produces them, so the last one counts here.
            (2, WireType::Len) => packet = field.value,
            _ => {}
        }
    }
    let offset = u64::try_from(offset).map_err(|_| CprError::NegativeOffset(offset))?;
    Ok(RecordedPacket { offset: Duration::from_nanos(offset), packet: Packet::parse(packet)? })
}

/// The recording has reached its limit; it stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("recording of {bytes} bytes has reached its limit of {bytes_max}")]
pub struct RecordingFull {
    /// Bytes recorded.
    pub bytes: usize,
    /// Bytes allowed.
    pub bytes_max: usize,
}

/// Writes a recording into memory.
#[derive(Debug, Clone)]
pub struct CprWriter {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl CprWriter {
    /// An empty recording that takes at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> CprWriter {
        CprWriter { bytes: Vec::new(), bytes_max }
    }

    /// Appends a packet that came `offset` after the one before (zero for the first). Offsets over
    /// 292 years are cut.
    ///
    /// # Errors
    /// [`RecordingFull`] if it does not fit; smaller ones may still.
    pub fn push(&mut self, offset: Duration, packet: &[u8]) -> Result<(), RecordingFull> {
        let offset = i64::try_from(offset.as_nanos()).unwrap_or(i64::MAX) as u64;
        let offset_len = if offset == 0 { 0 } else { 1 + varint_len(offset) };
        // The packet field is written even when it is empty: a message field is either there or
        // not.
        let packet_len = len_field_len(packet.len()).max(2);
        let mut prefix = Prefix::new();
        prefix.byte(0x0A);
        prefix.varint((offset_len + packet_len) as u64);
        if offset != 0 {
            prefix.byte(0x08);
            prefix.varint(offset);
        }
        prefix.byte(0x12);
        prefix.varint(packet.len() as u64);

        let len = self.bytes.len() + prefix.as_slice().len() + packet.len();
        if len > self.bytes_max {
            return Err(RecordingFull { bytes: self.bytes.len(), bytes_max: self.bytes_max });
        }
        self.bytes.extend_from_slice(prefix.as_slice());
        self.bytes.extend_from_slice(packet);
        Ok(())
    }

    /// True if nothing was recorded; such recordings are not kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes recorded so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The content of the `.cpr` file.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Counts of a recording's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Packets.
    pub packets: usize,
    /// Messages in all packets.
    pub messages: usize,
    /// Bytes of all packets.
    pub packet_bytes: usize,
    /// Bytes of the largest packet.
    pub packet_bytes_max: usize,
    /// From the first to the last packet.
    pub duration: Duration,
}

/// Reads a whole recording and counts.
///
/// # Errors
/// The first defect.
pub fn summarize(bytes: &[u8]) -> Result<Summary, CprError> {
    let mut summary = Summary::default();
    for recorded in CprReader::new(bytes) {
        let RecordedPacket { offset, packet } = recorded?;
        let size = packet.bytes().len();
        summary.packets += 1;
        summary.messages += packet.messages().len();
        summary.packet_bytes += size;
        summary.packet_bytes_max = summary.packet_bytes_max.max(size);
        summary.duration = summary.duration.saturating_add(offset);
    }
    Ok(summary)
}

/// Name of the recording of connection `conn_id` at `unix_ns` nanoseconds after 1970, in UTC:
/// `session_<id>_<yy-mm-dd>_<HH-MM-SS>.<nanoseconds>.cpr`.
///
/// The reference gateway writes the hour on the 12-hour clock where the seconds should be, so that
/// its recordings of one minute overwrite each other. A session that is resumed keeps its id, so
/// seconds alone would not tell its recordings apart either.
#[must_use]
pub fn file_name(conn_id: u32, unix_ns: u64) -> String {
    let (unix_seconds, nanoseconds) = (unix_ns / 1_000_000_000, unix_ns % 1_000_000_000);
    let (days, second_of_day) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil_date(days);
    format!(
        "session_{conn_id}_{:02}-{month:02}-{day:02}_{:02}-{:02}-{:02}.{nanoseconds:09}.cpr",
        year % 100,
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    )
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Counts from 0000-03-01 instead, so that the leap day is the last of its year, in eras of 400
/// years (146097 days).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}
