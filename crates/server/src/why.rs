//! Diagnosis of a missing update: the state of the cores, in the order in which an update passes
//! it. The first step that blocks the update is the verdict.

use std::time::Duration;

use serde_json::{Value, json};
use throng_admin::{ApiRequest, Problem};
use throng_gateway::{ChannelId, ConnId, Delivery, QueueView, Reach, Sight};
use throng_stdx::Instant;

use crate::inspect::{closure_row, subscription_row};
use crate::metrics;
use crate::monitor::Watch;

/// The step at which an update waits for the end of its window.
const FAN_OUT: &str = "fan-out";
/// Lateness of a fan-out that is normal: rounds of a busy shard, and the time between two looks.
const LATE: Duration = Duration::from_millis(100);

/// One thing that an update has to pass.
struct Step {
    name: &'static str,
    passes: bool,
    what: String,
}

impl Step {
    fn new(name: &'static str, passes: bool, what: impl Into<String>) -> Step {
        Step { name, passes, what: what.into() }
    }
}

/// Answers of the shards.
struct Found {
    conn: ConnId,
    channel: ChannelId,
    reach: Reach,
    sight: Option<Sight>,
    queue: QueueView,
    now: Instant,
}

impl Watch {
    pub(crate) fn why_report(&self, id: u32, request: &ApiRequest) -> Result<Value, Problem> {
        let channel = request.number("channel")?.and_then(|channel| u32::try_from(channel).ok());
        let channel = ChannelId(
            channel.ok_or_else(|| Problem::new(400, "`channel` must be the id of a channel or an entity"))?,
        );
        let (conn, now, world) = (ConnId(id), self.clock.now(), self.world_of(request)?);
        let here = |step: Step| json!({ "connection": conn.0, "channel": channel.0, "verdict": step.what, "steps": [step_row(&step)] });
        let queue = self.look_everywhere(&world, move |shard| shard.queue_of(now, conn, channel));
        let Some(queue) = queue.into_iter().flatten().next() else {
            let closed = self.look_everywhere(&world, move |shard| {
                shard.closures().filter(|closure| closure.id == conn).last().cloned()
            });
            let closed = closed.into_iter().flatten().max_by_key(|closure| closure.closed);
            let closed = closed
                .ok_or_else(|| Problem::new(404, "no open or recently closed connection has this id"))?;
            let what = format!(
                "connection {} was closed {} ago: {} ({})",
                conn.0,
                time(now.since(closed.closed)),
                closed.reason.name(),
                closed.reason.describe(),
            );
            let mut answer = here(Step::new("connection", false, what));
            answer["closed"] = closure_row(&closed, now);
            return Ok(answer);
        };
        let reach = self.look_everywhere(&world, move |shard| shard.reach_of(now, conn, channel));
        let Some(reach) = reach.into_iter().flatten().next() else {
            return Ok(here(Step::new("channel", false, format!("there is no channel {}", channel.0))));
        };
        let sight =
            self.look(&world, usize::from(world.worker), move |shard| shard.sight_of(conn, channel))?;
        Ok(Found { conn, channel, reach, sight, queue, now }.answer())
    }
}

impl Found {
    fn answer(&self) -> Value {
        let (steps, delivery) = (self.steps(), self.reach.delivery.as_ref());
        let verdict = match steps.iter().find(|step| !step.passes) {
            Some(step) => step.what.clone(),
            None => match steps
                .iter()
                .find(|step| step.name == FAN_OUT && delivery.is_some_and(|delivery| delivery.due.is_some()))
            {
                Some(step) => format!("nothing is in the way: {}", step.what),
                None => "nothing is in the way: it has received every update so far".to_owned(),
            },
        };
        let ms = |at: Instant| {
            if at >= self.now { millis(at.since(self.now)) } else { -millis(self.now.since(at)) }
        };
        json!({
            "connection": self.conn.0, "channel": self.channel.0, "type": metrics::type_name(self.reach.channel_type),
            "verdict": verdict, "steps": steps.iter().map(step_row).collect::<Vec<_>>(),
            "subscription": delivery.map(|delivery| subscription_row(&delivery.subscription, self.now)),
            "pending_updates": delivery.map(|delivery| delivery.pending),
            "own_updates": delivery.map(|delivery| delivery.own),
            "due_in_ms": delivery.and_then(|delivery| delivery.due).map(ms),
            "next_in_ms": delivery.and_then(|delivery| delivery.next).map(ms),
            "sight": self.sight.as_ref().map(sight_row),
            "queue": self.queue_row(),
        })
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![self.connection(), self.data(), self.subscription()];
        if let Some(delivery) = &self.reach.delivery {
            steps.push(access(delivery));
        }
        steps.extend(self.sight.iter().flat_map(|sight| self.place(sight)));
        if let Some(delivery) = &self.reach.delivery {
            steps.push(self.rate(delivery));
            // Without access nothing waits for a window.
            steps.extend((delivery.subscription.access != 0).then(|| self.window(delivery)));
        }
        steps.push(self.lag());
        steps.push(self.outgoing());
        steps
    }

