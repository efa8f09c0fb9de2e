//! Answers to the admin API beyond plain lists: one connection, one channel, the world, a capture.
//!
//! Requests travel to a shard as mail, run on the shard between two rounds and answer with plain
//! values; without requests a shard pays nothing.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::{Value, json};
use throng_admin::{ApiRequest, Problem};
use throng_gateway::data::Schemas;
use throng_gateway::{
    ChannelId, ClosureView, ConnId, EntityView, InterestView, SubscriptionView, WorldDetail,
};
use throng_stdx::Instant;
use throng_wire::channeldpb::MessageType;

use crate::capture::{Captured, Record};
use crate::mailbox::{Look, Post};
use crate::metrics;
use crate::monitor::{REPORT_TIMEOUT, Watch};
use crate::paging::paged;
use crate::report::ConnReport;
use crate::worlds::OpenWorld;

/// Subscriptions that one connection's page shows.
const SUBSCRIPTIONS_MAX: usize = 1_000;
/// Encoded data up to this size is shown.
const DATA_BYTES_MAX: usize = 1 << 20;
const ENTITIES_DEFAULT: u64 = 10_000;
const ENTITIES_MAX: u64 = 20_000;
const CAPTURE_SECONDS_DEFAULT: u64 = 60;
const CAPTURE_SECONDS_MAX: u64 = 600;
/// Bytes of a body that nothing is known about, as hexadecimal digits.
const HEX_BYTES_MAX: usize = 64;

