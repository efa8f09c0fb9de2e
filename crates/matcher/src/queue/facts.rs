//! Facts of a party: its values, computed once when its ticket is made.

use serde_json::Value;
use smallvec::SmallVec;

use super::compiled::Compiled;
use super::rules::is_named_before;
use super::ruleset::{AttributeKind, PartySkill};
use crate::info::Text;
use crate::schema::v1;

/// Regions that a queue tells apart; those that come later are not known to it.
pub(crate) const REGIONS_MAX: usize = 64;

/// A value of one player.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Attr {
    #[default]
    Absent,
    Number(f64),
    Text(Text),
    List(Vec<Text>),
}

/// One player of a party.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlayerFacts {
    /// By the queue's keys.
    pub(crate) attrs: SmallVec<[Attr; 1]>,
    /// Positions by number, best first; none: any.
    pub(crate) wants: SmallVec<[u8; 8]>,
    /// Hash of the RoleID. Two roles with the same one would be kept apart needlessly, which harms
    /// nobody.
    pub(crate) role: u64,
    pub(crate) avoid: SmallVec<[u64; 1]>,
}

impl PlayerFacts {
    fn save(&self) -> v1::PlayerFacts<'_> {
        v1::PlayerFacts {
            attributes: self.attrs.iter().map(Attr::save).collect(),
            wants: self.wants.to_vec(),
            role: self.role,
            avoid: self.avoid.to_vec(),
        }
    }

    /// The text of a key, empty where there is none.
    pub(crate) fn text(&self, key: usize) -> &[u8] {
        match &self.attrs[key] {
            Attr::Text(text) => text,
            _ => &[],
        }
    }
}

/// Latencies of a party to one region, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ping {
    pub(crate) best: f32,
    /// Infinite when a player has none.
    pub(crate) worst: f32,
    pub(crate) sum: f32,
}

impl Ping {
    /// Returns whether every player is within a limit, which is rounded as latencies are.
    pub(crate) fn is_within(self, max_ms: f64) -> bool {
        self.worst.is_finite() && self.worst <= max_ms as f32
    }
}

const NO_PING: Ping = Ping { best: f32::INFINITY, worst: f32::INFINITY, sum: 0.0 };

/// A party as the rules see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) players: Vec<PlayerFacts>,
    /// True if any of them would rather not meet somebody: mostly nobody does, and then nothing is
    /// looked at elsewhere.
    pub(crate) avoids: bool,
    /// Number of players: those listed, or those of a match that a backfill stands for.
    pub(crate) size: u32,
    /// The party's value by key, of those that are numbers; not a number where it has none.
    pub(crate) values: SmallVec<[f64; 2]>,
    /// By the queue's regions.
    pub(crate) pings: SmallVec<[Ping; 4]>,
    /// The region in which the worst latency is least, of several the first by name.
    pub(crate) home: Option<u8>,
}

/// A player as a request describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlayerInput<'a> {
    pub(crate) role: &'a [u8],
    pub(crate) attrs: Vec<(&'a [u8], &'a [u8])>,
    pub(crate) pings: Vec<(&'a [u8], f64)>,
    pub(crate) wants: Vec<&'a [u8]>,
    pub(crate) avoid: Vec<&'a [u8]>,
    /// From the rating, where the queue has one: skill and its deviation.
    pub(crate) skill: Option<(f64, f64)>,
}

impl Attr {
    fn save(&self) -> v1::Attribute<'_> {
        match self {
            Attr::Absent => v1::Attribute::Absent,
            Attr::Number(number) => v1::Attribute::Number(*number),
            Attr::Text(text) => v1::Attribute::Text(text),
            Attr::List(list) => v1::Attribute::List(list.iter().map(|text| &text[..]).collect()),
        }
    }

    fn load(saved: &v1::Attribute<'_>) -> Attr {
        match saved {
            v1::Attribute::Absent => Attr::Absent,
            v1::Attribute::Number(number) => Attr::Number(*number),
            v1::Attribute::Text(text) => Attr::Text(Text::from_slice(text)),
            v1::Attribute::List(list) => Attr::List(list.iter().map(|text| Text::from_slice(text)).collect()),
        }
    }
}

