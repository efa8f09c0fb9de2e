//! Dynamic spatial load balancing: cells move between servers, one at a time, until no server has
//! much more than its share. Off unless configured.
//!
//! Load is what a server has to do: updates of entities in its cells per second, as a moving
//! average. A server gives a cell away when it has clearly more than the average; the cell lies on
//! its border, goes to the neighbour with the least load, and goes only if that neighbour has then
//! clearly less than the giver had. Each move therefore lowers the sum of squared loads, so with
//! steady loads the moves come to an end; with loads that change, a cell that has moved stays where
//! it is for a while, and stays away from where it came from for longer. Where only cells without
//! load lie on the border, one of them opens the way to the load behind it. A world where nothing
//! moves has no timer.

use std::sync::Arc;

use core::time::Duration;
use throng_spatial::{Cell, Grid, ServerIndex};
use throng_stdx::Instant;
use throng_wire::channeldpb::{ChannelDataAccess, ChannelSubscriptionOptions, MessageType};

use super::config::Balance;
use crate::failpoint::failpoint;
use crate::ids::{ChannelId, ConnId, ConnKind};
use crate::mail::Head;
use crate::shard::Shard;
use crate::switchboard::Timer;

/// What a move must leave between the new load of the taker and the old one of the giver, as a
/// share of the latter.
const MARGIN: f64 = 0.1;
/// Cooldowns before a cell goes back to the server that it came from.
const RETURN_COOLDOWNS: u32 = 4;
/// Share of the newest measurement in a cell's load.
const NEWEST: f64 = 0.5;

/// Measurements of the balancer.
#[derive(Debug, Default)]
pub(super) struct Scales {
    /// By cell.
    cells: Vec<CellLoad>,
    /// The timer is set.
    armed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct CellLoad {
    /// Updates since the last look.
    updates: u32,
    /// Updates per second, averaged.
    load: f64,
    /// When it moved last, and from which server.
    moved: Option<(Instant, ServerIndex)>,
}

impl Shard {
    /// Updates of entities per second by server index, as the load balancer sees them. Shard 0;
    /// empty without it.
    #[must_use]
    pub fn server_loads(&self) -> Vec<f64> {
        let Some(world) = &self.world else { return Vec::new() };
        let mut loads = vec![0.0; world.slots.len()];
        for (state, scale) in world.cells.iter().zip(&world.scales.cells) {
            loads[state.server.0 as usize] += scale.load;
        }
        loads
    }

    /// The server index that each cell's region has, by cell. Shard 0; empty without a grid.
    #[must_use]
    pub fn regions_by_cell(&self) -> Vec<u32> {
        self.world.iter().flat_map(|world| &world.cells).map(|state| state.server.0).collect()
    }

    /// An entity of a cell was updated.
    pub(super) fn weigh(&mut self, cell: Option<Cell>) {
        let Some(balance) = &self.board.config.spatial.balance else { return };
        let (Some(world), Some(cell)) = (&mut self.world, cell) else { return };
        let cells = world.cells.len();
        let scales = &mut world.scales;
        scales.cells.resize(cells, CellLoad::default());
        scales.cells[cell.0 as usize].updates += 1;
        if !scales.armed {
            scales.armed = true;
            let at = self.board.now + Duration::from_millis(balance.interval_ms.max(1).into());
            self.board.timers.insert(at, Timer::Balance);
        }
    }

    /// The balancer's timer: takes the measurements in and moves at most one cell.
    pub(crate) fn balance_due(&mut self) {
        let config = Arc::clone(&self.board.config);
        let (Some(balance), Some(grid)) = (&config.spatial.balance, &config.spatial.grid) else { return };
        let Some(world) = &mut self.world else { return };
        world.scales.armed = false;
        let seconds = f64::from(balance.interval_ms.max(1)) / 1000.0;
        let mut quiet = true;
        for scale in &mut world.scales.cells {
            let newest = f64::from(std::mem::take(&mut scale.updates)) / seconds;
            scale.load += (newest - scale.load) * NEWEST;
            // What has died away is nothing, so that the timer ends.
            if scale.load < 0.01 {
                scale.load = 0.0;
            }
            quiet &= scale.load == 0.0;
        }
        if quiet {
            return;
        }
        world.scales.armed = true;
        let at = self.board.now + Duration::from_millis(balance.interval_ms.max(1).into());
        self.board.timers.insert(at, Timer::Balance);
        if !config.spatial.balance_frozen
            && let Some((cell, to)) = self.best_move(balance, grid)
        {
            self.move_cell(cell, to);
        }
    }