impl Watch {
    /// Runs `look` on a world's shard, which is on the worker `shard`, and waits for its answer.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        world: &OpenWorld,
        shard: usize,
        look: impl FnOnce(&throng_gateway::Shard) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = sync_channel(1);
        let look: Look = Box::new(move |shard| {
            // The asker may have given up waiting.
            let _ = reply.try_send(look(shard));
        });
        self.mailboxes[shard].post(Post::Look { world: world.world, look });
        answer.recv_timeout(REPORT_TIMEOUT).map_err(|_| {
            Problem::new(
                503,
                format!("shard {shard} did not answer within {} ms", REPORT_TIMEOUT.as_millis()),
            )
        })
    }

    /// The answer of every shard of a world; those that do not answer in time are left out.
    pub(crate) fn look_everywhere<T: Send + 'static>(
        &self,
        world: &OpenWorld,
        look: impl Fn(&throng_gateway::Shard) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let workers = world.workers.iter().map(|worker| usize::from(*worker));
        workers.filter_map(|worker| self.look(world, worker, look.clone()).ok()).collect()
    }

    pub(crate) fn closures_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let world = self.world_of(request)?;
        let mut all: Vec<ClosureView> =
            self.look_everywhere(&world, |shard| shard.closures().cloned().collect::<Vec<_>>()).concat();
        all.sort_unstable_by_key(|closure| std::cmp::Reverse((closure.closed, closure.id.0)));
        let now = self.clock.now();
        let rows = all.iter().map(|closure| closure_row(closure, now));
        let shown = |row: &Value| format!("{} {} {}", row["id"], row["address"], row["reason"]);
        Ok(paged("closures", rows, request, shown))
    }

    pub(crate) fn connection_report(&self, id: u32, request: &ApiRequest) -> Result<Value, Problem> {
        let (conn, world) = (ConnId(id), self.world_of(request)?);
        let now = self.clock.now();
        let closed = self.look_everywhere(&world, move |shard| {
            shard.closures().filter(|closure| closure.id == conn).last().cloned()
        });
        let closed = closed.into_iter().flatten().max_by_key(|closure| closure.closed);
        let live = self.world_reports(&world).flat_map(|world| world.connections);
        let Some(live) = live.into_iter().find(|live| live.view.id == conn) else {
            let closed = closed
                .ok_or_else(|| Problem::new(404, "no open or recently closed connection has this id"))?;
            return Ok(json!({ "live": false, "closed": closure_row(&closed, now) }));
        };
        let mut subscriptions: Vec<SubscriptionView> = self
            .look_everywhere(&world, move |shard| shard.subscriptions_of(conn, SUBSCRIPTIONS_MAX))
            .concat();
        subscriptions.sort_unstable_by_key(|subscription| subscription.channel.0);
        let total = subscriptions.len();
        subscriptions.truncate(SUBSCRIPTIONS_MAX);
        let interest =
            self.look(&world, usize::from(world.worker), move |shard| shard.interest_of(conn)).ok().flatten();
        Ok(json!({
            "live": true,
            "connection": connection_row(&live),
            "silent_ms": millis(now.since(live.view.received)),
            "subscription_count": total,
            "subscriptions": subscriptions.iter().map(|each| subscription_row(each, now)).collect::<Vec<_>>(),
            "interest": interest.as_ref().map(interest_row),
        }))
    }

    pub(crate) fn channel_report(&self, id: u32, request: &ApiRequest) -> Result<Value, Problem> {
        let (channel, world) = (ChannelId(id), self.world_of(request)?);
        let now = self.clock.now();
        let live = self.world_reports(&world).flat_map(|world| world.channels);
        let Some(live) = live.into_iter().find(|live| live.view.id == channel) else {
            return Err(Problem::new(404, "no such channel"));
        };
        let (offset, limit) = (request.page.offset, request.page.limit);
        let detail = self
            .look(&world, usize::from(live.shard), move |shard| {
                shard.channel_detail(channel, offset, limit, 0)
            })?
            .ok_or_else(|| Problem::new(404, "no such channel"))?;
        let cohorts = detail.cohorts.iter().map(|cohort| {
            json!({
                "interval_ms": cohort.interval_ns as f64 / 1e6, "phase_ms": cohort.phase_ns as f64 / 1e6,
                "masked": cohort.masked, "members": cohort.members, "catching_up": cohort.joiners,
                "pending_updates": cohort.pending,
            })
        });
        Ok(json!({
            "channel": self.channel_row(&live),
            "total": live.view.subscriptions, "offset": offset, "limit": limit,
            "subscriptions": detail.subscriptions.iter().map(|each| subscription_row(each, now)).collect::<Vec<_>>(),
            "cohorts": cohorts.collect::<Vec<_>>(),
        }))
    }

    pub(crate) fn channel_data_report(&self, id: u32, request: &ApiRequest) -> Result<Value, Problem> {
        let (channel, world) = (ChannelId(id), self.world_of(request)?);
        let details =
            self.look_everywhere(&world, move |shard| shard.channel_detail(channel, 0, 0, DATA_BYTES_MAX));
        let detail =
            details.into_iter().flatten().next().ok_or_else(|| Problem::new(404, "no such channel"))?;
        let Some((name, bytes)) = detail.data else {
            return Err(Problem::new(404, "the channel has no data, or more than 1 MiB"));
        };
        Ok(json!({ "type": name, "bytes": bytes.len(), "fields": decode(&self.schemas, &name, &bytes) }))
    }

    pub(crate) fn world_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let entities = request.number("entities")?.unwrap_or(ENTITIES_DEFAULT).min(ENTITIES_MAX) as usize;
        let conn = request.number("connection")?.and_then(|conn| u32::try_from(conn).ok()).map(ConnId);
        let of = self.world_of(request)?;
        let (world, interest, stats) = self.look(&of, usize::from(of.worker), move |shard| {
            let stats = shard.stats();
            let counts = [
                stats.handovers,
                stats.handovers_across_servers,
                stats.lod_changes.iter().sum(),
                stats.cells_moved,
            ];
            (shard.world_detail(entities), conn.and_then(|conn| shard.interest_of(conn)), counts)
        })?;
        let world = world.ok_or_else(|| Problem::new(404, "this gateway has no spatial channels"))?;
        Ok(world_row(&world, interest.as_ref(), stats))
    }

    pub(crate) fn capture_begin(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let field = |name: &str| request.body.get(name).and_then(Value::as_u64);
        let conn = field("connection").and_then(|conn| u32::try_from(conn).ok());
        let conn =
            ConnId(conn.ok_or_else(|| Problem::new(400, "`connection` must be the id of a connection"))?);
        let seconds = field("seconds").unwrap_or(CAPTURE_SECONDS_DEFAULT);
        if seconds == 0 || seconds > CAPTURE_SECONDS_MAX {
            return Err(Problem::new(400, "`seconds` must be an integer from 1 to 600"));
        }
        let world = self.world_of(request)?;
        let here = self.look_everywhere(&world, move |shard| shard.handle_of(conn).is_some());
        if !here.contains(&true) {
            return Err(Problem::new(404, "no such connection"));
        }
        let record = Arc::new(Record::new(conn, self.clock.now(), Duration::from_secs(seconds)));
        self.replace_capture(Some(Arc::clone(&record)));
        for mailbox in self.mailboxes.iter() {
            mailbox.post(Post::Capture { world: world.world, record: Arc::clone(&record) });
        }
        Ok(json!({ "connection": conn.0, "seconds": seconds }))
    }

    pub(crate) fn capture_end(&self) -> Value {
        self.replace_capture(None);
        json!({ "capturing": false })
    }

    pub(crate) fn capture_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let after = request.number("after")?.unwrap_or(0);
        let Some(record) = self.capture() else {
            return Ok(json!({ "capturing": false, "total": 0, "messages": [] }));
        };
        let now = self.clock.now();
        if now >= record.until {
            record.end("the capture time is over");
        }
        let (messages, total) = record.messages(after);
        let rows: Vec<Value> = messages.iter().map(|message| captured_row(&self.schemas, message)).collect();
        Ok(json!({
            "capturing": record.ended().is_none(), "ended": record.ended(), "connection": record.conn.0,
            "left_ms": millis(record.until.since(now)), "total": total, "messages": rows,
        }))
    }
}