impl Facts {
    pub(crate) fn save(&self) -> v1::Facts<'_> {
        let ping = |Ping { best, worst, sum }: &Ping| v1::Ping { best: *best, worst: *worst, sum: *sum };
        v1::Facts {
            players: self.players.iter().map(PlayerFacts::save).collect(),
            avoids: self.avoids,
            size: self.size,
            values: self.values.to_vec(),
            pings: self.pings.iter().map(ping).collect(),
            home: self.home,
        }
    }

    /// Facts that nothing reads.
    pub(crate) fn save_none() -> v1::Facts<'static> {
        let (players, values, pings) = (Vec::new(), Vec::new(), Vec::new());
        v1::Facts { players, avoids: false, size: 0, values, pings, home: None }
    }

    pub(crate) fn load(saved: &v1::Facts<'_>) -> Facts {
        let player = |player: &v1::PlayerFacts<'_>| PlayerFacts {
            attrs: player.attributes.iter().map(Attr::load).collect(),
            wants: SmallVec::from_slice(&player.wants),
            role: player.role,
            avoid: SmallVec::from_slice(&player.avoid),
        };
        let ping = |v1::Ping { best, worst, sum }: &v1::Ping| Ping { best: *best, worst: *worst, sum: *sum };
        Facts {
            players: saved.players.iter().map(player).collect(),
            avoids: saved.avoids,
            size: saved.size,
            values: SmallVec::from_slice(&saved.values),
            pings: saved.pings.iter().map(ping).collect(),
            home: saved.home,
        }
    }

    pub(crate) fn value(&self, key: usize) -> f64 {
        self.values.get(key).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn ping(&self, region: usize) -> Ping {
        self.pings.get(region).copied().unwrap_or(NO_PING)
    }

    /// Regions in which every player of the party is within `max_ms`, as bits.
    pub(crate) fn regions_within(&self, max_ms: f64) -> u64 {
        let mut mask = 0;
        for (region, ping) in self.pings.iter().enumerate() {
            if ping.is_within(max_ms) {
                mask |= 1 << region;
            }
        }
        mask
    }

    /// Players of a running match have no latency but in the region that it is played in, where
    /// they count as there: in any, also those that come later, where there is none.
    pub(crate) fn plays_in(&mut self, region: Option<u16>) {
        let regions = region.map_or(REGIONS_MAX, |region| usize::from(region) + 1);
        let here = |at: usize| region.is_none_or(|region| usize::from(region) == at);
        let there = Ping { best: f32::INFINITY, worst: 0.0, sum: 0.0 };
        self.pings = (0..regions).map(|at| if here(at) { there } else { NO_PING }).collect();
    }

    fn best_region(&self, regions: &[Text]) -> Option<u8> {
        let mut best: Option<(usize, f32)> = None;
        for (region, ping) in self.pings.iter().enumerate().filter(|(_, ping)| ping.worst.is_finite()) {
            let is_better = |(other, least): (usize, f32)| {
                ping.worst < least || ping.worst == least && is_named_before(regions, region, other)
            };
            if best.is_none_or(is_better) {
                best = Some((region, ping.worst));
            }
        }
        best.map(|(region, _)| region as u8)
    }
}

