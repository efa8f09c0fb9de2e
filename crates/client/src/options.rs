//! Options of requests.

use std::time::Duration;

use throng_wire::channeldpb as pb;

use crate::event::{ChannelType, Payload};

/// Access of a subscriber to the channel's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// No access to the data.
    None,
    /// Receive the data.
    Read,
    /// Receive and update the data.
    Write,
}

/// Options of a subscription; absent options have the channel type's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscribeOptions {
    /// Access to the data; read by default.
    pub access: Option<Access>,
    /// Dot-separated field names to receive; empty = everything. Subscribing again adds to them.
    pub field_masks: Vec<String>,
    /// Shortest time between two updates, in whole milliseconds (up to 2^32 − 1); zero = every
    /// tick.
    pub fan_out_interval: Option<Duration>,
    /// Extra delay of the first update in milliseconds; may be negative.
    pub fan_out_delay_ms: Option<i32>,
    /// Omits the subscriber's own updates; true by default.
    pub skip_self: Option<bool>,
    /// Omits the initial full state; false by default.
    pub skip_first: Option<bool>,
}

impl SubscribeOptions {
    /// Options to receive the channel's data.
    #[must_use]
    pub fn read() -> Self {
        SubscribeOptions { access: Some(Access::Read), ..SubscribeOptions::default() }
    }

    /// Options to receive and update the channel's data.
    #[must_use]
    pub fn write() -> Self {
        SubscribeOptions { access: Some(Access::Write), ..SubscribeOptions::default() }
    }

    /// Sets the interval between updates.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        SubscribeOptions { fan_out_interval: Some(interval), ..self }
    }

    /// Adds a field to receive.
    #[must_use]
    pub fn field(mut self, path: impl Into<String>) -> Self {
        self.field_masks.push(path.into());
        self
    }

    /// Returns `None` if no option is set, because stock peers omit the message then.
    pub(crate) fn to_proto(&self) -> Option<pb::ChannelSubscriptionOptions> {
        if *self == SubscribeOptions::default() {
            return None;
        }
        Some(pb::ChannelSubscriptionOptions {
            data_access: self.access.map(|access| match access {
                Access::None => pb::ChannelDataAccess::NoAccess as i32,
                Access::Read => pb::ChannelDataAccess::ReadAccess as i32,
                Access::Write => pb::ChannelDataAccess::WriteAccess as i32,
            }),
            data_field_masks: self.field_masks.clone(),
            fan_out_interval_ms: self
                .fan_out_interval
                .map(|interval| u32::try_from(interval.as_millis()).unwrap_or(u32::MAX)),
            fan_out_delay_ms: self.fan_out_delay_ms,
            skip_self_update_fan_out: self.skip_self,
            skip_first_fan_out: self.skip_first,
        })
    }

    pub(crate) fn from_proto(options: pb::ChannelSubscriptionOptions) -> Self {
        SubscribeOptions {
            access: options.data_access.map(|access| match access {
                2 => Access::Write,
                1 => Access::Read,
                _ => Access::None,
            }),
            field_masks: options.data_field_masks,
            fan_out_interval: options.fan_out_interval_ms.map(|ms| Duration::from_millis(ms.into())),
            fan_out_delay_ms: options.fan_out_delay_ms,
            skip_self: options.skip_self_update_fan_out,
            skip_first: options.skip_first_fan_out,
        }
    }
}

/// Rules for merging updates into the channel's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeOptions {
    /// A list in an update replaces the list instead of being appended.
    pub replace_list: bool,
    /// Longest list kept; 0 = unlimited.
    pub list_size_limit: u32,
    /// Lists that are too long lose their first elements instead of their last.
    pub truncate_top: bool,
    /// Entries of maps whose value has `removed` = true are deleted.
    pub check_removable: bool,
}

/// A channel to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateChannel {
    /// Its type; GLOBAL claims channel 0 for a server.
    pub channel_type: ChannelType,
    /// String that list requests filter by.
    pub metadata: String,
    /// Options of the creator's own subscription.
    pub options: SubscribeOptions,
    /// Its initial data.
    pub data: Option<Payload>,
    /// Rules for merging updates.
    pub merge: Option<MergeOptions>,
}

impl CreateChannel {
    /// Creates a description of a channel without metadata and data.
    #[must_use]
    pub fn new(channel_type: ChannelType) -> Self {
        CreateChannel {
            channel_type,
            metadata: String::new(),
            options: SubscribeOptions::default(),
            data: None,
            merge: None,
        }
    }

    /// Sets the metadata.
    #[must_use]
    pub fn metadata(self, metadata: impl Into<String>) -> Self {
        CreateChannel { metadata: metadata.into(), ..self }
    }

    /// Sets the initial data and its type.
    #[must_use]
    pub fn data(self, type_name: impl Into<String>, value: impl Into<bytes::Bytes>) -> Self {
        CreateChannel { data: Some(Payload::new(type_name, value)), ..self }
    }

    /// Sets the merge options.
    #[must_use]
    pub fn merge(self, merge: MergeOptions) -> Self {
        CreateChannel { merge: Some(merge), ..self }
    }

    /// Sets the options of the creator's subscription.
    #[must_use]
    pub fn options(self, options: SubscribeOptions) -> Self {
        CreateChannel { options, ..self }
    }

    pub(crate) fn to_proto(&self) -> pb::CreateChannelMessage {
        pb::CreateChannelMessage {
            channel_type: self.channel_type.to_wire(),
            metadata: self.metadata.clone(),
            sub_options: self.options.to_proto(),
            data: self.data.as_ref().map(Payload::to_any),
            merge_options: self.merge.map(|merge| pb::ChannelDataMergeOptions {
                should_replace_list: merge.replace_list,
                list_size_limit: merge.list_size_limit,
                truncate_top: merge.truncate_top,
                should_check_removable_map_field: merge.check_removable,
            }),
        }
    }
}