    fn connection(&self) -> Step {
        let what = match self.queue.authenticated {
            true => "it is connected and authenticated",
            false => "it has not authenticated, and receives nothing until then",
        };
        Step::new("connection", self.queue.authenticated, what)
    }

    fn data(&self) -> Step {
        let what = match self.reach.has_data {
            true => "the channel has data",
            false => "the channel has no data yet: neither its creation nor an update set any",
        };
        Step::new("data", self.reach.has_data, what)
    }

    fn subscription(&self) -> Step {
        let Some(delivery) = &self.reach.delivery else {
            let more = match (&self.sight, self.reach.lost) {
                (_, true) => ": it was lost and may still return",
                (Some(_), _) => "; in a world, its game server or its area of interest subscribes it",
                (None, _) => "; it can send SUB_TO_CHANNEL, or the channel's owner can subscribe it",
            };
            let what = format!("it is not subscribed to channel {}{more}", self.channel.0);
            return Step::new("subscription", false, what);
        };
        let since = time(self.now.since(delivery.subscription.since));
        let owner = if self.reach.owner { ", and owns the channel" } else { "" };
        Step::new("subscription", true, format!("subscribed for {since}{owner}"))
    }

    /// Cells and distances matter only to who is not subscribed: whoever is gets the channel
    /// whatever lies between.
    fn place(&self, sight: &Sight) -> Option<Step> {
        let subscribed = self.reach.delivery.is_some();
        let cell = match (sight.cell, sight.cell_channel) {
            (Some(cell), Some(channel)) => format!("cell {cell} (channel {})", channel.0),
            _ => return Some(Step::new("interest", subscribed, "it is in no cell")),
        };
        let interest = match (sight.cells_away, sight.interest_cells) {
            (Some(0), _) => "at the centre of the connection's area of interest".to_owned(),
            (Some(away), _) => {
                let cells = if away == 1 { "cell" } else { "cells" };
                format!("within the connection's area of interest, {away} {cells} from its centre")
            }
            (None, 0) => "but the connection has no area of interest".to_owned(),
            (None, cells) => format!("outside of the connection's area of interest of {cells} cells"),
        };
        let waits = if sight.handover_waits {
            "; its handover to another cell was refused and is being retried"
        } else {
            ""
        };
        let placeless = if sight.placeless {
            "; its data has no position that can be read (`gateway.spatial.positions`), so it never changes its cell"
        } else {
            ""
        };
        Some(Step::new(
            "interest",
            subscribed || sight.cells_away.is_some(),
            format!("{cell}, {interest}{waits}{placeless}"),
        ))
    }

    fn rate(&self, delivery: &Delivery) -> Step {
        let every = match delivery.subscription.interval_ms {
            0 => "at every tick of the channel".to_owned(),
            interval => format!("every {interval} ms"),
        };
        let by = match (delivery.rate_by, &self.sight) {
            ("distance", Some(Sight { distance, band, cells_away, .. })) => {
                let far = match (distance, cells_away) {
                    (Some(distance), _) => format!(", {distance:.1} world units"),
                    (None, Some(1)) => ", 1 cell".to_owned(),
                    (None, Some(cells)) => format!(", {cells} cells"),
                    (None, None) => String::new(),
                };
                let band = match band {
                    Some((index, Some(within))) => format!(": band {index}, up to {within}"),
                    Some((index, None)) => format!(": band {index}, the farthest"),
                    None => String::new(),
                };
                format!("by its distance{far}{band}")
            }
            ("distance", None) => "by its distance".to_owned(),
            ("subscriber", _) => "as its subscription requested".to_owned(),
            _ => "the default of the channel's type".to_owned(),
        };
        let fields = match delivery.subscription.masks.as_slice() {
            [] => String::new(),
            masks => format!("; only the fields {}", masks.join(", ")),
        };
        Step::new("rate", true, format!("{every}, {by}{fields}"))
    }