impl Compiled {
    /// The facts of a party under these rules. New regions are added to `regions`.
    ///
    /// # Errors
    /// What is wrong, with the key.
    pub(crate) fn facts(&self, party: &[PlayerInput<'_>], regions: &mut Vec<Text>) -> Result<Facts, String> {
        let mut facts = Facts { size: party.len() as u32, ..Facts::default() };
        facts.players.reserve_exact(party.len());
        for player in party {
            facts.players.push(self.player(player)?);
        }
        facts.avoids = facts.players.iter().any(|player| !player.avoid.is_empty());
        for key in 0..self.numbers {
            facts.values.push(self.party_value(&facts.players, key));
        }
        facts.pings = pings(party, regions)?;
        facts.home = facts.best_region(regions);
        Ok(facts)
    }

    fn player(&self, input: &PlayerInput<'_>) -> Result<PlayerFacts, String> {
        let mut player = PlayerFacts { role: hash(input.role), ..PlayerFacts::default() };
        player.attrs.resize(self.keys.len(), Attr::Absent);
        for (key, attribute) in &self.set.attributes {
            if let Some(default) = &attribute.default {
                player.attrs[self.key(key)] = attr(attribute.kind, default);
            }
        }
        for (key, json) in &input.attrs {
            let name = String::from_utf8_lossy(key);
            let Some(attribute) = self.set.attributes.get(name.as_ref()) else {
                let filled_in = self.set.rating.is_some() && (name == "skill" || name == "skill_dev");
                if filled_in {
                    let trusted = self.set.rating.as_ref().is_some_and(|rating| rating.trust_ticket);
                    let value: f64 =
                        serde_json::from_slice(json).map_err(|_| format!("`{name}`: not a number"))?;
                    if trusted {
                        player.attrs[self.key(&name)] = Attr::Number(value);
                    }
                    continue;
                }
                return Err(format!("`{name}` is not declared by the queue"));
            };
            let value: Value =
                serde_json::from_slice(json).map_err(|error| format!("`{name}` is not JSON: {error}"))?;
            attribute.check(&value).map_err(|why| format!("`{name}`: {why}"))?;
            player.attrs[self.key(&name)] = attr(attribute.kind, &value);
        }
        if let Some((skill, deviation)) = input.skill {
            for (key, value) in [("skill", skill), ("skill_dev", deviation)] {
                let slot = &mut player.attrs[self.key(key)];
                if *slot == Attr::Absent {
                    *slot = Attr::Number(value);
                }
            }
        }
        for name in &input.wants {
            let at = self.set.positions.iter().position(|position| position.name.as_bytes() == *name);
            let at = at.ok_or_else(|| format!("no position `{}`", String::from_utf8_lossy(name)))?;
            if !player.wants.contains(&(at as u8)) {
                player.wants.push(at as u8);
            }
        }
        player.avoid.extend(input.avoid.iter().map(|role| hash(role)));
        Ok(player)
    }

    /// A party's value of a key: by `party.skill`, and a bonus for each member beyond the first.
    pub(crate) fn party_value(&self, players: &[PlayerFacts], key: usize) -> f64 {
        let (mut sum, mut max, mut count) = (0.0, f64::NEG_INFINITY, 0.0);
        for player in players {
            let Attr::Number(value) = player.attrs[key] else { return f64::NAN };
            sum += value;
            max = f64::max(max, value);
            count += 1.0;
        }
        let mean = sum / count;
        let value = match self.set.party.skill {
            PartySkill::Max => max,
            PartySkill::Mean => mean,
            PartySkill::SoftMax => (max + mean) / 2.0,
        };
        value + self.set.party.bonus_per_extra * (count - 1.0)
    }
}

fn pings(party: &[PlayerInput<'_>], regions: &mut Vec<Text>) -> Result<SmallVec<[Ping; 4]>, String> {
    for (name, ms) in party.iter().flat_map(|player| &player.pings) {
        if !(ms.is_finite() && *ms >= 0.0) {
            return Err("a latency is not a number of ms".to_owned());
        }
        if regions.len() < REGIONS_MAX && !regions.iter().any(|region| region.as_slice() == *name) {
            regions.push(Text::from_slice(name));
        }
    }
    if party.iter().all(|player| player.pings.is_empty()) {
        return Ok(SmallVec::new());
    }
    let of = |player: &PlayerInput<'_>, region: &Text| {
        player.pings.iter().find(|(name, _)| *name == region.as_slice()).map(|(_, ms)| *ms as f32)
    };
    let ping = |region: &Text| {
        let mut ping = Ping { best: f32::INFINITY, worst: 0.0, sum: 0.0 };
        for player in party {
            let Some(ms) = of(player, region) else { return NO_PING };
            ping = Ping { best: ping.best.min(ms), worst: ping.worst.max(ms), sum: ping.sum + ms };
        }
        ping
    };
    Ok(regions.iter().map(ping).collect())
}

/// A value that was checked against its declaration.
fn attr(kind: AttributeKind, value: &Value) -> Attr {
    let text = |value: &Value| Text::from_slice(value.as_str().unwrap_or_default().as_bytes());
    match kind {
        AttributeKind::Number => value.as_f64().map_or(Attr::Absent, Attr::Number),
        AttributeKind::String => Attr::Text(text(value)),
        AttributeKind::StringList => {
            Attr::List(value.as_array().map_or_else(Vec::new, |list| list.iter().map(text).collect()))
        }
    }
}

/// FNV-1a, the same in every process: it is part of what a snapshot holds.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