pub(crate) fn connection_row(conn: &ConnReport) -> Value {
    let view = &conn.view;
    json!({
        "id": view.id.0, "kind": metrics::kind_name(view.kind), "shard": conn.shard,
        "address": view.addr, "state": view.state, "authenticated": view.authenticated,
        "open_ms": conn.open.as_millis() as u64, "packets_in": view.packets_in, "bytes_in": view.bytes_in,
        "bytes_out": conn.bytes_out, "queued_bytes": view.queued_bytes, "lagging_channels": view.lagging,
        "refused_messages": view.refusals, "buffer_bytes": view.heap_bytes,
    })
}

pub(crate) fn closure_row(closure: &ClosureView, now: Instant) -> Value {
    json!({
        "id": closure.id.0, "kind": metrics::kind_name(closure.kind), "address": closure.addr,
        "reason": closure.reason.name(), "about": closure.reason.describe(),
        "ago_ms": millis(now.since(closure.closed)), "open_ms": millis(closure.closed.since(closure.accepted)),
        "authenticated": closure.authenticated, "packets_in": closure.packets_in, "bytes_in": closure.bytes_in,
        "queued_bytes": closure.queued_bytes,
    })
}

pub(crate) fn subscription_row(subscription: &SubscriptionView, now: Instant) -> Value {
    let access = match subscription.access {
        0 => "none",
        2 => "write",
        _ => "read",
    };
    json!({
        "channel": subscription.channel.0, "type": metrics::type_name(subscription.channel_type),
        "connection": subscription.conn.0, "kind": metrics::kind_name(subscription.kind),
        "owner": subscription.owner, "access": access, "interval_ms": subscription.interval_ms,
        "masks": subscription.masks, "skip_self": subscription.skip_self, "place": subscription.place,
        "since_ms": millis(now.since(subscription.since)),
    })
}

fn interest_row(interest: &InterestView) -> Value {
    json!({ "cells": interest.cells, "entity": interest.entity.as_ref().map(entity_row) })
}

fn entity_row(entity: &EntityView) -> Value {
    json!({ "channel": entity.channel.0, "x": entity.x, "z": entity.z, "cell": entity.cell,
            "client": entity.client.map(|client| client.0), "version": entity.version })
}

/// Entities come as columns: ten thousand objects with names would be four times as long.
fn world_row(world: &WorldDetail, interest: Option<&InterestView>, stats: [u64; 4]) -> Value {
    let grid = world.grid.as_ref().map(|grid| {
        json!({ "x": grid.offset_x, "z": grid.offset_z, "cell_width": grid.cell_width,
                "cell_height": grid.cell_height, "columns": grid.columns, "rows": grid.rows,
                "server_columns": grid.server_columns, "server_rows": grid.server_rows })
    });
    let cells = world.cells.iter().map(|cell| {
        json!([cell.server, cell.owner.map(|owner| owner.0), cell.entities, cell.subscribers, cell.backlog])
    });
    // A tenth of a unit is less than a pixel at any zoom.
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    let entities = &world.entities;
    let bands =
        world.bands.iter().map(|(within, interval)| json!([within.is_finite().then_some(*within), interval]));
    json!({
        "grid": grid,
        "first_cell_channel": world.cells.first().map(|cell| cell.channel.0),
        "cells": cells.collect::<Vec<_>>(),
        "bands": bands.collect::<Vec<_>>(),
        "entity_count": world.entity_count,
        "entities_without_position": world.placeless,
        "types_without_position": world.placeless_types,
        "entities": {
            "channel": entities.iter().map(|entity| entity.channel.0).collect::<Vec<_>>(),
            "x": entities.iter().map(|entity| tenth(entity.x)).collect::<Vec<_>>(),
            "z": entities.iter().map(|entity| tenth(entity.z)).collect::<Vec<_>>(),
            "cell": entities.iter().map(|entity| entity.cell).collect::<Vec<_>>(),
            "client": entities.iter().map(|entity| entity.client.map(|client| client.0)).collect::<Vec<_>>(),
            "version": entities.iter().map(|entity| entity.version).collect::<Vec<_>>(),
        },
        "interest": interest.map(interest_row),
        "handovers": stats[0], "handovers_across_servers": stats[1], "lod_changes": stats[2], "cells_moved": stats[3],
    })
}