    /// The cell that should move and where to, if any should.
    fn best_move(&self, balance: &Balance, grid: &Grid) -> Option<(Cell, ServerIndex)> {
        let world = self.world.as_ref()?;
        let loads = self.server_loads();
        let live = |server: usize| {
            world.slots[server].owner.is_some_and(|owner| self.board.peers.contains_key(&owner))
        };
        let mut givers: Vec<usize> = (0..loads.len()).filter(|&server| live(server)).collect();
        let average = givers.iter().map(|&server| loads[server]).sum::<f64>() / givers.len().max(1) as f64;
        let least = balance.load_min.max(balance.ratio * average);
        givers.retain(|&server| loads[server] >= least);
        givers.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]));
        // The busiest may be surrounded by others that have too much: then these give first.
        givers.into_iter().find_map(|giver| self.best_move_of(giver, &loads, balance, grid, &live))
    }

    /// The cell that a server should give away, and to whom.
    fn best_move_of(
        &self,
        giver: usize,
        loads: &[f64],
        balance: &Balance,
        grid: &Grid,
        live: &impl Fn(usize) -> bool,
    ) -> Option<(Cell, ServerIndex)> {
        let world = self.world.as_ref()?;
        let cooldown = Duration::from_millis(balance.cooldown_ms.into());
        // Cells without load last, then by the higher of the two loads afterwards.
        let mut best: Option<((bool, f64), Cell, ServerIndex)> = None;
        let own: Vec<Cell> = world.cells_of(ServerIndex(giver as u32));
        for &cell in &own {
            let scale = world.scales.cells.get(cell.0 as usize)?;
            let rested =
                |times: u32| scale.moved.is_none_or(|(at, _)| self.board.now.since(at) >= cooldown * times);
            // A cell without load relieves nobody, but one with load may lie behind it.
            let behind = sides(grid, cell)
                .filter(|side| world.cells[side.0 as usize].server.0 as usize == giver)
                .filter_map(|side| Some(world.scales.cells.get(side.0 as usize)?.load));
            let relief = if scale.load > 0.0 { scale.load } else { behind.fold(0.0, f64::max) };
            // A server keeps at least one cell.
            if !rested(1) || relief == 0.0 || own.len() < 2 {
                continue;
            }
            for neighbour in sides(grid, cell) {
                let taker = world.cells[neighbour.0 as usize].server;
                let returns = scale.moved.is_some_and(|(_, from)| from == taker) && !rested(RETURN_COOLDOWNS);
                if taker.0 as usize == giver || returns || !live(taker.0 as usize) {
                    continue;
                }
                let taken = loads[taker.0 as usize] + relief;
                let rank = (scale.load == 0.0, taken.max(loads[giver] - relief));
                if taken <= loads[giver] * (1.0 - MARGIN)
                    && best.is_none_or(|(least, ..)| rank < least)
                    && stays_whole(grid, &own, cell)
                {
                    best = Some((rank, cell, taker));
                }
            }
        }
        best.map(|(_, cell, taker)| (cell, taker))
    }

    /// Gives a cell to another server, with its entities, and tells everybody whom regions concern.
    fn move_cell(&mut self, cell: Cell, to: ServerIndex) {
        let config = Arc::clone(&self.board.config);
        let Some(grid) = &config.spatial.grid else { return };
        let id = config.cell_channel(cell);
        let Some(world) = &mut self.world else { return };
        let slot = &world.slots[to.0 as usize];
        let (Some(taker), options) = (slot.owner, slot.options.clone()) else { return };
        let from = std::mem::replace(&mut world.cells[cell.0 as usize].server, to);
        if let Some(scale) = world.scales.cells.get_mut(cell.0 as usize) {
            scale.moved = Some((self.board.now, from));
        }
        let Some(channel) = self.channels.get_mut(&id) else { return };
        self.board.halfway += 1;
        let giver = channel.owner.filter(|giver| *giver != taker);
        channel.owner_replaced(&mut self.board, taker);
        failpoint!();
        self.subscribe_server(id, taker, options.as_ref());
        if let Some(giver) = giver {
            self.step_down(id, giver, grid.config().border_cells > 0);
        }
        if grid.config().border_cells > 0 {
            for side in sides(grid, cell) {
                self.subscribe_server(config.cell_channel(side), taker, options.as_ref());
            }
        }
        self.board.stats.cells_moved += 1;
        self.announce_regions();
        self.adopt_entities(cell, taker);
        self.board.halfway -= 1;
        self.retry_waiting();
    }

    /// A server that gave a cell away goes on watching it as a part of its border, or not at all.
    fn step_down(&mut self, id: ChannelId, giver: ConnId, watches: bool) {
        let board = &mut self.board;
        let (Some(channel), Some(address)) = (self.channels.get_mut(&id), board.address(giver)) else {
            return;
        };
        let (msg_type, sub, unsub);
        if watches {
            let options = ChannelSubscriptionOptions {
                data_access: Some(ChannelDataAccess::ReadAccess as i32),
                ..Default::default()
            };
            channel.subscribe(board, address, ConnKind::Server, Some(&options));
            (msg_type, sub, unsub) =
                (MessageType::SubToChannel, Some(channel.sub_result(giver, ConnKind::Server)), None);
        } else {
            channel.unsubscribe(board, giver);
            (msg_type, sub, unsub) =
                (MessageType::UnsubFromChannel, None, Some(channel.unsub_result(giver, ConnKind::Server)));
        }
        let head = Head::new(id, msg_type as u32);
        if let Some(result) = sub {
            board.send(giver, head, &result);
        }
        if let Some(result) = unsub {
            board.send(giver, head, &result);
        }
    }

    /// All regions to all spatial servers and to the owner of GLOBAL.
    fn announce_regions(&mut self) {
        let Some(world) = &self.world else { return };
        let mut to: Vec<ConnId> = world.slots.iter().filter_map(|slot| slot.owner).collect();
        to.extend(self.board.global_owner);
        to.sort_unstable();
        to.dedup();
        to.retain(|conn| self.board.peers.contains_key(conn));
        let head = Head::new(ChannelId::GLOBAL, MessageType::SpatialRegionsUpdate as u32);
        for part in self.regions() {
            for &conn in &to {
                self.board.send(conn, head, &part);
            }
        }
    }
}

/// The up to four cells that share a side with a cell.
fn sides(grid: &Grid, cell: Cell) -> impl Iterator<Item = Cell> {
    let columns = grid.config().columns;
    let (column, row) = (cell.0 % columns, cell.0 / columns);
    let west = (column > 0).then(|| Cell(cell.0 - 1));
    let east = (column + 1 < columns).then(|| Cell(cell.0 + 1));
    let south = (row > 0).then(|| Cell(cell.0 - columns));
    let north = (row + 1 < grid.config().rows).then(|| Cell(cell.0 + columns));
    [south, west, east, north].into_iter().flatten()
}

/// Whether a region is still in one piece when a cell leaves it.
fn stays_whole(grid: &Grid, region: &[Cell], leaving: Cell) -> bool {
    let mut rest: Vec<Cell> = region.iter().copied().filter(|cell| *cell != leaving).collect();
    let Some(first) = rest.pop() else { return false };
    let mut reached = vec![first];
    while let Some(cell) = reached.pop() {
        for side in sides(grid, cell) {
            if let Some(at) = rest.iter().position(|other| *other == side) {
                reached.push(rest.swap_remove(at));
            }
        }
    }
    rest.is_empty()
}