    fn window(&self, delivery: &Delivery) -> Step {
        let at = |at: Instant| match at > self.now {
            true => format!("in {}", time(at.since(self.now))),
            false => format!("now ({} late)", time(self.now.since(at))),
        };
        let own = match delivery.own {
            0 => String::new(),
            own => format!("; it does not receive {own} of its own"),
        };
        match (delivery.due, delivery.next) {
            // An update that waits for its window is on its way.
            (Some(due), _) => {
                let window = Duration::from_millis(delivery.subscription.interval_ms.into()).max(LATE);
                let waits = match (delivery.full_state, delivery.pending) {
                    (true, _) => "its full state is waiting".to_owned(),
                    (false, 1) => "1 update is waiting".to_owned(),
                    (false, pending) => format!("{pending} updates are waiting, and leave as one"),
                };
                let what = format!("{waits}; the next fan-out is {}{own}", at(due));
                Step::new(FAN_OUT, due + window > self.now, what)
            }
            (None, Some(next)) => {
                let what = format!("no update is waiting{own}; a new one would be sent {}", at(next));
                Step::new(FAN_OUT, true, what)
            }
            (None, None) => Step::new(FAN_OUT, true, "nothing is due until the channel has data"),
        }
    }

    fn lag(&self) -> Step {
        let queue = &self.queue;
        let Some(lag) = queue.lag else {
            let what = match (queue.dropped, queue.dropped_at) {
                (dropped, Some(at)) => format!(
                    "it is up to date; {dropped} updates were replaced by full states since it subscribed, the latest \
                     {} ago",
                    time(self.now.since(at))
                ),
                _ => "it reads fast enough: no update was ever dropped".to_owned(),
            };
            return Step::new("conflation", true, what);
        };
        let next = match lag.asked {
            true => "the full state is being sent".to_owned(),
            false => {
                format!("a full state follows when its queue has shrunk to {}", bytes(queue.low_water_bytes))
            }
        };
        let what = format!(
            "it reads too slowly: in {} the channel dropped {} updates; {next}",
            time(self.now.since(lag.since)),
            lag.dropped
        );
        Step::new("conflation", false, what)
    }

    fn outgoing(&self) -> Step {
        let queue = &self.queue;
        let loss = queue.repair_at.filter(|at| *at > self.now).map_or(String::new(), |at| {
            format!(
                "; its latest update was sent unreliably; a full state follows in {}",
                time(at.since(self.now))
            )
        });
        let Some(stalled) = queue.stalled else {
            return Step::new("queue", true, format!("its output queue is empty{loss}"));
        };
        let what = format!(
            "its output queue holds {}, and the transport accepted nothing for {}; above {} updates are dropped, above {} \
             or after {} without progress it is closed{loss}",
            bytes(queue.queued_bytes),
            time(stalled),
            bytes(queue.soft_bytes),
            bytes(queue.hard_bytes),
            time(queue.stall_timeout)
        );
        Step::new("queue", false, what)
    }

    fn queue_row(&self) -> Value {
        let queue = &self.queue;
        let ago = |at: Instant| millis(self.now.since(at));
        json!({
            "queued_bytes": queue.queued_bytes, "soft_bytes": queue.soft_bytes, "hard_bytes": queue.hard_bytes,
            "low_water_bytes": queue.low_water_bytes, "stalled_ms": queue.stalled.map(millis),
            "stall_timeout_ms": millis(queue.stall_timeout), "lagging_channels": queue.lagging,
            "dropped_updates": queue.dropped, "dropped_ago_ms": queue.dropped_at.map(ago),
            "lag": queue.lag.map(|lag| json!({ "since_ms": ago(lag.since), "dropped_updates": lag.dropped,
                                               "full_state_asked": lag.asked })),
        })
    }
}

fn access(delivery: &Delivery) -> Step {
    let (passes, what) = match delivery.subscription.access {
        0 => (false, "its subscription has no access to the data (NO_ACCESS)"),
        2 => (true, "it may read and write"),
        _ => (true, "it may read"),
    };
    Step::new("access", passes, what)
}

fn step_row(step: &Step) -> Value {
    json!({ "step": step.name, "passes": step.passes, "what": step.what })
}

fn sight_row(sight: &Sight) -> Value {
    json!({
        "cell": sight.cell, "cell_channel": sight.cell_channel.map(|channel| channel.0),
        "interest_cells": sight.interest_cells, "cells_away": sight.cells_away,
        "own_entity": sight.own_entity.map(|entity| entity.0), "distance": sight.distance,
        "band": sight.band.map(|(band, _)| band), "band_within": sight.band.and_then(|(_, within)| within),
        "handover_waits": sight.handover_waits, "without_position": sight.placeless,
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A time as people say it.
fn time(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 100.0 => format!("{seconds:.1} s"),
        seconds if seconds < 6_000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3_600.0),
    }
}

fn bytes(bytes: usize) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_said_with_their_units() {
        let said = [5, 999, 1_500, 240_000, 7_200_000].map(|ms| time(Duration::from_millis(ms)));
        assert_eq!(said, ["5 ms", "999 ms", "1.5 s", "4 min", "2.0 h"]);
        assert_eq!([7, 65_536, 4 << 20].map(bytes), ["7 B", "64.0 KiB", "4.0 MiB"]);
    }
}