fn captured_row(schemas: &Schemas, message: &Captured) -> Value {
    let known = i32::try_from(message.msg_type).ok().and_then(|number| MessageType::try_from(number).ok());
    let name = match known {
        Some(known) if message.msg_type != 0 => known.as_str_name().to_owned(),
        _ => format!("user space {}", message.msg_type),
    };
    let whole = message.body.len() == message.bytes;
    let fields = known.filter(|_| whole).and_then(|known| decode_message(schemas, known, message));
    let hex: String = message.body.iter().take(HEX_BYTES_MAX).map(|byte| format!("{byte:02x}")).collect();
    json!({
        "number": message.number, "at_ms": message.at.as_micros() as f64 / 1e3, "in": message.inward,
        "channel": message.channel, "broadcast": message.broadcast, "stub": message.stub,
        "type": message.msg_type, "name": name, "bytes": message.bytes,
        "fields": fields, "hex": hex,
    })
}

/// The body of a message of the protocol as fields.
fn decode_message(schemas: &Schemas, known: MessageType, message: &Captured) -> Option<Value> {
    use MessageType as T;
    let name = match known {
        T::Auth | T::Invalid | T::UserSpaceStart => return None,
        T::ChannelDataUpdate => {
            let update = throng_wire::DataUpdate::parse(&message.body).ok()?;
            return Some(
                json!({ "type": update.type_name, "data": decode(schemas, update.type_name, update.value) }),
            );
        }
        T::CreateChannel if !message.inward => "CreateChannelResultMessage".to_owned(),
        T::CreateSpatialChannel => "CreateSpatialChannelsResultMessage".to_owned(),
        T::SubToChannel if !message.inward => "SubscribedToChannelResultMessage".to_owned(),
        T::UnsubFromChannel if !message.inward => "UnsubscribedFromChannelResultMessage".to_owned(),
        T::SubToChannel => "SubscribedToChannelMessage".to_owned(),
        T::UnsubFromChannel => "UnsubscribedFromChannelMessage".to_owned(),
        T::ListChannel if !message.inward => "ListChannelResultMessage".to_owned(),
        other => camel(other.as_str_name()) + "Message",
    };
    let descriptor = schemas.pool().get_message_by_name(&format!("channeldpb.{name}"))?;
    fields(descriptor, &message.body)
}

/// `LIST_CHANNEL` as `ListChannel`.
fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_ascii_lowercase();
    name.split('_').filter(|part| !part.is_empty()).map(word).collect()
}

fn decode(schemas: &Schemas, name: &str, bytes: &[u8]) -> Option<Value> {
    fields(schemas.pool().get_message_by_name(name)?, bytes)
}

fn fields(descriptor: MessageDescriptor, bytes: &[u8]) -> Option<Value> {
    let message = DynamicMessage::decode(descriptor, bytes).ok()?;
    serde_json::to_value(&message).ok()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use throng_admin::{Endpoint, Page};

    use super::*;

    #[test]
    fn pages_count_what_is_found_and_show_a_part() {
        let ask = |search: &str, offset, limit| ApiRequest {
            page: Page { offset, limit },
            search: search.to_owned(),
            ..ApiRequest::new(Endpoint::Closures)
        };
        let rows = || ["Ann", "Bob", "anna"].into_iter().map(Value::from);
        let page = |request: &ApiRequest| paged("names", rows(), request, |row| row.to_string());
        assert_eq!(page(&ask("", 1, 1)), json!({ "total": 3, "offset": 1, "limit": 1, "names": ["Bob"] }));
        assert_eq!(page(&ask("ann", 0, 9))["names"], json!(["Ann", "anna"]));
        assert_eq!(page(&ask("ann", 5, 9)), json!({ "total": 2, "offset": 5, "limit": 9, "names": [] }));
        assert_eq!(page(&ask("", 0, 0))["total"], 3);
    }

    #[test]
    fn names_of_messages_follow_from_the_types() {
        assert_eq!(camel("LIST_CHANNEL"), "ListChannel");
        let schemas = throng_gateway::data::SchemasBuilder::new().build().unwrap();
        // channel type 1, metadata "<b>": what a peer wrote stays what it wrote.
        let captured = Captured {
            number: 1,
            at: Duration::ZERO,
            inward: true,
            channel: 0,
            broadcast: 0,
            stub: 1,
            msg_type: MessageType::CreateChannel as u32,
            bytes: 7,
            body: vec![0x08, 2, 0x12, 3, b'<', b'b', b'>'],
        };
        let row = captured_row(&schemas, &captured);
        assert_eq!(row["name"], "CREATE_CHANNEL");
        assert_eq!(row["fields"]["metadata"], "<b>");
        let cut = Captured { bytes: 8, ..captured.clone() };
        assert_eq!(captured_row(&schemas, &cut)["fields"], Value::Null, "a body that was cut is not decoded");
        let user = Captured { msg_type: 250, ..captured };
        assert_eq!(captured_row(&schemas, &user)["name"], "user space 250");
    }
}
